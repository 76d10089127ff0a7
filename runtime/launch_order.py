"""One order of all tasks for workers that launch everything from one thread (NCCL).

Requires a plan that verifies (V5): its tasks have an order in which each transfer's two ends, and all members of a
reduction, start together.
Ensures that order, the same on all devices: by depth in the wait graph, at equal depth transfers first, then compute,
then reductions, so that reductions never stand before what other devices wait for.
"""

from __future__ import annotations

import heapq

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
    after: dict[int, list[int]] = {u: [] for u in members}
    for u, others in before.items():
        for other in others:
            after[other].append(u)
    missing = {u: len(others) for u, others in before.items()}
    heap = [(0, _FIRST.get(plan.tasks[u].op, 1), u) for u, n in missing.items() if not n]
    heapq.heapify(heap)
    order: dict[int, list[int]] = {d: [] for d in plan.streams}
    launched = 0
    while heap:
        depth, _, u = heapq.heappop(heap)
        for i in members[u]:
            order[plan.tasks[i].device].append(i)
            launched += 1
        for v in after[u]:
            missing[v] -= 1
            if not missing[v]:  # popped by depth: the last predecessor is the deepest
                heapq.heappush(heap, (depth + 1, _FIRST.get(plan.tasks[v].op, 1), v))
    assert launched == len(plan.tasks), "the plan's wait graph has a cycle (V5)"
    return order


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
