"""V3, transfers pair up per channel; V4, collectives are launched in one order on all members."""

from __future__ import annotations

from collections.abc import Sequence

from pibroch.runtime.model import ModelSpec, TensorSpec
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.verify_index import Index

Communicator = tuple[tuple[int, ...], str]


def check_transfers(index: Index, model: ModelSpec | None) -> None:
    """V3: the k-th send of a channel meets its k-th receive, and both speak of the same data. Fills `index.pair`."""
    plan, report = index.plan, index.report
    tasks, placement = plan.tasks, plan.placement
    index.pair = [-1] * len(tasks)
    channels: dict[tuple[int, int, str], tuple[list[int], list[int]]] = {}
    for device, name, ids in index.stream_lists:
        kind: tuple[str, int, str] | None = None
        for i in ids:
            t = tasks[i]
            if name == "compute":
                if t.op in ("SEND", "RECV", "REDUCE"):
                    report.add("V5", "communication never stands in the compute stream: it would wait there", i)
            elif kind is None:
                kind = (t.op, t.peer, t.payload)
            elif kind != (t.op, t.peer, t.payload):
                report.add("V3", "a communication stream has sends or receives of one channel and payload only", i)
            if t.op == "SEND":
                channels.setdefault((device, t.peer, name), ([], []))[0].append(i)
            elif t.op == "RECV":
                channels.setdefault((t.peer, device, name), ([], []))[1].append(i)
            else:
                continue
            if placement[t.stage][t.replica] != device or placement[t.peer_stage][t.replica] != t.peer:
                report.add(
                    "V3",
                    f"connects devices {device} and {t.peer}, but replica {t.replica} of stages {t.stage} and "
                    f"{t.peer_stage} is on {placement[t.stage][t.replica]} and {placement[t.peer_stage][t.replica]}",
                    i,
                )
    for (source, target, name), (sends, receives) in channels.items():
        for s, r in zip(sends, receives, strict=False):
            index.pair[s], index.pair[r] = r, s
            if difference := _difference(plan, tasks[s], tasks[r], model):
                report.add("V3", f"meets {report.name(r)} (both are next on their channel), but {difference}", s, r)
        for i in (*sends[len(receives) :], *receives[len(sends) :]):
            report.add(
                "V3",
                f"has no partner: channel {source}>{target} of stream {name} has {len(sends)} sends "
                f"and {len(receives)} receives",
                i,
            )


def _difference(plan: Plan, s: Task, r: Task, model: ModelSpec | None) -> str:
    """What a send and the receive that it meets disagree on, or an empty string."""
    if (s.stage, s.part, s.peer_stage, s.peer_part) != (r.peer_stage, r.peer_part, r.stage, r.part):
        return "the chunks at its ends differ"
    if s.payload != r.payload:
        return f"one is payload {s.payload}, the other {r.payload}"
    if s.mb != r.mb or s.replica != r.replica:
        return f"one is microbatch {s.mb} of replica {s.replica}, the other {r.mb} of {r.replica}"
    if s.values != r.values:
        return f"one carries {_list(s.values)}, the other {_list(r.values)}"
    if len(s.reads) != 1 or len(r.writes) != 1 or r.reads or s.writes:
        return "a send reads one buffer and a receive writes one"
    sent, received = _tensors(plan, s.reads), _tensors(plan, r.writes)
    if sent != received:
        return f"one is {_shapes(sent)}, the other {_shapes(received)}"
    if model is not None and sent:
        expected = [model.values[v] for v in s.values if v in model.values]
        if [(t.shape, t.dtype) for t in expected] != [(t.shape, t.dtype) for t in sent]:
            return f"{_list(s.values)} is {_shapes(expected)} in the model, not {_shapes(sent)}"
    return ""


def _tensors(plan: Plan, buffers: Sequence[int]) -> list[TensorSpec]:
    return [t for b in buffers for t in plan.buffers[b].tensors]


def _shapes(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors) or "nothing"


def _list(values: Sequence[str]) -> str:
    return ", ".join(values) or "nothing"


def check_collectives(index: Index) -> None:
    """V4, one order per communicator: every member launches the same buckets in the same order."""
    plan, report = index.plan, index.report
    launches: dict[Communicator, dict[int, list[int]]] = {}
    for device, name, ids in index.stream_lists:
        for i in ids:
            t = plan.tasks[i]
            if t.op == "REDUCE":
                launches.setdefault((t.group, name), {}).setdefault(device, []).append(i)
                if t.group != plan.buckets[t.bucket].group:
                    report.add("V4", f"its group is {t.group}, that of its bucket {plan.buckets[t.bucket].group}", i)
    for (group, name), members in launches.items():
        for device, ids in members.items():
            if device not in group:
                report.add("V4", f"device {device} is not in the group {group} that it launches on", ids[0])
        first = next(iter(members))
        expected = [plan.tasks[i].bucket for i in members[first]]
        for device in group:
            ids = members.get(device, [])
            found = [plan.tasks[i].bucket for i in ids]
            if found != expected:
                at = next((k for k, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(found))
                shown = [ids[min(at, len(ids) - 1)]] if ids else []
                other = members[first][min(at, len(expected) - 1)]
                report.add(
                    "V4",
                    f"group {group}, stream {name}: device {first} launches {_buckets(expected)}, "
                    f"device {device} {_buckets(found)}",
                    *shown,
                    other,
                )


def check_launches(index: Index, compute_before: Sequence[int]) -> None:
    """V4, one order of launches on different communicators, on all devices that share both.

    `compute_before[i]` is the number of compute tasks of its device that a REDUCE waits for, directly or not. It tells
    which of two collectives is ready first where the streams leave that open: one stream orders them itself.
    """
    plan, report = index.plan, index.report
    by_device: dict[int, list[int]] = {}
    for _, _, ids in index.stream_lists:
        for i in ids:
            if plan.tasks[i].op == "REDUCE":
                by_device.setdefault(plan.tasks[i].device, []).append(i)
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    for launched in by_device.values():
        if len({(plan.tasks[i].group, plan.tasks[i].stream) for i in launched}) == 1:
            continue
        for n, a in enumerate(launched):
            for b in launched[n + 1 :]:
                x, y = plan.tasks[a], plan.tasks[b]
                if (x.group, x.stream) == (y.group, y.stream):
                    continue
                if x.stream == y.stream:
                    order = -1 if index.position[a] < index.position[b] else 1
                else:
                    order = (compute_before[a] > compute_before[b]) - (compute_before[a] < compute_before[b])
                key = (x.bucket, y.bucket) if x.bucket < y.bucket else (y.bucket, x.bucket)
                sign = order if x.bucket < y.bucket else -order
                other = seen.setdefault(key, (sign, a))
                if sign * other[0] < 0:
                    report.add(
                        "V4",
                        f"launched {'before' if order < 0 else 'after'} {y}, but the other way round on device "
                        f"{plan.tasks[other[1]].device}, which shares both groups",
                        a,
                        b,
                        other[1],
                    )


def _buckets(ids: Sequence[int]) -> str:
    return " ".join(f"R{b}" for b in ids) or "nothing"
