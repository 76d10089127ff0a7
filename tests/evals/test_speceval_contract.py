"""The contract stage: right modules pass, wrong ones are refused with the clause, the calls and the values."""

from __future__ import annotations

import ast

import pytest
from module_samples import ANOMALY, BUGS, RIGHT, RING, changed, sample_spec

from pibroch.evals.speceval import contract
from pibroch.evals.speceval.bounded import BoundedSession
from pibroch.evals.speceval.domains import RandomPicker, check_scope, every
from pibroch.evals.speceval.session import SessionEnded
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.specs.errors import SpecError
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec


def quick(source: str, spec: Spec) -> StageReport:
    return contract.judge(source, spec, phase=1, peers={}, effort="quick")


def full(source: str, spec: Spec) -> StageReport:
    return contract.judge(source, spec, phase=1, peers={}, effort="full")


def small(block: str, scope: str, *, exports: str = "f", imports: str = "") -> Spec:
    """A spec of one block; its first line is line 14 of the file."""
    return parse_spec(
        f"---\nspec: 1\nmodule: small\nversion: 1\nsummary: For a test.\nimports: [{imports}]\n"
        f"guarantee: {{exports: [{exports}]}}\nscope: {scope}\n---\n## Intent\nA test.\n## Functionality\n```python\n"
        f"{block}\n```\n"
    )


def function(clauses: str, scope: str = "{x: 0..5}", signature: str = "f(x: int) -> int") -> Spec:
    return small("\n".join([f"def {signature}:", *(f"    {c}" for c in clauses.split("; "))]), scope)


def only(report: StageReport) -> Finding:
    assert len(report.findings) == 1, [str(f) for f in report.findings]
    return report.findings[0]


BAG = """class Bag:
    items: list[int]
    size: int
    view(items, size)
    def __init__(self, items: list[int]) -> None:
        ensures("B0", self.items == items and self.size == len(items))
    def add(self, x: int) -> list[int]:
        modifies(items, size)
        raises("R1", ValueError, when=x in old.items)
        ensures("B1", self.items == old.items + [x] and self.size == old.size + 1)
        ensures("B2", result == self.items)"""
BAG_CODE = """from typing import Any


class Bag:
    def __init__(self, items: list[int]) -> None:
        self.items = list(items)
        self.size = len(items)

    def view(self) -> dict[str, Any]:
        return {"items": list(self.items), "size": self.size}

    def add(self, x: int) -> list[int]:
        if x in self.items:
            raise ValueError(x)
        self.items.append(x)
        self.size += 1
        return list(self.items)
"""


def bag() -> Spec:
    return small(BAG, "{items: {list: 0..2, max: 2}, x: 0..4}", exports="Bag")


# The example of the design


def test_a_right_module_passes_with_every_clause_held_and_every_draw_accepted() -> None:
    report = full(ANOMALY, sample_spec("anomaly_trigger"))
    assert report.findings == []
    assert {n for n, ruling in report.verdicts.items() if ruling != "held"} == set()
    assert {"INV1", "P0", "P1", "P2", "P3", "P4", "P5", "P6", *contract.GENERAL} <= set(report.verdicts)
    assert report.evidence["acceptance"] == dict.fromkeys(
        ("AnomalyTrigger", "observe", "set_drop_pct", "warm_up"), 1.0
    )  # fmt: skip
    assert report.evidence["calls"] > 4_000


def test_first_negative_control_ignores_its_arguments_and_never_fires() -> None:
    source = '''from typing import Any
class AnomalyTrigger:
    def __init__(self, window: int, drop_pct: int, cooldown: int) -> None:
        self.base: list[int] = []
    def view(self) -> dict[str, Any]:
        return {"window": 1, "drop_pct": 50, "cooldown": 1, "base": [], "quiet": 0}
    def observe(self, tput: int) -> bool:
        return False
    def set_drop_pct(self, pct: int) -> None:
        pass
    def warm_up(self, n: int) -> None:
        pass
'''
    report = full(source, sample_spec("anomaly_trigger"))
    found = {f.clause: f for f in report.findings}
    assert {"P0", "P5"} <= set(found)
    assert report.verdicts["P0"] == report.verdicts["P5"] == "refuted"
    assert found["P5"].calls == ("AnomalyTrigger(1, 50, 1)", "set_drop_pct(1)")
    assert "`self.drop_pct` is 50 and should be 1" in found["P5"].message
    assert found["P0"].line == 45


