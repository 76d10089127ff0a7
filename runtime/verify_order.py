"""Which tasks of a device are ordered, and V6: every access of a buffer is ordered with those that it must not meet.

Order within a device comes from its streams and from `waits` alone: an executor has nothing else to go by. A *lane* is
a sequence of tasks that end one after another: a stream, unless receives of several sources or other tasks share it, or
several of its sends may be under way. A *clock* holds, per lane of the device, how many of its tasks have ended when a
task starts. A receive starts, and its buffer is touched, as soon as it is posted.
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
        count = len(index.plan.tasks)
        self.lane, self.place = [0] * count, [0] * count
        self.clock: list[Clock] = [()] * count
        self._receives = bytearray(count)
        self._nth = [0] * count  # the how-manieth send of its stream, or receive of its source
        self._mixed: list[bool] = []
        width = self._lanes()
        self._seen: list[Clock] = [[0] * width[device] for device, _, _ in index.stream_lists]
        self._posted: list[Clock] = list(self._seen)
        self._flying: list[list[tuple[int, Clock]]] = [[] for _ in index.stream_lists]

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

    def _lanes(self) -> list[int]:
        """Number the lanes of each device; the number of lanes per device."""
        plan, window = self.index.plan, self.index.plan.send_buffers
        width = [0] * plan.devices
        for device, _, ids in self.index.stream_lists:
            lanes: dict[object, int] = {}
            ends: dict[int, int] = {}
            kinds: dict[object, int] = {}
            for i in ids:
                t = plan.tasks[i]
                kind: object = (t.op, t.peer) if t.op == "RECV" else t.op == "SEND"
                n = self._nth[i] = kinds[kind] = kinds.get(kind, 0) + 1
                key = (kind, n % window) if t.op in ("SEND", "RECV") else kind
                lane = lanes.get(key)
                if lane is None:
                    lane = lanes[key] = width[device]
                    width[device] += 1
                    ends[lane] = 0
                self.lane[i], self.place[i] = lane, ends[lane]
                ends[lane] += 1
                self._receives[i] = t.op == "RECV"
            self._mixed.append(len(lanes) > 1)
        return width

    def run(self, order: Sequence[int]) -> None:
        """Set the clocks of all tasks and check V6."""
        tasks, stream_of = self.index.plan.tasks, self.index.stream_of
        lane, place, clocks = self.lane, self.place, self.clock
        seen, posted, mixed, receives = self._seen, self._posted, self._mixed, self._receives
        access = _Accesses(self)
        for i in order:
            task, stream = tasks[i], stream_of[i]
            if receives[i]:
                base = posted[stream]
            elif mixed[stream]:
                base = self._landed(stream, i)
            else:
                base = seen[stream]
            if task.waits:
                joined: Clock = base
                for w in task.waits:
                    other = clocks[w]
                    fresh = list(map(max, joined, other)) if joined is not other else list(joined)
                    if fresh[lane[w]] <= place[w]:
                        fresh[lane[w]] = place[w] + 1
                    joined = fresh
                base = joined
            clocks[i] = base
            if receives[i]:
                posted[stream] = base
            if mixed[stream]:
                self._flying[stream].append((i, base))
            elif not receives[i]:
                seen[stream] = base
            access.check(i)
        access.finish()

    def _landed(self, stream: int, i: int) -> Clock:
        """What has ended in a stream of several lanes when its task i starts: all before it, but sends under way."""
        tasks, keep = self.index.plan.tasks, []
        clock = list(self._seen[stream])
        send, window = tasks[i].op == "SEND", self.index.plan.send_buffers
        for j, other in self._flying[stream]:
            may_fly = send and tasks[j].op == "SEND" and self._nth[j] > self._nth[i] - window
            if may_fly or self.index.position[j] > self.index.position[i]:
                keep.append((j, other))
            else:
                clock = list(map(max, clock, other))
                clock[self.lane[j]] = max(clock[self.lane[j]], self.place[j] + 1)
        self._flying[stream] = keep
        self._seen[stream] = clock
        return clock


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
