"""How much faster a task could still become: a lower bound of a step for any legal schedule.

Terms
    D, k, m     devices, replicas, microbatches per replica
    f, i, w     seconds of F, BI and BW of a layer for one microbatch; b the least of a whole backward and i + w; the
                work of a layer is f + b
    unit        one layer of one replica. It is on one device, which runs all m of its microbatches.
    start(x)    the earliest time of F of layer x: all layers that x depends on have run. `head(x)` is that of the
                first F on a device whose lowest layer is x: what it needs has come over a link
    turn(x)     the earliest time of a backward of layer x. `drain(x)` is that of the first backward on a device whose
                highest layer is x: a gradient has come over a link
    tail(x)     from the end of BI of layer x to the end of the step: the rest of that microbatch's way back

For each k and m that the batch allows and the memory can hold, a step takes at least the largest of

    work        all work over D; and as of the j D + 1 largest units j + 1 share a device, the sum of the j + 1 smallest
    unit        for each layer: start + m work; turn + m b; start + m (f + i) + tail
    fill        with d devices in use, d T >= all work + the head of the lowest layer of each. A layer has k units, so
                at most k devices have the same lowest layer; the least over d
    drain       d T >= all backward work + the drain of the highest layer of each device; the least over d
    reductions  a layer's gradients are summed over the replicas after all its backwards

and the bound is the least of these over all k and m. It leaves out recomputation, reductions that queue, links that are
busy and the memory that activations take, so where these bind no schedule reaches it. Updates count nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from pibroch.evals.setting import Setting, open_setting
from pibroch.evals.task import find_task, task_names
from pibroch.runtime.costs import Costs
from pibroch.runtime.directives import Place, Replicate, Schedule, Split
from pibroch.runtime.families import FAMILIES, build, excluded
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec

SLOTS = 2  # optimizer tensors per parameter, as `lower` counts them


@dataclass(frozen=True, slots=True)
class Times:
    """Per layer: seconds of F, BI and the least of a whole backward, for one microbatch; of the quickest transfer of
    what it hands on, and of the gradient that it hands back; of the reduction of its gradients (0 with one replica)."""

    forward: tuple[float, ...]
    inputs: tuple[float, ...]
    backward: tuple[float, ...]
    onward: tuple[float, ...]
    back: tuple[float, ...]
    reduce: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Paths:
    """Per layer, in seconds (see above)."""

    start: tuple[float, ...]
    head: tuple[float, ...]
    turn: tuple[float, ...]
    drain: tuple[float, ...]
    tail: tuple[float, ...]


def lower_bound(setting: Setting) -> float:
    """Seconds that a step of any legal schedule of the task takes at least, on the setting's costs."""
    devices, bounds, bare = setting.task.devices, [], setting.without_overhead()
    for replicas in range(1, devices + 1):
        for microbatches in setting.choices(replicas):
            model = setting.model(replicas, microbatches)
            if fits(model, devices=devices, replicas=replicas, limit=setting.task.memory_limit):
                times = layer_times(model, bare.costs(replicas, microbatches), replicas=replicas)
                bounds.append(
                    bound_of(times, paths(model, times), devices=devices, replicas=replicas, microbatches=microbatches)
                )
    return min(bounds, default=0.0)


def headroom(bound: float, seconds: float) -> float:
    """How much longer than the bound a step takes: 0.1 where it is 10% longer."""
    return seconds / bound - 1


def bound_of(times: Times, ways: Paths, *, devices: int, replicas: int, microbatches: int) -> float:
    """The bound for one division of the batch (see above)."""
    m, layers = microbatches, range(len(times.forward))
    work = [f + b for f, b in zip(times.forward, times.backward, strict=True)]
    whole, backward = replicas * m * sum(work), replicas * m * sum(times.backward)
    found = [whole / devices, _crowded([m * x for x in work for _ in range(replicas)], devices)]
    for x in layers:
        last = max(ways.start[x] + m * work[x], ways.turn[x] + m * times.backward[x])
        found.append(last + times.reduce[x])
        found.append(ways.start[x] + m * (times.forward[x] + times.inputs[x]) + ways.tail[x])
    found.append(_shared(whole, ways.head, devices=devices, replicas=replicas))
    found.append(_shared(backward, ways.drain, devices=devices, replicas=replicas))
    return max(found)


def fits(model: ModelSpec, *, devices: int, replicas: int, limit: int | None) -> bool:
    """Whether the persistent bytes alone could lie on these devices: in sum, and layer by layer."""
    if limit is None:
        return True
    held = {name: p.nbytes * (2 + SLOTS if p.trainable else 1) for name, p in model.params.items()}
    users: dict[str, int] = {}
    for layer in model.layers:
        for name in layer.params:
            users[name] = users.get(name, 0) + 1
    # A tied parameter is there once where its layers share a device.
    alone = [sum(held[name] for name in layer.params if users[name] == 1) for layer in model.layers]
    crowded = _crowded([float(size) for size in alone for _ in range(replicas)], devices)
    return replicas * sum(held.values()) <= devices * limit and crowded <= limit


