"""The judge's side of the sandbox: makes calls in a locked-up process and receives plain data.

    with Session(source, spec) as session:
        made = session.fresh("AnomalyTrigger", [2, 50, 1])
        seen = session.call("observe", [8])
        seen.value, seen.view

Nothing that the child says is believed: it is decoded by the spec's annotations, and what it asks of a rely is
recorded and answered here. A reply that does not carry the token of its request, or anything beyond it, ends the
session.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import pibroch
from pibroch.evals.sandbox import require_sandbox
from pibroch.evals.speceval import wire
from pibroch.evals.speceval.outcome import Error, Outcome, bound, read_row
from pibroch.runtime.errors import PibrochError
from pibroch.specs.model import Operation, Rely, Spec, Unit

_ROOT = str(Path(pibroch.__file__).resolve().parent.parent)
_BOOT = "import sys; sys.path.append(sys.argv[1]); from pibroch.evals.speceval.child import main; main()"
DEADLINE_S = 10.0
START_S = 60.0  # until the interpreter stands, on a machine that is busy
MEMORY_BYTES = 512 << 20
THREAD_BYTES = 32 << 20  # of address space, each
OUTPUT_BYTES = 4 << 20
Relies = Callable[[str, list[Any]], Any]
Watch = Literal["none", "lines", "opcodes"]


class SessionEnded(PibrochError):
    """The child left, hung, or wrote what is no reply: one line, the same on every machine. The session is over."""

    exit_code = 1


class LoadFailed(SessionEnded):
    """The source does not load: it is no Python, or raises. `error` says where."""

    def __init__(self, error: Error) -> None:
        self.error = error
        super().__init__(f"line {error.line}: {error}" if error.line else str(error))


class Session:
    """One candidate in its own process. A context manager; `LoadFailed` and `SessionEnded` come from `with` already.

    `relies` answers questions to relied-upon functions, by name and arguments (in the order of the signature).
    `deadline_s` holds for each request. `seed` is the seed of string hashes inside. `threads` are started for commands
    `threads.*`. `static`: it is a fault where a call changes anything outside of objects. Leaving the block asks the
    child to end, so that a reply forged in the last call is found.
    Raises `ValueError` where an annotation of the spec is no plain type.
    """

    def __init__(
        self, source: str, spec: Spec, *, relies: Relies | None = None, deadline_s: float = DEADLINE_S,
        watch: Watch = "none", threads: int = 0, seed: int = 0, memory_bytes: int = MEMORY_BYTES,
        output_bytes: int = OUTPUT_BYTES, static: bool = False,
    ) -> None:  # fmt: skip
        self.source, self.spec, self.relies, self.deadline_s = source, spec, relies, deadline_s
        self.watch, self.threads, self.seed, self.output_bytes = watch, threads, seed, output_bytes
        self.static = static
        self.memory_bytes = memory_bytes + threads * THREAD_BYTES
        self.loaded_lines: frozenset[int] = frozenset()
        self._units: dict[str, Unit] = {u.name: u for u in spec.units}
        self._fields = {u.name: {f: wire.checker(u.fields[f]) for f in u.view} for u in spec.units}
        for operation in [*(o for u in spec.units for o in u.operations.values()), *(r.function for r in spec.relies)]:
            for text in (operation.returns, *(p.type for p in operation.params)):
                wire.checker(text)
        self._relies: dict[str, Rely] = {r.name: r for r in spec.relies}
        self._unit: Unit | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._in = self._out = -1
        self._may_write, self._may_read = select.poll(), select.poll()
        self._rest = b""
        self._asked: dict[int, list[tuple[str, list[Any], Any]]] = {}
        self._faults: dict[int, str] = {}
        self._encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
        self._decode = json.JSONDecoder(parse_constant=_no_constant).decode

    # Start and end

    def __enter__(self) -> Session:
        require_sandbox()
        try:
            self._start()
            loaded = self._outcome(self.command("load", None), None, 0)
        except BaseException:
            self.kill()
            raise
        self.loaded_lines = loaded.lines
        if loaded.error:
            self.kill()
            raise LoadFailed(loaded.error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._child is not None:
                self.command("end", None)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the child, its group and its folder at once. Harmless when repeated."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pibroch-session-")
        self._child = subprocess.Popen(
            [sys.executable, "-s", "-P", "-S", "-c", _BOOT, _ROOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={"PYTHONHASHSEED": str(self.seed), "MALLOC_ARENA_MAX": "1"},
            cwd=self._folder.name, start_new_session=True, bufsize=0,
        )  # fmt: skip
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._in, self._out = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._may_write.register(self._in, select.POLLOUT)
        self._may_read.register(self._out, select.POLLIN)
        functions: dict[str, list[str]] = {}
        for rely in self.spec.relies:
            functions.setdefault(rely.module, []).append(rely.function.name)
        setup = {
            "source": self.source, "imports": self.spec.front.imports, "relies": functions, "watch": self.watch,
            "threads": self.threads, "static": self.static,
            "units": {u.name: {"class": u.is_class, "view": bool(u.view)} for u in self.spec.units},
            "limits": {
                "RLIMIT_AS": self.memory_bytes, "RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": 32, "RLIMIT_CORE": 0,
            },
        }  # fmt: skip
        self.command("setup", setup, deadline_s=START_S)

    # Calls

    def fresh(self, unit: str, args: Sequence[Any]) -> Outcome:
        """A new instance of a class, or the module executed anew (`args` is then empty). Later calls go to it."""
        self._unit = self._units[unit]
        row = self.command("fresh", [unit, [wire.encode(x) for x in args]])
        return self._outcome(row, self._unit.init, 0)

    def call(self, operation: str, args: Sequence[Any]) -> Outcome:
        """One call of an operation on the current instance."""
        assert self._unit is not None, "fresh() comes first"
        row = self.command("call", [operation, [wire.encode(x) for x in args]])
        return self._outcome(row, self._unit.operations[operation], 0)

    def replay(
        self, unit: str, init_args: Sequence[Any] | None, calls: Sequence[tuple[str, Sequence[Any]]], *,
        look: bool = True, scribble: bool = False,
    ) -> list[Outcome]:  # fmt: skip
        """Many calls in one round trip: an outcome for `fresh`, then one per call.

        `init_args` None: no `fresh`, the calls go on with the current instance. Where the constructor raises, its
        outcome is the only one; after a call that raises, the others follow. `look=False`: nobody calls `view()`.
        `scribble=True`: after each call everything mutable in its arguments and result is overwritten inside.
        """
        self._unit = self._units[unit]
        payload = {
            "unit": unit, "init": None if init_args is None else [wire.encode(x) for x in init_args],
            "calls": [[name, [wire.encode(x) for x in args]] for name, args in calls], "look": look,
            "scribble": scribble,
        }  # fmt: skip
        rows = self.command("replay", payload)
        made: list[Operation | None] = [] if init_args is None else [self._unit.init]
        made += [self._unit.operations[name] for name, _ in calls]
        if type(rows) is not list or len(rows) > len(made):
            raise self._nonsense()
        outcomes = [self._outcome(row, made[i], i) for i, row in enumerate(rows)]
        whole = len(outcomes) == len(made) or (init_args is not None and len(outcomes) == 1 and outcomes[0].error)
        if not whole:
            raise self._nonsense()
        return outcomes

    def command(self, name: str, payload: Any, *, deadline_s: float | None = None) -> Any:
        """Any command of the child; the data of its reply. Questions to relies are answered on the way.

        Raises `SessionEnded`; `RuntimeError` where the child's own harness refuses the command.
        """
        ends = time.monotonic() + (self.deadline_s if deadline_s is None else deadline_s)
        token = os.urandom(8).hex()
        self._asked, self._faults = {}, {}
        if self._rest:
            raise self._nonsense()
        self._send([token, name, payload], ends)
        while True:
            message = self._receive(ends)
            if type(message) is list and len(message) == 5 and message[0] == "?":
                self._send(self._answer(*message[1:]), ends)
                continue
            if type(message) is not list or len(message) != 3 or message[0] != token or self._rest:
                raise self._nonsense()
            if message[1] == "fail":
                self.kill()
                raise RuntimeError(f"{name}: {wire.printable(message[2], 300)}")
            return message[2]

    @property
    def asked(self) -> dict[int, list[tuple[str, list[Any], Any]]]:
        """Questions to relies during the last command, by the index of the call that asked (as the child says)."""
        return self._asked

    # The pipe

    def _send(self, data: Any, ends: float) -> None:
        text = memoryview(self._encode(data).encode() + b"\n")
        if self._child is None:
            raise SessionEnded("the session is over")
        while text:
            try:
                text = text[os.write(self._in, text) :]
            except BlockingIOError:
                self._wait(self._may_write, ends)
            except BrokenPipeError:
                raise self._left() from None

    def _receive(self, ends: float) -> Any:
        parts, size = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            self._wait(self._may_read, ends)
            part = os.read(self._out, 1 << 20)
            if not part:
                raise self._left()
            size += len(part)
            if size > self.output_bytes:
                self.kill()
                raise SessionEnded(f"the code wrote more than {self.output_bytes} bytes")
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        try:
            return self._decode(line.decode())
        except (ValueError, RecursionError):
            raise self._nonsense() from None

    def _wait(self, poller: select.poll, ends: float) -> None:
        left = ends - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            self.kill()
            raise SessionEnded("the code does not end: its time is over")

    def _left(self) -> SessionEnded:
        child = self._child
        assert child is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)  # it closed the pipe; if it lives on, it is killed below
        code = child.returncode
        self.kill()
        how = f"was ended by signal {-code}" if code is not None and code < 0 else "left the process"
        return SessionEnded(f"the code {how} during a call")

    def _nonsense(self) -> SessionEnded:
        self.kill()
        return SessionEnded("the code wrote something that is no reply")

    # Decoding

    def _answer(self, index: Any, name: Any, args: Any, kwargs: Any) -> list[Any]:
        """Answers a question of the candidate, and keeps it."""
        if type(index) is not int or type(name) is not str or type(args) is not list or type(kwargs) is not dict:
            raise self._nonsense()
        rely = self._relies.get(name)
        if rely is None or self.relies is None:
            return self._refuse(index, f"{wire.printable(name)} is not there to be called")
        try:
            values = bound(rely.function, args, kwargs)
        except wire.TypeMismatch as error:
            return self._refuse(index, f"{name}({error})")
        value = self.relies(name, list(values))
        self._asked.setdefault(index, []).append((name, values, value))
        return ["!", wire.encode(value), None]

    def _refuse(self, index: int, message: str) -> list[Any]:
        self._faults.setdefault(index, f"asked {message}")
        return ["!", None, message]

    def _outcome(self, row: Any, operation: Operation | None, index: int) -> Outcome:
        """A row of the child, decoded. Raises `SessionEnded` where it is none."""
        fields = self._fields[self._unit.name] if self._unit is not None else {}
        try:
            made = read_row(row, operation.returns if operation else None, fields)
        except (TypeError, ValueError):
            raise self._nonsense() from None
        made.asked, made.fault = self._asked.get(index, []), self._faults.get(index, "") or made.fault
        return made


def _no_constant(name: str) -> Any:
    raise ValueError(name)


__all__ = ["Error", "LoadFailed", "Outcome", "Relies", "Session", "SessionEnded", "Watch"]
