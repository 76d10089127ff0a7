"""SpecEval's concurrency stage: seeded bugs are found, correct modules pass, and logs are not believed blindly."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from thread_specs import BOX, BOX_CODE, CORRECT, COUNTER, COUNTER_CODE, SEEDED, Seeded, spec_of, with_scenarios

from pibroch.evals.speceval import concurrency
from pibroch.evals.speceval.protocol import Protocol
from pibroch.evals.speceval.scenarios import own_scenarios
from pibroch.evals.speceval.session import Session
from pibroch.evals.speceval.thread_runs import Plan, Runner
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.specs.errors import SpecError
from pibroch.specs.model import Spec

BOX_OF_TWO = spec_of(
    "box",
    """
imports: [threading]
guarantee: {exports: [Box]}
concurrency:
  model: threads
  roles: {giver: [give], taker: [take]}
  locks: [{name: Box.lock, rank: 1}]
  guarded_by: {Box.lock: [items]}
  atomic: [give, take]
scope: {item: 0..3, scenarios: [{threads: [["give(1)", "give(2)"], ["take()"], ["take()"]]}]}
""",
    BOX.block,
)


def judged(code: str, spec: Spec, runs: int = 1000) -> StageReport:
    return concurrency.judge(code, spec, peers={}, runs=runs)


def found(code: str, spec: Spec, clause: str, runs: int = 300) -> Finding:
    report = judged(code, spec, runs)
    assert clause in [f.clause for f in report.findings], [str(f) for f in report.findings]
    return next(f for f in report.findings if f.clause == clause)


@pytest.mark.parametrize("bug", SEEDED, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_found_within_a_thousand_runs(bug: Seeded) -> None:
    report = judged(bug.faulty, bug.spec)
    assert report.evidence["runs"] <= 1000
    finding = next((f for f in report.findings if f.clause == bug.clause), None)
    assert finding is not None, [str(f) for f in report.findings]
    assert bug.line(bug.says) in finding.code_lines, str(finding)
    assert finding.line > 0
    assert "T0" in finding.values["interleaving"]
    assert report.verdicts[bug.clause] == "refuted"


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_module_passes_with_every_schedule_of_two_preemptions(name: str) -> None:
    spec, code = CORRECT[name]
    report = judged(code, spec, runs=550)
    assert report.passed, [str(f) for f in report.findings]
    assert report.evidence["complete"]
    assert report.evidence["preemption_bound"] == 2
    assert report.verdicts["atomic"] == "held"


def _two_conditions(code: str) -> str:
    """Box with one condition for room and one for items, each notified once."""
    code = code.replace("self.cond = threading.Condition()",
                        "self.lock = threading.Lock()\n        self.room = threading.Condition(self.lock)\n"
                        "        self.some = threading.Condition(self.lock)")  # fmt: skip
    code = code.replace("with self.cond", "with self.lock")
    code = code.replace("while self.items:\n                self.cond", "while self.items:\n                self.room")
    code = code.replace("append(item)\n            self.cond.notify_all", "append(item)\n            self.some.notify")
    code = code.replace("pop()\n            self.cond.notify_all", "pop()\n            self.room.notify")
    return code.replace("self.cond.wait", "self.some.wait")


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (BOX, BOX_CODE.replace("while self.items:\n                self.cond.wait()",
                               "self.cond.wait_for(lambda: not self.items)")),
        (BOX, BOX_CODE.replace("self.items.append(item)\n            self.cond.notify_all()",
                               "self.cond.notify_all()\n            self.items.append(item)")),
        (COUNTER, COUNTER_CODE.replace("        with self.lock:\n            seen = self.seen\n            return",
                                       "        self.lock.acquire()\n        try:\n            seen = self.seen\n"
                                       "        finally:\n            self.lock.release()\n        return"
                                       ).replace("seen = self.seen\n        f", "seen = list(self.seen)\n        f")),
        (BOX_OF_TWO, _two_conditions(BOX_CODE)),
    ],
    ids=["wait_for", "notified before the change", "acquire and release", "two conditions on one lock"],
)  # fmt: skip
def test_other_correct_ways_to_write_it_pass(spec: Spec, code: str) -> None:
    report = judged(code, spec, runs=250)
    assert report.passed, [str(f) for f in report.findings]


def test_the_wrong_one_of_two_conditions_is_notified() -> None:
    code = _two_conditions(BOX_CODE).replace("self.room.notify", "self.some.notify")
    finding = found(code, BOX_OF_TWO, "W1")
    assert "lost wake-up" in finding.message
    assert "notify of Box.room" in finding.message


def test_a_report_is_the_same_each_time() -> None:
    bug = next(b for b in SEEDED if b.name == "if for while")
    one, two = judged(bug.faulty, bug.spec), judged(bug.faulty, bug.spec)
    assert [str(f) for f in one.findings] == [str(f) for f in two.findings]
    assert one.evidence == two.evidence


def test_a_small_budget_is_kept_and_said() -> None:
    report = judged(BOX_CODE, BOX, runs=5)
    assert report.passed
    assert report.evidence["runs"] == 5
    assert not report.evidence["complete"]
    assert report.verdicts["atomic"] == "not refuted"


def test_a_deadlock_says_who_holds_what_and_where() -> None:
    bug = next(b for b in SEEDED if b.name == "lock order")
    spec = spec_of(
        "ledger",
        """
