"""A worker's side of a launcher: build the worker, run the methods that are asked for, answer with values or failures.

Both launchers use `Server`; `main` is what a local process runs. Imports stay small: a worker's start is waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pibroch.runtime.binding import bind
from pibroch.runtime.errors import InputError, MissingError, PibrochError
from pibroch.runtime.messages import Frame, Frames, decode, encode, room

IN_WORKER = False  # True in a worker's process: a launcher refuses to start there


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker process gets first. `main` is the driver's script: ("path", file), ("module", name) or None."""

    worker: str  # "module:Class"
    rank: int
    world: int
    path: tuple[str, ...]  # sys.path of the driver
    main: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception inside a worker. `kind` is "input", "missing" or "other"; `message` has the class for "other"."""

    kind: str
    message: str
    traceback: str


def describe_main() -> tuple[str, str] | None:
    """How a worker finds what the driver's `__main__` defines; None in an interactive session."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return "module", spec.name
    path = getattr(main, "__file__", None)
    return ("path", os.path.abspath(path)) if path and os.path.exists(path) else None


def driver_path() -> tuple[str, ...]:
    """The driver's sys.path, absolute (import hooks have entries that are no paths: these stay)."""
    return tuple(os.path.abspath(entry) if not entry or os.path.exists(entry) else entry for entry in sys.path)


class Server:
    """Runs the methods of one worker."""

    def __init__(self, setup: Setup) -> None:
        global IN_WORKER
        IN_WORKER = True
        sys.path[:] = setup.path
        self._setup = setup
        self._main: types.ModuleType | None = None
        self._worker: Any = None

    def build(self) -> Frames:
        """Construct the worker; the reply to the driver is None or a failure."""
        try:
            module, _, name = self._setup.worker.partition(":")
            self._worker = getattr(importlib.import_module(module), name)(self._setup.rank, self._setup.world)
        except BaseException as error:
            return _reply(failure_of(error))
        return _reply(None)

    def run(self, method: str, arguments: Sequence[Sequence[Frame]]) -> Frames:
        """Call `method` with the decoded arguments; the reply is its result or a failure."""
        try:
            values = [self._load(frames, f"argument {i + 1} of {method}") for i, frames in enumerate(arguments)]
            result = getattr(self._worker, method)(*values)
            return _reply(result, what=f"the result of {method} on rank {self._setup.rank}")
        except BaseException as error:
            return _reply(failure_of(error))

    def _load(self, frames: Sequence[Frame], what: str) -> Any:
        try:
            return decode(frames, find=self._of_main)
        except PibrochError:
            raise
        except Exception as error:
            raise InputError(
                f"{what} cannot be loaded by a worker ({type(error).__name__}: {error}); its functions and classes "
                "must live in a module that can be imported"
            ) from error

    def _of_main(self, name: str) -> Any:
        """An object of the driver's `__main__`: the script runs again here, under the name `__mp_main__`."""
        if self._main is None:
            if self._setup.main is None:
                raise AttributeError(f"{name} is defined in an interactive session")
            way, place = self._setup.main
            main = types.ModuleType("__mp_main__")
            if way == "module":
                main.__dict__.update(runpy.run_module(place, run_name="__mp_main__", alter_sys=True))
            else:
                main.__dict__.update(runpy.run_path(place, run_name="__mp_main__"))
            sys.modules["__main__"] = sys.modules["__mp_main__"] = self._main = main
        found: Any = self._main
        for part in name.split("."):
            found = getattr(found, part)
        return found


def failure_of(error: BaseException) -> Failure:
    """`error` as data."""
    text = "".join(traceback.format_exception(error))
    if isinstance(error, PibrochError):
        kind = "input" if isinstance(error, InputError) else "missing" if isinstance(error, MissingError) else "other"
        return Failure(kind, str(error), text)
    return Failure("other", f"{type(error).__name__}: {error}", text)


def _reply(value: object, *, what: str = "the reply") -> Frames:
    try:
        return encode(value, what=what)
    except InputError as error:
        return encode(failure_of(error), what="the failure")


# A local process: messages over a socket, each as a count, the frames' lengths, and the frames.


def receive(connection: socket.socket) -> Frames | None:
    """The next message; None when the driver has closed the connection."""
    head = _exactly(connection, 4)
    if head is None:
        return None
    (count,) = struct.unpack("<I", head)
    lengths = _exactly(connection, 8 * count)
    if lengths is None:
        return None
    frames: Frames = []
    for length in struct.unpack(f"<{count}Q", lengths):
        frame = _into(connection, room(length) if frames else memoryview(bytearray(length)))  # the pickle comes first
        if frame is None:
            return None
        frames.append(frame)
    return frames


def header(frames: Sequence[Frame]) -> bytes:
    """What precedes `frames` on the wire."""
    return struct.pack(f"<I{len(frames)}Q", len(frames), *(len(frame) for frame in frames))


def _exactly(connection: socket.socket, size: int) -> memoryview | None:
    return _into(connection, memoryview(bytearray(size)))


def _into(connection: socket.socket, memory: memoryview) -> memoryview | None:
    done = 0
    while done < len(memory):
        got = connection.recv_into(memory[done:])
        if got == 0:
            return None
        done += got
    return memory


def main(descriptor: int, driver: int) -> None:
    """Serve the driver, whose process id is `driver`, over the socket `descriptor` until either ends."""
    _die_with(driver)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the driver asks where a late worker is
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    connection = socket.socket(fileno=descriptor)
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        _serve(connection)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # communication threads may wait for peers that are gone: never join them


def _serve(connection: socket.socket) -> None:
    first = receive(connection)
    if first is None:
        return
    setup: Setup = decode(first)
    bind(setup.rank, setup.world)
    server = Server(setup)
    _send(connection, server.build())
    while (frames := receive(connection)) is not None:
        method, counts = decode(frames[:1])
        arguments, at = [], 1
        for count in counts:
            arguments.append(frames[at : at + count])
            at += count
        del frames
        reply = server.run(method, arguments)
        del arguments
        _send(connection, reply)


def _send(connection: socket.socket, frames: Frames) -> None:
    connection.sendall(header(frames))
    for frame in frames:
        connection.sendall(frame)


def _die_with(driver: int) -> None:
    """End this process when the driver ends, however it ends."""
    with contextlib.suppress(OSError, AttributeError):
        # The kernel kills us even while we are stopped; but it looks at the thread that started us, so a driver that
        # starts launchers in threads passes 0 and relies on the watch alone.
        if driver > 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    parent = abs(driver)
    if os.getppid() != parent:
        os._exit(0)
    threading.Thread(target=_watch, args=(parent,), name="driver-watch", daemon=True).start()


def _watch(parent: int) -> None:
    try:
        handle = os.pidfd_open(parent)
        select.select([handle], [], [])  # readable when the process has ended
    except (OSError, AttributeError):
        while os.getppid() == parent:
            threading.Event().wait(1.0)
    os.killpg(os.getpgrp(), signal.SIGKILL)
