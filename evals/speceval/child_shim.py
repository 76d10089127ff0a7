"""`threading` for a candidate that runs alone: a lock that would block raises instead. Standard library only.

Only what synchronizes is here. There is no `Thread`, and nothing tells who runs (`current_thread`, `get_ident`): code
that asks fails.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


class WouldBlock(BaseException):
    """The call would wait for ever. No `Exception`, so that a candidate does not catch it by the way."""


class Lock:
    """As `threading.Lock`, for one thread."""

    def __init__(self) -> None:
        self._held = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._held and not self._again():
            if blocking and timeout < 0:
                raise WouldBlock("it acquires a lock that it holds already")
            return False
        self._held += 1
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held -= 1

    def locked(self) -> bool:
        return self._held > 0

    def _again(self) -> bool:
        return False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


class RLock(Lock):
    """As `threading.RLock`, for one thread."""

    def _again(self) -> bool:
        return True


class Condition:
    """As `threading.Condition`: `wait` would wait for ever."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock if lock is not None else RLock()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def _owned(self) -> None:
        if not self._lock.locked():
            raise RuntimeError("cannot wait on or notify an un-acquired lock")

    def wait(self, timeout: float | None = None) -> bool:
        self._owned()
        if timeout is None:
            raise WouldBlock("it waits on a condition that nobody else can notify")
        return False

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        self._owned()
        return predicate() or self.wait(timeout)

    def notify(self, n: int = 1) -> None:
        self._owned()

    def notify_all(self) -> None:
        self._owned()


class Semaphore:
    """As `threading.Semaphore`."""

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self._value = self._most = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not self._value:
            if blocking and timeout is None:
                raise WouldBlock("it acquires a semaphore that nobody else can release")
            return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


class BoundedSemaphore(Semaphore):
    """As `threading.BoundedSemaphore`."""

    def release(self, n: int = 1) -> None:
        if self._value + n > self._most:
            raise ValueError("Semaphore released too many times")
        self._value += n


class Event:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set and timeout is None:
            raise WouldBlock("it waits for an event that nobody else can set")
        return self._set


def threading() -> ModuleType:
    """The module that a candidate gets for `threading`."""
    module = ModuleType("threading")
    for kind in (Lock, RLock, Condition, Semaphore, BoundedSemaphore, Event):
        setattr(module, kind.__name__, kind)
    return module
