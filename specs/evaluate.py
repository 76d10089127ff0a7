"""Clauses evaluated over plain values, outside of the process that made the values.

A clause is compiled once per spec and thread. What it may be made of is in `whitelist.py`, what bounds it in
`rewrite.py`; whether its names and types are right is checked by mypy (`evals/speceval/typecheck.py`).

Meaning of the names
    self, old   the view after and before the call, with the view's fields as attributes. In `requires`, `when` and
                `raises` both are the view before.
    result      what the call returned.
    parameters  the arguments as they were before the call.
    module.f(x) what the relied-upon function returned to the candidate during this call for x; where it was not asked
                so, the clause does not hold.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from pibroch.specs.explain import parts, show
from pibroch.specs.model import Clause, Operation, Rely, Spec
from pibroch.specs.rewrite import Meter, TooMuch, compile_expression, compile_helper
from pibroch.specs.whitelist import BUILTINS, check_clause, check_expression

Relies = Callable[[str, tuple[Any, ...]], Any]  # ("trace_ring.last", (3,)) -> value; raises LookupError if never asked
Picker = Callable[[int, int], int]  # an int between two bounds, both included
_BEFORE = ("requires", "when", "raises")
_PROGRAMS = 64  # compiled specs kept per thread


class ClauseError(Exception):
    """A clause (or a `draw` expression, then `clause` is None) raised itself, or gave no truth value."""

    def __init__(self, clause: Clause | None, reason: str, *, text: str = "") -> None:
        self.clause, self.reason = clause, reason
        name = f"clause {clause.id}" if clause else f"draw {text!r}"
        super().__init__(f"{name}: {reason}")


class _NotAsked(Exception):
    """The candidate did not call the relied-upon function with these arguments."""


class View:
    """The fields of a view as attributes. Shares the values of the dict that it is made of."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.__dict__ = fields if isinstance(fields, dict) else dict(fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "(" + ", ".join(f"{name}={show(value)}" for name, value in self.__dict__.items()) + ")"


def holds(
    spec: Spec,
    clause: Clause,
    *,
    unit: str,
    state: Mapping[str, Any] | None,
    old: Mapping[str, Any] | None,
    result: Any,
    args: Mapping[str, Any],
    relies: Relies | None = None,
    extra: Mapping[str, Callable[..., Any]] | None = None,
) -> bool:
    """Whether a clause holds (for `raises` and `when`: whether its condition does).

    `unit` names the unit that owns the clause (any text for a rely's clauses); `state` and `old` are the view after and
    before, None where there is none; `args` by parameter name (absent: the default); `extra` are the functions of
    `library:` by name. Raises `ClauseError` where the clause itself raises or gives no bool, and `SpecError` where it
    is not made of the clauses' language.
    """
    program = _program(spec, extra)
    function, names, defaults = program.clause(clause, unit)
    program.meter.left = program.steps
    program.relies = relies
    if clause.kind in _BEFORE:
        before = old if old is not None else state
        seen = earlier = None if before is None else View(before)
    else:
        seen = None if state is None else View(state)
        earlier = None if old is None else View(old)
    try:
        value = function(seen, earlier, result, *[args[n] if n in args else defaults[n] for n in names])
    except _NotAsked:
        return False
    except Exception as error:
        raise ClauseError(clause, reason(error)) from error
    if value is not True and value is not False:
        raise ClauseError(clause, f"gives {show(value)}, which is neither True nor False")
    return value


def explain(
    spec: Spec,
    clause: Clause,
    *,
    unit: str,
    state: Mapping[str, Any] | None,
    old: Mapping[str, Any] | None,
    result: Any,
    args: Mapping[str, Any],
    relies: Relies | None = None,
    extra: Mapping[str, Callable[..., Any]] | None = None,
) -> dict[str, str]:
    """The values of a clause's parts, by their source, in the clause's order; made once, for a failing case.

    For `all(… for x in …)` that is false, and `any` that is true, also the first x that decides it.
    """
    values: dict[str, str] = {}
    skip = {*BUILTINS, *spec.helpers, *(extra or {}), *(rely.module for rely in spec.relies)}
    for text, tree in parts(clause.tree, skip):
        part = Clause(text, clause.kind, clause.owner, clause.line, text, tree, clause.exception)
        value = _value(spec, part, unit, state, old, result, args, relies, extra)
        if value is not None and text not in values:
            values[text] = value
    return values


def draw(
    spec: Spec,
    unit: str,
    text: str,
    env: Mapping[str, Any],
    picker: Picker,
    *,
    extra: Mapping[str, Callable[..., Any]] | None = None,
) -> Any:
    """The value of a `{draw: TEXT}` domain. `env` holds the call's earlier parameters by name and, where the unit has
    a view, `self` as a dict.

    Raises `IndexError` where there was nothing to choose from (the draw is then disabled), `ClauseError` for any other
    failure, `SpecError` for a text that is no expression of the language.
    """
    program = _program(spec, extra)
    names = tuple(sorted(name for name in env if name != "self"))
    function = program.draw(text, names)
    program.meter.left = program.steps
    program.relies = None
    view = env.get("self")

    def pick(low: int, high: int) -> int:
        if low > high:
            raise IndexError("nothing to pick from")
        return picker(low, high)

    def choose(values: Sequence[Any]) -> Any:
        items = values if isinstance(values, list | tuple | str | range) else list(values)
        return items[pick(0, len(items) - 1)]

    def many(low: int, high: int) -> range:
        return program.meter.range(pick(low, high))

    try:
        return function(View(view) if isinstance(view, Mapping) else view, pick, choose, many, *[env[n] for n in names])
    except IndexError:
        raise
    except Exception as error:
        raise ClauseError(None, reason(error), text=text) from error


