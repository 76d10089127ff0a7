"""Which tasks of one device have ended: the events that streams wait on.

On the CPU a stream is a thread and an ended task is really done. On CUDA a stream is a CUDA stream: a task "ends" for
the host when its kernels are queued and its event recorded, and whoever waits makes its own CUDA stream wait for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

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

    def fail(self, error: BaseException) -> None:
        with self._changed:
            if self.failure is None:
                self.failure = error
            self._changed.notify_all()
