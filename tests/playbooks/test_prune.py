"""Pruning: what tests spoke against goes, what they did not decide stays."""

from __future__ import annotations

from typing import Any

import pytest

from pibroch.playbooks.deltas import apply
from pibroch.playbooks.model import Bullet, Playbook
from pibroch.playbooks.prune import prune
from pibroch.playbooks.retrieve import estimate, render


def book(*rows: dict[str, Any]) -> Playbook:
    bullets = [
        Bullet(id=f"sched-{n:05d}", section="schedules", text=row.pop("text", f"Lesson {n}"), edit={"op": "x"}, **row)
        for n, row in enumerate(rows, 1)
    ]
    return Playbook(next_id=99, bullets=tuple(bullets))


@pytest.mark.parametrize(
    ("tested", "helpful", "harmful", "reason"),
    [
        (0, 0, 0, None), (3, 0, 3, None), (4, 0, 4, "harmful: 0 helpful and 4 harmful of 4 tests"), (6, 1, 5, None),
        (8, 1, 7, "harmful"), (5, 0, 0, None), (6, 0, 0, "placebo"), (12, 2, 1, "placebo"), (12, 9, 0, None),
        (6, 3, 3, None),
    ],
)  # fmt: skip
def test_tests_decide(tested: int, helpful: int, harmful: int, reason: str | None) -> None:
    removals = prune(book({"tested": tested, "helpful": helpful, "harmful": harmful}))
    assert [r.why.startswith(reason or "-") for r in removals] == ([True] if reason else [])


def test_what_fits_no_task_goes_where_tasks_are_given() -> None:
    playbook = book({"applies_when": {"devices": ">=16"}}, {"applies_when": {"stages": ">=16"}}, {})
    assert prune(playbook) == []
    removals = prune(playbook, tasks=[{"devices": 2}, {"devices": 8}])
    assert [(r.id, r.why) for r in removals] == [("sched-00001", "unused: its conditions fail on each of 2 tasks")]


def test_budget_drops_the_least_valuable_first() -> None:
    playbook = book(
        {"tested": 5, "helpful": 5, "text": "good " * 20},
        {"text": "never tested " * 8},
        {"text": "cited " * 18, "cited": 4},
        {"tested": 2, "text": "no effect so far " * 6},
    )
    whole = estimate(render(playbook.bullets))
    assert prune(playbook, tokens=whole) == []
    gone: list[str] = []
    for tokens in (whole - 1, whole * 3 // 5, whole // 3, 0):
        removals = prune(playbook, tokens=tokens)
        after, _ = apply(playbook, removals)
        assert estimate(render(after.bullets)) <= tokens
        assert set(gone) < {r.id for r in removals}
        gone = [r.id for r in removals]
        if len(removals) == 1:
            assert gone == ["sched-00004"]
    assert len(gone) == 4


def test_removals_apply_and_say_why() -> None:
    playbook = book({"tested": 9, "harmful": 9}, {})
    after, outcomes = apply(playbook, prune(playbook))
    assert [b.number for b in after.bullets] == [2]
    assert outcomes[0].reason == "harmful: 0 helpful and 9 harmful of 9 tests"
