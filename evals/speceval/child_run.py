"""One run of several threads in the sandbox, every step dictated by the judge. Standard library only.

A run executes one scenario under one schedule. Exactly one thread runs at a time, and it gives way only at *points*:
before a call begins, before a lock is taken, at a wait, at a call of a relied-upon module; in the mode `opcodes` also
before every opcode that may touch shared data. Where several threads could go on, the next element of the run's
`choices` says which; after these `priorities` decide, or else the thread that runs goes on. Nothing here judges: a run
is answered by its log, and the judge outside draws the conclusions.

The log of a run
    choices   [point, running thread or -1, threads that could go on, the one that did], one per real choice
    events    [kind, thread, ...]: call i · return i value · raise i type message line · acquire lock line · refused
              lock line · release lock line · wait condition line · woken condition line · expired condition line ·
              notify condition count line · read field line · write field line · ask name line · line n
    end       done · stuck (nobody can go on) · endless (too many steps) · diverged (a choice that was not possible)
    waiting   [thread, call, kind, lock or condition, line, the thread that has the lock or -1], of who is stuck
    locks     [number, name, kind, line, number of the lock that it takes], as the attributes name them
    view      what `view()` returned at the end, where it did
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pibroch.evals.speceval.child_shim import WouldBlock
from pibroch.evals.speceval.child_sync import Condition, Lock, candidate_line

if TYPE_CHECKING:
    from pibroch.evals.speceval.child_threads import Threads

MAX_STEPS, MAX_TOUCHES = 4_000, 40_000
EXPIRIES = 2  # times that a wait with a timeout may run out in one call
RUN, THREAD = 10_000, 100  # a question to a rely belongs to the call `run * RUN + thread * THREAD + number of the call`


class Stop(BaseException):
    """The run is over; the thread leaves the candidate's code."""


