"""plans: per-device streams in total order, the events that tasks wait on, and the receive window.

Requires ranked tasks with buffers.
Ensures every stream is sorted by rank; a task waits on the last task of each other stream of its device that it needs,
unless an earlier task of its own stream has waited for that already; a receive waits until the consumer `window`
places before its own has ended (the earliest such limit of all later receives of the channel, which come after it).
"""

from __future__ import annotations

from pibroch.runtime.dag import Dag
from pibroch.runtime.plan import Plan

RECV_WINDOW = 2
SEND_BUFFERS = 1


def run(dag: Dag) -> Plan:
    streams: dict[int, dict[str, list[int]]] = {d: {"compute": []} for d in range(dag.devices)}
    rank = dag.rank
    for i in sorted(range(len(dag.tasks)), key=lambda i: (rank[i], i)):
        task = dag.tasks[i]
        streams[task.device].setdefault(task.stream, []).append(i)
    position = [0] * len(dag.tasks)
    for names in streams.values():
        for ids in names.values():
            for n, i in enumerate(ids):
                position[i] = n
    limits = _receive_limits(dag, streams, position)
    for names in streams.values():
        for ids in names.values():
            _waits(dag, ids, position, limits)
    return Plan(
        model=dag.model.name,
        devices=dag.devices,
        microbatches=dag.microbatches,
        replicas=dag.replicas,
        loss=dag.model.loss,
        chunks=dag.chunks,
        placement=dag.placement,
        buckets=dag.buckets,
        tasks=dag.tasks,
        buffers=dag.buffers,
        streams=streams,
        trainable={p.name: p.nbytes for p in dag.model.params.values() if p.trainable},
        recv_window=RECV_WINDOW,
        send_buffers=SEND_BUFFERS,
    )


def _waits(dag: Dag, ids: list[int], position: list[int], limits: dict[int, int]) -> None:
    """Set `waits` for one stream. `reached[s]` is how far stream s is known to have come."""
    tasks = dag.tasks
    reached: dict[str, int] = {}
    for i in ids:
        task = tasks[i]
        needed: dict[str, int] = {}
        deps = task.deps if i not in limits else [*task.deps, limits[i]]
        for d in deps:
            other = tasks[d]
            if other.device == task.device and other.stream != task.stream:
                last = needed.get(other.stream)
                if position[d] > reached.get(other.stream, -1) and (last is None or position[d] > position[last]):
                    needed[other.stream] = d
        for stream, d in needed.items():
            reached[stream] = position[d]
        task.waits = tuple(needed.values())


def _receive_limits(dag: Dag, streams: dict[int, dict[str, list[int]]], position: list[int]) -> dict[int, int]:
    """For a receive, the compute task that must have ended before it is posted."""
    consumer: dict[int, int] = {}
    for task in dag.tasks:
        if task.stream == "compute":
            for d in task.deps:
                if dag.tasks[d].op == "RECV":
                    consumer[d] = position[task.id]
    limits: dict[int, int] = {}
    for names in streams.values():
        compute = names["compute"]
        for ids in names.values():
            if dag.tasks[ids[0]].op != "RECV" if ids else True:
                continue
            places = sorted(consumer[i] for i in ids)
            index = {place: n for n, place in enumerate(places)}
            earliest = len(compute)
            for i in reversed(ids):
                n = index[consumer[i]]
                earliest = min(earliest, places[n - RECV_WINDOW] if n >= RECV_WINDOW else -1)
                if earliest >= 0:
                    limits[i] = compute[earliest]
    return limits
