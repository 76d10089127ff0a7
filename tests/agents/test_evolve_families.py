"""The families that a run begins with, their closed forms, and cuts under the memory bound."""

from __future__ import annotations

import random

import pytest
from evolve_settings import emulated, unit

from pibroch.agents.evolve.cuts import cut_in_bound, layer_figures, stage_figures
from pibroch.agents.evolve.design import changed, decode, encode
from pibroch.agents.evolve.edit_base import cut_by_costs
from pibroch.agents.evolve.edits import apply_edit
from pibroch.agents.evolve.families import promising
from pibroch.agents.evolve.figures import design_key, figures
from pibroch.agents.evolve.operators import propose
from pibroch.agents.evolve.outlook import family_outlook
from pibroch.runtime.families import build


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 16)])
def test_closed_forms_of_families_under_unit_costs(p: int, m: int) -> None:
    """F = BI = BW = 1: 1F1B idles p - 1 times F and B, ZB-H1 p - 1 times F + BI - BW (arXiv 2401.10241, table 2)."""
    setting = unit(devices=p, samples=m)
    for family, seconds in (("1f1b", 3 * (m + p - 1)), ("zb-h1", 3 * m + p - 1)):
        assert family_outlook(decode(build(family, devices=p, microbatches=m), setting), setting) == seconds


@pytest.mark.parametrize(("profile", "limit"), [("swin-t-v100-pcie", 1_100_000_000), ("equal-8", 40_000_000)])
def test_what_a_run_begins_with_is_legal_and_different(profile: str, limit: int) -> None:
    setting = emulated(devices=4, samples=8, profile=profile, limit=limit)
    found = promising(setting, count=4)
    assert len(found) == len({design_key(design) for design, _ in found}) == 4
    for design, _ in found:
        plan = setting.lower(encode(design))
        assert setting.check(plan, setting.simulate(plan)) == []


def test_figures_of_a_cut_are_those_of_its_lowered_stages() -> None:
    setting = emulated(devices=4, samples=8, profile="swin-t-v100-pcie")
    design = decode(build("1f1b", devices=4, microbatches=8), setting)
    assert design.cut is not None
    known = stage_figures(layer_figures(setting, 1, 8), [0, *design.cut, 13])
    lowered = figures(design, setting)
    for op in ("F", "B", "BI", "BW"):
        assert known.seconds[op] == pytest.approx(lowered.seconds[op])
    assert [[e.stage for e in row] for row in known.forward_to] == [[1], [2], [3], []]
    assert known.fixed == pytest.approx(lowered.fixed)
    assert known.kept == lowered.kept


def test_little_memory_takes_layers_from_the_stage_that_would_recompute() -> None:
    """About eight layers per stage: to run one more of them takes an eighth, to run all forwards again a third. The
    first stage holds most microbatches, so with too little memory for them it gives layers away."""
    setting = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g")
    plain = decode(build("1f1b", devices=4, microbatches=8), setting)
    even = cut_by_costs(plain, setting)
    design = changed(plain, cut=tuple(even))
    assert list(cut_in_bound(design, setting, even)) == even
    known = figures(design, setting)
    held = known.fixed[0] + 4 * known.kept[0] + known.posted[0] + known.during["B"][0]
    tight = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g", limit=int(0.97 * held))
    assert cut_in_bound(design, tight, even)[0] < even[0]


def test_a_design_that_was_made_otherwise_is_not_proposed() -> None:
    setting = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g")
    design = decode(build("1f1b", devices=2, microbatches=4, replicas=2), setting)
    first, _ = propose(design, setting, [], rng=random.Random(3))
    key = design_key(apply_edit(first, design, setting))
    second, _ = propose(design, setting, [], rng=random.Random(3), seen={key})
    assert design_key(apply_edit(second, design, setting)) != key
