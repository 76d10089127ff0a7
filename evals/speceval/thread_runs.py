"""Runs of several threads, as the judge sees them: scenario and schedule go in, a checked and typed log comes out.

What the child writes is believed only as far as it fits: each choice was among the threads that could go on, the given
choices were followed, calls are those of the scenario and in order. A log that does not fit ends the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from pibroch.evals.speceval import wire
from pibroch.evals.speceval.session import Error, Session, SessionEnded
from pibroch.specs.model import Operation, Unit

Mode = Literal["sync", "opcodes"]
Invocation = tuple[str, tuple[Any, ...]]
RUN, THREAD = 10_000, 100  # as in child_run.py
_ENDS = ("done", "stuck", "endless", "diverged", "failed")
_LENGTHS = {
    "call": 3, "return": 4, "raise": 6, "acquire": 4, "refused": 4, "release": 4, "wait": 4, "woken": 4, "expired": 4,
    "notify": 5, "read": 4, "write": 4, "ask": 4, "line": 3,
}  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """A fresh unit, calls made one after another, then `threads` at the same time. `roles`: who each thread may be."""

    unit: Unit
    init: tuple[Any, ...]
    before: tuple[Invocation, ...]
    threads: tuple[tuple[Invocation, ...], ...]
    roles: tuple[frozenset[str], ...]
    name: str
    line: int = 0

    def texts(self) -> tuple[str, ...]:
        """For people: `RequestQueue(1)`, the calls before, and a line per thread."""
        made = [show_call((self.unit.name, self.init))] if self.unit.is_class else []
        before = [show_call(c) for c in self.before]
        threads = [f"T{t}: " + "; ".join(map(show_call, calls)) for t, calls in enumerate(self.threads)]
        return (*made, *before, *threads)


def show_call(call: Invocation) -> str:
    """`put(1, 5)`."""
    return f"{call[0]}({', '.join(map(repr, call[1]))})"


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule: choices to follow, and then, for random schedules, priorities of the threads and their changes as
    (number of the choice, new priority of the thread that runs)."""

    choices: tuple[int, ...] = ()
    priorities: tuple[int, ...] = ()
    changes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """`running` is -1 where the thread that ran could not go on."""

    running: int
    able: tuple[int, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class Event:
    """`what` is the number of a call, lock or condition, or the name of a field or function; `value` is a `notify`'s
    count."""

    kind: str
    thread: int
    what: Any
    line: int = 0
    value: int = 0


@dataclass(slots=True)
class Call:
    """One call of a run. `start` and `end` are places in the log; `end` is None for one that did not come back."""

    thread: int
    index: int
    operation: Operation
    args: tuple[Any, ...]
    start: int
    end: int | None = None
    value: Any = None
    error: Error | None = None
    fault: str = ""
    asked: list[tuple[str, list[Any], Any]] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, int]:
        return self.thread, self.index

    def __str__(self) -> str:
        text = f"T{self.thread} {show_call((self.operation.name, self.args))}"
        if self.end is None:
            return f"{text} waits"
        return f"{text} raises {self.error}" if self.error else f"{text} -> {self.value!r}"


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock or condition that the unit's attributes name; `lock` is the number of the lock that it takes."""

    name: str
    kind: str
    line: int
    lock: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A thread that cannot go on: in which call, for what and in which line, and who has the lock (-1: nobody)."""

    thread: int
    call: int
    kind: str
    what: int
    line: int
    owner: int


@dataclass(slots=True)
class RunLog:
    """One run. `view` is None where the unit has none or it could not be had (`unseen` says why)."""

    plan: Plan
    choices: list[Choice]
    events: list[Event]
    end: str
    waiting: list[Waiting]
    locks: dict[int, LockInfo]
    calls: dict[tuple[int, int], Call]
    view: dict[str, Any] | None = None
    unseen: str = ""
    error: Error | None = None  # the constructor or a call before the threads failed

    def lock_name(self, number: int) -> str:
        """The name of a lock: a plain lock's own attribute, else that of a condition that takes it."""
        if number in self.locks:
            return self.locks[number].name
        named = [info.name for info in self.locks.values() if info.lock == number]
        return named[0] if named else f"lock {number}"


