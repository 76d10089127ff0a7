"""V5, nothing waits for ever: a run of the whole plan in which every task goes on as soon as it may.

Such a run never takes a choice away from a later task, so it gets stuck if and only if every run does. What may start:

    any task    when the tasks that it waits for have ended and all before it in its stream have
    SEND        the same, but up to `send_buffers` - 1 sends just before it may still be under way
    RECV        is posted when what it waits for has ended and the receive before it in its stream is posted
    transfer    both ends end together, once the send has started and the receive is posted
    REDUCE      all members end together, once every one has started
"""

from __future__ import annotations

from itertools import pairwise

from pibroch.runtime.verify_index import Index

_SHOWN = 12


class Run:
    """Runs the plan to its end, or until it is stuck. `order` lists tasks as they ended."""

    def __init__(self, index: Index) -> None:
        plan = index.plan
        self.index, self.tasks = index, plan.tasks
        self.window = plan.send_buffers
        self.order: list[int] = []
        self.ended = bytearray(len(plan.tasks))
        self.started = bytearray(len(plan.tasks))
        count = len(index.stream_lists)
        self.head = [0] * count
        self.next_receive = [0] * count
        self.receives = [[i for i in ids if self.tasks[i].op == "RECV"] for _, _, ids in index.stream_lists]
        self.under_way: list[list[int]] = [[] for _ in range(count)]
        self.sleeping: dict[int, list[int]] = {}
        self.head_sleeps, self.post_sleeps = [-1] * count, [-1] * count  # on which task's end, once per stream
        self.meetings = _meetings(index)
        self.arrived: dict[int, int] = {}

    def execute(self) -> bool:
        """True where every task has ended."""
        todo = self.todo = list(range(len(self.head)))
        todo.reverse()
        while todo:
            stream = todo.pop()
            if self.receives[stream]:
                self._post(stream)
            self._advance(stream)
        return len(self.order) == len(self.tasks)

    def _post(self, stream: int) -> None:
        receives, at = self.receives[stream], self.next_receive[stream]
        while at < len(receives):
            i = receives[at]
            if (w := self._unmet(i)) >= 0:
                if self.post_sleeps[stream] != w:
                    self.post_sleeps[stream] = w
                    self.sleeping.setdefault(w, []).append(stream)
                break
            self.started[i] = 1
            at += 1
            partner = self.index.pair[i]
            if partner >= 0 and self.started[partner]:
                self._end(partner)
                self._end(i)
                self.todo.append(self.index.stream_of[partner])
        self.next_receive[stream] = at

    def _advance(self, stream: int) -> None:
        tasks, ended, order, sleeping = self.tasks, self.ended, self.order, self.sleeping
        ids, at = self.index.stream_lists[stream][2], self.head[stream]
        count = len(ids)
        while at < count:
            i = ids[at]
            if ended[i]:
                at += 1
                continue
            task = tasks[i]
            op = task.op
            if op == "RECV":
                break  # its end wakes this stream
            blocked = -1
            for w in task.waits:
                if not ended[w]:
                    blocked = w
                    break
            if blocked >= 0:
                if self.head_sleeps[stream] != blocked:
                    self.head_sleeps[stream] = blocked
                    sleeping.setdefault(blocked, []).append(stream)
                break
            if op == "SEND":
                if not self._send(stream, i):
                    break
                at += 1
            elif self.under_way[stream] and not self._landed(stream, 0):
                break
            elif op == "REDUCE":
                if not self._meet(i):
                    break
                at += 1
            else:
                ended[i] = 1
                order.append(i)
                if i in sleeping:
                    self.todo += sleeping.pop(i)
                at += 1
        self.head[stream] = at

    def _send(self, stream: int, i: int) -> bool:
        """Start a send at the head of its stream; whether the stream goes on to its next task."""
        if self.window > 1 and not self._landed(stream, self.window - 1):
            return False
        self.started[i] = 1
        partner = self.index.pair[i]
        if partner >= 0 and self.started[partner]:
            self._end(i)
            self._end(partner)
            self.todo.append(self.index.stream_of[partner])
            return True
        self.under_way[stream].append(i)
        return self.window > 1

    def _landed(self, stream: int, most: int) -> bool:
        """Whether all sends of a stream but the last `most` have ended."""
        flying = self.under_way[stream]
        while flying and self.ended[flying[0]]:
            flying.pop(0)
        return len(flying) <= most

    def _meet(self, i: int) -> bool:
        """A collective's member arrives; the last one ends it for all."""
        first, members = self.meetings[i]
        if self.started[i]:
            return False
        self.started[i] = 1
        self.arrived[first] = self.arrived.get(first, 0) + 1
        if self.arrived[first] < len(self.tasks[i].group) or len(members) != len(self.tasks[i].group):
            return False
        for m in members:
            self._end(m)
            if m != i:
                self.todo.append(self.index.stream_of[m])
        return True

    def _end(self, i: int) -> None:
        self.ended[i] = 1
        self.order.append(i)
        if i in self.sleeping:
            self.todo += self.sleeping.pop(i)

    def _unmet(self, i: int) -> int:
        for w in self.tasks[i].waits:
            if not self.ended[w]:
                return w
        return -1

    def report(self) -> None:
        """Follow from one stuck task what it waits for, to a task without a partner or round a cycle."""
        i = next(i for i in range(len(self.tasks)) if not self.ended[i])
        seen: dict[int, int] = {}
        path: list[tuple[int, str]] = []
        while i not in seen:
            seen[i] = len(path)
            following, why = self._blocker(i)
            path.append((i, why))
            if following < 0:
                self._tell(path, f"which {why}, so it never ends")
                return
            i = following
        loop = path[seen[i] :]
        self._tell(loop, f"which {loop[-1][1]} {self.index.report.name(loop[0][0])}: a cycle, so nobody goes on")

    def _tell(self, path: list[tuple[int, str]], ending: str) -> None:
        name = self.index.report.name
        steps = [f"{why} {name(following)}" for (_, why), (following, _) in pairwise(path)]
        if len(steps) > _SHOWN:
            steps = [*steps[: _SHOWN - 4], "...", *steps[-3:]]
        text = ", which ".join([*steps, ending.removeprefix("which ")])
        self.index.report.add("V5", f"deadlock: it {text}", *[i for i, _ in path[:_SHOWN]])

    def _blocker(self, i: int) -> tuple[int, str]:
        """What a task that has not ended waits for, with the words; -1 where nothing will ever come."""
        index, ended = self.index, self.ended
        task, stream = self.tasks[i], index.stream_of[i]
        if not self.started[i]:
            if (w := self._unmet(i)) >= 0:
                return w, "waits for"
            before = index.stream_lists[stream][2][: index.position[i]]
            if task.op == "RECV":
                return next((j for j in reversed(before) if self.tasks[j].op == "RECV"), -1), "is posted after"
            return next((j for j in before if not ended[j]), -1), "comes in its stream after"
        if task.op == "REDUCE":
            members = {self.tasks[m].device: m for m in self.meetings[i][1]}
            for device in task.group:
                if device not in members:
                    return -1, f"needs device {device}, which has no such task"
                if not self.started[members[device]]:
                    return members[device], "meets"
            return -1, "has more members than its group"
        partner = index.pair[i]
        return (partner, "meets") if partner >= 0 else (-1, "has no partner")


def _meetings(index: Index) -> dict[int, tuple[int, list[int]]]:
    """For each REDUCE, its collective (the first member's id) and members: the n-th of a bucket on every device."""
    members: dict[tuple[int, int], list[int]] = {}
    counts: dict[tuple[int, int], int] = {}
    for device, _, ids in index.stream_lists:
        for i in ids:
            task = index.plan.tasks[i]
            if task.op == "REDUCE":
                n = counts[task.bucket, device] = counts.get((task.bucket, device), 0) + 1
                members.setdefault((task.bucket, n), []).append(i)
    return {i: (ids[0], ids) for ids in members.values() for i in ids}
