"""Which tasks of one device have ended: the events that streams wait on.

On the CPU a stream is a thread and an ended task is really done. On CUDA a stream is a CUDA stream: a task "ends" for
the host when its kernels are queued and its event recorded, and whoever waits makes its own CUDA stream wait for that.
The host's clock says nothing of kernels, so a timed step on CUDA takes its times from CUDA events.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch


class Stopped(Exception):
    """Another stream of this device has failed; this one gives up quietly."""


class Progress:
    """Ended tasks of one step. Every wait ends: by the task, by a failure elsewhere, or at the deadline."""

    def __init__(self, *, deadline: float, device: torch.device) -> None:
        self._ended: dict[int, torch.cuda.Event | None] = {}
        self._changed = threading.Condition()
        self._cuda = device.type == "cuda"
        self._until = time.monotonic() + deadline
        self.failure: BaseException | None = None

    def end(self, task: int) -> None:
        event = None
        if self._cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        with self._changed:
            self._ended[task] = event
            self._changed.notify_all()

    def ready(self, tasks: Iterable[int]) -> bool:
        return all(t in self._ended for t in tasks)

    def wait(self, tasks: Iterable[int]) -> None:
        """Block until all have ended. Raises `Stopped` after a failure elsewhere, `TimeoutError` at the deadline."""
        for task in tasks:
            if task not in self._ended:
                with self._changed:
                    while task not in self._ended:
                        if self.failure is not None:
                            raise Stopped
                        if not self._changed.wait(timeout=max(0.0, self._until - time.monotonic())):
                            raise TimeoutError(f"task {task} had not ended at the deadline")
            event = self._ended[task]
            if event is not None:
                torch.cuda.current_stream().wait_event(event)

    def event(self, task: int) -> torch.cuda.Event | None:
        """The CUDA event of a task that has ended."""
        return self._ended[task]

    def fail(self, error: BaseException) -> None:
        with self._changed:
            if self.failure is None:
                self.failure = error
            self._changed.notify_all()


class Clock:
    """Times of tasks: `stamp` marks now on the calling thread's stream, `seconds` is when that was, on the monotonic
    clock, once the device is idle. On the CPU a stamp is the time itself; on CUDA it is an event, if `timed`."""

    def __init__(self, *, device: torch.device, timed: bool) -> None:
        self.stamp: Callable[[], Any] = time.monotonic
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
        self.start = time.monotonic()
        return self.start

    def seconds(self, stamp: Any) -> float:
        return float(self.start + self._origin.elapsed_time(stamp) / 1e3 if self.cuda else stamp)

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _nothing() -> None:
    """The stamp of an untimed task on CUDA."""
