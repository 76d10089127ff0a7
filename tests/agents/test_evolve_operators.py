"""Operators draw edits that apply, the same for the same seed, and guided ones answer what was found."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from evolve_settings import emulated

from pibroch.agents.evolve.design import Design, decode, encode
from pibroch.agents.evolve.edits import OPS, NotApplicable, apply_edit, edit_key, parse_edit
from pibroch.agents.evolve.operators import PRIOR, REMEDIES, UNDRAWN, drawable, propose, random_edit
from pibroch.agents.evolve.outlook import outlook
from pibroch.evals.feedback.kinds import MEANINGS
from pibroch.evals.finding import Finding
from pibroch.evals.setting import Setting
from pibroch.runtime.families import build

SETTING = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g")


def start(setting: Setting = SETTING) -> Design:
    return decode(build("1f1b", devices=2, microbatches=4, replicas=2), setting)


def finding(kind: str, *, share: float = 0.3, stage: int | None = None) -> Finding:
    return Finding(kind=kind, origin="schedule", share=share, stage=stage, text=f"because of {kind}")


def test_every_op_is_drawn_or_said_not_to_be() -> None:
    assert set(PRIOR) | set(UNDRAWN) == set(OPS)
    assert not set(PRIOR) & set(UNDRAWN)


def test_remedies_are_for_findings_that_the_schedule_can_mend() -> None:
    assert set(REMEDIES) == {kind for kind, (origin, _) in MEANINGS.items() if origin == "schedule"}
    assert {remedy["op"] for remedies in REMEDIES.values() for remedy in remedies} <= set(PRIOR)


def test_what_is_drawable_parses_as_what_it_says() -> None:
    for op, rows in drawable(start(), SETTING).items():
        for row in rows:
            assert parse_edit(row).op == op


def test_random_edits_apply_and_repeat_with_their_seed() -> None:
    design = start()
    drawn = [random_edit(design, SETTING, random.Random(seed)) for seed in range(30)]
    assert drawn == [random_edit(design, SETTING, random.Random(seed)) for seed in range(30)]
    for edit in drawn:
        assert apply_edit(edit, design, SETTING) != design
    assert max(Counter(edit.op for edit in drawn).values()) <= 10  # kinds are drawn evenly


@pytest.mark.parametrize(
    ("kind", "ops"),
    [
        ("stage-imbalance", {"balance_cut", "shift_layers", "stages_per_device"}),
        ("bucket-too-large", {"bucket_size"}),
        ("unsplit-backward", {"reorder", "family", "split_backward"}),
        ("exposed-reduction", {"bucket_size", "replicas", "reorder"}),
    ],
)
def test_a_weighty_finding_is_answered(kind: str, ops: set[str]) -> None:
    answers = [propose(start(), SETTING, [finding(kind, share=3.0)], rng=random.Random(seed)) for seed in range(8)]
    mending = [edit for edit, _ in answers if edit.op in ops]
    assert len(mending) >= 6  # the others explore
    assert all(kind in why for edit, why in answers if edit in mending)


def test_what_was_tried_is_not_proposed_again() -> None:
    tabu: set[str] = set()
    for _ in range(12):
        edit, why = propose(start(), SETTING, [], rng=random.Random(1), tabu=tabu)
        assert edit_key(edit) not in tabu
        assert why
        tabu.add(edit_key(edit))


def test_learned_weights_move_the_choice() -> None:
    def first(weights: dict[str, float]) -> Counter[str]:
        drawn = (propose(start(), SETTING, [], rng=random.Random(seed), weights=weights)[0].op for seed in range(4))
        return Counter(drawn)

    assert first({"bucket_size": 5.0})["bucket_size"] >= 2
    assert first({"divide": 0.001, "reorder": 0.001})["divide"] <= 1


def test_guided_proposals_keep_the_memory_bound_in_mind() -> None:
    peak = max(SETTING.simulate(SETTING.lower(encode(start()))).peak_bytes)
    tight = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g", limit=int(peak * 1.02))
    over = 0
    for seed in range(4):
        edit, _ = propose(start(tight), tight, [], rng=random.Random(seed))
        plan = tight.lower(encode(apply_edit(edit, start(tight), tight)))
        over += max(tight.simulate(plan).peak_bytes) > int(peak * 1.02)
    assert over <= 1


def test_nothing_left_is_said() -> None:
    one = emulated(devices=1, samples=1)
    design = decode(build("1f1b", devices=1, microbatches=1), one)
    tabu: set[str] = set()
    for row in (row for rows in drawable(design, one).values() for row in rows):
        tabu.add(edit_key(parse_edit(row)))
    with pytest.raises(NotApplicable, match="every edit was tried"):
        propose(design, one, [], rng=random.Random(0), tabu=tabu)


def test_the_outlook_of_an_ideal_pipeline() -> None:
    """Four equal stages, no links to speak of: fill of three forwards and m microbatches of F + B."""
    one = emulated(devices=4, samples=8)
    design = decode(build("zb-h1", devices=4, microbatches=8), one)
    step = one.simulate(one.lower(encode(design))).makespan
    assert outlook(design, one) == pytest.approx(step, rel=0.01)
    assert outlook(decode(build("gpipe", devices=4, microbatches=8), one), one) == outlook(design, one)
