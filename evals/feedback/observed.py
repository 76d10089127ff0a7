"""What a trace says of each task: how long it took without what it waited for.

Terms
    service     of a transfer: from when both ends are there and the sender's link is free, to the end.
    gap         before a task: all that it waits for is done, its stream is free, and it has not started. Of a transfer
                or a reduction, whose ends wait for each other, the last end's counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from pibroch.runtime.costs import Costs
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.trace import Event, Trace, bubbles, matches

COMPUTE = ("F", "B", "BI", "BW")
Key = tuple[int, int, str]
"""(stage, part, op)"""


@dataclass(frozen=True)
class Observed:
    """Seconds: of the whole `step`, `compute` per compute task, `service` per SEND, `collective` per bucket; `gap`
    before a compute task or a SEND, `gap_collective` before a bucket's reduction. `late` is the device of a gap.
    `reference` (tasks), `reference_collective` and `latency` are the same as the cost model has them."""

    plan: Plan
    step: float
    compute: dict[int, float]
    gap: dict[int, float]
    service: dict[int, float]
    collective: dict[int, float]
    reference: dict[int, float]
    reference_collective: dict[int, float]
    latency: dict[int, float]
    gap_collective: dict[int, float]
    late: dict[int, int]

    @cached_property
    def expected(self) -> dict[Key, float]:
        """The reference's seconds per (stage, part, op)."""
        tasks = self.plan.tasks
        return {key_of(tasks[i]): self.reference[i] for i in self.compute if tasks[i].op in COMPUTE}

    def medians(self) -> dict[int, dict[Key, float]]:
        """Per device and (stage, part, op) the median over its microbatches, updates left out."""
        found: dict[int, dict[Key, list[float]]] = {}
        for i, seconds in self.compute.items():
            task = self.plan.tasks[i]
            if task.op in COMPUTE:
                found.setdefault(task.device, {}).setdefault(key_of(task), []).append(seconds)
        return {d: {key: median(times) for key, times in rows.items()} for d, rows in found.items()}

    def replay(self) -> Fixed:
        """These durations as a cost model of this very plan; a gap is part of the task that it precedes."""
        transfers = {i: (min(self.latency[i], s), max(s - self.latency[i], 0.0)) for i, s in self.service.items()}
        return Fixed(dict(self.compute), transfers, dict(self.collective)).longer(self.gap, self.gap_collective)


@dataclass(frozen=True)
class Fixed:
    """A cost model of one plan, task by task; reductions by bucket."""

    seconds: dict[int, float]
    transfers: dict[int, tuple[float, float]]
    collectives: dict[int, float]

    def compute(self, plan: Plan, task: Task) -> float:
        return self.seconds[task.id]

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        return self.transfers[task.id]

    def collective(self, plan: Plan, task: Task) -> float:
        return self.collectives[task.bucket]

    def with_compute(self, change: Callable[[int, float], float]) -> Fixed:
        return replace(self, seconds={i: change(i, s) for i, s in self.seconds.items()})

    def with_transfers(self, change: Callable[[int, float, float], tuple[float, float]]) -> Fixed:
        return replace(self, transfers={i: change(i, *pair) for i, pair in self.transfers.items()})

    def with_collectives(self, change: Callable[[int, float], float]) -> Fixed:
        return replace(self, collectives={i: change(i, s) for i, s in self.collectives.items()})

    def longer(self, tasks: Mapping[int, float], buckets: Mapping[int, float], *, sign: int = 1) -> Fixed:
        """Each named task or bucket longer by so much, or shorter with `sign` -1."""
        return Fixed(
            {i: max(s + sign * tasks.get(i, 0.0), 0.0) for i, s in self.seconds.items()},
            {i: (max(a + sign * tasks.get(i, 0.0), 0.0), b) for i, (a, b) in self.transfers.items()},
            {b: max(s + sign * buckets.get(b, 0.0), 0.0) for b, s in self.collectives.items()},
        )

    def on_link(self, extra: Mapping[int, float], *, sign: int = 1) -> Fixed:
        """Each named transfer longer on its link by so much, or shorter with `sign` -1."""
        return self.with_transfers(lambda i, latency, link: (latency, max(link + sign * extra.get(i, 0.0), 0.0)))

    def by_key(self, plan: Plan) -> dict[Key, float]:
        """Seconds per (stage, part, op)."""
        return {key_of(plan.tasks[i]): s for i, s in self.seconds.items()}

    def silent(self) -> Fixed:
        """The same where communication takes no time."""
        return replace(
            self,
            transfers=dict.fromkeys(self.transfers, (0.0, 0.0)),
            collectives=dict.fromkeys(self.collectives, 0.0),
        )