class Task:
    """One thread of a run. `ready` is None unless it waits; `gate` is held while it may not run."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.gate = _thread.allocate_lock()
        self.gate.acquire()
        self.reset([])

    def reset(self, calls: list[tuple[str, list[Any]]]) -> None:
        """Forget the run before."""
        self.calls, self.at, self.done = calls, -1, False
        self.ready: Callable[[], bool] | None = None
        self.expiry: Callable[[], bool] | None = None
        self.expired = 0
        self.fresh = False  # a call began, and nothing shared was touched yet
        self.why: tuple[str, Any, int] = ("", None, 0)
        self.held: list[Lock] = []
        self.seen: set[tuple[Any, ...]] = set()


class Run:
    """One schedule of one scenario. Whoever is `current` may touch it; nobody else runs."""

    def __init__(
        self, threads: Threads, tasks: list[Task], plan: dict[str, Any], operation: Callable[[str], Any],
        number: int,
    ) -> None:  # fmt: skip
        self.threads, self.tasks, self.operation, self.number = threads, tasks, operation, number
        self.given: list[int] = plan.get("choices") or []
        self.priorities: list[int] = list(plan.get("priorities") or [])
        self.changes: dict[int, int] = {int(s): p for s, p in plan.get("changes") or []}
        self.current: Task | None = None
        self.alone: Task | None = None  # the judge's own call of view(), after the threads
        self.choices: list[list[Any]] = []
        self.events: list[list[Any]] = []
        self.end, self.stopping = "", False
        self.steps = self.touches = self.idle = 0

    # Who goes on

    def choose(self) -> Task | None:
        """The thread that goes on; None where nobody can."""
        open_tasks = [t for t in self.tasks if not t.done]
        ready = [t for t in open_tasks if t.ready is None or t.ready()]
        late = [t for t in open_tasks if t not in ready and t.expiry is not None and t.expiry()]
        able = ready + [t for t in late if t.expired < EXPIRIES]
        if not able:  # only timeouts are left: they run out in turn, until that changes nothing any more
            self.idle += 1
            return min(late, key=lambda t: t.expired) if late and self.idle <= 3 * len(late) else None
        running = self.current if self.current in ready else None
        if len(able) == 1:
            return able[0]
        able.sort(key=lambda t: t.index)
        position = len(self.choices)
        if position in self.changes and self.current is not None:
            self.priorities[self.current.index] = self.changes[position]
        if position < len(self.given):
            chosen = next((t for t in able if t.index == self.given[position]), None)
            if chosen is None:
                self.end = "diverged"
                return None
        elif self.priorities:
            chosen = max(able, key=lambda t: self.priorities[t.index])
        else:
            chosen = running or next((t for t in able if t in ready), able[0])
        at = running.index if running else -1
        self.choices.append([self.steps, at, [t.index for t in able], chosen.index])
        return chosen

    def point(self) -> None:
        """The running thread may be preempted here."""
        if self.alone is None:
            self.step()

    def block(self, ready: Callable[[], bool], why: str, what: Any, timed: bool) -> bool:
        """A point from which the thread goes on once it is `ready`; False where the time ran out first."""
        me = self.current
        if self.alone is not None or me is None:
            if ready():
                return True
            raise WouldBlock(f"view() waits for a {why} that nobody can give")
        me.ready, me.why = ready, (why, what, candidate_line())
        me.expiry = (lambda: not ready()) if timed else None
        self.step()
        came = ready()
        me.ready = me.expiry = None
        if not came:
            me.expired += 1
        return came

    def step(self) -> None:
        """Somebody goes on; returns when it is this thread's turn again."""
        if self.stopping:
            raise Stop
        if self.current is not None:
            self.current.fresh = False
        self.steps += 1
        if self.steps > MAX_STEPS:
            self.end = "endless"
            self.hand_over(None)
        chosen = self.choose()
        if chosen is not self.current:
            self.hand_over(chosen)

    def hand_over(self, chosen: Task | None) -> None:
        """Let `chosen` run, or end the run where it is None; return when it is this thread's turn again."""
        me = self.current
        assert me is not None
        if chosen is None:
            self.end = self.end or "stuck"
            self.threads.finished.release()
        else:
            self.current = chosen
            chosen.gate.release()
        me.gate.acquire()
        if self.stopping:
            raise Stop

    # Locks

    def me(self) -> Task:
        me = self.alone or self.current
        assert me is not None
        return me

    def log(self, *event: Any) -> None:
        self.events.append(list(event))

    def acquire(self, lock: Lock, blocking: bool, timeout: float) -> bool:
        me, line = self.me(), candidate_line()
        if self.stopping:
            raise Stop
        if lock.owner is me and lock.reentrant:
            lock.depth += 1
            return True
        if me.fresh and lock.owner is None:  # the call's own point was as good
            got = True
        elif not blocking or timeout == 0:
            self.point()
            got = lock.owner is None
        else:  # who waits for a lock that is taken is no choice, so the point and the wait are one
            got = self.block(lambda: lock.owner is None, "lock", lock, timeout > 0)
        if got:
            self.take(lock, 1, line)
        else:
            self.log("refused", me.index, lock.number, line)
        return got

    def take(self, lock: Lock, depth: int, line: int) -> None:
        me = self.me()
        lock.owner, lock.depth, me.fresh = me, depth, False
        me.held.append(lock)
        me.seen.clear()
        self.log("acquire", me.index, lock.number, line)

    def drop(self, lock: Lock, line: int) -> None:
        if isinstance(lock.owner, Task):
            lock.owner.held.remove(lock)
        me = self.me()
        lock.owner, lock.depth = None, 0
        me.seen.clear()
        self.log("release", me.index, lock.number, line)

    def release(self, lock: Lock) -> None:
        if self.stopping:
            return
        if lock.owner is None:
            raise RuntimeError("release unlocked lock")
        if lock.reentrant and lock.owner is not self.me():
            raise RuntimeError("cannot release un-acquired lock")
        lock.depth -= 1
        if lock.depth == 0:
            self.drop(lock, candidate_line())

    def wait(self, condition: Condition, timeout: float | None) -> bool:
        me, lock, line = self.me(), condition.lock, candidate_line()
        if self.stopping:
            raise Stop
        if lock.owner is not me:
            raise RuntimeError("cannot wait on un-acquired lock")
        depth, ticket = lock.depth, [False]
        condition.waiters.append(ticket)
        self.log("wait", me.index, condition.number, line)
        self.drop(lock, line)
        if timeout is None:
            self.block(lambda: ticket[0] and lock.owner is None, "wait", condition, False)
        else:
            self.block(lambda: ticket[0], "wait", condition, True)
            if not ticket[0]:
                condition.waiters = [other for other in condition.waiters if other is not ticket]
            if lock.owner is not None:
                self.block(lambda: lock.owner is None, "lock", lock, False)
        self.log("woken" if ticket[0] else "expired", me.index, condition.number, line)
        self.take(lock, depth, line)
        return ticket[0]

    def notify(self, condition: Condition, n: int) -> None:
        if self.stopping:
            return
        me = self.me()
        if condition.lock.owner is not me:
            raise RuntimeError("cannot notify on un-acquired lock")
        woken, condition.waiters = condition.waiters[:n], condition.waiters[n:]
        for ticket in woken:
            ticket[0] = True
        self.log("notify", me.index, condition.number, len(woken), candidate_line())

    # Shared data

    def touch(self, kind: str, field: str, line: int) -> None:
        """A field was read or written; the same once more, under the same locks, is not logged again."""
        if self.stopping:
            return
        me = self.me()
        self.touches += 1
        if self.touches > MAX_TOUCHES and self.alone is None:
            self.end = "endless"
            self.hand_over(None)
        if kind == "write":
            self.idle = 0
        me.fresh = False
        key = (kind, field, line)
        if key not in me.seen:
            me.seen.add(key)
            self.log(kind, me.index, field, line)

    def ask(self, name: str, args: list[Any], answer: Callable[[], Any]) -> Any:
        """A call of a relied-upon module by the candidate."""
        self.point()
        me = self.me()
        self.log("ask", me.index, name, candidate_line())
        child = self.threads.child
        child.index = self.number * RUN + me.index * THREAD + me.at
        try:
            return answer()
        finally:
            child.index = 0

    # Threads

    def work(self, task: Task) -> None:
        """The body of one thread."""
        try:
            if self.threads.tracer is not None:
                sys.settrace(self.threads.tracer)
            for i, (name, args) in enumerate(task.calls):
                if i:
                    self.point()
                task.at, task.expired, task.fresh = i, 0, True
                self.log("call", task.index, i)
                self.call(task, i, name, args)
                self.idle = 0
        except Stop:
            pass
        finally:
            sys.settrace(None)
            task.done = True
            if self.stopping:
                self.threads.finished.release()
            else:
                chosen = self.choose()
                if chosen is None:
                    self.end = self.end or ("done" if all(t.done for t in self.tasks) else "stuck")
                    self.threads.finished.release()
                else:
                    self.current = chosen
                    chosen.gate.release()

    def call(self, task: Task, i: int, name: str, args: list[Any]) -> None:
        try:
            value = self.threads.child.pack(self.operation(name)(*args))
        except Stop:
            raise
        except BaseException as error:
            if not self.stopping:
                self.log("raise", task.index, i, *self.threads.child.describe(error))
        else:
            if not self.stopping:
                self.log("return", task.index, i, value)
