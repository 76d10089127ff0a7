"""CrossHair on a candidate, locked up: it proposes a run, and only what breaks a clause outside counts."""

from __future__ import annotations

import pytest
from tiny_specs import line_of, parsed, rely_front, tiny_spec

from pibroch.evals.speceval import symbolic
from pibroch.evals.speceval.calls import Run
from pibroch.evals.speceval.symbolic_program import read_run

BLOCK = """
class Box:
    limit: int
    items: list[int]
    view(limit, items)
    invariant("INV", len(self.items) <= self.limit)
    def __init__(self, limit: int) -> None:
        requires("A0", limit >= 1)
        ensures("P0", self.limit == limit and self.items == [])
    def put(self, x: int) -> bool:
        modifies(items)
        raises("R1", ValueError, when=x < 0)
        ensures("P1", result == (len(old.items) < old.limit))
        ensures("P2", self.items == (old.items + [x] if result else old.items))
    def take(self) -> int:
        modifies(items)
        requires("A1", len(self.items) >= 1)
        ensures("P3", result == old.items[0] and self.items == old.items[1:])
"""
TEXT = tiny_spec("box", BLOCK, "scope: {limit: 1..3, x: -1..8}", exports="Box", clauses="P1, P2, P3, INV")
GOOD = """
class Box:
    def __init__(self, limit):
        self.limit = limit
        self.items = []

    def put(self, x):
        if x < 0:
            raise ValueError("negative")
        if len(self.items) >= self.limit:
            return False
        self.items = self.items + [x]
        return True

    def take(self):
        first = self.items[0]
        self.items = self.items[1:]
        return first

    def view(self):
        return {"limit": self.limit, "items": list(self.items)}
"""


def test_a_trigger_far_outside_of_the_domain_is_found_and_made_again() -> None:
    bad = GOOD.replace("first = self.items[0]", "first = self.items[0] + (self.limit * 3 == 41226)")
    report = symbolic.judge(bad, parsed(TEXT)["box"])
    (finding,) = report.findings
    assert finding.clause == "P3"
    assert finding.line == line_of(TEXT, '"P3"')
    assert finding.calls[0] == "Box(13742)"
    assert finding.calls[-1] == "take()"
    assert report.verdicts == {"P3": "refuted"}


def test_an_exception_that_is_not_raised() -> None:
    bad = GOOD.replace("if x < 0:", "if x < 0 and x != -6007:")
    report = symbolic.judge(bad, parsed(TEXT)["box"])
    (finding,) = report.findings
    assert finding.calls == ("Box(1)", "put(-6007)")


def test_a_right_module_is_not_refuted_and_not_called_proved() -> None:
    report = symbolic.judge(GOOD, parsed(TEXT)["box"], 20)
    assert report.passed
    assert report.verdicts == {}
    assert report.evidence["Box"] == "nothing found"


@pytest.mark.parametrize("escape", ['open("/etc/hostname", 0)', "fork()", 'listdir("/")'])
def test_the_candidate_is_locked_up(escape: str) -> None:
    """It reaches for the operating system through the interpreter's own objects, and is refused there."""
    probe = "system = [c for c in object.__subclasses__() if c.__name__ == '_wrap_close'][0].__init__.__globals__\n"
    call = escape.replace("open(", 'system["open"](').replace("fork(", 'system["fork"](')
    call = call.replace("listdir(", 'system["listdir"](')
    report = symbolic.judge(probe + call + GOOD, parsed(TEXT)["box"], 5)
    assert report.evidence["skipped"].startswith("PermissionError")


def test_what_it_cannot_look_at_is_told() -> None:
    front = rely_front("ring", "def last(n: int) -> int", [], []) + "\nscope: {n: 0..3}"
    block = 'def f(n: int) -> int:\n    ensures("P", result == ring.last(n))'
    report = symbolic.judge("def f(n):\n    return 0\n", parsed(tiny_spec("m", block, front, exports="f"))["m"])
    assert "other modules" in report.evidence["skipped"]
    report = symbolic.judge("this is no Python", parsed(TEXT)["box"], 5)
    assert report.evidence["skipped"].startswith("SyntaxError")


def test_only_plain_runs_are_read_from_a_message() -> None:
    spec = parsed(TEXT)["box"]
    unit = spec.units[0]
    text = "AssertionError:  when calling check_0(2, [(0, 5), (7, 0)])"
    assert read_run(spec, unit, text, phase=1) == Run("Box", (2,), (("put", (5,)), ("take", ())))
    text = "AssertionError: when calling check_0(limit_ = 1, calls = [])"
    assert read_run(spec, unit, text, phase=1) == Run("Box", (1,), ())
    for arguments in ("__import__('os'), []", "1, [(0,)]", "1, 5", "", "1, [(0, 1)"):
        assert read_run(spec, unit, f"when calling check_0({arguments})", phase=1) is None
    assert read_run(spec, unit, "fine", phase=1) is None
