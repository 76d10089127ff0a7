"""Which tasks of a device are ordered, and V6: every access of a buffer is ordered with those that it must not meet.

Order within a device comes from its streams and from `waits` alone: an executor has nothing else to go by. A *lane* is
a sequence of tasks that end one after another: a stream, or every k-th transfer of one where k sends may be under way.
A *clock* holds, per lane of the device, how many of its tasks have ended when a task starts. A receive starts, and its
buffer is touched, as soon as it is posted.
"""

from __future__ import annotations

from collections.abc import Sequence

from pibroch.runtime.plan import PERSISTENT
from pibroch.runtime.verify_index import Index

Clock = Sequence[int]

_WRITABLE = {
    "F": (), "SEND": (), "RECV": (), "B": ("gradient",), "BI": ("gradient",), "BW": ("gradient",),
    "REDUCE": ("gradient",), "UPDATE": ("parameter", "optimizer"),
}  # fmt: skip
"""The persistent kinds that each operation may write."""


class Order:
    """`before(a, b)` for tasks of one device, after `run` has seen all tasks in the order in which they ended."""

    def __init__(self, index: Index) -> None:
        self.index = index
        plan, count = index.plan, len(index.plan.tasks)
        self.lane, self.place = [0] * count, [0] * count
        self.clock: list[Clock] = [()] * count
        self._receives = bytearray(t.op == "RECV" for t in plan.tasks)
        self._window = [1] * len(index.stream_lists)
        width = [0] * plan.devices
        for number, (device, _, ids) in enumerate(index.stream_lists):
            k = plan.send_buffers if ids and plan.tasks[ids[0]].op in ("SEND", "RECV") else 1
            for n, i in enumerate(ids):
                self.lane[i], self.place[i] = width[device] + n % k, n // k
            self._window[number] = k
            width[device] += min(k, len(ids))
        self._last: list[Clock] = [[0] * width[device] for device, _, _ in index.stream_lists]

    def before(self, a: int, b: int) -> bool:
        """Whether a has always ended when b starts."""
        lane = self.lane[a]
        if lane == self.lane[b] and not self._receives[b]:
            return self.place[a] < self.place[b]
        return self.clock[b][lane] > self.place[a]

    def compute_before(self) -> list[int]:
        """Per task, the number of compute tasks of its device that have always ended when it starts."""
        lanes = {d: self.lane[ids[0]] for d, name, ids in self.index.stream_lists if name == "compute" and ids}
        tasks = self.index.plan.tasks
        return [c[lanes[t.device]] if t.device in lanes else 0 for t, c in zip(tasks, self.clock, strict=True)]

    def run(self, order: Sequence[int]) -> None:
        """Set the clocks of all tasks and check V6."""
        stream_of, position, window = self.index.stream_of, self.index.position, self._window
        reached = [0] * len(window)
        access = _Accesses(self)
        for i in order:
            stream = stream_of[i]
            if window[stream] > 1:  # a later transfer may have ended first, but has not started first
                ids = self.index.stream_lists[stream][2]
                while reached[stream] <= position[i]:
                    self._start(ids[reached[stream]], stream)
                    reached[stream] += 1
            else:
                self._start(i, stream)
            access.check(i)
        access.finish()

    def _start(self, i: int, stream: int) -> None:
        """Set the clock of a task, after that of the task before it in its stream.

        The part of a stream's own lane may stay behind: `before` compares places there.
        """
        lane, place, clocks = self.lane, self.place, self.clock
        clock = self._last[stream]
        k = self._window[stream]
        if k > 1 and not self._receives[i] and self.index.position[i] >= k:
            landed = self.index.stream_lists[stream][2][self.index.position[i] - k]
            clock = list(map(max, clock, clocks[landed]))
            clock[lane[landed]] = place[landed] + 1
        for w in self.index.plan.tasks[i].waits:
            clock = list(map(max, clock, clocks[w]))
            if clock[lane[w]] <= place[w]:
                clock[lane[w]] = place[w] + 1
        clocks[i] = self._last[stream] = clock


