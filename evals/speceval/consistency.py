"""Can a spec be met at all? Clauses that exclude each other, preconditions that nobody can meet, clauses that raise.

z3 is asked first, in all of arithmetic: what it excludes, no call can do. Then the same for single calls drawn from
the spec's domains, whose values are plain: there z3 decides more. Where nothing is decided, a case in which everything
holds is looked for at random.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pibroch.evals.speceval.calls import Drawer, given
from pibroch.evals.speceval.domains import RandomPicker
from pibroch.evals.speceval.guess import cases, endings
from pibroch.evals.speceval.implication import new_solver, small_case
from pibroch.evals.speceval.statements import Case, Statement, library, need, place, promises
from pibroch.evals.speceval.terms import Outside, Record, constant
from pibroch.specs.errors import SpecError
from pibroch.specs.evaluate import ClauseError
from pibroch.specs.explain import show
from pibroch.specs.model import Operation, Spec, Unit

CALLS = 8  # single calls per operation
DRAWS = 60  # of which most may be turned down
TRIES = 150
STATES = 12
_EMPTY: Mapping[str, Any] = {
    "int": 0, "bool": False, "str": "", "float": 0.0, "list": [], "dict": {}, "set": set(), "tuple": (),
}  # fmt: skip


@dataclass(slots=True)
class Consistency:
    """`errors` refuse the spec, `warnings` do not: they speak of states that may never be reached. `satisfiable` says
    by operation what showed that its clauses can hold together: `z3`, `a case`, or `not decided`."""

    errors: list[SpecError] = field(default_factory=list)
    warnings: list[SpecError] = field(default_factory=list)
    satisfiable: dict[str, str] = field(default_factory=dict)


def check(spec: Spec) -> Consistency:
    """All operations of a spec whose scope is sound. Raises `MissingError` without z3."""
    need("z3")
    found = Consistency()
    for unit in spec.units:
        operations = list(unit.operations.values())
        states: list[Mapping[str, Any]] = []
        if unit.init is not None:
            first = _Operation(spec, unit, unit.init, (None,), found)
            first.check()
            states += first.after()
            operations.remove(unit.init)
        elif unit.view:
            states.append({name: _EMPTY.get(kind.partition("[")[0]) for name, kind in unit.fields.items()})
        for _ in range(2 if unit.view else 0):  # what two calls lead to
            for operation in operations:
                states += itertools.islice(_Operation(spec, unit, operation, states[-STATES:], found).after(), 4)
        for operation in operations:
            _Operation(spec, unit, operation, _spread(states) if unit.view else (None,), found).check()
    found.errors = _once(found.errors)
    wrong = {(e.line, e.message.partition(" ")[0]) for e in found.errors}
    found.warnings = [w for w in _once(found.warnings) if (w.line, w.message.partition(" ")[0]) not in wrong]
    return found


def _spread(states: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    step = max(1, len(states) // STATES)
    return list(states[::step])


def _once(errors: Sequence[SpecError]) -> list[SpecError]:
    return list({e.line: e for e in reversed(errors)}.values())[::-1]


class _Operation:
    """`states` are views that the clauses themselves lead to; (None,) where there is no view before the call."""

    def __init__(
        self, spec: Spec, unit: Unit, operation: Operation, states: Sequence[Mapping[str, Any] | None],
        found: Consistency,
    ) -> None:  # fmt: skip
        self.spec, self.unit, self.operation, self.states, self.found = spec, unit, operation, states, found
        self.where = place(spec, unit, operation)
        self.name = unit.name if operation is unit.init else operation.name
        self.all = promises(self.where)
        self.before = [s for s in self.all if s.early or s.clause.kind in ("requires", "when")]
        self.seed = f"{spec.module}.{self.name}"
        self.certain = self.where.first or not unit.view  # else the code may never come into such a state
        self.draws = list(self._draws())

    def check(self) -> None:
        """Report what is wrong, and whether the clauses can hold together."""
        terms, facts = self.where.terms()
        if core := _core(self.before, terms, facts):
            self.say(core, f"no call of {self.name} can be made: {_names(core)} exclude each other")
        elif core := _core(self.all, terms, facts):
            self.say(core, f"{self.name} can never return: {_names(core)} exclude each other")
        elif not self.raising() and not any(self.excluded(case) for case in self.calls()):
            self.found.satisfiable[self.name] = self.shown(terms, facts)

    def say(self, core: Sequence[Statement], message: str, *, certain: bool = True) -> None:
        line = max(s.clause.line for s in core)
        (self.found.errors if certain else self.found.warnings).append(SpecError(self.spec.path, line, message))

    # Single calls

    def _draws(self) -> Iterator[Case]:
        """Calls from the domains, each in one of the states; whether they are allowed is not asked."""
        drawer = Drawer(self.spec, self.unit, self.operation, library(self.spec))
        picker = RandomPicker(self.seed)
        for i in range(DRAWS if self.states else 0):
            old = self.states[i % len(self.states)]
            try:
                args = given(self.operation, drawer.draw(picker, dict(old) if old is not None else None))
            except (IndexError, ClauseError):
                continue
            if len(args) == len(self.operation.params):
                yield Case(args, None, old, old)

    def calls(self) -> list[Case]:
        """Those that meet the preconditions and do not have to raise; not too many."""
        wanted = [*self.before, *(s for s in self.all if s.negated)]
        return [case for case in self.draws if _hold(wanted, case)][:CALLS]

    def excluded(self, case: Case) -> bool:
        """Whether no result and no state after this call can meet the clauses."""
        terms, facts = self.where.terms()
        try:
            terms |= {name: constant(value) for name, value in case.args.items()}
            if case.old is not None:
                old = {name: constant(value) for name, value in case.old.items()}
                kept = {n: v for n, v in old.items() if n not in self.where.modifies}
                terms |= {"old": Record(old), "self": Record({**terms["self"].fields, **kept})}
        except Outside:
            return False
        core = _core(self.all, terms, facts)
        if not core:
            return False
        values = ", ".join(f"{name} = {show(value)}" for name, value in case.args.items())
        values += "".join(f", old.{name} = {show(value)}" for name, value in (case.old or {}).items())
        message = f"{self.name} cannot return" + (f" when {values.removeprefix(', ')}" if values else "")
        message += f": {_names(core)} " + ("exclude each other" if len(core) > 1 else "excludes it")
        self.say(core, message, certain=self.certain)
        return True

    def after(self) -> Iterator[Mapping[str, Any]]:
        """Views that the clauses allow after these calls."""
        for i, call in enumerate(self.calls()):
            for case in itertools.islice(endings(self.where, call, self.all, seed=f"{self.seed} {i}", tries=40), 2):
                if case.state is not None:
                    yield case.state

    # Clauses that raise

    def raising(self) -> bool:
        """Whether a clause of this operation raises by itself, though everything that it may assume holds."""
        assumed: list[Statement] = []
        for statement in self.all:
            if statement.clause.kind in ("requires", "when", "raises"):
                if self._raising_before(statement, assumed):
                    return True
                assumed += [statement] if statement.clause.kind == "requires" else []
        after = [s for s in self.all if s.clause.kind in ("ensures", "invariant") and not s.early]
        return any([self._raising_after(s) for s in after])  # noqa: C419  (all of them report)

    def _raising_before(self, statement: Statement, assumed: Sequence[Statement]) -> bool:
        for case in self.draws:
            if _hold(assumed, case) and (fault := _raises(statement, case)):
                return self._tell(statement, case, fault, "", certain=True)
        return False

    def _raising_after(self, statement: Statement) -> bool:
        others = [s for s in self.all if s.clause is not statement.clause]
        doubtful: list[tuple[Case, str]] = []
        tried = 0
        for call in self.calls():
            ends = list(itertools.islice(endings(self.where, call, others, seed=self.seed, tries=40), 8))
            faults = [_raises(statement, case) for case in ends]
            tried += len(ends)
            doubtful += [(case, fault) for case, fault in zip(ends, faults, strict=True) if fault]
            if self.certain and len(ends) > 2 and all(faults):  # these arguments alone make it raise
                return self._tell(statement, ends[0], faults[0], " whatever is returned", certain=True)
        if tried > 2 and len(doubtful) == tried:
            return self._tell(statement, *doubtful[0], " in every case", certain=True)
        if self.certain and not doubtful and (case := self._undefined(statement, others)) is not None:
            doubtful.append((case, _raises(statement, case)))
        if doubtful:
            hint = "; to a judge that is a broken clause: say before it what it takes for granted"
            self._tell(statement, *doubtful[0], " for some results", certain=False, hint=hint)
        return False

    def _undefined(self, statement: Statement, others: Sequence[Statement]) -> Case | None:
        """z3's case in which the clause is not defined."""
        import z3

        terms, facts = self.where.terms()
        formula = statement.formula(terms)
        assumed = [f for f in (s.formula(terms) for s in others) if f is not None]
        if formula is None or z3.is_true(z3.simplify(formula.defined)):
            return None
        solver = new_solver()
        solver.add(*facts, *(fact for f in (*assumed, formula) for fact in f.facts))
        for other in assumed:
            solver.add(other.value, other.sure)
        solver.add(z3.Not(formula.defined))
        return small_case(solver, terms, lambda case: bool(_raises(statement, case)) and _hold(others, case))

    def _tell(
        self, statement: Statement, case: Case, fault: str, when: str, *, certain: bool, hint: str = ""
    ) -> bool:
        clause = statement.clause
        values = ", ".join(f"{name} = {value}" for name, value in case.shown(statement.words).items())
        text = f"{clause.id} raises {fault}{when}: {clause.text}" + (f" (when {values})" if values else "") + hint
        (self.found.errors if certain else self.found.warnings).append(SpecError(self.spec.path, clause.line, text))
        return certain

    # A case in which everything holds

    def shown(self, terms: Mapping[str, Any], facts: list[Any]) -> str:
        if next(cases(self.where, self.all, seed=self.seed, tries=TRIES), None) is not None:
            return "a case"
        solver = new_solver()
        solver.add(*facts)
        for formula in (s.formula(terms) for s in self.all):
            if formula is not None:
                solver.add(formula.value, formula.defined, *formula.facts)
        if small_case(solver, terms, lambda case: _hold(self.all, case)) is not None:
            return "z3"
        return "not decided"


