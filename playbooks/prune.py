"""Pruning: which bullets a playbook is better without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pibroch.playbooks.conditions import Fact
from pibroch.playbooks.model import Bullet, Playbook, Remove
from pibroch.playbooks.retrieve import estimate, may_fit, render
from pibroch.playbooks.verdict import SURE, value, verdict

PLACEBO_TESTS = 6  # a bullet that is called a placebo after four tests gets two more before it goes


def prune(playbook: Playbook, *, tokens: int | None = None, tasks: Sequence[Mapping[str, Fact]] = ()) -> list[Remove]:
    """The removals, each with its reason, in the playbook's order.

    harmful     with probability 0.95 its effects are harmful more often than helpful
    placebo     tested at least six times, with an effect in at most a quarter
    unused      its conditions fail on each of `tasks` (their facts); no rule where none are given
    too long    the whole, rendered, exceeds `tokens`: those of the least value go, the oldest of equal ones first
    """
    gone = {b.id: reason for b in playbook.bullets if (reason := _reason(b, tasks)) is not None}
    left = [b for b in playbook.bullets if b.id not in gone]
    for bullet in sorted(left, key=lambda b: (value(b), b.cited, b.number)) if tokens is not None else ():
        assert tokens is not None
        if estimate(render(left)) <= tokens:
            break
        left.remove(bullet)
        gone[bullet.id] = f"too long: the playbook exceeds {tokens} tokens and this has the least value"
    return [Remove(id=b.id, why=gone[b.id]) for b in playbook.bullets if b.id in gone]


def _reason(bullet: Bullet, tasks: Sequence[Mapping[str, Fact]]) -> str | None:
    counted = f"{bullet.helpful} helpful and {bullet.harmful} harmful of {bullet.tested} tests"
    if verdict(bullet, sure=SURE) == "harmful":
        return f"harmful: {counted}"
    if verdict(bullet) == "placebo" and bullet.tested >= PLACEBO_TESTS:
        return f"placebo: {counted}"
    if tasks and not any(may_fit(bullet, facts) for facts in tasks):
        return f"unused: its conditions fail on each of {len(tasks)} tasks"
    return None
