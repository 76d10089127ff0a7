"""Where every task of a plan stands, for the other parts of the verifier; and whether the plan is one at all."""

from __future__ import annotations

from dataclasses import dataclass, field

from pibroch.runtime.action import COMPUTE, Chunk
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.verify_report import Report

_OPS = {*COMPUTE, "SEND", "RECV", "REDUCE", "UPDATE"}


@dataclass(slots=True)
class Index:
    """Lookups over a well-formed plan. Streams are numbered over all devices.

    `cell` numbers (chunk, microbatch, replica): `done[op][cell]` is the task of that op, or -1. `pair[i]` is the
    partner of a transfer, or -1.
    """

    plan: Plan
    report: Report
    stream_lists: list[tuple[int, str, list[int]]] = field(default_factory=list)
    stream_of: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    chunk_index: dict[Chunk, int] = field(default_factory=dict)
    done: dict[str, list[int]] = field(default_factory=dict)
    pair: list[int] = field(default_factory=list)

    def cell(self, chunk: int, mb: int, replica: int) -> int:
        return (chunk * self.plan.replicas + replica) * self.plan.microbatches + mb


def build_index(plan: Plan, report: Report) -> Index | None:
    """The index, or None where ids point nowhere: then the report says where, and no other check makes sense."""
    index = Index(plan, report)
    if not (_frame(index) and _placed(index)):
        return None
    for task in plan.tasks:
        _check_task(index, task)
    return None if report.counts else index


def _frame(index: Index) -> bool:
    """Numbers, placement, chunks and buffers."""
    plan, report = index.plan, index.report
    if plan.devices < 1 or plan.microbatches < 1 or plan.replicas < 1 or plan.send_buffers < 1:
        report.add("V1", "devices, microbatches, replicas and send_buffers are at least 1")
    if not plan.chunks:
        report.add("V1", "the plan has no chunks")
    for stage, row in enumerate(plan.placement):
        if len(row) != plan.replicas or len(set(row)) != len(row) or not all(0 <= d < plan.devices for d in row):
            report.add("V1", f"stage {stage} is placed on {row}: {plan.replicas} different devices are needed")
    index.chunk_index = {c.key: i for i, c in enumerate(plan.chunks)}
    if len(index.chunk_index) != len(plan.chunks):
        report.add("V1", "two chunks have the same stage and part")
    if {c.stage for c in plan.chunks} != set(range(len(plan.placement))):
        report.add("V1", "the chunks' stages are not those that are placed")
    for c in plan.chunks:
        for value, other in (*c.inputs, *c.outputs):
            if other not in index.chunk_index:
                report.add("V2", f"chunk {c.key} exchanges {value} with chunk {Chunk(*other)}, which does not exist")
    for k, buffer in enumerate(plan.buffers):
        if buffer.id != k or not 0 <= buffer.device < plan.devices:
            report.add("V6", f"buffer {k} ({buffer.label}) has id {buffer.id} and device {buffer.device}")
    for k, bucket in enumerate(plan.buckets):
        if bucket.id != k or any(c not in index.chunk_index for c in bucket.chunks):
            report.add("V8", f"bucket {k} has id {bucket.id} and chunks {[str(Chunk(*c)) for c in bucket.chunks]}")
    return not report.counts


def _placed(index: Index) -> bool:
    """Every task in exactly one place of one stream of its own device."""
    plan, report = index.plan, index.report
    tasks, count = plan.tasks, len(plan.tasks)
    index.stream_of, index.position = [-1] * count, [-1] * count
    for device in sorted(plan.streams):
        if not 0 <= device < plan.devices:
            report.add("V1", f"streams of device {device}: devices are 0 to {plan.devices - 1}")
            continue
        for name, ids in plan.streams[device].items():
            number = len(index.stream_lists)
            index.stream_lists.append((device, name, ids))
            for at, i in enumerate(ids):
                if not 0 <= i < count:
                    report.add("V1", f"task {i} does not exist", device=device, stream=name)
                elif index.stream_of[i] >= 0:
                    report.add("V1", "stands in more than one place", i)
                else:
                    index.stream_of[i], index.position[i] = number, at
                    if tasks[i].id != i or tasks[i].device != device or tasks[i].stream != name:
                        report.add("V1", f"stands in stream {name} of device {device}, which is not its own", i)
    for i in range(count):
        if index.stream_of[i] < 0:
            report.add("V1", "stands in no stream, so it never runs", i)
    return not report.counts


def _check_task(index: Index, task: Task) -> None:
    """Ids of one task that point nowhere."""
    plan, add, i = index.plan, index.report.add, task.id
    op = task.op
    if op not in _OPS:
        add("V1", f"{op!r} is no operation", i)
        return
    if op == "REDUCE":
        if not 0 <= task.bucket < len(plan.buckets):
            add("V8", f"bucket {task.bucket} does not exist", i)
    elif op == "UPDATE":
        if not 0 <= task.stage < len(plan.placement):
            add("V1", f"stage {task.stage} does not exist", i)
    else:
        if (task.stage, task.part) not in index.chunk_index:
            add("V1", f"chunk {task.chunk} does not exist", i)
        if not (0 <= task.mb < plan.microbatches and 0 <= task.replica < plan.replicas):
            add("V1", f"microbatch {task.mb}, replica {task.replica} do not exist", i)
        if op in ("SEND", "RECV") and (
            not 0 <= task.peer < plan.devices
            or task.peer == task.device
            or (task.peer_stage, task.peer_part) not in index.chunk_index
            or task.payload not in ("F", "B")
        ):
            add("V3", f"peer device {task.peer}, payload {task.payload!r}: no such other end", i)
    for w in task.waits:
        if not 0 <= w < len(plan.tasks):
            add("V5", f"waits for task {w}, which does not exist", i)
        elif plan.tasks[w].device != task.device:
            add("V5", f"waits for {index.report.name(w)}: an event is known on its own device only", i, w)
    for b in (*task.reads, *task.writes, *task.frees):
        if not 0 <= b < len(plan.buffers):
            add("V6", f"uses buffer {b}, which does not exist", i)
        elif plan.buffers[b].device != task.device:
            add("V6", f"uses buffer {b} ({plan.buffers[b].label}) of device {plan.buffers[b].device}", i)
