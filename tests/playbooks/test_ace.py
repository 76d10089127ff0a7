"""ACE's line format: what it can hold comes back; votes are evidence; bad lines are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pibroch.playbooks.ace import Line, as_deltas, as_lines, dumps, parse
from pibroch.playbooks.deltas import apply
from pibroch.playbooks.model import Bullet, Playbook
from pibroch.runtime.errors import InputError

# As the public code of ACE writes it.
FILE = """\
## STRATEGIES & INSIGHTS
[str-00001] helpful=5 harmful=0 :: Give the slowest stage fewer layers
[shr-00002] helpful=0 harmful=2 :: Prefer a :: b = c

## COMMON MISTAKES TO AVOID
[mis-00004] helpful=12 harmful=3 :: Do not count warm-up steps
"""


def test_reads_what_ace_writes_and_writes_it_again() -> None:
    lines = parse(FILE)
    assert lines[1] == Line("strategies & insights", "shr-00002", 0, 2, "Prefer a :: b = c", 3)
    assert [line.section for line in lines] == ["strategies & insights"] * 2 + ["common mistakes to avoid"]
    assert dumps(lines) == FILE


def test_votes_become_evidence_and_no_counters() -> None:
    playbook, outcomes = apply(Playbook(), as_deltas(parse(FILE)))
    assert [o.done for o in outcomes] == ["added"] * 3
    bullet = playbook.bullets[0]
    assert (bullet.section, bullet.text) == ("strategies & insights", "Give the slowest stage fewer layers")
    assert (bullet.tested, bullet.helpful, bullet.harmful) == (0, 0, 0)
    assert bullet.evidence == ("imported from ACE: str-00001, claimed helpful=5 harmful=0",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("## A\n[str-00001] helpful=5 :: no harmful\n", "line 2"),
        ("free words\n", "line 1: expected `[str-00001]"),
        ("[str-00001] helpful=-1 harmful=0 :: x", "line 1"),
        ("[str-1] helpful=1 harmful=0 :: x\n\n[str-1] helpful=1 harmful=0 :: y", "line 3: str-1 stands in line 1"),
        ("[str-00001] helpful=1 harmful=0 :: ", "line 1: str-00001 has no text"),
        ("a\nb\nc\nd\ne\nf\ng", "and 2 more lines"),
    ],
)
def test_bad_lines_are_named(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, name="mine.txt")
    assert str(caught.value).startswith("mine.txt: ")
    assert words in str(caught.value)


def test_titles_and_blank_lines_are_passed_over() -> None:
    assert parse("# My playbook\n\n[x-1] helpful=0 harmful=0 :: y\n") == [Line("others", "x-1", 0, 0, "y", 3)]
    assert parse("") == []
    assert dumps([]) == ""


SECTIONS = st.sampled_from(("schedules", "memory", "common mistakes to avoid", "strategies & insights"))
ROWS = st.tuples(SECTIONS, st.text(min_size=1, max_size=40), st.integers(0, 9), st.integers(0, 9))


@given(st.lists(ROWS, max_size=8))
def test_round_trip_of_what_the_format_holds(rows: list[tuple[str, str, int, int]]) -> None:
    bullets = [
        Bullet(id=f"x{'abc'[n % 3]}-{n:05d}", section=section, text=line, tested=helpful + harmful + 1,
               helpful=helpful, harmful=harmful, edit={"op": "x"})
        for n, (section, text, helpful, harmful) in enumerate(rows, 1)
        if (line := " ".join(text.split())) and line.isprintable()
    ]  # fmt: skip
    text = dumps(as_lines(Playbook(next_id=99, bullets=tuple(bullets))))
    back = {(n.section, n.id, n.helpful, n.harmful, n.text) for n in parse(text)}
    assert back == {(b.section, b.id, b.helpful, b.harmful, b.text) for b in bullets}
    assert dumps(parse(text)) == text