def reason(error: BaseException) -> str:
    """`TypeName: message` of what a clause raised, on one line."""
    if isinstance(error, TooMuch):
        return f"takes too much: {error}"
    if isinstance(error, RecursionError):
        return "RecursionError: a helper calls itself without end"
    text = " ".join(str(error).split()).replace("'View' object", "the view").replace("'NoneType' object", "None")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def operation_of(spec: Spec, clause: Clause, unit: str) -> Operation | Rely | None:
    """The operation that owns a clause; None for an invariant."""
    if clause.owner.startswith("rely:"):
        name = clause.owner.removeprefix("rely:")
        return next(rely for rely in spec.relies if rely.name == name)
    if clause.kind == "invariant":
        return None
    owners = [u for u in spec.units if clause.owner in u.operations]
    chosen = [u for u in owners if u.name == unit] or owners
    return chosen[0].operations[clause.owner]


class _Program:
    """The compiled clauses of one spec, for one thread."""

    def __init__(self, spec: Spec, extra: Mapping[str, Callable[..., Any]] | None) -> None:
        self.spec, self.extra = spec, extra
        self.meter = Meter()
        self.steps = self.meter.left
        self.relies: Relies | None = None
        self.compiled: dict[tuple[int, str], tuple[Any, ...]] = {}
        self.draws: dict[tuple[str, tuple[str, ...]], Callable[..., Any]] = {}
        self.namespace: dict[str, Any] = {"__builtins__": {}, **BUILTINS, **self.meter.names(), **(extra or {})}
        for module in {rely.module for rely in spec.relies}:
            asked = {r.function.name: self.rely(r) for r in spec.relies if r.module == module}
            self.namespace[module] = SimpleNamespace(**asked)
        for helper in spec.helpers.values():
            compile_helper(helper.tree, self.namespace, set(spec.helpers))

    def rely(self, rely: Rely) -> Callable[..., Any]:
        names = [p.name for p in rely.function.params]

        def ask(*args: Any, **named: Any) -> Any:
            values = (*args, *(named[n] for n in names[len(args) :] if n in named))
            if self.relies is None:
                raise _NotAsked
            try:
                return self.relies(rely.name, values)
            except LookupError:
                raise _NotAsked from None

        return ask

    def clause(self, clause: Clause, unit: str) -> tuple[Callable[..., Any], tuple[str, ...], dict[str, Any]]:
        found = self.compiled.get((id(clause.tree), unit))
        if found is None:
            check_clause(self.spec, clause)
            owner = operation_of(self.spec, clause, unit)
            params = () if owner is None else (owner.function if isinstance(owner, Rely) else owner).params
            names = tuple(p.name for p in params)
            defaults = {p.name: ast.literal_eval(p.default) for p in params if p.default}
            function = compile_expression(clause.tree, ["self", "old", "result", *names], self.namespace, clause.id)
            found = (clause.tree, function, names, defaults)  # the tree is kept, so that its id stays its own
            self.compiled[id(clause.tree), unit] = found
        return found[1], found[2], found[3]

    def draw(self, text: str, names: tuple[str, ...]) -> Callable[..., Any]:
        if (text, names) not in self.draws:
            line = self.spec.line("scope")
            try:
                tree = ast.parse(text.strip(), mode="eval").body
            except (SyntaxError, ValueError, RecursionError) as error:
                message = getattr(error, "msg", error)
                raise ClauseError(None, f"is no expression: {message}", text=text) from error
            check_expression(self.spec, tree, f"draw {text!r}", line)
            params = ["self", "pick", "choose", "many", *names]
            self.draws[text, names] = compile_expression(tree, params, self.namespace, "draw")
        return self.draws[text, names]


_local = threading.local()


def _program(spec: Spec, extra: Mapping[str, Callable[..., Any]] | None) -> _Program:
    programs: dict[tuple[int, int], _Program] = _local.__dict__.setdefault("programs", {})
    key = (id(spec), id(extra))  # a program holds both, so that these ids stay theirs
    program = programs.get(key)
    if program is None:
        while len(programs) >= _PROGRAMS:
            del programs[next(iter(programs))]
        program = programs[key] = _Program(spec, extra)
    return program


def _value(spec: Spec, part: Clause, unit: str, *rest: Any) -> str | None:
    state, old, result, args, relies, extra = rest
    program = _program(spec, extra)
    owner = operation_of(spec, part, unit)
    params = () if owner is None else (owner.function if isinstance(owner, Rely) else owner).params
    names = [p.name for p in params]
    function = compile_expression(part.tree, ["self", "old", "result", *names], program.namespace, "part")
    program.meter.left = program.steps
    program.relies = relies
    if part.kind in _BEFORE:
        state = old = old if old is not None else state
    defaults = {p.name: ast.literal_eval(p.default) for p in params if p.default}
    views = [None if fields is None else View(fields) for fields in (state, old)]
    try:
        return show(function(*views, result, *[args[n] if n in args else defaults[n] for n in names]))
    except _NotAsked:
        return "not asked by the module during this call"
    except Exception as error:
        return f"raises {reason(error)}"
