"""The clauses as judge of one call: what was there before, what the call gave, what must hold now."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pibroch.evals.speceval.calls import given
from pibroch.evals.speceval.domains import Extra
from pibroch.evals.speceval.session import Outcome
from pibroch.evals.speceval.verdict import Finding
from pibroch.specs.evaluate import ClauseError, Relies, explain, holds
from pibroch.specs.explain import show
from pibroch.specs.model import Clause, Operation, Spec, Unit

View = dict[str, Any] | None
_ADDRESS = re.compile(r"0x[0-9a-f]+")  # differs from run to run
Admission = Literal["ok", "disabled", "rejected"]


@dataclass(frozen=True)
class Failure:
    """What one call did wrong. `clause` is a clause's id, or frame, raises, returns, alias, ends."""

    clause: str
    message: str
    line: int = 0
    values: Mapping[str, str] = field(default_factory=dict)
    code_lines: tuple[int, ...] = ()

    def finding(self, stage: str, calls: tuple[str, ...]) -> Finding:
        """As a stage tells it, after these calls."""
        return Finding(stage, self.clause, self.message, self.line, calls, self.values, self.code_lines)


class Oracle:
    """Judges calls of one spec; counts how often each clause was met (`met`) and where a premise held (`premises`)."""

    def __init__(self, spec: Spec, extra: Extra) -> None:
        self.spec, self.extra = spec, extra
        self.met: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()  # requires that turned a draw down
        self.told: Container[str] = ()  # clauses whose failures need no values any more
        self.premises: dict[str, Clause | None] = {c.id: _premise(c) for c in spec.clauses.values()}
        self.vacuous = {name for name, premise in self.premises.items() if premise is not None}

    def admits(self, unit: Unit, operation: Operation, before: View, args: Sequence[Any]) -> Admission:
        """Whether a caller may make this call now. Raises `ClauseError`."""
        named = given(operation, args)
        for clause in operation.clauses:
            if clause.kind in ("requires", "when") and not self._holds(clause, unit, before, before, None, named):
                if clause.kind == "when":
                    return "disabled"
                self.refused[clause.id] += 1
                return "rejected"
        return "ok"

    def check(
        self, unit: Unit, operation: Operation, args: Sequence[Any], before: View, seen: Outcome
    ) -> list[Failure]:  # fmt: skip
        """All that is wrong with one call."""
        named = given(operation, args)
        if seen.fault:
            return [Failure("returns", seen.fault, operation.line)]
        found = self._asked(seen)
        if list(args) != seen.args:
            changed = {p: show(v) for p, v in given(operation, seen.args).items() if v != named[p]}
            message = f"{operation.name} changed its argument {', '.join(changed)}: work on a copy"
            found.append(Failure("alias", message, operation.line, {f"{p} afterwards": v for p, v in changed.items()}))
        expected = [c for c in operation.of("raises") if self._holds(c, unit, before, before, None, named)]
        for clause in expected:
            self.met[clause.id] += 1
        if seen.error is not None or expected:
            return found + self._raised(unit, operation, named, before, seen, expected)
        for clause in operation.of("ensures"):
            found += self._ensures(clause, unit, operation, before, seen, named)
        return found + self._state(unit, operation, before, seen, named)

    def _raised(
        self, unit: Unit, operation: Operation, named: dict[str, Any], before: View, seen: Outcome,
        expected: list[Clause],
    ) -> list[Failure]:  # fmt: skip
        if seen.error is None:
            clause = expected[0]
            message = f"{operation.name} must raise {clause.exception} here, and returned {show(seen.value)}"
            return [self._failure(clause, message, unit, before, before, None, named, seen)]
        lines = (seen.error.line,) if seen.error.line else ()
        if seen.error.type not in [c.exception for c in expected]:
            wanted = f"must raise {expected[0].exception} here, and raised" if expected else "raised"
            clauses = [c for c in operation.of("raises") if c.exception == seen.error.type]
            why = f", which {clauses[0].id} allows only when {clauses[0].text}" if clauses and not expected else ""
            message = f"{operation.name} {wanted} {_ADDRESS.sub('0x…', str(seen.error))}{why}"
            name, line = (expected or clauses)[0].id if expected or clauses else "raises", operation.line
            found = Failure(name, message, (expected or clauses)[0].line if expected or clauses else line, {}, lines)
            if seen.error.type == "WouldBlock":
                message = f"{operation.name} would wait for ever: {seen.error.message or 'a lock that nobody releases'}"
                found = Failure("ends", message, line, {}, lines)
            return [found]
        if before is not None and seen.view is not None and seen.view != before:
            changed = [name for name in before if before[name] != seen.view[name]]
            names = ", ".join(changed)
            message = f"{operation.name} raised {seen.error.type} and changed {names}: check before changing"
            return [Failure("frame", message, operation.line, _change(before, seen.view, changed), lines)]
        return []

    def _ensures(
        self, clause: Clause, unit: Unit, operation: Operation, before: View, seen: Outcome, named: dict[str, Any]
    ) -> list[Failure]:  # fmt: skip
        last = _answers(seen, latest=True)
        held: bool | None = None
        try:
            held = self._holds(clause, unit, seen.view, before, seen.value, named, last)
            if not held and len({(n, show(a)) for n, a, _ in seen.asked}) < len(seen.asked):
                held = self._holds(clause, unit, seen.view, before, seen.value, named, _answers(seen, latest=False))
        except ClauseError as error:
            message = f"{clause.id} cannot be evaluated after {operation.name}: {error.reason}"
            return [self._failure(clause, message, unit, seen.view, before, seen.value, named, seen)]
        if held:
            self._count(clause, unit, seen.view, before, seen.value, named, last)
            return []
        message = f"{clause.text} does not hold after {operation.name}"
        return [self._failure(clause, message, unit, seen.view, before, seen.value, named, seen)]

    def _state(
        self, unit: Unit, operation: Operation, before: View, seen: Outcome, named: dict[str, Any]
    ) -> list[Failure]:  # fmt: skip
        found: list[Failure] = []
        if before is not None and seen.view is not None:
            changed = [n for n in before if n not in operation.modifies and before[n] != seen.view[n]]
            if changed:
                allowed = ", ".join(operation.modifies) or "nothing"
                message = f"{operation.name} changed {', '.join(changed)}; it modifies {allowed}"
                found.append(Failure("frame", message, operation.line, _change(before, seen.view, changed)))
        if seen.view is not None:
            found += self.invariants(unit, operation.name, seen)
        return found

    def invariants(self, unit: Unit, after: str, seen: Outcome) -> list[Failure]:
        """The invariants of a state that is there now."""
        found = []
        for clause in unit.invariants:
            try:
                if self._holds(clause, unit, seen.view, None, None, {}):
                    self._count(clause, unit, seen.view, None, None, {}, None)
                    continue
                message = f"{clause.text} does not hold after {after}"
            except ClauseError as error:
                message = f"{clause.id} cannot be evaluated after {after}: {error.reason}"
            found.append(self._failure(clause, message, unit, seen.view, None, None, {}, seen))
        return found

    def _asked(self, seen: Outcome) -> list[Failure]:
        found = []
        for name, args, _ in seen.asked:
            rely = next(r for r in self.spec.relies if r.name == name)
            named = given(rely.function, args)
            for clause in rely.function.of("requires"):
                if not self._holds(clause, None, None, None, None, named):
                    message = f"{_written(name, args)} breaks what {rely.module} asks for: {clause.text}"
                    found.append(Failure(clause.id, message, clause.line))
        return found

    def _count(
        self, clause: Clause, unit: Unit, state: View, old: View, result: Any, args: dict[str, Any],
        relies: Relies | None,
    ) -> None:  # fmt: skip
        self.met[clause.id] += 1
        premise = self.premises[clause.id]
        if clause.id in self.vacuous and premise is not None:
            try:
                if self._holds(premise, unit, state, old, result, args, relies):
                    self.vacuous.discard(clause.id)
            except ClauseError:
                self.vacuous.discard(clause.id)

    def _holds(
        self, clause: Clause, unit: Unit | None, state: View, old: View, result: Any, args: dict[str, Any],
        relies: Relies | None = None,
    ) -> bool:  # fmt: skip
        name = unit.name if unit else self.spec.module
        return holds(self.spec, clause, unit=name, state=state, old=old, result=result, args=args, relies=relies,
                     extra=self.extra)  # fmt: skip

    def _failure(
        self, clause: Clause, message: str, unit: Unit, state: View, old: View, result: Any, args: dict[str, Any],
        seen: Outcome,
    ) -> Failure:  # fmt: skip
        if clause.id in self.told:
            return Failure(clause.id, message, clause.line)

        def parts(tree: ast.expr) -> dict[str, str]:
            part = replace(clause, tree=tree)
            return explain(self.spec, part, unit=unit.name, state=state, old=old, result=result, args=args,
                           relies=_answers(seen, latest=True), extra=self.extra)  # fmt: skip

        values = {_written(name, asked): show(answer) for name, asked, answer in seen.asked}
        values |= parts(clause.tree)
        for left, right in _equations(clause.tree) if clause.kind in ("ensures", "invariant") else []:
            was, wanted = _side(parts, left), _side(parts, right)
            if wanted.startswith("not asked"):
                message += f"; `{ast.unparse(right)}` was {wanted}"
                break
            if was != wanted:
                message += f"; `{ast.unparse(left)}` is {was} and should be {wanted}"
                break
        lines = (seen.error.line,) if seen.error and seen.error.line else ()
        return Failure(clause.id, message, clause.line, values, lines)