class Runner:
    """Runs one scenario in a session. `fields` and `variables`: the shared names that a schedule may interrupt."""

    def __init__(
        self, session: Session, scenario: Scenario, fields: Sequence[str], variables: Sequence[str]
    ) -> None:
        self.session, self.scenario = session, scenario
        unit = scenario.unit
        self.request: dict[str, Any] = {
            "unit": unit.name, "is_class": unit.is_class, "view": bool(unit.view), "init": _packed(scenario.init),
            "before": [[name, _packed(args)] for name, args in scenario.before],
            "threads": [[[name, _packed(args)] for name, args in calls] for calls in scenario.threads],
            "fields": list(fields), "variables": list(variables),
        }  # fmt: skip

    def execute(self, plans: Sequence[Plan], mode: Mode, *, detail: bool = False) -> list[RunLog]:
        """The logs of some schedules, in order. Raises `SessionEnded`."""
        asked = [{"choices": p.choices, "priorities": p.priorities, "changes": p.changes} for p in plans]
        reply = self.session.command("threads.runs", {**self.request, "mode": mode, "detail": detail, "runs": asked})
        try:
            if type(reply) is not list or len(reply) != len(plans):
                raise ValueError("other runs than asked for")
            return [self._log(plan, data, i) for i, (plan, data) in enumerate(zip(plans, reply, strict=True))]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            if isinstance(error, wire.TypeMismatch):
                error = ValueError("a value that is none")
            self.session.kill()
            raise SessionEnded(f"the log of a run contradicts itself: {error}") from error

    def _log(self, plan: Plan, data: Any, number: int) -> RunLog:
        choices = [Choice(r, tuple(able), c) for _, r, able, c in data["choices"]]
        for i, choice in enumerate(choices):
            given = i < len(plan.choices)
            if choice.chosen not in choice.able or (given and choice.chosen != plan.choices[i]):
                raise ValueError("a choice that was not given")
        if data["end"] not in _ENDS:
            raise ValueError("an end that is none")
        events = [_event(e, len(self.scenario.threads)) for e in data["events"]]
        locks = {int(n): LockInfo(wire.printable(name), str(kind), int(line), int(lock))
                 for n, name, kind, line, lock in data["locks"]}  # fmt: skip
        waiting = [Waiting(_number(t), _number(c), str(kind), _number(what), _number(line), _number(owner))
                   for t, c, kind, what, line, owner in data["waiting"]]  # fmt: skip
        log = RunLog(plan, choices, events, data["end"], waiting, locks, {})
        if log.end == "failed":
            kind, message, line = data["error"]
            log.error = Error(wire.printable(kind), wire.printable(message, 300), _number(line))
            return log
        self._calls(log, data["events"], number)
        if log.end == "done" and (waiting or any(c.end is None for c in log.calls.values())):
            raise ValueError("a run that ended before its calls")
        if "view" in data:
            try:
                log.view = _view(self.scenario.unit, data["view"])
            except wire.TypeMismatch as mismatch:
                log.unseen = str(mismatch)
        elif "unseen" in data:
            kind, message, line = data["unseen"]
            log.unseen = wire.printable(f"{kind}: {message}" + (f" in line {line}" if line else ""), 300)
        return log

    def _calls(self, log: RunLog, raw: list[Any], number: int) -> None:
        current: dict[int, Call] = {}
        for at, (event, given) in enumerate(zip(log.events, raw, strict=True)):
            thread = event.thread
            if event.kind == "call":
                name, args = self.scenario.threads[thread][event.what]
                before = current.get(thread)
                if event.what != (before.index + 1 if before else 0) or (before and before.end is None):
                    raise ValueError("calls in another order")
                operation = self.scenario.unit.operations[name]
                asked = self.session.asked.get(number * RUN + thread * THREAD + event.what, [])
                current[thread] = call = Call(thread, event.what, operation, args, at, asked=asked)
                log.calls[call.key] = call
            elif event.kind in ("return", "raise"):
                call = current[thread]
                if call.index != event.what or call.end is not None:
                    raise ValueError("a call that came back twice")
                call.end = at
                if event.kind == "raise":
                    call.error = Error(wire.printable(given[3]), wire.printable(given[4], 300), _number(given[5]))
                else:
                    try:
                        call.value = wire.decode(call.operation.returns, given[3])
                    except wire.TypeMismatch as mismatch:
                        call.fault = str(mismatch)
        if log.end == "done" and len(log.calls) != sum(map(len, self.scenario.threads)):
            raise ValueError("a run that ended before its calls")


def _view(unit: Unit, data: Any) -> dict[str, Any]:
    """Exactly the view's fields, of their types. Raises `TypeMismatch`."""
    fields = wire.decode("dict", data)
    if set(fields) != set(unit.view):
        raise wire.TypeMismatch(f"view() has other fields than {', '.join(unit.view)}")
    return {name: wire.decode(unit.fields[name], wire.pack(fields[name])) for name in unit.view}


def _packed(args: Sequence[Any]) -> list[Any]:
    return [wire.encode(a) for a in args]


def _number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("no number")
    return value


_name = lru_cache(maxsize=4096)(wire.printable)


def _event(data: Any, threads: int) -> Event:
    kind, thread = data[0], _number(data[1])
    if _LENGTHS.get(kind) != len(data) or not -1 <= thread < threads:
        raise ValueError("an event that is none")
    if kind in ("call", "return", "raise"):
        return Event(kind, thread, _number(data[2]), 0)
    if kind == "line":
        return Event(kind, thread, 0, _number(data[2]))
    what = _name(data[2]) if kind in ("read", "write", "ask") else _number(data[2])
    return Event(kind, thread, what, _number(data[-1]), _number(data[3]) if kind == "notify" else 0)
