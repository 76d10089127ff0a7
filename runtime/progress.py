"""Which tasks of one device have ended: the events that streams wait on.

On the CPU a stream is a thread and an ended task is really done. On CUDA a stream is a CUDA stream: a task "ends" for
the host when its kernels are queued and its event recorded, and whoever waits makes its own CUDA stream wait for that.
The host's clock says nothing of kernels, so a timed step on CUDA takes its times from CUDA events.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

PATIENCE = 5.0  # seconds that a worker waits longer than its driver, who sees all ranks and speaks first
_now = time.monotonic  # ours, whatever the modules of a workload do to `time` later


class Stopped(Exception):
    """Another stream of this device has failed; this one gives up quietly."""


class Progress:
    """Ended tasks of one step. Every wait ends: by the task, by a failure elsewhere, or at the deadline."""

    def __init__(self, *, deadline: float, device: torch.device) -> None:
        self._ended: dict[int, torch.cuda.Event | None] = {}
        self._lock = threading.Lock()
        self._gates: dict[int, list[tuple[threading.Lock, Callable[[], None] | None]]] = {}  # one per waiting stream
        self._cuda = device.type == "cuda"
        self._until = _now() + deadline
        self.failure: BaseException | None = None

    def end(self, task: int) -> None:
        event = None
        if self._cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        with self._lock:
            self._ended[task] = event
            gates = self._gates.pop(task, ())
        for _, announce in gates:
            if announce is not None:
                announce()
        for gate, _ in gates:
            gate.release()

    def ready(self, tasks: Iterable[int]) -> bool:
        return all(t in self._ended for t in tasks)

    def wait(self, tasks: Sequence[int], announce: Callable[[], None] | None = None) -> None:
        """Block until all have ended. Raises `Stopped` after a failure elsewhere, `TimeoutError` at the deadline.

        `announce` is called once when all have ended: by the stream that ends the one waited for last, before it wakes
        any stream that waits for that one, or here where all had ended already.
        """
        announced = False
        for task in tasks:
            announced = task not in self._ended and self._wait(task, announce if task == tasks[-1] else None)
            event = self._ended[task]
            if event is not None:
                torch.cuda.current_stream().wait_event(event)
        if announce is not None and not announced:
            announce()

    def _wait(self, task: int, announce: Callable[[], None] | None) -> bool:
        """Block until one task has ended. Whether this stream was woken, so that `announce` was called."""
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            if task in self._ended:
                return False
            if self.failure is not None:
                raise Stopped
            self._gates.setdefault(task, []).append((gate, announce))
        if not gate.acquire(timeout=max(0.0, self._until - _now())):
            raise TimeoutError(f"task {task} had not ended at the deadline")
        if task not in self._ended:
            raise Stopped
        return True

    def event(self, task: int) -> torch.cuda.Event | None:
        """The CUDA event of a task that has ended."""
        return self._ended[task]

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.failure is None:
                self.failure = error
            gates = [gate for waiting in self._gates.values() for gate, _ in waiting]
            self._gates.clear()
        for gate in gates:
            gate.release()


class Clock:
    """Times of tasks: `stamp` marks now on the calling thread's stream, `seconds` is when that was, on the monotonic
    clock, once the device is idle. On the CPU a stamp is the time itself; on CUDA it is an event, if `timed`."""

    def __init__(self, *, device: torch.device, timed: bool) -> None:
        self.stamp: Callable[[], Any] = _now
        self.cuda = device.type == "cuda"
        self.timed = timed or not self.cuda
        if self.cuda:
            self.stamp = self._event if timed else _nothing
        self._origin: Any = None
        self.start = 0.0

    def begin(self) -> float:
        """The step begins now, on an idle device."""
        if self.cuda:
            torch.cuda.synchronize()
            self._origin = self._event()
            self._origin.synchronize()
        self.start = _now()
        return self.start

    def seconds(self, stamp: Any) -> float:
        return float(self.start + self._origin.elapsed_time(stamp) / 1e3 if self.cuda else stamp)

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _nothing() -> None:
    """The stamp of an untimed task on CUDA."""