def test_second_negative_control_changes_what_it_does_not_modify() -> None:
    source = changed(ANOMALY, "        return False", "        self.drop_pct = 99\n        return False")
    finding = only(full(source, sample_spec("anomaly_trigger")))
    assert (finding.clause, finding.line) == ("frame", 46)
    assert finding.calls == ("AnomalyTrigger(1, 1, 1)", "observe(0)")
    assert finding.values == {"old.drop_pct": "1", "self.drop_pct": "99"}
    assert finding.message == "observe changed drop_pct; it modifies base, quiet"


@pytest.mark.parametrize(("name", "right", "wrong"), BUGS)
def test_seeded_bugs_are_found_by_a_quick_search(name: str, right: str, wrong: str) -> None:
    report = quick(changed(RIGHT[name], right, wrong), sample_spec(name))
    assert report.findings
    assert all(f.clause in sample_spec(name).clauses and f.line for f in report.findings)


def test_feedback_is_the_same_every_time() -> None:
    source = changed(ANOMALY, "self.quiet = self.cooldown", "self.quiet = self.cooldown - 1")
    first, again = (full(source, sample_spec("anomaly_trigger")).findings for _ in range(2))
    assert [str(f) for f in first] == [str(f) for f in again]
    assert len(first[0].calls) == 3  # made, filled, and fired upon a slow sample
    assert "should be 1" in first[0].message


# Clauses that every spec has


def test_a_right_bag_passes() -> None:
    assert [str(f) for f in full(BAG_CODE, bag()).findings] == []


@pytest.mark.parametrize(
    ("right", "wrong", "clause", "said"),
    [
        ("raise ValueError(x)", "raise KeyError(x)", "R1", "must raise ValueError here, and r"),
        ("raise ValueError(x)", "return list(self.items)", "R1", "must raise ValueError here, and"),
        ("if x in self.items", "if x in self.items or x == 4", "R1", "allows only when x in old.items"),
        ("self.size += 1", "self.size += self.items[x]", "raises", "IndexError"),
        ("            raise", "            self.size += 1\n            raise", "frame", "check before changing"),
        ("return list(self.items)\n", "return tuple(self.items)\n", "returns", "expected list[int], got tuple"),
        ('"size": self.size}', '"size": self.size, "more": 1}', "returns", "view()"),
        ("return list(self.items)\n", "return self.items\n", "alias", "copy it"),
        ("self.items = list(items)", "self.items = items", "alias", "copy it"),
        ("self.size = len(items)", "self.size = len(items)\n        items.append(3)", "alias", "changed its argument"),
        ("self.size += 1", "while x == 3:\n            pass\n        self.size += 1", "ends", "does not end"),
        ('        return {"items"', '        self.size += 0 if self.items else 1\n        return {"items"', "B0", "B0"),
    ],
)  # fmt: skip
def test_what_no_clause_needs_to_say(right: str, wrong: str, clause: str, said: str) -> None:
    at = BAG_CODE.rindex(right) if right.startswith("return") else BAG_CODE.index(right)
    report = quick(BAG_CODE[:at] + wrong + BAG_CODE[at + len(right) :], bag())
    assert clause in [f.clause for f in report.findings], [str(f) for f in report.findings]
    assert any(said in f.message or said == f.clause for f in report.findings), [str(f) for f in report.findings]


def test_what_depends_on_the_order_of_a_set_is_refused() -> None:
    spec = function('ensures("P1", result in ["a", "b", "c"])', signature="f(x: int) -> str")
    code = "def f(x: int) -> str:\n    return list({'a', 'b', 'c', 'd'} - {'d'})[0]\n"
    sets = {quick(code, spec).findings[0].clause if quick(code, spec).findings else "" for _ in range(1)}
    assert sets == {"deterministic"}


def test_lines_that_never_run_are_named() -> None:
    spec = function('requires("A1", x >= 0); ensures("P1", result == x + 1)')
    code = "def f(x: int) -> int:\n    if x < 0:\n        return 7\n    return x + 1\n"
    finding = only(full(code, spec))
    assert (finding.clause, finding.code_lines, finding.values) == ("reached", (3,), {"line 3": "return 7"})
    assert contract.executable_lines(code) == {2, 3, 4}


# Beyond the test domain