def key_of(task: Task) -> Key:
    return task.stage, task.part, task.op


def fixed(plan: Plan, costs: Costs) -> Fixed:
    """A cost model's answers for one plan, written out."""
    compute, transfers, collectives = {}, {}, {}
    for task in plan.tasks:
        if task.stream == "compute":
            compute[task.id] = costs.compute(plan, task)
        elif task.op == "SEND":
            transfers[task.id] = costs.transfer(plan, task)
        elif task.op == "REDUCE":
            collectives[task.bucket] = costs.collective(plan, task)
    return Fixed(compute, transfers, collectives)


def observe(trace: Trace, costs: Costs) -> Observed:
    """Take a trace apart. A task that the trace lacks counts as the reference has it."""
    plan, ran = trace.plan, {event.task: event for event in trace.events}
    want = fixed(plan, costs)
    compute = {i: ran[i].end - ran[i].start if i in ran else s for i, s in want.seconds.items()}
    service = {i: sum(pair) for i, pair in want.transfers.items()}
    latency = {i: pair[0] for i, pair in want.transfers.items()}
    collective = dict(want.collectives)
    ready = _ready(plan, ran)
    gap: dict[int, float] = {}
    gap_collective: dict[int, float] = {}
    late = {i: plan.tasks[i].device for i in compute}
    by_sender: dict[int, list[tuple[float, float, int]]] = {}
    for send, receive in matches(plan):
        if send in ran and receive in ran:
            begun, last = max((ran[i].start, i) for i in (send, receive))
            gap[send], late[send] = max(begun - max(ready[send], ready[receive]), 0.0), plan.tasks[last].device
            end = max(begun, ran[receive].end)
            by_sender.setdefault(plan.tasks[send].device, []).append((begun, end, send))
    for rows in by_sender.values():
        free = 0.0
        for begun, end, send in sorted(rows):
            service[send] = end - max(begun, min(free, end))
            free = max(free, end - min(latency[send], service[send]))
    members: dict[int, list[int]] = {}
    for task in plan.tasks:
        if task.op == "REDUCE" and task.id in ran:
            members.setdefault(task.bucket, []).append(task.id)
    for bucket, ids in members.items():
        begun = max(ran[i].start for i in ids)
        collective[bucket] = max(max(ran[i].end for i in ids) - begun, 0.0)
        gap_collective[bucket] = max(begun - max(ready[i] for i in ids), 0.0)
    for bubble in bubbles(trace):
        if bubble.cause == "dispatch" and bubble.task >= 0:
            gap[bubble.task] = gap.get(bubble.task, 0.0) + bubble.seconds
    reference = {**want.seconds, **{i: sum(pair) for i, pair in want.transfers.items()}}
    return Observed(
        plan, trace.makespan, compute, gap, service, collective, reference, want.collectives, latency,
        gap_collective, late,
    )  # fmt: skip


def _ready(plan: Plan, ran: Mapping[int, Event]) -> dict[int, float]:
    """When each send, receive and reduction could have started: what it waits for has ended, and its stream is free."""
    ready: dict[int, float] = {}
    for names in plan.streams.values():
        for name, ids in names.items():
            for n, i in enumerate(ids if name != "compute" else []):
                times = [ran[w].end for w in plan.tasks[i].waits if w in ran]
                if plan.tasks[i].op == "RECV":  # posted ahead of the one before it
                    times += [ran[j].start for j in ids[max(n - 1, 0) : n] if j in ran]
                else:
                    ahead = plan.send_buffers if plan.tasks[i].op == "SEND" else 1
                    times += [ran[ids[n - ahead]].end] if n >= ahead and ids[n - ahead] in ran else []
                ready[i] = max(times, default=0.0)
    return ready
