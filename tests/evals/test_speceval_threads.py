"""SpecEval's concurrency stage: seeded bugs are found, correct modules pass, and logs are not believed blindly."""

from __future__ import annotations

import ast
import threading
from dataclasses import replace
from typing import Any

import pytest
from thread_specs import BOX, BOX_CODE, CORRECT, COUNTER, COUNTER_CODE, SEEDED, Seeded, spec_of

from pibroch.evals.speceval import child_sync, concurrency
from pibroch.evals.speceval.explore import Frontier, random_plans
from pibroch.evals.speceval.protocol import Protocol
from pibroch.evals.speceval.scenarios import own_scenarios
from pibroch.evals.speceval.session import Session, SessionEnded
from pibroch.evals.speceval.thread_runs import Choice, Plan, RunLog, Runner
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.specs.errors import SpecError
from pibroch.specs.model import Spec


def judged(code: str, spec: Spec, runs: int = 1000) -> StageReport:
    return concurrency.judge(code, spec, peers={}, runs=runs)


def found(code: str, spec: Spec, clause: str, runs: int = 300) -> Finding:
    report = judged(code, spec, runs)
    assert clause in [f.clause for f in report.findings], [str(f) for f in report.findings]
    return next(f for f in report.findings if f.clause == clause)


def with_scenarios(spec: Spec, *scenarios: dict[str, Any]) -> Spec:
    scope = {**spec.front.scope, "scenarios": list(scenarios)}
    return replace(spec, front=spec.front.model_copy(update={"scope": scope}))


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
    report = judged(code, spec, runs=600)
    assert report.passed, [str(f) for f in report.findings]
    assert report.evidence["complete"]
    assert report.evidence["preemption_bound"] == 2
    assert report.verdicts["atomic"] == "held"


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


class Forging:
    """A session whose child changes what a run's log says."""

    def __init__(self, session: Session, change: Any) -> None:
        self.session, self.change, self.asked = session, change, session.asked

    def command(self, name: str, payload: Any) -> Any:
        reply = self.session.command(name, payload)
        self.change(reply[0])
        return reply

    def kill(self) -> None:
        self.session.kill()


def _choose(log: dict[str, Any]) -> None:
    log["choices"][0][3] = 1


def _drop(log: dict[str, Any]) -> None:
    log["events"] = [e for e in log["events"] if e[0] != "return"]


def _twice(log: dict[str, Any]) -> None:
    log["events"].append(next(e for e in log["events"] if e[0] == "return"))


def _silent(log: dict[str, Any]) -> None:
    log["events"] = []


@pytest.mark.parametrize("change", [_choose, _drop, _twice, _silent, dict.clear], ids=lambda f: f.__name__)
def test_a_log_that_contradicts_itself_ends_the_session(change: Any) -> None:
    with Session(COUNTER_CODE, COUNTER, threads=2) as session:
        scenario = own_scenarios(with_scenarios(COUNTER, {"threads": [["bump()"], ["bump()"]]}))[0]
        honest = Runner(session, scenario, [], []).execute([Plan((0,))], "sync")[0]
        assert honest.end == "done"
        with pytest.raises(SessionEnded, match="contradicts itself"):
            Runner(Forging(session, change), scenario, [], []).execute([Plan((0,))], "sync")  # type: ignore[arg-type]


def test_each_schedule_within_the_bound_is_run_once() -> None:
    """Two threads of two steps: of the 6 orders, 2 need no preemption, 2 one, and 2 two."""

    def run(plan: Plan) -> RunLog:
        left, running = [2, 2], -1
        choices: list[Choice] = []
        order: list[int] = []
        while any(left):
            able = tuple(t for t in (0, 1) if left[t])
            if len(able) > 1:
                i = len(choices)
                chosen = plan.choices[i] if i < len(plan.choices) else (running if running in able else able[0])
                choices.append(Choice(running if running in able else -1, able, chosen))
            else:
                chosen = able[0]
            left[chosen] -= 1
            running = chosen
            order.append(chosen)
        seen.append(tuple(order))
        return RunLog(plan, choices, [], "done", [], {}, {})

    seen: list[tuple[int, ...]] = []
    frontier, counts = Frontier(bound=2), []
    while frontier.level is not None:
        level = frontier.level
        for plan in frontier.take(1):
            frontier.add(run(plan))
        counts.append(level)
    assert len(seen) == len(set(seen)) == 6
    assert [counts.count(n) for n in (0, 1, 2)] == [2, 2, 2]


def test_random_schedules_are_the_same_for_the_same_seed() -> None:
    assert random_plans("a", 3, 20, 10) == random_plans("a", 3, 20, 10) != random_plans("b", 3, 20, 10)
    assert all(sorted(p.priorities) == [len(p.changes) + 1 + i for i in range(3)] for p in random_plans("a", 3, 20, 10))


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore"])
def test_the_shim_behaves_as_threading_does_for_one_thread(kind: str) -> None:
    def uses(module: Any) -> list[Any]:
        made = getattr(module, kind)()
        steps: list[tuple[Any, ...]] = {
            "Event": [("is_set",), ("set",), ("wait",), ("wait", 0.0), ("clear",), ("wait", 0.0)],
            "Condition": [("notify",), ("acquire",), ("wait", 0.0), ("notify_all",), ("release",), ("release",)],
        }.get(kind, [("acquire",), ("acquire", False), ("release",), ("release",), ("acquire", True, 0.0)])
        seen: list[Any] = []
        for name, *args in steps:
            try:
                seen.append(getattr(made, name)(*args))
            except (RuntimeError, ValueError) as error:
                seen.append(type(error))
        return seen

    assert uses(child_sync.threading()) == uses(threading)
