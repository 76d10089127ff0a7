"""The ladder with simulated scores: every way in which a candidate ends."""

from __future__ import annotations

import pytest

from pibroch.evals.ladder import Ladder, pairs_to_confirm
from pibroch.evals.task import find_task
from pibroch.runtime.directives import Place, Schedule, Split
from pibroch.runtime.families import build


@pytest.fixture(scope="module")
def ladder() -> Ladder:
    return Ladder(find_task("equal-8").model_copy(update={"memory_limit": 30_000_000}), scores="simulated")


GPIPE = build("gpipe", devices=8, microbatches=6)
ZERO_BUBBLE = build("zb-h1", devices=8, microbatches=6)


def test_the_closed_forms_decide(ladder: Ladder) -> None:
    # GPipe takes (m + p - 1) F+BI+BW = 39 units; ZB-H1 less the 2 (p - 1) = 12 that BW fills (p - 1 > m - 1 here).
    faster = ladder.evaluate(ZERO_BUBBLE, GPIPE)
    assert faster.verdict == "faster"
    assert faster.rung == "simulate"
    assert faster.accepted
    assert faster.simulated
    assert faster.emulated
    assert faster.ratio == pytest.approx(1.56 / 1.08)
    slower = ladder.evaluate(GPIPE, ZERO_BUBBLE)
    assert slower.verdict == "slower"
    assert slower.ratio == pytest.approx(1.08 / 1.56)
    assert ladder.confirm(ZERO_BUBBLE, GPIPE).ratio == pytest.approx(1.56 / 1.08)


def test_equal_speed_is_no_gain(ladder: Ladder) -> None:
    other = ladder.evaluate(build("1f1b", devices=8, microbatches=6), GPIPE)
    assert other.verdict == "undecided"
    assert other.ratio == pytest.approx(1.0)


def test_the_incumbents_plan_in_other_words_is_the_same(ladder: Ladder) -> None:
    words = Schedule(directives=[*GPIPE.directives[1:], GPIPE.directives[0]])
    assert words != GPIPE
    assert ladder.evaluate(words, GPIPE).verdict == "same"


def test_candidates_that_are_refused(ladder: Ladder) -> None:
    too_many = ladder.evaluate(build("gpipe", devices=9, microbatches=6), GPIPE)
    assert (too_many.verdict, too_many.rung) == ("invalid", "verify")
    assert "8 devices" in too_many.reason
    other_batch = ladder.evaluate(build("gpipe", devices=8, microbatches=5), GPIPE)
    assert other_batch.verdict == "invalid"
    assert "6 samples" in other_batch.reason
    half = Schedule(directives=[Split(num_microbatches=6), Place(filter={"PP": 1}, devices=[0])])
    unplaced = ladder.evaluate(half, GPIPE)
    assert unplaced.verdict == "invalid"
    memory = ladder.evaluate(build("zb-h1", devices=4, microbatches=3, replicas=2), GPIPE)
    assert (memory.verdict, memory.rung) == ("invalid", "simulate")
    assert memory.reason.startswith("V7")
    assert memory.peak_bytes is not None
    assert memory.peak_bytes > 30_000_000


def test_a_confirmation_takes_as_many_pairs_as_the_noise_asks_for() -> None:
    # The interval's half is 2 s / sqrt(n): 0.015 of a spread of 0.06 takes 64 pairs.
    assert pairs_to_confirm(20, 0.06) == 64
    assert pairs_to_confirm(20, 0.002) == 20
    assert pairs_to_confirm(20, 5.0) == 180
    assert pairs_to_confirm(6, None) == 6
