"""Composition: what a module expects of another follows from what that one promises, or is refuted with values."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from tiny_specs import RING, line_of, parsed, rely_front, tiny_spec

from pibroch.evals.speceval import rely
from pibroch.evals.speceval.crosshair_stage import find_case
from pibroch.evals.speceval.implication import by_z3, implied, refutes
from pibroch.evals.speceval.signature import misfits
from pibroch.evals.speceval.statements import Place, Statement, place, promises
from pibroch.evals.speceval.verdict import StageReport
from pibroch.specs.model import Spec

KINDS: tuple[Literal["requires"], Literal["ensures"]] = ("requires", "ensures")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def user(requires: list[str], ensures: list[str], uses: str = "def last(n: int) -> list[int]") -> str:
    block = 'def top(n: int) -> int:\n    requires("A", n >= 1)\n    ensures("P", result >= 0)'
    return tiny_spec("user", block, rely_front("ring", uses, requires, ensures), exports="top")


def ring(clauses: str = "P1, P2, INV1") -> str:
    return tiny_spec("ring", RING, exports="put, last", clauses=clauses)


def judged(*texts: str) -> tuple[StageReport, dict[str, Spec]]:
    specs = parsed(*texts)
    return rely.judge(specs["user"], specs), specs


def test_z3_proves_what_follows_from_slices_and_invariants() -> None:
    expected = ["len(result) <= n", "all(x >= 0 for x in result)", "len(result) < 17"]
    report, _ = judged(ring(), user(["n >= 1"], expected))
    assert report.passed
    assert report.verdicts == {
        "rely.ring.last.A2": "proved", "rely.ring.last.ensures.0": "proved", "rely.ring.last.ensures.1": "proved",
        "rely.ring.last.ensures.2": "proved",
    }  # fmt: skip


def test_only_guaranteed_clauses_count() -> None:
    """Without INV1 among the guarantees a negative item may come; without P2 any list."""
    text = user(["n >= 1"], ["len(result) <= n", "all(x >= 0 for x in result)"])
    report, _ = judged(ring("P1, P2"), text)
    assert report.verdicts["rely.ring.last.ensures.0"] == "proved"
    (finding,) = report.findings
    assert finding.clause == "rely.ring.last.ensures.1"
    assert finding.line == line_of(text, "all(x >= 0")
    assert "-" in finding.values["result"]
    report, _ = judged(ring("P1, INV1"), text)
    assert [f.clause for f in report.findings] == ["rely.ring.last.ensures.0", "rely.ring.last.ensures.1"]


def test_a_clause_that_could_raise_is_no_guarantee() -> None:
    report, _ = judged(ring(), user(["n >= 1"], ["result[0] >= 0"]))
    (finding,) = report.findings
    assert finding.values["result"] == "[]"


def test_a_promise_too_small_for_the_operation() -> None:
    text = user(["n >= 0"], ["len(result) <= n"])
    report, _ = judged(ring(), text)
    assert [(f.clause, f.line, f.values["n"]) for f in report.findings if f.clause.endswith("A2")] == [
        ("rely.ring.last.A2", line_of(text, "n >= 0"), "0")
    ]


def test_an_operation_that_may_raise() -> None:
    block = 'def last(n: int) -> int:\n    raises("R", ValueError, when=n > 3)\n    ensures("P", result == n)'
    callee = tiny_spec("ring", block, exports="last", clauses="P")
    uses = "def last(n: int) -> int"
    report, _ = judged(callee, user([], ["result == n"], uses))
    assert [f.clause for f in report.findings] == ["rely.ring.last.R"]
    assert "may raise ValueError" in report.findings[0].message
    report, _ = judged(callee, user(["n <= 3"], ["result == n"], uses))
    assert report.passed


def test_signatures_by_mypy() -> None:
    callee = parsed(ring())["ring"].units[0].operations["last"]
    wanted = {
        "def last(n: bool) -> list[int]": True,
        "def last(n: int) -> list[int] | None": True,
        "def last(n: int) -> list[str]": False,
        "def last(n: int | None) -> list[int]": False,
        "def last(m: int) -> list[int]": False,
        "def last() -> list[int]": False,
    }
    relies = [parsed(user([], [], uses))["user"].relies[0].function for uses in wanted]
    faults = misfits([(rely, callee) for rely in relies])
    assert [fault == "" for fault in faults] == list(wanted.values())
    assert faults[2] == "wants `last(n: int) -> list[str]`, and the spec says `last(n: int) -> list[int]`"


def test_a_function_that_is_not_there() -> None:
    report, _ = judged(ring(), user([], [], "def first(n: int) -> int"))
    assert "does not have (it has ring.put, ring.last)" in report.findings[0].message


def test_floor_division_and_remainder_are_pythons() -> None:
    """z3's remainder is never negative, Python's has the divisor's sign."""
    block = 'def last(n: int) -> int:\n    requires("A", n != 0)\n    ensures("P", result == (-7) % n + 0 * (7 // n))'
    callee = tiny_spec("ring", block, exports="last", clauses="P")
    uses = "def last(n: int) -> int"
    for n in (-4, -3, -1, 1, 2, 3, 5):
        good, _ = judged(callee, user([f"n == {n}"], [f"result == {-7 % n}"], uses))
        assert good.verdicts["rely.ring.last.ensures.0"] == "proved"
        wrong, _ = judged(callee, user([f"n == {n}"], [f"result == {-7 % n + 1}"], uses))
        assert wrong.verdicts["rely.ring.last.ensures.0"] == "refuted"