def paths(model: ModelSpec, times: Times) -> Paths:
    """Longest paths through the layers, along the values that they hand on (and the gradients, where there are any)."""
    count = len(model.layers)
    maker = {value: layer.index for layer in model.layers for value in layer.produces}
    before = [sorted({maker[v] for v in layer.consumes}) for layer in model.layers]
    flows = {(maker[v], layer.index) for layer in model.layers for v in layer.consumes if model.values[v].grad}
    start, head = [0.0] * count, [0.0] * count
    for x in range(count):
        start[x] = max((start[p] + times.forward[p] for p in before[x]), default=0.0)
        head[x] = max((start[p] + times.forward[p] + times.onward[p] for p in before[x]), default=0.0)
    # The first F on a device may be of any of its layers, where these do not depend on each other.
    head = list(accumulate(reversed(head), min))[::-1]
    turn, drain = [0.0] * count, [0.0] * count
    for x in reversed(range(count)):
        after = [y for p, y in flows if p == x]
        own = start[x] + times.forward[x]
        turn[x] = max([own, *(turn[y] + times.inputs[y] for y in after)])
        drain[x] = max([own, *(turn[y] + times.inputs[y] + times.back[y] for y in after)])
    drain = list(accumulate(drain, min))
    tail = [0.0] * count
    for x in range(count):
        # What is left after BI of x: the backwards of a layer before it, whole at the end of the way.
        tail[x] = max((max(times.backward[p], times.inputs[p] + tail[p]) for p, y in flows if y == x), default=0.0)
    return Paths(tuple(start), tuple(head), tuple(turn), tuple(drain), tuple(tail))


def layer_times(model: ModelSpec, costs: Costs, *, replicas: int) -> Times:
    """What the cost model gives to single layers: each is a stage of its own, on devices of its own."""
    count = len(model.layers)
    members = [[k * count + s for k in range(replicas)] for s in range(count)]
    directives: list[Any] = [Split(num_microbatches=1)]
    directives += [Place(filter={"PP": s}, devices=members[s]) for s in range(count)]
    if replicas > 1:
        directives += [Replicate(filter={"PP": s}, devices=members[s]) for s in range(count)]
    plan = lower(Schedule(directives=directives), model, update=False)
    compute = {op: [0.0] * count for op in ("F", "B", "BI", "BW")}
    onward, back, reduce = [float("inf")] * count, [float("inf")] * count, [0.0] * count
    for task in plan.tasks:
        if task.op == "REDUCE" and len({c.stage for c in plan.buckets[task.bucket].chunks}) == 1:
            stage = plan.buckets[task.bucket].chunks[0].stage
            reduce[stage] = max(reduce[stage], costs.collective(plan, task))
        elif task.replica:
            continue
        elif task.op == "SEND":
            row = onward if task.payload == "F" else back
            row[task.stage] = min(row[task.stage], sum(costs.transfer(plan, task)))
        elif task.op in compute:
            compute[task.op][task.stage] = costs.compute(plan, task)
            if task.op == "B":
                for op in ("BI", "BW"):
                    compute[op][task.stage] = costs.compute(plan, replace(task, op=op))
    halves = zip(compute["B"], compute["BI"], compute["BW"], strict=True)
    least = tuple(min(b, i + w) for b, i, w in halves)
    return Times(
        forward=tuple(compute["F"]),
        inputs=tuple(min(i, b) for i, b in zip(compute["BI"], least, strict=True)),
        backward=least,
        onward=tuple(onward),
        back=tuple(back),
        reduce=tuple(reduce),
    )


def table(names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A row per task (of all shipped ones): its kind and use, the bound, the best family and the headroom above it.

    The family is the best legal one of a plain grid: replicas, microbatches, stages per device, with and without
    recomputation, stages cut evenly by forward time.
    """
    rows = []
    for name in names or task_names():
        setting = open_setting(find_task(name))
        bound, (seconds, family) = lower_bound(setting), best_family(setting)
        rows.append(
            {
                "task": name,
                "kind": setting.task.kind,
                "use": setting.task.use,
                "devices": setting.task.devices,
                "samples": setting.task.samples,
                "layers": len(setting.model(1, setting.choices(1)[0]).layers),
                "memory_limit": setting.task.memory_limit,
                "bound_s": bound,
                "best_family": family,
                "best_family_s": seconds,
                "headroom": headroom(bound, seconds),
            }
        )
    return rows


def best_family(setting: Setting) -> tuple[float, str]:
    """Simulated seconds and description of the best legal family in a plain grid; infinite where none is legal."""
    best = (float("inf"), "none")
    layers, devices = len(setting.model(1, setting.choices(1)[0]).layers), setting.task.devices
    for replicas in (k for k in range(1, devices + 1) if devices % k == 0):
        positions = devices // replicas
        for microbatches in setting.choices(replicas):
            for family in FAMILIES:
                for per_device in range(1, min(4, layers // positions) + 1):
                    numbers: dict[str, Any] = {"devices": positions, "microbatches": microbatches, "replicas": replicas}
                    if excluded(family, stages_per_device=per_device, **numbers):
                        continue
                    for recompute in (False, True):
                        schedule = build(family, stages_per_device=per_device, recompute=recompute, **numbers)
                        plan = setting.lower(schedule)
                        simulation = setting.simulate(plan)
                        if simulation.makespan < best[0] and not setting.check(plan, simulation):
                            more = f", {per_device} stages per device" if per_device > 1 else ""
                            more += ", recomputed" if recompute else ""
                            best = (simulation.makespan, f"{family}, {replicas} x {microbatches} microbatches{more}")
    return best


def _crowded(sizes: list[float], devices: int) -> float:
    """Things lie whole on devices: of the j D + 1 largest, j + 1 share one. The largest of their least sums, over j."""
    ordered = sorted(sizes, reverse=True)
    last = range((len(ordered) - 1) // devices + 1)
    return max((sum(ordered[j * devices - j : j * devices + 1]) for j in last), default=0.0)


def _shared(work: float, waits: Sequence[float], *, devices: int, replicas: int) -> float:
    """The least over the devices in use of (work + the waits of each) / their number, the shortest waits first."""
    ordered = sorted(wait for wait in waits for _ in range(replicas))[:devices]
    return min((work + total) / used for used, total in enumerate(accumulate(ordered), start=1))
