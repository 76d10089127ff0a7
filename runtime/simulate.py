"""Discrete-event simulation of one step: when every task of a plan runs under a cost model, and what memory it holds.

Semantics
    stream       its tasks run in order. A compute task starts when the previous one has ended and its `waits` have.
    receive      is posted when its waits have ended and the previous receive of its stream is posted.
    send         is issued when its waits have ended, the previous send of its stream is issued, and fewer than
                 `plan.send_buffers` of them are under way.
    transfer     is under way from when send and receive are both there; both end together. A device owns the bandwidth
                 of what it sends: its transfers occupy the link one after another in the order in which they start,
                 and the latency follows.
    collective   starts when all members are ready; all end together.
    memory       a persistent buffer is there from the start; any other one from the start of the task that writes it
                 (a receive starts when it is posted) to the end of the task that frees it. Where several changes
                 happen at one time, what is freed is subtracted first.

The cost model decides alone what overlap does to durations: none of the models here gives a gain or a loss.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np

from pibroch.runtime.costs import Costs
from pibroch.runtime.errors import InputError
from pibroch.runtime.plan import Plan, Task

_SERIAL, _SEND, _RECV = 0, 1, 2
_KIND = {"SEND": _SEND, "RECV": _RECV}


@dataclass
class Simulation:
    """Times in the cost model's unit (seconds; units under `UnitCosts`).

    `start` and `end` are per task id (a send starts when issued, a receive when posted, a collective when its device
    is ready); lists are per device. `busy` and `idle` are those of the compute stream and add up to the makespan;
    `bubble` is the idle fraction over all devices. `exposed` is the idle time that waits on a transfer under way or on
    a reduction. `peak_inflight` counts (stage, microbatch) pairs whose F has started and whose B, or BW where it is
    split, has not ended.
    """

    plan: Plan
    makespan: float
    start: list[float]
    end: list[float]
    busy: list[float]
    idle: list[float]
    bubble: float
    exposed: list[float]
    peak_bytes: list[int]
    peak_inflight: list[int]

    def memory(self, device: int) -> list[tuple[float, int]]:
        """(time, bytes) of one device after each change; the first entry is what exists before the step."""
        series = [(0.0, sum(b.nbytes for b in self.plan.buffers if b.device == device and b.persistent))]
        times, changes = self._changes[device]
        held = series[0][1] + np.cumsum(changes)
        for time, nbytes in zip(times.tolist(), held.tolist(), strict=True):
            if time == series[-1][0] and len(series) > 1:
                series[-1] = (time, nbytes)
            else:
                series.append((time, nbytes))
        return series

    @cached_property
    def _changes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return _memory_changes(self.plan, self.start, self.end)


def simulate(plan: Plan, costs: Costs) -> Simulation:
    """Run the plan on the cost model. Time and memory grow near-linearly with the tasks.

    Raises `InputError` where the plan waits for itself (with the tasks that are stuck), where a send has no receive or
    a collective lacks a member.
    """
    run = _Run(plan, costs)
    run.all()
    start, end = run.start, run.end
    makespan = max(end, default=0.0)
    busy, exposed = [0.0] * plan.devices, [0.0] * plan.devices
    for device, names in plan.streams.items():
        compute = names.get("compute", [])
        busy[device] = sum(end[i] - start[i] for i in compute)
        exposed[device] = _exposed(plan, run, device, compute)
    changes = _memory_changes(plan, start, end)
    base = [0] * plan.devices
    for buffer in plan.buffers:
        if buffer.persistent:
            base[buffer.device] += buffer.nbytes
    peaks = [n + max(int(np.cumsum(c).max(initial=0)), 0) for n, (_, c) in zip(base, changes, strict=True)]
    whole = makespan * plan.devices
    simulation = Simulation(
        plan=plan,
        makespan=makespan,
        start=start,
        end=end,
        busy=busy,
        idle=[makespan - b for b in busy],
        bubble=1 - sum(busy) / whole if whole > 0 else 0.0,
        exposed=exposed,
        peak_bytes=peaks,
        peak_inflight=_peak_inflight(plan, start, end),
    )
    simulation._changes = changes
    return simulation


class _Run:
    """The state of one simulation. A lane is the sends, the receives or the other tasks of one stream, in order."""

    def __init__(self, plan: Plan, costs: Costs) -> None:
        size = len(plan.tasks)
        self.plan, self.costs = plan, costs
        self.start, self.end, self.begun = [-1.0] * size, [-1.0] * size, [-1.0] * size
        self.partner = _pair_transfers(plan)
        self.left = [len(task.waits) for task in plan.tasks]
        self.after: list[list[int]] = [[] for _ in range(size)]
        for task in plan.tasks:
            for w in task.waits:
                self.after[w].append(task.id)
        self.lanes: list[list[int]] = []
        self.lane_of = [-1] * size
        self.kind: list[int] = []
        for names in plan.streams.values():
            for ids in names.values():
                rows: dict[int, list[int]] = {}
                for i in ids:
                    rows.setdefault(_KIND.get(plan.tasks[i].op, _SERIAL), []).append(i)
                for kind, row in rows.items():
                    for i in row:
                        self.lane_of[i] = len(self.lanes)
                    self.lanes.append(row)
                    self.kind.append(kind)
        self.head = [0] * len(self.lanes)
        self.active = [0] * len(self.lanes)
        self.link = [0.0] * plan.devices
        self.members: dict[int, list[int]] = {}
        self.heap: list[tuple[float, int]] = []

    def all(self) -> None:
        """Run until nothing is under way. Raises `InputError` where tasks are left."""
        for lane in range(len(self.lanes)):
            self.advance(lane, 0.0)
        heap, end, lane_of, after, left = self.heap, self.end, self.lane_of, self.after, self.left
        done = 0
        while heap:
            now, i = heappop(heap)
            done += 1
            end[i] = now
            lane = lane_of[i]
            self.active[lane] -= 1
            self.advance(lane, now)
            for j in after[i]:
                left[j] -= 1
                if not left[j] and self.lanes[lane_of[j]][self.head[lane_of[j]]] == j:
                    self.advance(lane_of[j], now)
        if done < len(self.plan.tasks):
            raise self.stuck(len(self.plan.tasks) - done)

    def advance(self, lane: int, now: float) -> None:
        """Start all tasks at the head of a lane that can start."""
        row, kind, head = self.lanes[lane], self.kind[lane], self.head[lane]
        most = 1 if kind == _SERIAL else self.plan.send_buffers if kind == _SEND else len(row)
        while head < len(row) and self.active[lane] < most and not self.left[row[head]]:
            i = row[head]
            head += 1
            self.head[lane] = head
            self.active[lane] += 1
            self.start[i] = now
            if kind != _SERIAL:
                partner = self.partner[i]
                if self.start[partner] >= 0:
                    self.transfer(i if kind == _SEND else partner, now)
            elif self.plan.tasks[i].op == "REDUCE":
                self.collective(self.plan.tasks[i], now)
            else:
                heappush(self.heap, (now + self.costs.compute(self.plan, self.plan.tasks[i]), i))

    def transfer(self, send: int, now: float) -> None:
        task = self.plan.tasks[send]
        latency, seconds = self.costs.transfer(self.plan, task)
        free = max(now, self.link[task.device]) + seconds
        self.link[task.device] = free
        for i in (send, self.partner[send]):
            self.begun[i] = now
            heappush(self.heap, (free + latency, i))

    def collective(self, task: Task, now: float) -> None:
        ready = self.members.setdefault(task.bucket, [])
        ready.append(task.id)
        if len(ready) == len(task.group):
            end = now + self.costs.collective(self.plan, task)
            for i in ready:
                self.begun[i] = now
                heappush(self.heap, (end, i))
            del self.members[task.bucket]

    def stuck(self, left: int) -> InputError:
        """The error that names what stands at the heads of the lanes, and what each waits for."""
        tasks, lines = self.plan.tasks, []
        for row, head, active in zip(self.lanes, self.head, self.active, strict=True):
            if active and tasks[row[head - 1]].op == "REDUCE":
                task = tasks[row[head - 1]]
                lines.append(f"device {task.device}: {task} waits for the other members {list(task.group)}")
            elif active and tasks[row[head - active]].op in _KIND:
                # The first of the lane that has no partner yet: those before it have ended or are under way.
                alone = next((i for i in row[:head] if self.end[i] < 0 and self.begun[i] < 0), row[head - 1])
                lines.append(f"device {tasks[alone].device}: {tasks[alone]} waits for its other end")
            elif head < len(row):
                task = tasks[row[head]]
                missing = [str(tasks[w]) for w in task.waits if self.end[w] < 0]
                lines.append(f"device {task.device}: {task} waits for {', '.join(missing)}")
        more = f"; and {len(lines) - 8} more" if len(lines) > 8 else ""
        return InputError(f"the plan waits for itself: {left} tasks never end: {'; '.join(lines[:8])}{more}")


def _pair_transfers(plan: Plan) -> list[int]:
    """The other end of every send and receive: first in, first out per channel. Raises `InputError` on a lonely one."""
    channels: dict[tuple[int, int, str], tuple[deque[int], deque[int]]] = {}
    for names in plan.streams.values():
        for stream, ids in names.items():
            for i in ids:
                task = plan.tasks[i]
                if task.op == "SEND":
                    channels.setdefault((task.device, task.peer, stream), (deque(), deque()))[0].append(i)
                elif task.op == "RECV":
                    channels.setdefault((task.peer, task.device, stream), (deque(), deque()))[1].append(i)
    partner = [-1] * len(plan.tasks)
    for (source, target, stream), (sends, receives) in channels.items():
        for send, receive in zip(sends, receives, strict=False):
            partner[send], partner[receive] = receive, send
        if len(sends) != len(receives):
            raise InputError(
                f"channel {source} to {target} on stream {stream}: {len(sends)} sends, {len(receives)} receives"
            )
    return partner


def _exposed(plan: Plan, run: _Run, device: int, compute: list[int]) -> float:
    """Idle time of a compute stream while what its next task waits for last is being communicated."""
    start, end, total, now = run.start, run.end, 0.0, 0.0
    for i in compute:
        if start[i] > now and plan.tasks[i].waits:
            last = max(plan.tasks[i].waits, key=end.__getitem__)
            if plan.tasks[last].op == "REDUCE":
                total += max(end[last] - max(now, start[last]), 0.0)
            elif plan.tasks[last].op in _KIND:
                total += max(end[last] - max(now, run.begun[last]), 0.0)
        now = end[i]
    # Reductions that outlast all compute (a plan without updates).
    tail = [end[ids[-1]] for ids in plan.streams[device].values() if ids and plan.tasks[ids[-1]].op == "REDUCE"]
    return total + max(max(tail, default=now) - now, 0.0)


def _memory_changes(plan: Plan, start: list[float], end: list[float]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per device the times and the changes in bytes of its transient buffers, by time and then frees first."""
    transient = [0 if b.persistent else b.nbytes for b in plan.buffers]
    seen = [False] * len(plan.buffers)
    times: list[list[float]] = [[] for _ in range(plan.devices)]
    changes: list[list[int]] = [[] for _ in range(plan.devices)]
    for task in plan.tasks:
        for b in task.writes:
            if transient[b] and not seen[b]:
                seen[b] = True
                times[task.device].append(start[task.id])
                changes[task.device].append(transient[b])
        for b in task.frees:
            if transient[b]:
                times[task.device].append(end[task.id])
                changes[task.device].append(-transient[b])
    result = []
    for time, change in zip(times, changes, strict=True):
        at, by = np.asarray(time, dtype=np.float64), np.asarray(change, dtype=np.int64)
        order = np.lexsort((by, at))
        result.append((at[order], by[order]))
    return result


def _peak_inflight(plan: Plan, start: list[float], end: list[float]) -> list[int]:
    """Part 0 of a stage starts first in forward and ends last in backward: it stands for the stage."""
    events: list[list[tuple[float, int]]] = [[] for _ in range(plan.devices)]
    split = {(t.stage, t.mb, t.replica) for t in plan.tasks if t.op == "BW" and t.part == 0}
    for task in plan.tasks:
        if task.part == 0:
            if task.op == "F":
                events[task.device].append((start[task.id], 1))
            elif task.op in ("B", "BW") or (task.op == "BI" and (task.stage, task.mb, task.replica) not in split):
                events[task.device].append((end[task.id], -1))
    peaks = []
    for row in events:
        now = peak = 0
        for _, change in sorted(row):
            now += change
            peak = max(peak, now)
        peaks.append(peak)
    return peaks
