"""One order of all tasks for workers that launch everything from one thread (NCCL).

Requires a plan that verifies (V5): its tasks have an order in which each transfer's two ends, and all members of a
reduction, start together.
Ensures that order, the same on all devices: by depth in the wait graph, at equal depth transfers first, then compute,
then reductions, so that reductions never stand before what other devices wait for; among equals, the one that most
others wait for first (the ready queue of `specs/modules/ready_queue.spec.md`).
"""

from __future__ import annotations

from pibroch.runtime.generated import load_generated
from pibroch.runtime.plan import Plan

_FIRST = {"SEND": 0, "RECV": 0, "REDUCE": 2}


def launch_order(plan: Plan) -> dict[int, list[int]]:
    """Task ids per device, in launch order. O(n log n) for n tasks and waits."""
    unit = _units(plan)
    members: dict[int, list[int]] = {}
    for i, u in enumerate(unit):
        members.setdefault(u, []).append(i)
    before: dict[int, set[int]] = {u: set() for u in members}
    for names in plan.streams.values():
        for ids in names.values():
            previous = -1
            for i in ids:
                before[unit[i]].update(unit[w] for w in plan.tasks[i].waits)
                if previous >= 0:
                    before[unit[i]].add(unit[previous])
                previous = i
    depth = _depths(before)
    lanes = sorted({(depth[u], _FIRST.get(plan.tasks[u].op, 1)) for u in depth})
    lane = {key: n for n, key in enumerate(lanes)}
    by_depth = sorted(depth, key=lambda u: (depth[u], u))  # the queue wants what is waited for to come first
    number = {u: n for n, u in enumerate(by_depth)}
    queue = load_generated("ready_queue").ReadyQueue(
        [sorted(number[w] for w in before[u]) for u in by_depth],
        [lane[depth[u], _FIRST.get(plan.tasks[u].op, 1)] for u in by_depth],
    )
    order: dict[int, list[int]] = {d: [] for d in plan.streams}
    launched = 0
    for stream in range(len(lanes)):
        while (n := queue.take(stream)) is not None:
            for i in members[by_depth[n]]:
                order[plan.tasks[i].device].append(i)
                launched += 1
            queue.finish(n)
    assert launched == len(plan.tasks), "the plan's wait graph has a cycle (V5)"
    return order


def _depths(before: dict[int, set[int]]) -> dict[int, int]:
    """The longest chain of waits before each unit; what waits on a circle has none."""
    after: dict[int, list[int]] = {u: [] for u in before}
    for u, others in before.items():
        for other in others:
            after[other].append(u)
    missing = {u: len(others) for u, others in before.items()}
    depth = {u: 0 for u, n in missing.items() if not n}
    ready = list(depth)
    for u in ready:
        for v in after[u]:
            depth[v] = max(depth.get(v, 0), depth[u] + 1)
            missing[v] -= 1
            if not missing[v]:
                ready.append(v)
    return {u: depth[u] for u in ready}


def _units(plan: Plan) -> list[int]:
    """Per task, the smallest id of the tasks that start together with it."""
    together: dict[tuple[object, ...], list[int]] = {}
    for device, names in plan.streams.items():
        for name, ids in names.items():
            count: dict[tuple[object, ...], int] = {}
            for i in ids:
                task = plan.tasks[i]
                key: tuple[object, ...]
                if task.op in ("SEND", "RECV"):
                    key = ("transfer", name, *((device, task.peer) if task.op == "SEND" else (task.peer, device)))
                elif task.op == "REDUCE":
                    key = ("reduce", task.bucket)
                else:
                    continue
                count[key] = number = count.get(key, -1) + 1  # a channel is first in, first out
                together.setdefault((*key, number), []).append(i)
    unit = list(range(len(plan.tasks)))
    for members in together.values():
        for i in members:
            unit[i] = min(members)
    return unit
