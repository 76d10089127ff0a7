"""The sequential test on simulated noise: what it claims falsely, what it finds, and what that takes."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import pytest

from pibroch.evals.sequential import Answer, SequentialTest, gain_for, looks, pairs_for, share
from pibroch.runtime.errors import InputError


def decide(
    rng: random.Random, *, gain: float, spread: float, alpha: float, max_pairs: int, min_gain: float = 0.01,
    goal: float = 0.01,
) -> tuple[Answer, int]:  # fmt: skip
    test = SequentialTest(alpha=alpha, min_gain=min_gain, goal=max(goal, min_gain), max_pairs=max_pairs)
    answer: Answer = "go on"
    while answer == "go on":
        answer = test.add(rng.gauss(math.log1p(gain), spread))
    return answer, len(test.logs)


def test_looks_grow_and_end_at_the_maximum() -> None:
    for most, first in ((4, 4), (5, 4), (12, 4), (24, 4), (60, 6), (180, 18)):
        found = looks(most)
        assert found[0] == first
        assert found[-1] == most
        assert list(found) == sorted(set(found))
        assert all(b <= 1.5 * a for a, b in pairwise(found))


def test_false_claims_keep_to_alpha() -> None:
    # With an alpha that 2000 trials can see, and no gain asked for, so that the interval alone protects.
    rng, alpha = random.Random(1), 0.05
    wrong = sum(
        decide(rng, gain=0.0, spread=0.03, alpha=alpha, max_pairs=30, min_gain=0.0)[0] == "faster" for _ in range(2000)
    )
    assert wrong <= 2000 * alpha


def test_a_whole_run_of_equals_claims_nothing() -> None:
    rng, alpha = random.Random(2), share(0.005, 40)
    most = pairs_for(0.03, alpha=alpha, gain=0.05, most=60)
    goal = gain_for(most, 0.03, alpha=alpha)
    found = [decide(rng, gain=0.0, spread=0.03, alpha=alpha, max_pairs=most, goal=goal) for _ in range(2000)]
    assert not [answer for answer, _ in found if answer == "faster"]
    # Candidates without a gain are given up early.
    assert statistics.median(pairs for _, pairs in found) <= most / 2


@pytest.mark.parametrize("spread", [0.003, 0.01, 0.03, 0.1])
def test_five_per_cent_are_found(spread: float) -> None:
    rng, alpha = random.Random(3), share(0.005, 10)
    most = pairs_for(spread, alpha=alpha, gain=0.05, most=180)
    goal = max(0.01, gain_for(most, spread, alpha=alpha))
    assert goal <= 0.05
    found = [decide(rng, gain=0.05, spread=spread, alpha=alpha, max_pairs=most, goal=goal) for _ in range(300)]
    # 95% at the last look, less MISS at most for what was given up on the way.
    assert sum(answer == "faster" for answer, _ in found) >= 0.85 * 300
    better = [decide(rng, gain=0.06, spread=spread, alpha=alpha, max_pairs=most, goal=goal) for _ in range(300)]
    assert sum(answer == "faster" for answer, _ in better) >= 0.95 * 300


def test_the_pairs_for_a_gain_tell_it_and_one_less_does_not() -> None:
    most = pairs_for(0.1, alpha=5e-4, gain=0.05, most=500)
    assert gain_for(most, 0.1, alpha=5e-4) <= 0.05 < gain_for(most - 1, 0.1, alpha=5e-4)
    # Student's t of many pairs is nearly the normal: (3.48 + 1.64)^2 (0.1 / log 1.05)^2 = 110.
    assert 105 <= most <= 120


def test_a_gain_below_the_goal_is_undecided_and_none_is_slower() -> None:
    test = SequentialTest(alpha=0.001, min_gain=0.01, goal=0.05, max_pairs=40)
    small = [test.add(value) for value in (0.02, 0.03, 0.02, 0.03)]
    assert small == ["go on", "go on", "go on", "undecided"]
    test = SequentialTest(alpha=0.001, min_gain=0.01, goal=0.05, max_pairs=40)
    assert [test.add(value) for value in (0.001, -0.001, 0.001, -0.001)][-1] == "slower"


def test_clear_cases_end_at_the_first_look() -> None:
    rng = random.Random(4)
    assert decide(rng, gain=0.5, spread=0.001, alpha=1e-4, max_pairs=20) == ("faster", 4)
    assert decide(rng, gain=-0.3, spread=0.01, alpha=1e-4, max_pairs=20) == ("slower", 4)


def test_a_gain_that_does_not_count_is_refused_however_sure() -> None:
    rng = random.Random(5)
    assert decide(rng, gain=0.005, spread=0.0001, alpha=1e-4, max_pairs=20)[0] == "slower"


def test_what_is_not_a_number_is_refused() -> None:
    for value in (math.nan, math.inf):
        test = SequentialTest(alpha=0.01, min_gain=0.01, goal=0.01, max_pairs=10)
        assert test.add(value) == "slower"


def test_more_candidates_and_more_spread_need_more_pairs() -> None:
    few, many = (pairs_for(0.02, alpha=share(0.001, n), gain=0.05, most=200) for n in (1, 100))
    assert few < many
    assert pairs_for(0.01, alpha=1e-4, gain=0.05, most=200) < pairs_for(0.03, alpha=1e-4, gain=0.05, most=200)
    assert pairs_for(0.5, alpha=1e-4, gain=0.05, most=60) == 60
    with pytest.raises(InputError, match="max_pairs"):
        SequentialTest(alpha=0.01, min_gain=0.01, goal=0.01, max_pairs=3)
