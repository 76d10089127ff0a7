"""z3 formulas of clauses against the clauses themselves: the same truth over the same values, defined alike."""

from __future__ import annotations

import random
from typing import Any

import pytest
import z3
from tiny_specs import parsed, tiny_spec

from pibroch.evals.speceval.guess import value
from pibroch.evals.speceval.statements import Case, Statement
from pibroch.evals.speceval.terms import constant
from pibroch.specs.evaluate import ClauseError
from pibroch.specs.model import Spec

TYPES = {"a": "int", "b": "int", "v": "list[int]", "w": "list[int]", "m": "list[list[int]]", "o": "int | None",
         "p": "tuple[int, int]", "q": "list[tuple[int, bool]]", "s": "str", "result": "bool"}  # fmt: skip
CLAUSES = [
    "a // b >= a % b", "a % 3 == a - 3 * (a // 3)", "(a // b) * b + a % b == a", "abs(a) >= max(a, b, -a) - min(b, 0)",
    "a < b <= a + 2", "0 <= a < len(v) and v[a] > b", "v[a] == v[-1]", "v[-a:] == w[:b]", "(v + [a])[-b:] == w",
    "v == w", "v + w == w + v", "len(v + w) == len(v) + len(w)", "a in v", "a not in v[1:]", "v[a:b] == v[b:a]",
    "all(x >= 0 for x in v)", "any(x == y for x in v for y in w)", "all(x < y for x, y in zip(v, w))",
    "all(v[i] <= v[i + 1] for i in range(len(v) - 1))", "all(i <= x for i, x in enumerate(v) if x != a)",
    "[x + 1 for x in v] == w", "list(reversed(v)) == w", "all(len(r) <= a for r in m)", "m == [v, w]",
    "any(a in r for r in m)", "all(x >= b for r in m for x in r)", "o is None or o > a", "o == a", "o is not None",
    "implies(o is not None, o >= b)", "p == (a, b)", "p < (b, a)", "p[0] + p[1] == a", "(a, b) == p and result",
    "all(f for x, f in q)", "any(x == a and f for x, f in q)", "result == (a > b)", "result == (not v)",
    "bool(v) == result", "(a if result else b) == b", "(v if result else w) == v", "low(a, b)", "low(b, a) == result",
    "first(v) == a", "sum([a, b, 1]) == 3", "max(v) >= a", "a * b == b * a and -a == 0 - a", "len(s) == a",
    "s == 'ab' or s == ''", "result + a == b", "range(a) == range(b) if a < 0 else True", "v != w and v is not None",
    "int(result) == a", "not (a or b)", "(a and b) is not None", "all(range(a))",
    "(a or b) == 3", "(a and b) == b", "len(v or w) == len(w)", "(o or 1) >= a", "any([a == b, a < b])",
]  # fmt: skip
HELPERS = """
def low(x: int, y: int) -> bool:
    limit = y - 1
    if x > 5:
        return False
    return x < limit

def first(items: list[int]) -> int:
    return items[0] if len(items) > 0 else -1
"""


def spec_of(clause: str) -> Spec:
    params = ", ".join(f"{name}: {kind}" for name, kind in TYPES.items() if name != "result")
    block = f'{HELPERS}\ndef f({params}) -> bool:\n    ensures("P", {clause})'
    return parsed(tiny_spec("m", block, exports="f"))["m"]


def outcome(statement: Statement, case: Case) -> bool | None:
    try:
        return statement.holds(case)
    except ClauseError:
        return None


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_formula_over_plain_values_is_the_clause(clause: str) -> None:
    spec = spec_of(clause)
    statement = Statement(spec, "m", spec.units[0].operations["f"].of("ensures")[0])
    rng = random.Random(clause)
    translated = 0
    for _ in range(15):
        values: dict[str, Any] = {n: value(k, rng, [-2, -1, 0, 1, 2, 3], 3) for n, k in TYPES.items()}
        if rng.random() < 0.3:
            values["w"] = list(values["v"])
        case = Case({n: v for n, v in values.items() if n != "result"}, values["result"])
        formula = statement.formula({n: constant(v) for n, v in values.items()})
        if formula is None:
            continue
        expected = outcome(statement, case)
        solver = z3.Solver()
        solver.add(*formula.facts, z3.Not(z3.And(formula.value, formula.defined)))
        if not formula.exact:
            continue  # unknowns stand for parts of it
        translated += 1
        assert (solver.check() == z3.unsat) == (expected is True), (clause, values)
        wrong = z3.Solver()
        wrong.add(*formula.facts, formula.value, formula.sure)
        if expected is True:
            assert wrong.check() == z3.sat, (clause, values)
        elif expected is False:
            assert wrong.check() == z3.unsat, (clause, values)
    assert translated or clause in ("max(v) >= a", "(a and b) is not None"), "never translated"
