"""The wrapper that CrossHair looks at: `check_N(…)` makes one unit of a candidate and a list of calls, and asserts that
no clause breaks. CrossHair sees only states that calls lead to, so the calls themselves are its unknowns.

    def check_0(window: int, …, calls: List[Tuple[int, int, int]]) -> None:
        assert len(calls) <= 3
        assert clause_A1(window, …)
        fine = run_0((window, …), calls)
        assert fine

A call is the number of its operation and the arguments of all operations, of which it takes its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from pibroch.evals.speceval.calls import Run, operations_of
from pibroch.evals.speceval.crosshair_stage import helpers_of, lazy
from pibroch.specs.model import Clause, Operation, Spec, Unit

CALLS = 3
_PRELUDE = """\
from types import SimpleNamespace
from typing import *

def view_of(thing):
    return SimpleNamespace(**thing()) if thing is not None else None
"""


def program(spec: Spec, *, phase: int) -> str | None:
    """The wrapper's source; None where the clauses speak of more than the candidate and helpers."""
    helpers = helpers_of([spec])
    if spec.relies or spec.front.library or helpers is None:
        return None
    rows = [_PRELUDE, *helpers]
    for number, unit in enumerate(spec.units):
        rows += _unit(spec, unit, number, phase)
    return "\n".join(rows) + "\n"


def _unit(spec: Spec, unit: Unit, number: int, phase: int) -> list[str]:
    operations = operations_of(spec, unit, phase)
    init = unit.init.params if unit.init else ()
    rows: list[str] = []
    for clause, operation in _clauses(unit, operations):
        names = [p.name for p in operation.params] if operation else []
        inner = ", ".join(["self", "old", "result", *names])
        rows += [f"def clause_{number}_{clause.id}({inner}):", f"    return ({lazy(clause.tree)})"]
    rows.append(f"def run_{number}(init, calls):")
    rows += _body(unit, operations, number)
    slots = ", ".join(["int", *(p.type for o in operations.values() for p in o.params)])
    params = [f"{p.name}_: {p.type}" for p in init] + ([f"calls: List[Tuple[{slots}]]"] if operations else [])
    rows.append(f"def check_{number}({', '.join(params)}) -> None:")
    rows.append(f"    assert len(calls) <= {CALLS}" if operations else "    assert True")
    given = ", ".join(f"{p.name}_" for p in init)
    if unit.init:
        none = _join("None, None, None", given)
        rows += [f"    assert clause_{number}_{c.id}({none})" for c in unit.init.of("requires")]
    rows.append(f"    fine = run_{number}(({given}{',' if given else ''}), {'calls' if operations else '()'})")
    return [*rows, "    assert fine", ""]


def _clauses(unit: Unit, operations: dict[str, Operation]) -> Iterable[tuple[Clause, Operation | None]]:
    yield from ((clause, None) for clause in unit.invariants)
    for operation in [*([unit.init] if unit.init else []), *operations.values()]:
        yield from ((clause, operation) for clause in operation.clauses)


def _body(unit: Unit, operations: dict[str, Operation], number: int) -> list[str]:
    rows = ["    scope = CANDIDATE()"]
    view = "None"
    if unit.is_class:
        rows += _guarded(f"unit = scope[{unit.name!r}](*init)", _raised(unit.init, number, "*init", "None"), 4)
        view = "unit.view" if unit.view else "None"
    elif unit.view:
        view = "scope['view']"
    if unit.init and unit.init.of("raises"):
        rows.append(f"    if {_raised(unit.init, number, '*init', 'None')} != '': return False")
    rows += [f"    old = view_of({view})", *_invariants(unit, number, "old", 4)]
    if unit.init:
        ensured = [f"clause_{number}_{c.id}(old, None, None, *init)" for c in unit.init.of("ensures")]
        rows += [f"    if not {call}: return False" for call in ensured]
    if not operations:
        return [*rows, "    return True"]
    rows.append("    for call in calls:")
    start = 1
    for k, operation in enumerate(operations.values()):
        stop = start + len(operation.params)
        last = k == len(operations) - 1
        rows.append(f"        {'if' if k == 0 else 'elif'} call[0] == {k}:" if not last else
                    f"        {'if True' if k == 0 else 'else'}:")  # fmt: skip
        rows.append(f"            args = ({''.join(f'call[{i}], ' for i in range(start, stop))})")
        rows += _call(unit, operation, number, view)
        start = stop
    return [*rows, "    return True"]


