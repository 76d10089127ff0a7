"""order: the edges that `order` rows ask for, and one topological order of everything.

Requires all tasks of all devices with their data dependences.
Ensures each row's groups follow each other on every replica; `dag.rank` is a topological order in which tasks that no
row names follow the default order (all forwards by microbatch, then all backwards by microbatch); receives rank as
their sends do, so that channels are first in, first out; and members of one collective rank equally.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import pairwise

from pibroch.runtime.dag import Dag, invalid
from pibroch.runtime.directives import Order
from pibroch.runtime.passes.filters import Selected, select

_COMMUNICATION = ("SEND", "RECV", "REDUCE")


def run(dag: Dag) -> None:
    for where, row in enumerate(dag.schedule.directives):
        if isinstance(row, Order):
            _add_row(dag, where, row)
    _rank(dag)


def _add_row(dag: Dag, where: int, row: Order) -> None:
    seen: set[Selected] = set()
    devices: list[int] | None = None
    before: list[Selected] = []
    for group in row.groups():
        ends: list[Selected] = []
        for filt in group:
            chain = select(dag, where, filt)
            for one in chain:
                if one in seen:
                    raise invalid(where, f"{_text(one)} appears twice in one row")
                seen.add(one)
                if devices is None:
                    devices = dag.placement[one[1]]
                elif dag.placement[one[1]] != devices:
                    raise invalid(
                        where, f"a row orders one device set: {_text(one)} runs on {dag.placement[one[1]]}, "
                        f"what precedes it on {devices}"
                    )  # fmt: skip
            for first in before:
                _add_edge(dag, first, chain[0])
            for first, second in pairwise(chain):
                _add_edge(dag, first, second)
            ends.append(chain[-1])
        before = ends


def _add_edge(dag: Dag, first: Selected, second: Selected) -> None:
    a, b = dag.compute[first], dag.compute[second]
    for replica in range(dag.replicas):
        offset = replica * dag.block
        dag.tasks[b + offset].deps.append(a + offset)


def _text(one: Selected) -> str:
    op, stage, part, mb = one
    return f"{stage}{f'.{part}' if part else ''}{op}{mb}"


def _rank(dag: Dag) -> None:
    """Kahn's algorithm with the default order as priority."""
    tasks = dag.tasks
    followers: list[list[int]] = [[] for _ in tasks]
    missing = [0] * len(tasks)
    for task in tasks:
        missing[task.id] = len(task.deps)
        for d in task.deps:
            followers[d].append(task.id)
    keys = _priorities(dag)
    heap = [(keys[i], i) for i, n in enumerate(missing) if not n]
    heapq.heapify(heap)
    rank = [-1] * len(tasks)
    position = 0
    while heap:
        i = heapq.heappop(heap)[1]
        rank[i] = position
        position += 1
        for j in followers[i]:
            missing[j] -= 1
            if not missing[j]:
                heapq.heappush(heap, (keys[j], j))
    if position < len(tasks):
        raise _cycle(dag, rank)
    last: dict[int, int] = {}
    for task in tasks:
        if task.op == "RECV":
            rank[task.id] = rank[task.deps[0]]
        elif task.op == "REDUCE":
            last[task.bucket] = max(last.get(task.bucket, -1), rank[task.id])
    for task in tasks:
        if task.op == "REDUCE":
            rank[task.id] = last[task.bucket]
    dag.rank = rank


def _priorities(dag: Dag) -> list[int]:
    chunk_index = {c.key: i for i, c in enumerate(dag.chunks)}
    chunks = len(dag.chunks)
    third = chunks * (dag.microbatches + 1)
    keys = []
    for t in dag.tasks:
        if t.op in _COMMUNICATION:
            keys.append(-1)
        elif t.op == "UPDATE":
            keys.append(4 * third + t.stage)
        else:
            index = chunk_index[t.stage, t.part]  # type: ignore[index]
            if t.op == "F":
                keys.append(t.mb * chunks + index)
            else:
                keys.append((2 if t.op == "BW" else 1) * third + t.mb * chunks + chunks - index)
    return keys


def _cycle(dag: Dag, rank: list[int]) -> Exception:
    """Name one cycle among the tasks that could not be ordered."""
    i = next(i for i, r in enumerate(rank) if r < 0)
    seen: dict[int, int] = {}
    path: deque[int] = deque()
    while i not in seen:
        seen[i] = len(path)
        path.append(i)
        i = next(d for d in dag.tasks[i].deps if rank[d] < 0)
    loop = [*list(path)[seen[i] :], i][::-1]
    names = [f"{dag.tasks[j]} (device {dag.tasks[j].device})" for j in loop]
    if len(names) > 12:
        names = [*names[:6], "...", *names[-5:]]
    return invalid(None, f"order rows contradict what depends on what: {' -> '.join(names)}", rule="V5")


def ensures(dag: Dag) -> None:
    assert len(dag.rank) == len(dag.tasks)
    for task in dag.tasks:
        assert all(dag.rank[d] <= dag.rank[task.id] for d in task.deps)