imports: [threading]
guarantee: {exports: [Ledger]}
concurrency: {model: threads, roles: {left: [move], right: [back]}, atomic: [move, back]}
scope: {n: [1], scenarios: [{threads: [["move(1)"], ["back(1)"]]}]}
""",
        bug.spec.block.replace("    def total(self) -> int:\n        ensures(\"P3\", result == old.a + old.b)\n", ""),
    )
    code = bug.faulty.replace("        with self.first, self.second:\n            return {", "        return {")
    scenario = own_scenarios(spec)[0]
    with Session(code, spec, threads=2) as session:
        log = Runner(session, scenario, ["a", "b"], []).execute([Plan((0, 1))], "sync")[0]
    assert log.end == "stuck"
    protocol = Protocol(spec, ast.parse(code))
    deadlock = next(f for f in protocol.check(scenario, log)[0] if f.clause == "ends")
    first, second = bug.line("            with self.second:"), bug.line("            with self.first:")
    assert deadlock.message == (
        f"deadlock: T0 move(1) waits in line {first} for Ledger.second, which T1 holds since line {second - 1}, and "
        f"holds Ledger.first (line {first - 1}); T1 back(1) waits in line {second} for Ledger.first, which T0 holds "
        f"since line {first - 1}, and holds Ledger.second (line {second - 1})"
    )


def test_a_call_that_waits_rightly_is_no_fault() -> None:
    """A taker of an empty box waits for ever: its guard is false in the end."""
    report = judged(BOX_CODE, with_scenarios(BOX, {"threads": [["take()"], ["take()"]]}), runs=100)
    assert report.passed, [str(f) for f in report.findings]


def test_a_wait_that_may_time_out_is_tried_both_ways() -> None:
    code = BOX_CODE.replace("self.cond.wait()", "self.cond.wait(0.5)", 1)
    report = judged(code, BOX, runs=200)
    assert report.passed, [str(f) for f in report.findings]
    broken = BOX_CODE.replace("while not self.items:\n                self.cond.wait()",
                              "if not self.items:\n                self.cond.wait(0.5)")  # fmt: skip
    assert found(broken, BOX, "raises", 200).code_lines[0] == broken[: broken.index("self.items.pop")].count("\n") + 1


def test_a_loop_that_polls_is_ended() -> None:
    code = COUNTER_CODE.replace("        with self.lock:\n            seen = self.seen",
                                "        while self.count == 0:\n            pass\n"
                                "        with self.lock:\n            seen = self.seen")  # fmt: skip
    spec = with_scenarios(COUNTER, {"threads": [["bump()"], ["read()"]]})
    scenario = own_scenarios(spec)[0]
    with Session(code, spec, threads=2) as session:
        log = Runner(session, scenario, ["count", "seen"], []).execute([Plan((1,))], "sync")[0]
    assert log.end == "endless"
    protocol = Protocol(spec, ast.parse(code))
    finding = next(f for f in protocol.check(scenario, log)[0] if f.clause == "ends")
    assert finding.message.startswith("T1 read() does not end")
    assert finding.code_lines == (18,)


RING = spec_of(
    "ring",
    """
imports: [threading]
guarantee: {exports: [add, all_of]}
concurrency:
  model: threads
  roles: {writer: [add], reader: [all_of]}
  single_writer: {ring.kept: writer}
  atomic: [add, all_of]
scope: {x: 0..3}
""",
    """
