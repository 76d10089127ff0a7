"""Workers as processes on this machine, over socket pairs. No worker outlives the driver, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Self

from pibroch.runtime.launcher import (
    WORKER,
    Gather,
    check_running,
    check_start,
    encode_arguments,
    load_reply,
    stopped_processes,
)
from pibroch.runtime.messages import Frames, encode, room
from pibroch.runtime.process import Setup, describe_main, driver_path, header

POLL = 0.05  # seconds between looks at processes that have neither answered nor closed their socket
LEAVE = 2.0  # seconds that idle workers get to end by themselves
KILLED = 10.0  # seconds that a killed process may take to be gone
TAIL = 4000  # bytes of a worker's output that an error shows
LOG_LIMIT = 8 << 20  # bytes of output after which a worker's log begins again
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LocalLauncher:
    """One process per rank, each in a process group of its own, with one thread for numerics unless `env` says more.

    What workers print is kept apart from the driver's output and shown in the `.detail` of errors.
    """

    def __init__(self, *, worker: str = WORKER, env: Mapping[str, str] | None = None) -> None:
        self._worker = worker
        self._env = dict(env or {})
        self._peers: list[_Peer] = []
        self._stopped = ""  # why there are no workers any more
        self._started = False

    @property
    def pids(self) -> list[int]:
        """Process ids in rank order."""
        return [peer.process.pid for peer in self._peers]

    def start(self, ranks: int, *, deadline: float) -> None:
        check_start(ranks, started=self._started)
        self._started = True
        weakref.finalize(self, _end_own, self._peers, os.getpid())  # also at the interpreter's exit
        gather = Gather("start", ranks, deadline)
        try:
            for _ in range(ranks):
                self._peers.append(_launch(self._env))
            path, main = driver_path(), describe_main()
            setups = [Setup(self._worker, rank, ranks, path, main) for rank in range(ranks)]
            messages = [encode(setup, what="the setup") for setup in setups]
        except BaseException:
            self._stop("start")
            raise
        self._exchange(gather, messages)

    def call(self, method: str, args: Sequence[tuple[Any, ...]] | None = None, *, deadline: float) -> list[Any]:
        check_running(started=self._started, stopped=self._stopped)
        arguments = encode_arguments(method, args, len(self._peers))
        messages = []
        for parts in arguments:
            head = encode((method, [len(frames) for frames in parts]), what="the request")
            messages.append([*head, *(frame for frames in parts for frame in frames)])
        return self._exchange(Gather(method, len(self._peers), deadline), messages)

    def reachable_host(self) -> str:
        return "127.0.0.1"

    def close(self) -> None:
        if not self._stopped:
            self._stop("close()", wait=LEAVE)
        self._started = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, gather: Gather, messages: Sequence[Frames]) -> list[Any]:
        """Send each rank its message and collect the replies; one loop, so that no rank's buffers block another."""
        try:
            with selectors.DefaultSelector() as selector:
                for rank, (peer, frames) in enumerate(zip(self._peers, messages, strict=True)):
                    peer.trim()
                    peer.outgoing = [memoryview(part).cast("B") for part in (header(frames), *frames) if len(part)]
                    peer.incoming = _Incoming()
                    selector.register(peer.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, rank)
                while (left := gather.left) > 0:
                    for key, events in selector.select(min(left, POLL)):
                        peer = self._peers[key.data]
                        if events & selectors.EVENT_WRITE and not peer.push():
                            selector.modify(peer.socket, selectors.EVENT_READ, key.data)
                        if events & selectors.EVENT_READ and (ended := peer.pull()) is not None:
                            selector.unregister(peer.socket)
                            if ended:
                                gather.answer(key.data, load_reply(peer.incoming.frames, gather.method))
                            else:  # closed: the process is about to be gone, if not yet
                                gather.died(key.data, peer.how_died(wait=1.0))
                    self._look_for_dead(gather)
            self._look_for_dead(gather)
            stopped = stopped_processes({rank: self._peers[rank].process.pid for rank in gather.pending})
            if gather.waited:
                self._ask_where(sorted(gather.pending.difference(stopped)))
            error = gather.error(stopped, lambda rank: self._peers[rank].tail())
        except BaseException as interrupt:  # KeyboardInterrupt, or a reply that the driver cannot load
            self._stop(f"{gather.method} ({type(interrupt).__name__})")
            raise
        if error is None:
            return gather.values()
        if not gather.healthy:
            self._stop(f"{gather.method}: {error}")
        raise error

    def _look_for_dead(self, gather: Gather) -> None:
        for rank in sorted(gather.pending):
            if self._peers[rank].process.poll() is not None:
                gather.died(rank, self._peers[rank].how_died(wait=0.0))

    def _ask_where(self, ranks: Sequence[int]) -> None:
        """Let the late ranks write the stacks of their threads, for the error's detail."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                self._peers[rank].process.send_signal(signal.SIGUSR1)
        if ranks:
            time.sleep(0.2)  # the handler writes at once, if at all

    def _stop(self, after: str, *, wait: float = 0.0) -> None:
        self._stopped = after
        _end(self._peers, wait)


@dataclass(slots=True)
class _Incoming:
    """A message on its way in."""

    frames: Frames = field(default_factory=list)
    lengths: list[int] | None = None
    part: memoryview = field(default_factory=lambda: memoryview(bytearray(4)))
    done: int = 0


@dataclass(slots=True)
class _Peer:
    process: subprocess.Popen[bytes]
    socket: socket.socket
    log: IO[bytes]
    outgoing: list[memoryview] = field(default_factory=list)
    incoming: _Incoming = field(default_factory=_Incoming)

    def push(self) -> bool:
        """Send what the socket takes; whether anything is left."""
        try:
            while self.outgoing:
                sent = self.socket.sendmsg(self.outgoing[:64])
                while sent and sent >= len(self.outgoing[0]):
                    sent -= len(self.outgoing.pop(0))
                if sent:
                    self.outgoing[0] = self.outgoing[0][sent:]
        except BlockingIOError:
            return True
        except (BrokenPipeError, ConnectionResetError):
            self.outgoing.clear()  # reading will find the end
        return False

    def pull(self) -> bool | None:
        """Read what is there: True when the message is complete, False when the worker has closed, None before."""
        state = self.incoming
        try:
            while True:
                while state.done == len(state.part):
                    if not _advance(state):
                        return True
                got = self.socket.recv_into(state.part[state.done :])
                if got == 0:
                    return False
                state.done += got
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return False

    def how_died(self, *, wait: float) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(wait)
        code = self.process.returncode
        if code is None:
            return "closed its connection"
        if code >= 0:
            return f"exit status {code}"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"

    def trim(self) -> None:
        if os.fstat(self.log.fileno()).st_size > LOG_LIMIT:
            self.log.truncate(0)  # the worker appends, so it goes on at the new end

    def tail(self) -> str:
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), TAIL, max(0, size - TAIL)).decode(errors="replace")


def _advance(state: _Incoming) -> bool:
    """The part of the message that was awaited is there; await the next one. False at the message's end."""
    if state.lengths is None:
        if len(state.part) == 4:
            (count,) = struct.unpack("<I", state.part)
            state.part, state.done = memoryview(bytearray(8 * count)), 0
            return True
        state.lengths = list(struct.unpack(f"<{len(state.part) // 8}Q", state.part))
    else:
        state.frames.append(state.part)
    if not state.lengths:
        return False
    size = state.lengths.pop(0)
    state.part, state.done = room(size) if state.frames else memoryview(bytearray(size)), 0
    return True