def _hold(statements: Sequence[Statement], case: Case) -> bool:
    try:
        return all(s.holds(case) for s in statements)
    except ClauseError:
        return False


def _raises(statement: Statement, case: Case) -> str:
    try:
        statement.holds(case)
    except ClauseError as error:
        return error.reason
    return ""


def _core(statements: Sequence[Statement], terms: Mapping[str, Any], facts: Sequence[Any]) -> list[Statement]:
    """A smallest part of the statements that z3 shows to exclude each other; empty if it shows none."""
    import z3

    formulas = [(s, f) for s in statements if (f := s.formula(terms)) is not None]

    def excluded(chosen: Sequence[tuple[Statement, Any]]) -> bool:
        solver = new_solver()
        solver.add(*facts)
        for _, formula in chosen:
            solver.add(formula.value, formula.sure, *formula.facts)
        return bool(solver.check() == z3.unsat)

    if not formulas or not excluded(formulas):
        return []
    kept = list(formulas)
    for entry in formulas:
        fewer = [e for e in kept if e is not entry]
        if excluded(fewer):
            kept = fewer
    return [s for s, _ in kept]


def _names(core: Sequence[Statement]) -> str:
    rows = dict.fromkeys(f"{s.clause.id} (line {s.clause.line}: {s.clause.text})" for s in core)
    return " and ".join(rows) if rows else "the types"
