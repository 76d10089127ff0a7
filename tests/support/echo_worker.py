"""Small worker classes for the launchers' tests."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from typing import Any

from pibroch.runtime.errors import InputError, MissingError


class EchoWorker:
    """Answers with what it is asked; misbehaves on request."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.kept: Any = None

    def who(self) -> tuple[int, int, int]:
        return self.rank, self.world, os.getpid()

    def echo(self, *values: Any) -> Any:
        return values[0] if len(values) == 1 else values

    def keep(self, value: Any) -> None:
        self.kept = value

    def kept_sum(self) -> float:
        return float(self.kept.sum())

    def writable(self, array: Any) -> float:
        array += 1
        return float(array.sum())

    def address(self, tensor: Any) -> int:
        return int(tensor.data_ptr())

    def apply(self, function: Any, *values: Any) -> Any:
        return function(*values)

    def raise_on(self, rank: int, kind: str) -> str:
        if self.rank == rank:
            print("about to fail", file=sys.stderr, flush=True)
            if kind == "input":
                raise InputError("layers=3 does not divide by 2")
            if kind == "missing":
                raise MissingError("no such thing")
            raise RuntimeError("boom")
        return "fine"

    def raise_or_wait(self, rank: int, kind: str) -> str:
        """As in a collective: the other ranks wait for the one that fails."""
        if self.rank != rank:
            self.wait()
        return self.raise_on(rank, kind)

    def wait(self) -> None:
        threading.Event().wait()

    def wait_on(self, ranks: tuple[int, ...]) -> int:
        if self.rank in ranks:
            self.wait()
        return self.rank

    def kill_on(self, rank: int, number: int) -> None:
        if self.rank == rank:
            os.kill(os.getpid(), number)
        self.wait()

    def exit_on(self, rank: int, status: int) -> None:
        if self.rank == rank:
            print("last words", file=sys.stderr, flush=True)
            os._exit(status)
        self.wait()

    def stop_on(self, rank: int) -> int:
        if self.rank == rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.rank

    def unpicklable(self) -> Any:
        return lambda: None

    def import_value(self, module: str, name: str) -> Any:
        return getattr(importlib.import_module(module), name)

    def affinity(self) -> set[int]:
        return os.sched_getaffinity(0)

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def child(self) -> int:
        """The id of a process that this worker leaves running."""
        import subprocess

        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid

    def clock(self) -> float:
        return time.monotonic()


class BrokenWorker:
    """Cannot be built on rank 1."""

    def __init__(self, rank: int, world: int) -> None:
        if rank == 1:
            raise RuntimeError("no device for rank 1")
