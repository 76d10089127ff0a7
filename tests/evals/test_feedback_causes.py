"""Planted causes are named: a table over seeded instances, fresh seeds beside those that the thresholds were set on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from seeded_causes import CAUSES, GUESSED, PAIRS, confused, instance, right

from pibroch.evals.feedback import KINDS, MEANINGS, diagnose

TUNED, FRESH = range(0, 10), range(100, 110)


def table(rows: Sequence[tuple[str, ...]], seeds: Sequence[int], *, guess: bool = False) -> dict[str, tuple[int, ...]]:
    """Per cause: right, total, and how many instances have a finding of an origin that was not planted. Printed too."""
    found: dict[str, tuple[int, ...]] = {}
    for causes in rows:
        hits = wrong = 0
        for seed in seeds:
            one = instance(causes, seed, guess=guess)
            findings = diagnose(
                one.schedule, one.trace, costs=one.costs, model=one.model, memory_limit=one.memory_limit
            )
            hits += right(one, findings)
            wrong += bool(confused(one, findings))
        found["+".join(causes)] = hits, len(seeds), wrong
        print(f"{'+'.join(causes):36} {hits}/{len(seeds)} right, {wrong} confused")
    return found


def _share(found: dict[str, tuple[int, ...]]) -> float:
    return sum(row[0] for row in found.values()) / sum(row[1] for row in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [TUNED, FRESH], ids=["tuned", "fresh"])
def test_single_causes_are_named_and_never_given_to_the_wrong_origin(seeds: Sequence[int]) -> None:
    found = table([(cause,) for cause in CAUSES], seeds)
    assert len(found) >= 12
    assert _share(found) >= 0.95
    assert all(hits >= 0.8 * total for hits, total, _ in found.values())
    assert sum(wrong for _, _, wrong in found.values()) == 0


@pytest.mark.slow
def test_clean_steps_have_no_cause_and_of_two_both_are_named() -> None:
    found = table([("clean",), *PAIRS], FRESH)
    assert found["clean"] == (10, 10, 0)
    assert _share(found) >= 0.95
    assert sum(wrong for _, _, wrong in found.values()) == 0


@pytest.mark.slow
def test_a_reference_without_durations_suffices_where_it_can() -> None:
    found = table([("clean",), *((cause,) for cause in GUESSED)], FRESH[:5], guess=True)
    assert _share(found) >= 0.95
    assert sum(wrong for _, _, wrong in found.values()) == 0


def test_a_few_of_each_origin() -> None:
    """The quick part of the tables above."""
    found = table(
        [("stage-imbalance",), ("late-receive",), ("straggler",), ("slow-link",), ("clean",)], range(200, 202)
    )
    assert all(row == (2, 2, 0) for row in found.values())


def test_the_judgement_can_fail() -> None:
    slow, cut = instance("straggler", 200), instance("stage-imbalance", 200)
    of_cut = diagnose(cut.schedule, cut.trace, costs=cut.costs, model=cut.model)
    assert not right(slow, [])
    assert not right(slow, of_cut)
    assert [f.kind for f in confused(slow, of_cut)][:1] == ["stage-imbalance"]
    assert not right(instance("clean", 200), of_cut)


def test_each_kind_has_an_origin_and_a_meaning() -> None:
    assert set(CAUSES) <= set(KINDS)
    assert {origin for origin, _ in MEANINGS.values()} == {"schedule", "machine"}
    assert all(meaning and "\n" not in meaning for _, meaning in MEANINGS.values())
