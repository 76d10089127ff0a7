"""What tests said about a bullet.

A test is a paired measurement that was decided with a small error, so a few of them settle the direction; that the
effect holds on the next task is what the share over tests estimates. Shares have the posterior Beta(won + 1, lost + 1).
"""

from __future__ import annotations

from math import comb
from typing import Literal

from pibroch.playbooks.model import Bullet

Verdict = Literal["untested", "unclear", "helpful", "placebo", "harmful"]
LIKELY, SURE = 0.85, 0.95
PRIOR_TESTS = 4  # of no effect, which a bullet's value is shrunk towards
PLACEBO_TESTS, PLACEBO_SHARE = 4, 0.25


def verdict(bullet: Bullet, *, sure: float = LIKELY) -> Verdict:
    """`placebo`: tested at least four times, with an effect in at most a quarter. `helpful` and `harmful`: with
    probability `sure` its effects go that way more often than not (two equal ones at 0.85, four at 0.95)."""
    if bullet.tested == 0:
        return "untested"
    effects = bullet.helpful + bullet.harmful
    if bullet.tested >= PLACEBO_TESTS and effects <= PLACEBO_SHARE * bullet.tested:
        return "placebo"
    if mostly(bullet.harmful, bullet.helpful) >= sure:
        return "harmful"
    if mostly(bullet.helpful, bullet.harmful) >= sure:
        return "helpful"
    return "unclear"


def mostly(won: int, lost: int) -> float:
    """Probability that the share of wins exceeds 1/2 after `won` and `lost` under a uniform prior."""
    n = won + lost + 1
    return sum(comb(n, k) for k in range(won + 1)) / float(2**n)


def value(bullet: Bullet) -> float:
    """(helpful - harmful) per test, shrunk towards 0; a test without effect counts slightly against. In -1..1."""
    neutral = bullet.tested - bullet.helpful - bullet.harmful
    return (bullet.helpful - bullet.harmful - 0.1 * neutral) / (bullet.tested + PRIOR_TESTS)