kept: list[int]
view(kept)
def add(x: int) -> None:
    modifies(kept)
    ensures("P1", self.kept == (old.kept + [x])[-2:])
def all_of() -> list[int]:
    ensures("P2", result == old.kept)
""",
)
RING_CODE = """
kept = []

def add(x: int) -> None:
    global kept
    kept = (kept + [x])[-2:]

def all_of() -> list[int]:
    return list(kept)

def view() -> dict:
    return {"kept": list(kept)}
"""


def test_a_module_with_one_writer_and_no_lock() -> None:
    report = judged(RING_CODE, RING, runs=300)
    assert report.passed, [str(f) for f in report.findings]
    in_place = RING_CODE.replace("    kept = (kept + [x])[-2:]", "    kept.append(x)\n    del kept[:-2]")
    finding = found(in_place, RING, "atomic", 600)
    assert "[0, 3, 1]" in str(finding) or "all_of() -> [" in finding.message
    reader = RING_CODE.replace("    return list(kept)\n", "    kept.sort()\n    return list(kept)\n")
    finding = found(reader, RING, "single_writer", 100)
    assert "only writer may" in finding.message
    assert finding.code_lines == (9,)


RELYING = spec_of(
    "relying",
    """
imports: [threading, source]
rely: [{module: source, uses: "def more(n: int) -> list[int]", ensures: ["len(result) <= n"]}]
guarantee: {exports: [Mix]}
concurrency:
  model: threads
  roles: {one: [fill], other: [fill, size]}
  locks: [{name: Mix.lock, rank: 1}]
  guarded_by: {Mix.lock: [items]}
  atomic: [fill, size]
  no_call_while_holding: {Mix.lock: [source.more]}
scope: {n: 0..2}
""",
    """
class Mix:
    items: list[int]
    view(items)
    def __init__(self) -> None:
        ensures("P0", self.items == [])
    def fill(self, n: int) -> None:
        modifies(items)
        requires("A1", n >= 0)
        ensures("P1", self.items == source.more(n))
    def size(self) -> int:
        ensures("P2", result == len(old.items))
""",
)
RELYING_CODE = """
import threading
import source

class Mix:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.items = []

    def fill(self, n: int) -> None:
        items = source.more(n)
        with self.lock:
            self.items = items

    def size(self) -> int:
        with self.lock:
            return len(self.items)

    def view(self) -> dict:
        with self.lock:
            return {"items": list(self.items)}
"""


def test_what_a_module_relies_on_is_not_called_under_the_lock() -> None:
    report = judged(RELYING_CODE, RELYING, runs=200)
    assert report.passed, [str(f) for f in report.findings]
    code = RELYING_CODE.replace("        items = source.more(n)\n", "").replace("= items", "= source.more(n)")
    finding = found(code, RELYING, "no_call_while_holding", 50)
    assert "source.more in line 12 while it holds Mix.lock, taken in line 11" in finding.message
    assert finding.code_lines == (11, 12)


def test_a_lock_is_of_its_declared_kind() -> None:
    code = COUNTER_CODE.replace("threading.Lock()", "threading.RLock()")
    assert "is a RLock (line 6); declared is Lock" in found(code, COUNTER, "locks", 10).message
    code = COUNTER_CODE.replace("self.lock", "self.other")
    assert "no attribute of that name" in found(code, COUNTER, "locks", 10).message


def test_a_scenario_that_breaks_a_requires_is_the_specs_fault() -> None:
    block = BOX.block.replace('when("W2"', 'requires("A1"')
    front = BOX.text.split("---")[1].split("summary: A small module for tests.")[1]
    with pytest.raises(SpecError, match=r"take\(\) breaks A1"):
        judged(BOX_CODE, spec_of("box", front, block), runs=10)


@pytest.mark.parametrize(
    ("scenario", "says"),
    [
        ({"threads": []}, "list of lists"),
        ({"threads": [["give(1"]]}, "is no call"),
        ({"threads": [["give(x)"]]}, "literals"),
        ({"threads": [["give()"]]}, "does not fit give"),
        ({"threads": [["throw(1)"]]}, "no unit has all of throw"),
        ({"threads": [["take()"]], "init": {"n": 1}}, "no parameter of Box"),
        ({"threads": [["take()"]] * 5}, "at most 4"),
    ],
)
def test_scenarios_are_read_strictly(scenario: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        own_scenarios(with_scenarios(BOX, scenario))
