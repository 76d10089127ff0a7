"""Evolution: a weaker promise names every rely that it breaks and blocks; a stronger one concerns its module alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_specs
from tiny_specs import line_of, parsed, rely_front, tiny_spec

from pibroch.evals.speceval.evolution import compare, evolve, to_regenerate
from pibroch.specs.model import Spec

RING = tiny_specs.RING + """\
def total() -> int:
    ensures("P3", result == sum(self.items))
"""
USES = "def last(n: int) -> list[int]"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def ring(*edits: tuple[str, str], clauses: str = "P1, P2, P3, INV1") -> str:
    block = RING
    for old, new in edits:
        assert old in block
        block = block.replace(old, new)
    return tiny_spec("ring", block, exports="put, last, total", clauses=clauses)


def user(name: str, ensures: list[str], requires: str = "n >= 1", uses: str = USES) -> str:
    block = f'def {name}_top(n: int) -> int:\n    requires("A", n >= 1)\n    ensures("P", result >= 0)'
    return tiny_spec(name, block, rely_front("ring", uses, [requires], ensures), exports=f"{name}_top")


SHORT = user("short", ["len(result) <= n", "len(result) <= 16"])
COUNTS = user("counts", ["all(x >= 0 for x in result)"])
BOTH = user("both", ["all(0 <= x for x in result)", "len(result) < 17"])
ALONE = tiny_spec("alone", 'def f(n: int) -> int:\n    ensures("P", result == n)', exports="f")
OTHERS = (SHORT, COUNTS, BOTH, ALONE)


def world(ring_text: str, *others: str) -> dict[str, Spec]:
    return parsed(ring_text, *(others or OTHERS))


def test_a_weaker_guarantee_names_every_rely_that_it_breaks_and_blocks() -> None:
    evolution = evolve(world(ring()), world(ring(("<= 16", "<= 32"))))
    assert evolution.blocked
    found = {(b.module, b.clause, b.path.name, b.line) for b in evolution.breaches}
    assert found == {
        ("short", "rely.ring.last.ensures.1", "short.spec.md", line_of(SHORT, "len(result) <= 16")),
        ("both", "rely.ring.last.ensures.1", "both.spec.md", line_of(BOTH, "len(result) < 17")),
    }
    first = evolution.breaches[0]
    assert first.weakened == ("INV1",)
    assert str(first).startswith(f"both.spec.md:{first.line}: expects len(result) < 17 of ring.last")
    (change,) = evolution.changes
    assert (change.name, change.direction, change.promise) == ("INV1", "weaker", "weaker")
    assert evolution.regenerate == ("ring",)


def test_a_guarantee_that_is_taken_away_breaks_those_who_need_it() -> None:
    evolution = evolve(world(ring()), world(ring(clauses="P1, P2, P3")))
    assert {(b.module, b.clause[-9:]) for b in evolution.breaches} == {
        ("short", "ensures.1"), ("counts", "ensures.0"), ("both", "ensures.0"), ("both", "ensures.1")
    }  # fmt: skip


def test_a_stronger_guarantee_concerns_the_module_alone() -> None:
    evolution = evolve(world(ring()), world(ring(("<= 16", "<= 8"), ("[-16:]", "[-8:]"))))
    assert not evolution.blocked
    assert evolution.judge_again == evolution.regenerate == ("ring",)
    directions = {c.name: c.direction for c in evolution.changes}
    assert directions["INV1"] == "stronger"


def test_weaker_where_nobody_needs_it_blocks_nobody() -> None:
    weaker = ring(("<= 16", "<= 32"), ("[-16:]", "[-32:]"))
    evolution = evolve(world(ring(), COUNTS, ALONE), world(weaker, COUNTS, ALONE))
    assert [c.promise for c in evolution.changes if c.name == "INV1"] == ["weaker"]
    assert not evolution.blocked
    assert evolution.judge_again == ("ring",)


def test_editing_the_relies_unblocks_and_regenerates_exactly_the_modules_concerned() -> None:
    short = SHORT.replace("len(result) <= 16", "len(result) <= 40")
    both = BOTH.replace("len(result) < 17", "len(result) < 33")
    old = world(ring())
    new = world(ring(("<= 16", "<= 32")), short, COUNTS, both, ALONE)
    evolution = evolve(old, new)
    assert not evolution.blocked
    assert evolution.regenerate == ("ring", "both", "short")  # what is relied upon first
    assert to_regenerate(old, world(ring(), short, COUNTS, BOTH, ALONE)) == ["short"]
    assert to_regenerate(old, world(ring())) == []


def test_a_rely_that_asks_too_much_is_refused_though_nothing_else_changed() -> None:
    greedy = COUNTS.replace("x >= 0", "x >= 1")
    evolution = evolve(world(ring()), world(ring(), SHORT, greedy, BOTH, ALONE))
    assert [(b.module, b.weakened) for b in evolution.breaches] == [("counts", ())]


def test_more_required_is_a_weaker_promise() -> None:
    evolution = evolve(world(ring()), world(ring(("n >= 1", "n >= 2"))))
    (change,) = evolution.changes
    assert (change.direction, change.promise) == ("stronger", "weaker")
    assert {b.clause for b in evolution.breaches} == {"rely.ring.last.A2"}
    assert {b.module for b in evolution.breaches} == {"both", "counts", "short"}
    less = evolve(world(ring()), world(ring(("n >= 1", "n >= 0"), ("[-n:]", "[len(self.items) - n:]"))))
    assert next(c for c in less.changes if c.name == "A2").promise == "stronger"


def test_what_is_neither_proved_nor_refuted_is_judged_again() -> None:
    """A sum of squares is never negative: z3's list subset has no sum, and no case refutes it."""
    uses = "def total() -> int"
    sums = tiny_spec("sums", 'def g(n: int) -> int:\n    ensures("P", result >= 0)',
                     rely_front("ring", uses, [], ["result >= 0"]), exports="g")  # fmt: skip
    old = world(ring(), sums, COUNTS)
    new = world(ring(("result == sum(self.items)", "result >= sum([x * x for x in self.items])")), sums, COUNTS)
    evolution = evolve(old, new, crosshair=False)
    assert not evolution.blocked
    assert evolution.judge_again == ("ring", "sums")
    assert evolution.regenerate == ("ring",)


