"""A pipeline's plan built by hand, and its times by a relaxation of our own: independent of compiler and simulator."""

from __future__ import annotations

from dataclasses import dataclass, field

from pibroch.runtime.action import Chunk
from pibroch.runtime.plan import Bucket, Buffer, ChunkSpec, Plan, Task
from pibroch.runtime.trace import memory


def pipeline_plan(devices: int, microbatches: int, *, replicas: int = 1, split_backward: bool = False) -> Plan:
    """1F1B over `devices` stages: position d of replica k is device k * devices + d. With `split_backward` each
    backward is BI followed by BW."""
    tasks: list[Task] = []
    buffers: list[Buffer] = []
    streams: dict[int, dict[str, list[int]]] = {}
    buckets = []

    def add(op: str, device: int, stream: str, **fields: object) -> int:
        task = Task(len(tasks), op, device=device, stream=stream, **fields)  # type: ignore[arg-type]
        tasks.append(task)
        streams[device].setdefault(stream, []).append(task.id)
        return task.id

    def buffer(kind: str, device: int, nbytes: int) -> int:
        buffers.append(Buffer(len(buffers), kind, device, nbytes))
        return buffers[-1].id

    for replica in range(replicas):
        for stage in range(devices):
            device = replica * devices + stage
            streams[device] = {"compute": [], "pp": []}
            buffer("parameter", device, 400)
            buffer("gradient", device, 400)
            common = {"stage": stage, "replica": replica}
            left = {"peer": device - 1, "peer_stage": stage - 1}
            right = {"peer": device + 1, "peer_stage": stage + 1}
            saved = [buffer("saved", device, 100) for _ in range(microbatches)]
            last = -1
            for kind, mb in one_f_one_b(stage, devices, microbatches):
                here = {**common, "mb": mb}
                if kind == "F":
                    waits = () if stage == 0 else (add("RECV", device, "pp", payload="F", **here, **left),)
                    last = add("F", device, "compute", waits=waits, writes=(saved[mb],), **here)
                    if stage < devices - 1:
                        add("SEND", device, "pp", payload="F", waits=(last,), **here, **right)
                else:
                    waits = ()
                    if stage < devices - 1:
                        waits = (add("RECV", device, "pp", payload="B", **here, **right),)
                    op = "BI" if split_backward else "B"
                    frees = () if split_backward else (saved[mb],)
                    last = add(op, device, "compute", waits=waits, reads=(saved[mb],), frees=frees, **here)
                    if stage > 0:
                        add("SEND", device, "pp", payload="B", waits=(last,), **here, **left)
                    if split_backward:
                        last = add("BW", device, "compute", reads=(saved[mb],), frees=(saved[mb],), **here)
            group = tuple(k * devices + stage for k in range(replicas))
            waits = ()
            if replicas > 1:
                waits = (add("REDUCE", device, "reduce", bucket=stage, group=group, waits=(last,), **common),)
                if replica == 0:
                    buckets.append(Bucket(stage, (f"w{stage}",), (Chunk(stage),), group, 400))
            add("UPDATE", device, "compute", waits=waits, **common)
    return Plan(
        model="hand", devices=devices * replicas, microbatches=microbatches, replicas=replicas, loss="mean",
        chunks=[ChunkSpec(s, 0, s, s + 1, params=(f"w{s}",)) for s in range(devices)],
        placement=[[k * devices + s for k in range(replicas)] for s in range(devices)],
        buckets=buckets, tasks=tasks, buffers=buffers, streams=streams, send_buffers=microbatches,
    )  # fmt: skip


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    warm = min(stages - stage - 1, microbatches)
    rows = [("F", i) for i in range(warm)]
    for i in range(microbatches - warm):
        rows += [("F", warm + i), ("B", i)]
    return rows + [("B", i) for i in range(microbatches - warm, microbatches)]


@dataclass
class HandTimes:
    """Times per task id, in the shape that a simulation has."""

    plan: Plan
    start: list[float]
    end: list[float]
    makespan: float
    busy: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    bubble: float = 0.0

    def memory(self, device: int) -> list[tuple[float, int]]:
        return memory(self.plan, self, device)


def hand_times(plan: Plan, *, cost: dict[str, float] | None = None) -> HandTimes:
    """Earliest times by relaxation. A RECV is posted early and ends when the SEND does; each stream of a plan of
    `pipeline_plan` holds its own channel orders, so receives here wait for the previous receive only."""
    cost = {"F": 1, "B": 2, "BI": 1, "BW": 1, "SEND": 0.25, "REDUCE": 2, "UPDATE": 0.5} | (cost or {})
    size = len(plan.tasks)
    start, end = [0.0] * size, [-1.0] * size
    sends = {(t.stage, t.peer_stage, t.payload, t.mb, t.replica): t.id for t in plan.tasks if t.op == "SEND"}
    previous: dict[int, int] = {}
    for names in plan.streams.values():
        for ids in names.values():
            last: dict[bool, int] = {}
            for i in ids:
                kind = plan.tasks[i].op == "RECV"
                if kind in last:
                    previous[i] = last[kind]
                last[kind] = i
    pending = list(range(size))
    while pending:
        rest = []
        for i in pending:
            task = plan.tasks[i]
            needs = [*task.waits, *([previous[i]] if i in previous else [])]
            if task.op == "RECV":
                needs.append(sends[task.peer_stage, task.stage, task.payload, task.mb, task.replica])
            if task.op == "REDUCE":
                twins = [t for t in plan.tasks if t.op == "REDUCE" and t.bucket == task.bucket]
                needs = [w for t in twins for w in t.waits]
            if any(end[n] < 0 for n in needs):
                rest.append(i)
                continue
            if task.op == "RECV":
                start[i], end[i] = start[needs[-1]], end[needs[-1]]
                continue
            start[i] = max((end[n] for n in needs), default=0.0)
            end[i] = start[i] + cost[task.op]
        assert len(rest) < len(pending), "the plan waits for itself"
        pending = rest
    makespan = max(end)
    busy = [sum(end[i] - start[i] for i in plan.streams[d]["compute"]) for d in range(plan.devices)]
    times = HandTimes(plan, start, end, makespan, busy, [makespan - b for b in busy], [0.0] * plan.devices)
    times.bubble = 1 - sum(busy) / (makespan * plan.devices)
    times.peak_bytes = [max(n for _, n in times.memory(d)) for d in range(plan.devices)]
    return times