def test_outside_z3_a_case_is_found_or_nothing_is_claimed() -> None:
    """Dicts are not translated: random cases refute, and what they cannot refute is not called proved."""
    where, premises, (low, high) = _sums(["result >= 0", "result <= len(d)"])
    assert by_z3(where, premises, high)[0] == "not refuted"
    assert implied(where, premises, low, crosshair=False, tries=300).ruling == "not refuted"
    answer = implied(where, premises, high, crosshair=False)
    assert (answer.ruling, answer.by) == ("refuted", "generators")
    assert answer.case is not None
    assert answer.case.result == sum(answer.case.args["d"].values()) > len(answer.case.args["d"])


def test_crosshair_finds_a_case_that_the_clauses_confirm() -> None:
    where, premises, (conclusion,) = _sums(["result != 77031"])
    case = find_case(where, premises, conclusion)
    assert case is not None
    assert refutes(case, premises, conclusion)
    assert sum(case.args["d"].values()) == 77031


def _sums(expected: list[str]) -> tuple[Place, list[Statement], list[Statement]]:
    """The place, premises and conclusions of a rely on the sum of a dict's values, none of which is negative."""
    block = 'def last(d: dict[int, int]) -> int:\n    ensures("P", result == sum(d.values()))'
    callee = tiny_spec("ring", block, exports="last", clauses="P")
    specs = parsed(callee, user(["all(v >= 0 for v in d.values())"], expected, "def last(d: dict[int, int]) -> int"))
    unit = specs["ring"].units[0]
    where = place(specs["ring"], unit, unit.operations["last"])
    function = specs["user"].relies[0].function
    asked, wanted = [[Statement(specs["user"], "", c) for c in function.of(k)] for k in KINDS]
    return where, [*asked, *promises(where)], wanted


def test_what_z3_does_not_know_is_the_same_unknown_on_both_sides() -> None:
    helper = "def middle(v: list[int]) -> int:\n    return sorted(v)[0]\n"
    block = helper + 'def last(v: list[int]) -> int:\n    ensures("P", result == middle(v) and len(v) > 1)'
    callee = tiny_spec("ring", block, exports="last", clauses="P")
    top = helper + 'def top(n: int) -> int:\n    ensures("P", result >= 0)'
    front = rely_front("ring", "def last(v: list[int]) -> int", [], ["result == middle(v)"])
    specs = parsed(callee, tiny_spec("user", top, front, exports="top"))
    assert rely.judge(specs["user"], specs).verdicts["rely.ring.last.ensures.0"] == "proved"
    other = tiny_spec("user", top.replace("[0]", "[-1]"), front, exports="top")
    specs = parsed(callee, other)
    assert rely.judge(specs["user"], specs).verdicts["rely.ring.last.ensures.0"] == "refuted"
