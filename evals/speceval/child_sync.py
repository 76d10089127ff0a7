"""A `threading` for the candidate whose every step the judge dictates. Standard library only.

Inside a run (`child_threads.Run`) every operation is a step of that run. Outside of one these objects behave as they do
for a single thread: what would block raises.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pibroch.evals.speceval.child_load import FILE
from pibroch.evals.speceval.child_shim import WouldBlock

if TYPE_CHECKING:
    from pibroch.evals.speceval.child_run import Run, Task

class Here:
    """The run that goes on in this process, if any, and how many locks were made since the last fresh start."""

    run: Run | None = None
    made = 0


def candidate_line() -> int:
    """The line of the candidate's innermost frame; 0 outside of it."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != FILE:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


# The candidate's `threading`


class Named:
    kind = ""

    def __init__(self) -> None:
        Here.made += 1
        self.number, self.made_at = Here.made, candidate_line()


class Lock(Named):
    """`threading.Lock`; `owner` is a task, or True where it was taken outside of a run."""

    kind, reentrant = "Lock", False

    def __init__(self) -> None:
        super().__init__()
        self.owner: Task | bool | None = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if Here.run is not None:
            return Here.run.acquire(self, blocking, timeout)
        if self.owner is None or (self.reentrant and self.owner is True):
            self.owner, self.depth = True, self.depth + 1
            return True
        if not blocking or timeout >= 0:
            return False
        raise WouldBlock("a lock that is taken already was taken again")

    def release(self) -> None:
        if Here.run is not None:
            Here.run.release(self)
        elif self.owner is None:
            raise RuntimeError("release unlocked lock")
        else:
            self.depth -= 1
            if self.depth == 0:
                self.owner = None

    def locked(self) -> bool:
        if Here.run is not None:
            Here.run.point()
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """`threading.RLock`."""

    kind, reentrant = "RLock", True


class Condition(Named):
    """`threading.Condition`; a waiter is a one-element list that `notify` sets."""

    kind = "Condition"

    def __init__(self, lock: Lock | None = None) -> None:
        super().__init__()
        self.lock = RLock() if lock is None else lock
        self.waiters: list[list[bool]] = []
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self) -> bool:
        return self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if Here.run is not None:
            return Here.run.wait(self, timeout)
        if self.lock.owner is None:
            raise RuntimeError("cannot wait on un-acquired lock")
        if timeout is None:
            raise WouldBlock("a wait that nobody can end")
        return False

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        value = predicate()
        while not value:
            if not self.wait(timeout):
                return predicate()
            value = predicate()
        return value

    def notify(self, n: int = 1) -> None:
        if Here.run is not None:
            Here.run.notify(self, n)
        elif self.lock.owner is None:
            raise RuntimeError("cannot notify on un-acquired lock")

    def notify_all(self) -> None:
        self.notify(len(self.waiters))


class Event(Named):
    """`threading.Event`."""

    kind = "Event"

    def __init__(self) -> None:
        super().__init__()
        self.flag = False

    def is_set(self) -> bool:
        if Here.run is not None:
            Here.run.point()
        return self.flag

    def set(self) -> None:
        if Here.run is not None:
            Here.run.point()
        self.flag = True

    def clear(self) -> None:
        if Here.run is not None:
            Here.run.point()
        self.flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if Here.run is not None:
            return Here.run.block(lambda: self.flag, "event", self, timeout is not None)
        if not self.flag and timeout is None:
            raise WouldBlock("a wait that nobody can end")
        return self.flag


class Semaphore(Named):
    """`threading.Semaphore`, bounded where `limit` is given."""

    kind = "Semaphore"

    def __init__(self, value: int = 1) -> None:
        super().__init__()
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self.value, self.limit = value, sys.maxsize

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        run = Here.run
        if run is not None and blocking:
            if not run.block(lambda: self.value > 0, "semaphore", self, timeout is not None):
                return False
        elif run is not None:
            run.point()
        if self.value == 0:
            if not blocking or timeout is not None:
                return False
            raise WouldBlock("a semaphore that nobody can release")
        self.value -= 1
        return True

    def release(self, n: int = 1) -> None:
        if Here.run is not None:
            Here.run.point()
        if self.value + n > self.limit:
            raise ValueError("Semaphore released too many times")
        self.value += n

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class BoundedSemaphore(Semaphore):
    """`threading.BoundedSemaphore`."""

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)
        self.limit = value


KINDS = frozenset({Lock, RLock, Condition, Event, Semaphore, BoundedSemaphore})


def threading() -> types.ModuleType:
    """The module that a candidate gets for `threading`. As in `child_shim.py`, nothing tells who runs."""
    module = types.ModuleType("threading")
    for kind in (Lock, RLock, Condition, Event, Semaphore, BoundedSemaphore):
        setattr(module, kind.__name__, kind)
    return module
