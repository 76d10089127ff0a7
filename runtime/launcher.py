"""Launchers start one worker per rank and call methods on all of them; what is common to every kind.

A call is collective: it goes to all ranks at once, and the workers may wait for each other inside. So one dead, stopped
or failed rank ends the call for all, and the pool with it; the error names the rank that began it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from pibroch.runtime import process
from pibroch.runtime.errors import InputError, MissingError, PibrochError, WorkerError
from pibroch.runtime.failures import FAILURES
from pibroch.runtime.messages import Frame, Frames, decode, encode
from pibroch.runtime.process import Failure

WORKER = "pibroch.runtime.worker:Worker"
GRACE = 1.0  # seconds that the other ranks get once one has failed: longer than they need to fail of the same cause
KINDS: tuple[str, ...] = ("ray", "local")


class Launcher(Protocol):
    """A pool of workers, one process per rank. Deadlines are seconds from the call."""

    def start(self, ranks: int, *, deadline: float) -> None:
        """Start `ranks` workers and wait until each is built. Once per launcher."""

    def call(self, method: str, args: Sequence[tuple[Any, ...]] | None = None, *, deadline: float) -> list[Any]:
        """Run `method` on all ranks at once with `args[rank]`; the results in rank order.

        Raises InputError or MissingError as a worker raised it (the pool lives on if all ranks answered), and
        WorkerError for everything else (the pool is stopped, and `.detail` has tracebacks and the workers' output).
        """

    def reachable_host(self) -> str:
        """The address at which the other ranks reach rank 0: 127.0.0.1 where all ranks share a machine."""

    def close(self) -> None:
        """Stop the workers and leave nothing behind; may be called again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def make_launcher(
    kind: str | Launcher, *, address: str | None = None, worker: str = WORKER, gpus: bool = False
) -> Launcher:
    """The launcher of this kind ("ray" or "local"; a Launcher is returned as it is), not yet started.

    `address` is the running Ray cluster to join; `worker` names the class as "module:Class"; `gpus` asks Ray for them.
    """
    if not isinstance(kind, str):
        return kind
    if kind == "local":
        if address is not None:
            raise InputError(f"address={address!r} needs the launcher 'ray'; 'local' starts processes on this machine")
        from pibroch.runtime.launch_local import LocalLauncher

        return LocalLauncher(worker=worker)
    if kind == "ray":
        from pibroch.runtime.launch_ray import RayLauncher

        return RayLauncher(address=address, worker=worker, gpus=gpus)
    raise InputError(f"no launcher is called {kind!r}; use one of {', '.join(KINDS)}")


class Gather:
    """The answers to one call as they arrive, and what to conclude from them. `clock` is in seconds."""

    def __init__(self, method: str, ranks: int, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.method = method
        self.pending = set(range(ranks))
        self._clock = clock
        self._seconds = deadline
        self._until = clock() + deadline
        self._values: dict[int, Any] = {}
        self._failures: dict[int, Failure] = {}  # in the order of arrival
        self._dead: dict[int, str] = {}

    def answer(self, rank: int, reply: Any) -> None:
        """Rank `rank` has answered with a value or a Failure."""
        self.pending.discard(rank)
        if not isinstance(reply, Failure):
            self._values[rank] = reply
            return
        if not self._failures:
            self._until = min(self._until, self._clock() + GRACE)
        self._failures[rank] = reply

    def died(self, rank: int, how: str) -> None:
        """The process of `rank` has ended: `how` is "killed by SIGKILL" or "exit status 1", or "" if unknown."""
        self.pending.discard(rank)
        self._dead[rank] = how

    @property
    def left(self) -> float:
        """Seconds that the call may still wait; 0 when there is nothing to wait for."""
        if self._dead or not self.pending:
            return 0.0
        return max(0.0, self._until - self._clock())

    @property
    def waited(self) -> bool:
        """Whether the time ran out while all that have not answered live."""
        return bool(self.pending) and not self._dead

    @property
    def healthy(self) -> bool:
        """Whether the workers can take another call: all have answered, with values or errors in the input."""
        return not self.pending and not self._dead and all(f.kind != "other" for f in self._failures.values())

    def error(self, stopped: Sequence[int], output: Callable[[int], str]) -> PibrochError | None:
        """What ended the call, or None. `stopped` are the pending ranks whose process is stopped."""
        late = [rank for rank in sorted(self.pending) if rank not in stopped]
        traces = [f"rank {rank}:\n{failure.traceback}" for rank, failure in self._failures.items()]
        failed = next(iter(self._failures.items()), None)
        also = f"; {_named(*failed)}" if failed else ""
        error: PibrochError
        kind = "timeout"
        if self._dead:
            kind = "process_died"
            causes = [f"rank {rank} died{f' ({how})' if how else ''}" for rank, how in sorted(self._dead.items())]
            error = WorkerError(f"{', '.join(causes)} during {self.method}{also}")
            shown = sorted(self._dead)
        elif stopped:
            state = "is" if len(stopped) == 1 else "are"
            waited = also or f" and did not answer within {self._seconds:g} s"
            error = WorkerError(f"{_ranks(stopped)} {state} stopped (SIGSTOP) during {self.method}{waited}")
            shown = sorted(stopped)
        elif failed:
            rank, failure = failed
            kinds: dict[str, type[PibrochError]] = {"input": InputError, "missing": MissingError}
            error = kinds[failure.kind](failure.message) if failure.kind in kinds else WorkerError(_named(*failed))
            shown, kind = [rank], "exception"
        elif late:
            error = WorkerError(f"{_ranks(late)} did not answer {self.method} within {self._seconds:g} s")
            shown = late
        else:
            return None
        said = [f"rank {rank} wrote:\n{text}" for rank in shown if (text := output(rank).strip())]
        error.detail = "\n".join([*traces, *said])
        if isinstance(error, WorkerError):
            FAILURES.advise(error, kind, shown)
        return error

    def values(self) -> list[Any]:
        """The results in rank order, once there is no error."""
        return [self._values[rank] for rank in sorted(self._values)]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(str(rank) for rank in sorted(ranks))}"


def _named(rank: int, failure: Failure) -> str:
    prefix = f"rank {rank}: "
    return failure.message if failure.message.startswith(prefix) else prefix + failure.message


def encode_arguments(method: str, args: Sequence[tuple[Any, ...]] | None, ranks: int) -> list[list[Frames]]:
    """Frames of each rank's arguments; an object that several ranks get is encoded once."""
    if args is None:
        return [[] for _ in range(ranks)]
    if len(args) != ranks:
        raise InputError(f"{method} got arguments for {len(args)} ranks, but there are {ranks}")
    known: dict[int, Frames] = {}  # by identity: `args` keeps the objects alive
    for values in args:
        for place, value in enumerate(values):
            if id(value) not in known:
                known[id(value)] = encode(value, what=f"argument {place + 1} of {method}")
    return [[known[id(value)] for value in values] for values in args]


def check_start(ranks: int, *, started: bool) -> None:
    """Raises InputError where a launcher must not start."""
    if ranks < 1:
        raise InputError(f"a launcher needs at least one rank, not {ranks}")
    if started:
        raise InputError("this launcher was started before; make another one")
    if process.IN_WORKER:
        raise InputError(
            "a worker tried to start workers: the script that defines the model runs again in each worker, so guard "
            'what starts training with `if __name__ == "__main__":`'
        )


def check_running(*, started: bool, stopped: str) -> None:
    """Raises WorkerError where there are no workers (any more)."""
    if stopped:
        raise WorkerError(f"the workers were stopped after {stopped}")
    if not started:
        raise WorkerError("the workers were not started: call start() first")


def load_reply(frames: Sequence[Frame], method: str) -> Any:
    """The reply of a worker; raises InputError for a class that the driver cannot import."""
    try:
        return decode(frames)
    except Exception as error:
        raise InputError(f"the result of {method} cannot be loaded ({type(error).__name__}: {error})") from error


def stopped_processes(pids: dict[int, int]) -> list[int]:
    """The ranks among `pids` (rank → process id on this machine) that are stopped, where the system tells."""
    return [rank for rank, pid in sorted(pids.items()) if process_state(pid) in ("T", "t")]


def process_state(pid: int) -> str:
    """The letter of proc(5) for the state of process `pid`, or "" if it is gone or the system does not tell."""
    return _process_stat(pid, 0)


def process_birth(pid: int) -> str:
    """When process `pid` started, in ticks since the boot: with its id it names one process for ever. "" as above."""
    return _process_stat(pid, 19)


def _process_stat(pid: int, field: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[field]
    except (OSError, IndexError):
        return ""
