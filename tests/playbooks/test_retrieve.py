"""Retrieval: what fits comes first, tests rank, harmful ones warn, and the budget is kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pibroch.playbooks.model import Bullet, Playbook
from pibroch.playbooks.retrieve import estimate, fits, may_fit, render, search, select
from pibroch.playbooks.verdict import mostly, value, verdict

FACTS = {"devices": 8, "memory_bound": True, "imbalance": 1.4, "finding:exposed-reduce": True}


def bullet(number: int, text: str = "", **fields: Any) -> Bullet:
    fields = {"edit": {"op": "x"}, "section": "schedules", **fields}
    return Bullet(id=f"sched-{number:05d}", text=text or f"Lesson {number}", **fields)


def book(*bullets: Bullet) -> Playbook:
    return Playbook(next_id=99, bullets=bullets)


def ids(bullets: list[Bullet]) -> list[int]:
    return [b.number for b in bullets]


@pytest.mark.parametrize(
    ("when", "fit", "may"),
    [
        ({}, True, True),
        ({"devices": ">=4", "memory_bound": "true"}, True, True),
        ({"devices": ">=4", "memory_bound": "false"}, False, False),
        ({"stages": ">=2"}, False, True),  # nobody knows
        ({"stages": ">=2", "devices": "<4"}, False, False),
        ({"finding:exposed-reduce": "true"}, True, True),
        ({"finding:bubble": "true"}, False, False),  # not found: there is none
        ({"finding:bubble": "false"}, True, True),
    ],
)
def test_fits(when: dict[str, str], fit: bool, may: bool) -> None:
    assert fits(bullet(1, applies_when=when), FACTS) is fit
    assert may_fit(bullet(1, applies_when=when), FACTS) is may


def test_order_is_fit_then_tests_then_conditions_then_age() -> None:
    playbook = book(
        bullet(1, applies_when={"stages": ">=2"}, tested=4, helpful=4),  # a fact is unknown
        bullet(2),
        bullet(3, applies_when={"devices": "<4"}, tested=9, helpful=9),  # does not fit
        bullet(4, tested=1, helpful=1),
        bullet(5, tested=8, helpful=6),
        bullet(6, applies_when={"devices": ">=4"}),
        bullet(7, tested=3),  # nothing came of it
        bullet(8, tested=4, harmful=4),
    )
    assert ids(select(playbook, FACTS, tokens=10_000)) == [5, 4, 6, 2, 7, 1]
    assert ids(select(playbook, FACTS, tokens=10_000, warnings=True)) == [5, 4, 6, 2, 7, 1, 8]


def test_one_lucky_test_ranks_below_many_good_ones() -> None:
    assert value(bullet(1, tested=1, helpful=1)) < value(bullet(2, tested=10, helpful=9))
    assert value(bullet(1)) == 0
    assert value(bullet(1, tested=2)) < 0


def test_query_breaks_ties() -> None:
    playbook = book(bullet(1, "Raise bucket_size"), bullet(2, "Recompute the first layers"))
    assert ids(select(playbook, FACTS, tokens=1000, query="which layers to recompute")) == [2, 1]


def test_warning_is_marked() -> None:
    text = render([bullet(1, "Do this"), bullet(2, "Do that", tested=4, harmful=4)])
    assert text.splitlines() == ["[sched-00001] Do this", "[sched-00002] WARNING, this made runs slower: Do that"]


@given(
    lengths=st.lists(st.integers(1, 150), max_size=12),
    tokens=st.integers(0, 300),
)
def test_budget_is_kept(lengths: list[int], tokens: int) -> None:
    playbook = book(*(bullet(n, "ab " * length) for n, length in enumerate(lengths, 1)))
    chosen = select(playbook, FACTS, tokens=tokens)
    assert estimate(render(chosen)) <= tokens
    left = [b for b in playbook.bullets if b not in chosen]
    used = sum(estimate(render([b])) + 1 for b in chosen)
    assert all(used + estimate(render([b])) + 1 > tokens for b in left), "what is left out has no room"


@pytest.mark.parametrize(
    ("text", "least"),
    [("", 0), ("word " * 100, 100), ("0.125, 17, {}; " * 20, 180), ("größer " * 50, 100)],
)
def test_estimate_is_no_underestimate(text: str, least: int) -> None:
    """Against what byte-pair tokenizers make of such texts: a token a short word, one for each sign or digit group."""
    assert estimate(text) >= least


@pytest.mark.parametrize(
    ("tested", "helpful", "harmful", "expected"),
    [
        (0, 0, 0, "untested"), (1, 1, 0, "unclear"), (1, 0, 1, "unclear"), (2, 2, 0, "helpful"), (2, 0, 2, "harmful"),
        (2, 1, 1, "unclear"), (3, 0, 0, "unclear"), (4, 0, 0, "placebo"), (4, 1, 0, "placebo"), (4, 2, 0, "helpful"),
        (6, 2, 2, "unclear"), (20, 2, 3, "placebo"), (6, 1, 5, "harmful"),
    ],
)  # fmt: skip
def test_verdict(tested: int, helpful: int, harmful: int, expected: str) -> None:
    assert verdict(bullet(1, tested=tested, helpful=helpful, harmful=harmful)) == expected


def test_posterior_by_numbers() -> None:
    """Beta(k + 1, 1) exceeds 1/2 with probability 1 - 2^-(k + 1); equal counts give 1/2."""
    assert [mostly(k, 0) for k in range(4)] == [0.5, 0.75, 0.875, 0.9375]
    assert mostly(3, 3) == 0.5
    assert mostly(2, 5) == pytest.approx(1 - mostly(5, 2))


def test_search_finds_the_likest_first() -> None:
    playbook = book(
        bullet(1, "Raise bucket_size"), bullet(2, "Recompute the first layers"), bullet(3, "Cut the layers")
    )
    found = search(playbook, "recompute layers")
    assert [b.number for _, b in found] == [2, 3]
    assert found[0][0] == pytest.approx(1.0)
    assert search(playbook, "recompute layers", limit=1) == found[:1]
    assert search(playbook, "nothing of the kind") == []