def test_directions_of_clauses() -> None:
    def direction(before: str, after: str) -> str:
        old, new = [parsed(tiny_spec("m", f'def f(n: int) -> int:\n    requires("A", n >= 0)\n    ensures("P", {c})',
                                     exports="f", clauses="P"))["m"] for c in (before, after)]  # fmt: skip
        changes = compare(old, new, crosshair=False)
        return changes[0].direction if changes else "same"

    assert direction("result == n", "n == result") == "equal"
    assert direction("result == n", "result  ==  n") == "same"
    assert direction("result == n", "result >= n") == "weaker"
    assert direction("result >= n", "result == n") == "stronger"
    assert direction("result >= 0", "result <= n") == "changed"
    assert direction("result >= -n", "result >= -abs(n)") == "equal"  # n is not negative: A holds of both
    assert direction("0 <= result", "0 <= result and result * result >= 0") == "equal"


def test_a_helper_that_changes_changes_the_clauses_that_use_it() -> None:
    texts = [
        tiny_spec("m", f'def small(x: int) -> bool:\n    return x < {limit}\ndef f(n: int) -> bool:\n'
                       '    ensures("P", implies(result, small(n)))', exports="f", clauses="P")
        for limit in (10, 20)
    ]  # fmt: skip
    old, new = (parsed(text)["m"] for text in texts)
    assert [(c.name, c.direction) for c in compare(old, new)] == [("P", "weaker")]
    assert [(c.name, c.direction) for c in compare(new, old)] == [("P", "stronger")]


def test_frames_and_signatures_are_promises_too() -> None:
    wider = ring(('def last(n: int) -> list[int]:', 'def last(n: int) -> list[int]:\n    modifies(items)'))
    evolution = evolve(world(ring()), world(wider))
    assert ("frame of last", "weaker") in {(c.name, c.promise) for c in evolution.changes}
    other = ring(("def last(n: int)", "def last(m: int)"), ('"A2", n', '"A2", m'), ("[-n:]", "[-m:]"))
    broken = evolve(world(ring()), world(other))
    found = {(b.module, b.clause) for b in broken.breaches}
    assert found == {(m, "rely.ring.last") for m in ("both", "counts", "short")}
