"""Does one set of clauses imply another clause? By z3, then CrossHair, then random cases: three verdicts.

    proved       z3 found no case in which the premises hold and the conclusion does not, in all of arithmetic
    refuted      a case was found, and the clauses themselves, evaluated over its values, say so
    not refuted  neither: nothing is known
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pibroch.evals.speceval.guess import cases
from pibroch.evals.speceval.statements import Case, Place, Statement, need
from pibroch.evals.speceval.terms import Listing, Optional, Outside, Record, read
from pibroch.specs.evaluate import ClauseError

Ruling = Literal["proved", "refuted", "not refuted"]
RESOURCES = 3_000_000  # of z3's own unit of work per question: the same on every machine
DEADLINE_MS = 20_000  # only a guard
TRIES = 2000
FIRST = 200  # cheap cases before CrossHair, which takes seconds
_SMALL = ((3, 4), (12, 100), (None, None))  # sizes of lists and of ints, tried in turn for a readable case


@dataclass(frozen=True, slots=True)
class Answer:
    """`by`: who decided. `values` of a refutation by name; `case` the whole of it."""

    ruling: Ruling
    by: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    case: Case | None = None


def implied(
    where: Place, premises: Sequence[Statement], conclusion: Statement, *, tries: int = TRIES, crosshair: bool = True
) -> Answer:
    """Whether the premises imply the conclusion at this place. Raises `MissingError` without z3."""
    need("z3")
    ruling, case = by_z3(where, premises, conclusion)
    if ruling == "proved":
        return Answer("proved", "z3")
    if case is not None:
        return _refuted(case, premises, conclusion, "z3")
    seed = f"{where.spec.module}.{where.operation.name} {conclusion.clause.id}"
    for guess in cases(where, premises, seed=seed, tries=FIRST):
        if refutes(guess, premises, conclusion):
            return _refuted(guess, premises, conclusion, "generators")
    if crosshair:
        from pibroch.evals.speceval.crosshair_stage import find_case

        case = find_case(where, premises, conclusion)
        if case is not None and refutes(case, premises, conclusion):
            return _refuted(case, premises, conclusion, "CrossHair")
    for guess in cases(where, premises, seed=seed, tries=tries):
        if refutes(guess, premises, conclusion):
            return _refuted(guess, premises, conclusion, "generators")
    return Answer("not refuted", "generators")


def refutes(case: Case, premises: Sequence[Statement], conclusion: Statement) -> bool:
    """Whether the clauses themselves say so: every premise holds, the conclusion does not or raises."""
    try:
        if not all(p.holds(case) for p in premises):
            return False
    except ClauseError:
        return False
    try:
        return not conclusion.holds(case)
    except ClauseError:
        return True


def _refuted(case: Case, premises: Sequence[Statement], conclusion: Statement, by: str) -> Answer:
    words = set(conclusion.words)
    for premise in premises:
        words |= premise.words if premise.clause.kind in ("requires", "ensures") else set()
    return Answer("refuted", by, case.shown(words), case)


def by_z3(
    where: Place, premises: Sequence[Statement], conclusion: Statement
) -> tuple[Ruling, Case | None]:
    """z3's word; a refutation comes with its case, checked against the clauses."""
    import z3

    terms, facts = where.terms()
    asked = conclusion.formula(terms)
    assumed = [f for f in (p.formula(terms) for p in premises) if f is not None]
    if asked is None:
        return "not refuted", None
    solver = new_solver()
    solver.add(facts)
    for formula in [*assumed, asked]:
        solver.add(formula.facts)
    for formula in assumed:
        solver.add(formula.value, formula.sure)
    solver.add(z3.Not(z3.And(asked.value, asked.defined)))
    found = solver.check()
    if found == z3.unsat:
        return "proved", None
    case = small_case(solver, terms, lambda c: refutes(c, premises, conclusion))
    return ("refuted", case) if case is not None else ("not refuted", None)


def new_solver() -> Any:
    """A solver whose work is bounded by count, not by the clock."""
    import z3

    solver = z3.Solver()
    solver.set("rlimit", RESOURCES)
    solver.set("timeout", DEADLINE_MS)
    return solver


def small_case(solver: Any, terms: Mapping[str, Any], good: Any) -> Case | None:
    """A case of the solver's assertions that `good` confirms, with short lists and small numbers if there is one."""
    import z3

    for longest, largest in _SMALL:
        solver.push()
        if longest is not None and largest is not None:
            solver.add(_bounds(terms, longest, largest))
        try:
            if solver.check() == z3.sat:
                model = solver.model()
                case = as_case({name: read(term, model) for name, term in terms.items()})
                if good(case):
                    return case
        except (Outside, z3.Z3Exception):
            pass
        finally:
            solver.pop()
    return None


def as_case(values: dict[str, Any]) -> Case:
    """A case from the values of all names."""
    own = {"result", "self", "old"}
    args = {name: value for name, value in values.items() if name not in own}
    return Case(args, values.get("result"), values.get("self"), values.get("old"))


def _bounds(terms: Mapping[str, Any], longest: int, largest: int) -> list[Any]:
    import z3

    found: list[Any] = []

    def bound(term: Any) -> None:
        if isinstance(term, Listing):
            found.append(term.length <= longest)
            for i in range(min(longest, 4)):
                bound(term.get(z3.IntVal(i)))
        elif isinstance(term, Optional):
            bound(term.value)
        elif isinstance(term, tuple):
            for part in term:
                bound(part)
        elif isinstance(term, Record):
            for part in term.fields.values():
                bound(part)
        elif z3.is_expr(term) and z3.is_int(term):
            found.append(z3.And(term >= -largest, term <= largest))

    for term in terms.values():
        bound(term)
    return found