class _Accesses:
    """V6, one buffer at a time: its last writer, and its readers since then (the last one per lane)."""

    def __init__(self, order: Order) -> None:
        plan = order.index.plan
        self.order, self.plan, self.report = order, plan, order.index.report
        count = len(plan.buffers)
        self.writer, self.freer = [-1] * count, [-1] * count
        self.readers: list[list[int]] = [[] for _ in range(count)]
        self.persistent = [b.kind in PERSISTENT for b in plan.buffers]

    def check(self, i: int) -> None:
        task = self.plan.tasks[i]
        writer, freer, persistent = self.writer, self.freer, self.persistent
        lane, place = self.order.lane, self.order.place
        here, clock, posts = lane[i], self.order.clock[i], task.op == "RECV"
        writes = task.writes
        for b in task.reads:
            w = writer[b]
            if freer[b] >= 0:
                self._after_free(i, b)
            elif w < 0:
                if not persistent[b]:
                    self.report.add("V6", f"reads {self._name(b)}, which nothing has written", i)
            elif (lane[w] != here or posts) and clock[lane[w]] <= place[w]:
                self.report.add("V6", f"reads {self._name(b)} unordered with its writer {self._task(w)}", i, w)
            readers = self.readers[b]
            if readers and lane[readers[-1]] == here:
                readers[-1] = i
            else:
                readers.append(i)
        for b in writes:
            w = writer[b]
            if freer[b] >= 0:
                self._after_free(i, b)
            if persistent[b]:
                kind = self.plan.buffers[b].kind
                if kind not in _WRITABLE[task.op]:
                    self.report.add("V6", f"writes {self._name(b)}: {task.op} never writes a {kind}", i)
            elif w >= 0:
                self.report.add("V6", f"writes {self._name(b)}, which {self._task(w)} has written already", i, w)
            if w >= 0 and w != i and not self.order.before(w, i):
                self.report.add("V6", f"writes {self._name(b)} unordered with its writer {self._task(w)}", i, w)
            self._after_readers(i, b, "writes")
            writer[b] = i
            self.readers[b] = []
        for b in task.frees:
            w = writer[b]
            if persistent[b]:
                self.report.add("V6", f"frees {self._name(b)}, which outlives the step", i)
            elif freer[b] >= 0:
                self._after_free(i, b)
            elif w < 0:
                self.report.add("V6", f"frees {self._name(b)}, which nothing has written", i)
            elif b not in task.reads and b not in writes:
                self.report.add("V6", f"frees {self._name(b)} but does not use it: its last user frees it", i)
            elif w != i and not self.order.before(w, i):
                self.report.add("V6", f"frees {self._name(b)} unordered with its writer {self._task(w)}", i, w)
            self._after_readers(i, b, "frees")
            freer[b] = i

    def finish(self) -> None:
        """Transient buffers that were written and never freed."""
        for b, w in enumerate(self.writer):
            if w >= 0 and self.freer[b] < 0 and not self.persistent[b]:
                self.report.add("V6", f"writes {self._name(b)}, which nothing frees: it leaks", w)

    def _after_readers(self, i: int, b: int, does: str) -> None:
        for r in self.readers[b]:
            if r != i and not self.order.before(r, i):
                self.report.add("V6", f"{does} {self._name(b)} unordered with its reader {self._task(r)}", i, r)

    def _after_free(self, i: int, b: int) -> None:
        self.report.add("V6", f"uses {self._name(b)}, which {self._task(self.freer[b])} frees", i, self.freer[b])

    def _name(self, b: int) -> str:
        buffer = self.plan.buffers[b]
        return f"{buffer.kind} buffer {b}" + (f" ({buffer.label})" if buffer.label else "")

    def _task(self, i: int) -> str:
        return str(self.plan.tasks[i])