def _written(name: str, args: Sequence[Any]) -> str:
    return f"{name}({', '.join(show(a) for a in args)})"


def _side(parts: Any, tree: ast.expr) -> str:
    """The value of one side of an equation."""
    if isinstance(tree, ast.Constant):
        return repr(tree.value)
    whole = ast.Subscript(ast.List([tree], ast.Load()), ast.Constant(0), ast.Load())
    shown = parts(ast.fix_missing_locations(whole))
    return str(shown.get(ast.unparse(whole), "?"))


def _equations(tree: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """The equations that a clause states outright: itself, parts of an `and`, the conclusion of `implies`."""
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq):
        return [(tree.left, tree.comparators[0])]
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return [pair for part in tree.values for pair in _equations(part)]
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "implies":
        return _equations(tree.args[1])
    return []


def _premise(clause: Clause) -> Clause | None:
    tree = clause.tree
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "implies":
        return replace(clause, tree=tree.args[0])
    return None


def _change(before: Mapping[str, Any], after: Mapping[str, Any], names: list[str]) -> dict[str, str]:
    return {k: v for n in names for k, v in ((f"old.{n}", show(before[n])), (f"self.{n}", show(after[n])))}


def _answers(seen: Outcome, *, latest: bool) -> Relies:
    def answer(name: str, args: tuple[Any, ...]) -> Any:
        asked = [value for n, a, value in seen.asked if n == name and tuple(a) == tuple(args)]
        if not asked:
            raise LookupError(name)
        return asked[-1 if latest else 0]

    return answer
