"""The inside of a session: a persistent process that locks itself up, loads a candidate and makes the judge's calls.

Started by `session.py`, standard library only. One JSON array a line, both ways:

    judge → child   [token, command, payload]
    child → judge   [token, "ok", data]  or  [token, "fail", message];  first [token, "ready", null]
    child → judge   ["?", index, function, args, kwargs]    asks what a function of the rely returns, in call `index`
    judge → child   ["!", value, null]  or  ["!", null, message]

Whatever it says is only data for the judge: nothing here is trusted after the candidate has been loaded.

Threads. A session with `threads=N` uses `evals/speceval/child_threads.py` (no other does), which offers

    make_threading(child) -> ModuleType         what the candidate gets as `threading`; once, before it is loaded
    start(child, count) -> None                 starts the threads, after Landlock and before seccomp; returns when each
                                                of them runs (later there are no threads to be had); they are idle then
    handle(child, command, payload) -> data     every command `threads.*`; an exception becomes a "fail" reply

and of the `Child` it uses `load()` (a fresh module scope), `pack`, `unpack`, `describe(error)`, `index` (the call that
questions are attributed to) and `around_ask`, which, where it is set, is called as `around_ask(name, args, answer)`
for each question to a rely and returns `answer()`. Trace functions in those threads are the scheduler's own.
The judge's side is `Session.command("threads.x", payload) -> data`.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any

from pibroch.evals.lockup import lock_up
from pibroch.evals.speceval import child_load, child_shim
from pibroch.evals.speceval.child_static import Static
from pibroch.evals.speceval.wire import pack, unpack

FILE = child_load.FILE
Row = list[Any]  # [value, error, view, arguments afterwards, lines, opcodes, what else is wrong]


class Channel:
    """JSON lines over two file descriptors."""

    def __init__(self, given: int, out: int) -> None:
        self.given, self.out, self.rest = given, out, b""
        self._encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
        self._decode = json.JSONDecoder().decode
        self._read, self._write = os.read, os.write

    def receive(self) -> Any:
        """The next line; the process ends where there is none."""
        parts = [self.rest]
        while b"\n" not in parts[-1]:
            part = self._read(self.given, 1 << 16)
            if not part:
                os._exit(0)
            parts.append(part)
        line, _, self.rest = b"".join(parts).partition(b"\n")
        return self._decode(line.decode())

    def send(self, data: Any) -> None:
        """Write one line."""
        text = self._encode(data).encode() + b"\n"
        while text:
            text = text[self._write(self.out, text) :]


class Child:
    """One candidate and its current instance."""

    pack, unpack = staticmethod(pack), staticmethod(unpack)

    def __init__(self, setup: dict[str, Any], channel: Channel) -> None:
        self.channel, self.units, self.watch = channel, setup["units"], setup["watch"]
        self.source: str = setup["source"]
        self.threads: Any = None
        self.around_ask: Callable[[str, list[Any], Callable[[], Any]], Any] | None = None
        self.code: CodeType | None = None
        self.scope: dict[str, Any] = {}
        self.static: Static | None = None
        self.spoil = False  # whether what a view gives is overwritten
        self.watch_static: bool = setup["static"]
        self.unit: dict[str, Any] = {"class": False, "view": False}
        self.instance: Any = None
        self.index = 0
        self.lines: set[int] = set()
        self.opcodes = 0
        self.tracer = self._trace
        own: dict[str, ModuleType] = {
            name: child_load.proxy(name, functions, self.ask) for name, functions in setup["relies"].items()
        }
        if setup["threads"]:
            self.threads = importlib.import_module("pibroch.evals.speceval.child_threads")
            own["threading"] = self.threads.make_threading(self)
        else:
            own["threading"] = child_shim.threading()
        self.offered = child_load.make_builtins(child_load.make_modules(setup["imports"], own))

    # Commands

    def handle(self, command: str, payload: Any) -> Any:
        """The data of the reply."""
        if command == "call":
            operation, args = payload
            return self.call(operation, args)
        if command == "replay":
            return self.replay(**payload)
        if command == "fresh":
            unit, args = payload
            return self.fresh(unit, args)
        if command == "load":
            row = self.run(self._load, [])
            return [None, *row[1:]]
        if command.startswith("threads.") and self.threads is not None:
            return self.threads.handle(self, command, payload)
        raise ValueError(f"unknown command {command}")

    def load(self) -> dict[str, Any]:
        """Execute the candidate anew; its module scope."""
        if self.code is None:
            self.code = compile(self.source, FILE, "exec", dont_inherit=True)
        return child_load.run_source(self.code, self.offered)

    def _load(self) -> None:
        self.scope, self.static = self.load(), None
        if self.watch_static and any(unit["class"] or not unit["view"] for unit in self.units.values()):
            self.static = Static(self.scope, FILE)

    def fresh(self, unit: str, args: list[Any], look: bool = True, scribble: bool = False) -> Row:
        """A new instance of a class, or the module executed anew; calls go to it from now on."""
        self.unit, self.instance = self.units[unit], None
        if not self.unit["class"]:
            return self.run(self._load, [], look)

        def make(*given: Any) -> None:
            kind = self.scope.get(unit)
            if kind is None:
                raise NameError(f"the code defines no class {unit}")
            self.instance = kind(*given)

        return self.run(make, [unpack(x) for x in args], look, scribble)

    def call(self, operation: str, args: list[Any], look: bool = True, scribble: bool = False) -> Row:
        """One call on the current instance."""
        try:
            function = self.bind(operation)
        except BaseException as error:
            return [None, self.describe(error), None, args, [], 0, None]
        given = [unpack(x) for x in args]
        return self.run(function, one_object(given, {}) if scribble else given, look, scribble)

    def replay(
        self, unit: str, init: list[Any] | None, calls: list[tuple[str, list[Any]]], look: bool, scribble: bool
    ) -> list[Row]:
        """Many calls. `init` None: on the current instance."""
        rows: list[Row] = []
        self.index = 0
        if init is not None:
            rows.append(self.fresh(unit, init, look, scribble))
            if rows[0][1] is not None:
                return rows
        else:
            self.unit = self.units[unit]
        for operation, args in calls:
            self.index = len(rows)
            rows.append(self.call(operation, args, look, scribble))
        return rows

    # Parts

    def bind(self, operation: str) -> Callable[..., Any]:
        """The operation of the current instance, or function of the module."""
        if self.unit["class"]:
            return getattr(self.instance, operation)  # type: ignore[no-any-return]
        function = self.scope.get(operation)
        if function is None:
            raise NameError(f"the code defines no function {operation}")
        return function  # type: ignore[no-any-return]

    def run(self, function: Callable[..., Any], args: list[Any], look: bool = False, scribble: bool = False) -> Row:
        """Call `function(*args)`; what came of it."""
        value: Any = None
        error: list[Any] | None = None
        view: Any = None
        fault: str | None = None
        self.lines, self.opcodes = set(), 0
        watching = self.watch != "none"
        try:
            if watching:
                sys.settrace(self.tracer)
            value = function(*args)
            if watching and sys.gettrace() is not self.tracer:
                fault = "the code switched tracing off"
        except BaseException as caught:
            sys.settrace(None)
            error = self.describe(caught)
        finally:
            if watching:
                sys.settrace(None)
        packed = pack(value)
        after = [pack(x) for x in args]
        if look and self.unit["view"] and (self.instance is not None or not self.unit["class"]):
            self.spoil = scribble
            view, wrong = self.view()
            fault = fault or wrong
        changed = self.static.changed() if self.static is not None else None
        if changed is not None:
            fault = fault or f"{changed} changed: state lives in the fields of one object, nowhere else"
        if scribble:
            overwrite(value)
            overwrite(args)
        return [packed, error, view, after, sorted(self.lines), self.opcodes, fault]

    def view(self) -> tuple[Any, str | None]:
        """The view, packed, or what went wrong in it."""
        tracing = self.watch == "lines"
        try:
            function = self.bind("view")
            if tracing:
                sys.settrace(self.tracer)
            value = function()
        except BaseException as caught:
            sys.settrace(None)
            kind, message, line = self.describe(caught)
            return None, f"view() raised {kind} in line {line}: {message}"
        finally:
            if tracing:
                sys.settrace(None)
        packed = pack(value)
        if self.spoil and type(value) is dict:
            for each in value.values():
                overwrite(each)
        return packed, None

    def describe(self, error: BaseException) -> list[Any]:
        """[type, message, line of the candidate or 0]. Only a genuine builtin type has a bare name."""
        kind = type(error)
        name = str(type.__dict__["__name__"].__get__(kind))
        if kind is not getattr(builtins, name, None) and kind is not child_shim.WouldBlock:
            name = f"{FILE}.{name}"
        try:
            message = str(error)[:300]
        except BaseException:
            message = ""
        line, at = 0, error.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_filename == FILE:
                line = at.tb_lineno
            at = at.tb_next
        if isinstance(error, SyntaxError):
            line = error.lineno or 0
        return [name, message, line]

    def ask(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What the judge answers for a function of the rely. Raises `TypeError` where it refuses the question."""
        if self.around_ask is not None:
            return self.around_ask(name, args, lambda: self._ask(name, args, kwargs))
        return self._ask(name, args, kwargs)

    def _ask(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            self.channel.send(["?", self.index, name, [pack(x) for x in args], {k: pack(v) for k, v in kwargs.items()}])
            mark, value, refusal = self.channel.receive()
        finally:
            sys.settrace(trace)
        if mark != "!" or refusal is not None:
            raise TypeError(str(refusal))
        return unpack(value)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != FILE:
            return None
        if self.watch == "opcodes":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return self._opcode
        self.lines.add(frame.f_lineno)
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines.add(frame.f_lineno)
        return self._line

    def _opcode(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self.opcodes += 1
        return self._opcode


def one_object(value: Any, known: dict[Any, Any]) -> Any:
    """The same value, in which equal numbers and texts are one object: `is` must not tell them apart."""
    kind = type(value)
    if kind is int or kind is str or kind is float:
        return known.setdefault((kind, value), value)
    if kind is tuple or kind is list:
        return kind([one_object(each, known) for each in value])
    return value


def overwrite(value: Any) -> None:
    """Spoil everything mutable in a plain value: who kept a reference to it is found out."""
    kind = type(value)
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        for each in value:
            overwrite(each)
    elif kind is dict:
        for each in value.values():
            overwrite(each)
    if kind is list:
        value[:] = ["overwritten"]
    elif kind is dict or kind is set:
        value.clear()


def main() -> None:
    """Set up, lock up, serve."""
    given, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    channel = Channel(given, out)
    token, _, setup = channel.receive()
    sys.path.remove(sys.argv.pop())
    child = Child(setup, channel)

    def start_threads() -> None:
        if child.threads is not None:
            child.threads.start(child, setup["threads"])

    try:
        lock_up(setup["limits"], write=False, new_code=False, before_seccomp=start_threads)
    except (OSError, RuntimeError) as error:
        channel.send([token, "fail", f"the sandbox cannot be set up: {error}"])
        os._exit(0)
    channel.send([token, "ready", None])
    while True:
        token, command, payload = channel.receive()
        child.index = 0
        if command == "end":
            channel.send([token, "ok", None])
            os._exit(0)
        try:
            reply = [token, "ok", child.handle(command, payload)]
        except BaseException as error:
            reply = [token, "fail", f"{type(error).__name__}: {str(error)[:200]}"]
        channel.send(reply)