def _call(unit: Unit, operation: Operation, number: int, view: str) -> list[str]:
    target = f"unit.{operation.name}" if unit.is_class else f"scope[{operation.name!r}]"
    deep = " " * 12
    rows = [f"{deep}if not clause_{number}_{c.id}(old, old, None, *args): return True"
            for kind in ("requires", "when") for c in operation.of(kind)]  # fmt: skip
    rows.append(f"{deep}expected = {_raised(operation, number, '*args', 'old')}")
    kept = f"view_of({view}) == old" if unit.view else "True"
    rows += [
        f"{deep}try:", f"{deep}    result = {target}(*args)", f"{deep}except Exception as error:",
        f"{deep}    if type(error).__name__ != expected or not ({kept}): return False", f"{deep}    continue",
        f"{deep}if expected: return False", f"{deep}now = view_of({view})",
    ]  # fmt: skip
    if unit.view:
        rows += [f"{deep}if now.{f} != old.{f}: return False" for f in unit.view if f not in operation.modifies]
    ensured = [f"clause_{number}_{c.id}(now, old, result, *args)" for c in operation.of("ensures")]
    rows += [f"{deep}if not {call}: return False" for call in ensured]
    rows += _invariants(unit, number, "now", 12)
    return [*rows, f"{deep}old = now"]


def _invariants(unit: Unit, number: int, state: str, indent: int) -> list[str]:
    return [f"{' ' * indent}if not clause_{number}_{c.id}({state}, None, None): return False" for c in unit.invariants]


def _raised(operation: Operation | None, number: int, args: str, old: str) -> str:
    """An expression: the name of the exception that must come, or an empty text."""
    text = "''"
    for clause in reversed(operation.of("raises") if operation else ()):
        call = f"clause_{number}_{clause.id}({old}, {old}, None, {args})"
        text = f"({clause.exception!r} if {call} else {text})"
    return text


def _guarded(line: str, expected: str, indent: int) -> list[str]:
    pad = " " * indent
    return [f"{pad}try:", f"{pad}    {line}", f"{pad}except Exception as error:",
            f"{pad}    return type(error).__name__ == {expected}"]  # fmt: skip


def _join(first: str, rest: str) -> str:
    return f"{first}, {rest}" if rest else first


def read_run(spec: Spec, unit: Unit, text: str, *, phase: int) -> Run | None:
    """The run that a message of CrossHair speaks of (`… when calling check_0(1, [(0, 5)])`); None if it has none."""
    start = text.find("when calling check_")
    operations = list(operations_of(spec, unit, phase).values())
    init = unit.init.params if unit.init else ()
    try:
        call = ast.parse(text[start + len("when calling ") :].strip(), mode="eval").body
        assert start >= 0
        assert isinstance(call, ast.Call)
        names = [*(f"{p.name}_" for p in init), *(["calls"] if operations else [])]
        values: dict[str | None, Any] = dict(zip(names, [ast.literal_eval(a) for a in call.args], strict=False))
        values |= {k.arg: ast.literal_eval(k.value) for k in call.keywords}
        calls = []
        for entry in values.get("calls", []):
            k = entry[0] if 0 <= entry[0] < len(operations) else len(operations) - 1
            at = 1 + sum(len(o.params) for o in operations[:k])
            assert len(entry) == 1 + sum(len(o.params) for o in operations)
            calls.append((operations[k].name, tuple(entry[at : at + len(operations[k].params)])))
        return Run(unit.name, tuple(values[name] for name in names if name != "calls"), tuple(calls))
    except (SyntaxError, ValueError, TypeError, KeyError, IndexError, AssertionError):
        return None