def _launch(extra: Mapping[str, str]) -> _Peer:
    env = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": os.pathsep.join(driver_path()), **extra}
    ours, theirs = socket.socketpair()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end; it has no name, so nothing is ever left
    fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
    # The kernel's "kill me when my parent ends" follows the parent's *thread*: a negative id asks for the watch alone.
    driver = os.getpid() if threading.current_thread() is threading.main_thread() else -os.getpid()
    code = f"from pibroch.runtime.process import main; main({theirs.fileno()}, {driver})"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=env,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    ours.setblocking(False)
    return _Peer(process, ours, log)


def _end(peers: list[_Peer], wait: float) -> None:
    """End the processes: those that answer to a closed connection within `wait` seconds by themselves, the rest not."""
    for peer in peers:
        peer.socket.close()
    until = time.monotonic() + wait
    for peer in peers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if wait > 0:
                peer.process.wait(max(0.0, until - time.monotonic()))
    for peer in peers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(peer.process.pid, signal.SIGKILL)  # with whatever the worker started itself
    for peer in peers:
        with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel's hands: init will reap it
            peer.process.wait(KILLED)
        peer.log.close()
    peers.clear()


def _end_own(peers: list[_Peer], owner: int) -> None:
    if os.getpid() == owner:  # not in a forked copy of the driver
        _end(peers, 0.0)
