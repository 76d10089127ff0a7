"""Correct and faulty variants of six modules, written from the intents alone by someone who saw no clause and no code.

Each faulty one names its fault in its first line. The whole search runs on the faulty ones; on the correct ones, which
must pass all of it, a short one does here (`docs/measurements.md` has the figures of the whole one).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pibroch.evals.speceval import contract, rules
from pibroch.specs.store import load_all

VARIANTS = Path(__file__).parent / "variants"
SPECS = load_all([Path(__file__).parents[2] / "specs"])
NAMES = ("activation_store", "anomaly_trigger", "event_policy", "flight_recorder", "iteration_detector", "pareto")


def _source(name: str, variant: str) -> str:
    return (VARIANTS / name / f"{variant}.txt").read_text()


@pytest.mark.parametrize("variant", ["right_1", "right_2", "right_3"])
@pytest.mark.parametrize("name", NAMES)
def test_a_correct_variant_passes(name: str, variant: str) -> None:
    source = _source(name, variant)
    assert not rules.judge(source, SPECS[name], 1).findings
    report = contract.judge(source, SPECS[name], phase=1, peers=SPECS, effort="quick")
    assert not report.findings, "\n".join(map(str, report.findings))


@pytest.mark.parametrize("variant", ["wrong_1", "wrong_2", "wrong_3"])
@pytest.mark.parametrize("name", NAMES)
def test_a_faulty_variant_is_refused(name: str, variant: str) -> None:
    source = _source(name, variant)
    assert not rules.judge(source, SPECS[name], 1).findings, "the clauses find it, not the rules"
    assert not contract.judge(source, SPECS[name], phase=1, peers=SPECS).passed