def test_a_trigger_on_an_argument_beyond_the_domain_is_found() -> None:
    spec = function('ensures("P1", result == x + 1)')
    finding = only(full("def f(x: int) -> int:\n    return x + 1 if x != 47 * 100 + 11 else 0\n", spec))
    assert (finding.clause, finding.calls) == ("P1", ("f(4711)",))
    assert "`result` is 0 and should be 4712" in finding.message


def test_a_trigger_on_the_number_of_calls_is_found() -> None:
    block = "n: int\nview(n)\ndef f(x: int) -> int:\n    modifies(n)\n    ensures('P1', self.n == (old.n + x) % 7)\n"
    block += "    ensures('P2', result == x)"
    code = "n = 0\ncalls = 0\n\n\ndef view() -> dict[str, int]:\n    return {'n': n}\n\n\ndef f(x: int) -> int:\n"
    code += "    global n, calls\n    calls += 1\n    n = (n + x) % 7\n    return x if calls != 900 else x + 1\n"
    report = full(code, small(block, "{x: 0..3}"))
    assert [f.clause for f in report.findings] == ["P2"]
    assert "calls …" in " ".join(report.findings[0].calls)


def test_a_long_run_whose_state_grows_is_no_fault() -> None:
    block = "seen: list[int]\nview(seen)\ndef f(x: int) -> None:\n    modifies(seen)\n"
    block += "    ensures('P1', self.seen == old.seen + [x])"
    code = "seen: list[int] = []\n\n\ndef view() -> dict[str, list[int]]:\n    return {'seen': list(seen)}\n\n\n"
    code += "def f(x: int) -> None:\n    seen.append(x)\n"
    assert [str(f) for f in full(code, small(block, "{x: 0..3}")).findings] == []


def test_what_requires_excludes_is_never_called() -> None:
    spec = function('requires("A1", x != 3); ensures("P1", result == x)')
    assert quick("def f(x: int) -> int:\n    return x if x != 3 else 99\n", spec).findings == []


# Acceptance and faults of the spec


def test_a_vacuous_precondition_is_no_pass() -> None:
    spec = function('requires("A1", x == 77); ensures("P1", result == x)', "{x: 0..70}")
    for report in (quick("def f(x: int) -> int:\n    return x\n", spec), contract.check_generators(spec, {})):
        finding = only(report)
        assert (finding.clause, finding.line) == ("acceptance", 15)
        assert "f: 0 of" in finding.message
        assert "A1 turns down" in finding.message
        assert "x == 77" in finding.message


def test_a_generator_that_never_produces_is_named_with_its_line() -> None:
    spec = function('ensures("P1", result == x)', '{x: {draw: "choose([y for y in range(5) if y > 9])"}}')
    for report in (quick("def f(x: int) -> int:\n    return x\n", spec), contract.check_generators(spec, {})):
        finding = only(report)
        assert (finding.clause, finding.line) == ("generator", 8)
        assert "never gives a value" in finding.message


def test_an_operation_that_is_never_enabled_is_named() -> None:
    block = BAG.replace("        raises(", '        when("W1", self.size > 9)\n        raises(')
    finding = only(quick(BAG_CODE, small(block, "{items: {list: 0..2, max: 2}, x: 0..4}", exports="Bag")))
    assert finding.clause == "acceptance"
    assert "add: never enabled" in finding.message


def test_a_clause_that_raises_is_the_specs_fault() -> None:
    spec = function('requires("A1", 6 // x > 0); ensures("P1", result == x)')
    for report in (quick("def f(x: int) -> int:\n    return x\n", spec), contract.check_generators(spec, {})):
        finding = only(report)
        assert (finding.clause, finding.line) == ("A1", 15)
        assert "ZeroDivisionError" in finding.message
    after = function('ensures("P1", 6 // result > 0)')
    finding = only(quick("def f(x: int) -> int:\n    return 0\n", after))
    assert (finding.clause, finding.line) == ("P1", 15)
    assert "cannot be evaluated after f: ZeroDivisionError" in finding.message


def test_clauses_whose_premise_never_holds_are_not_reached() -> None:
    clauses = 'raises("R1", ValueError, when=x > 50); ensures("P1", implies(x < 0, result == 3)); ensures("P2", True)'
    spec = function(clauses)
    code = "def f(x: int) -> int:\n    if x < 0:\n        return 3\n    if x > 50:\n        raise ValueError\n"
    code += "    return x\n"
    narrow = small(spec.block, "{x: [1, 2]}")
    verdicts = quick(code, spec).verdicts
    assert (verdicts["R1"], verdicts["P1"]) == ("held", "held")  # values beyond the domain reach both
    assert quick(code, narrow).verdicts["P2"] == "held"


@pytest.mark.parametrize(
    ("scope", "line", "said"),
    [
        ("{}", 8, "no domain for parameter x of f"),
        ("{x: 5..1}", 8, "the range is empty"),
        ("{x: many}", 8, "no range"),
        ("{x: []}", 8, "nothing to choose"),
        ("{x: [a]}", 8, "expected int"),
        ("{x: {list: 0..3}}", 8, "does not fit the type int"),
        ("{x: {lists: 0..3}}", 8, "a domain has one of"),
        ('{x: {draw: "1 +"}}', 8, "is no expression"),
        ('{x: {draw: "y + 1"}}', 8, "y is not known"),
        ("{x: 0..3, z: 0..3}", 8, "z is no parameter"),
        ("{x: 0..3, calls: 0}", 8, "calls is a number"),
        ("{x: 0..3, acceptance: 7}", 8, "acceptance lies in 0..1"),
    ],
)
def test_a_wrong_domain_is_one_message_with_its_line(scope: str, line: int, said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        check_scope(function('ensures("P1", result == x)', scope))
    assert caught.value.line == line


def test_an_int_that_requires_bounds_needs_no_domain() -> None:
    check_scope(function('requires("A1", 1 <= x <= 9); ensures("P1", result == x)', "{}"))


def test_an_endless_loop_costs_processor_time_and_not_the_deadline() -> None:
    spec = function('ensures("P1", result == x)')
    code = "def f(x: int) -> int:\n    while True:\n        pass\n"
    session = BoundedSession(code, spec, deadline_s=3600.0, cpu_s=0.1)
    session.__enter__()
    with pytest.raises(SessionEnded, match="does not end"):
        session.replay("small", [], [("f", [1])])
    session.kill()


# Two modules


def test_two_modules_that_differ_show_that_a_clause_is_missing() -> None:
    spec = small(RING_BLOCK, "{value: 0..3}", exports="record, best")
    best = "def best() -> int:\n    return max(samples)\n"
    latest = best.replace("max(samples)", "samples[-1]")
    finding = contract.compare(RING_TOP + best, RING_TOP + latest, spec, {})
    assert finding is not None
    assert finding.calls[-1] == "best()"
    assert len(finding.calls) == 3
    assert finding.values["result, one module"] > finding.values["result, the other"]
    same = best.replace("max(samples)", "sorted(samples)[-1]")
    assert contract.compare(RING_TOP + best, RING_TOP + same, spec, {}) is None


RING_BLOCK = """samples: list[int]
view(samples)
def record(value: int) -> None:
    modifies(samples)
    ensures("T1", self.samples == old.samples + [value])
def best() -> int:
    requires("A1", len(self.samples) > 0)
    ensures("T2", result in self.samples)"""
RING_TOP = RING.partition("def record")[0] + "def record(value: int) -> None:\n    samples.append(value)\n\n\n"


# Domains


def test_every_counts_through_all_answers_and_leaves_out_empty_draws() -> None:
    assert list(every(lambda pick: (pick(0, 2), pick(5, 6)), 100)) == [(a, b) for a in range(3) for b in (5, 6)]
    lists = list(every(lambda pick: [pick(0, 1) for _ in range(pick(0, 2))], 100))
    assert sorted(lists) == sorted([[], [0], [1], [0, 0], [0, 1], [1, 0], [1, 1]])
    odd = list(every(lambda pick: [10, 20][pick(0, 3)], 100))
    assert odd == [10, 20]
    assert list(every(lambda pick: pick(0, 1000), 100)) == [0, 1, 2, 500, 999, 1000]


def test_draws_are_the_same_for_the_same_seed_and_reach_both_ends() -> None:
    one, two = RandomPicker("a"), RandomPicker("a")
    drawn = [one(0, 50) for _ in range(200)]
    assert drawn == [two(0, 50) for _ in range(200)]
    assert (min(drawn), max(drawn)) == (0, 50)


def test_samples_parse() -> None:
    assert all(ast.parse(source) for source in RIGHT.values())
