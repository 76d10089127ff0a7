"""Cost models and profiles; figures derived here anew."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from pibroch.runtime.costs import AnalyticCosts, Costs, ProfileCosts, UnitCosts, ring_seconds
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec, uniform_model
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.profile import Profile, load_profile, shipped_profiles
from pibroch.runtime.simulate import simulate

GPU, FABRIC = "llama3-8b-a100-25g", "equal-8"


def plan_of(
    family: str = "1f1b",
    p: int = 2,
    m: int = 2,
    *,
    model: ModelSpec | None = None,
    replicas: int = 1,
    recompute: bool = False,
    bucket_size: float | None = None,
    cut: list[int] | None = None,
) -> Plan:
    schedule = build(
        family, devices=p, microbatches=m, replicas=replicas, recompute=recompute, bucket_size=bucket_size, cut=cut
    )
    return lower(schedule, model or uniform_model(p))


def find(plan: Plan, text: str) -> Task:
    return next(t for t in plan.tasks if str(t) == text)


def times(costs: Costs, plan: Plan, *texts: str) -> list[float]:
    return [costs.compute(plan, find(plan, text)) for text in texts]


def test_unit_costs() -> None:
    assert times(UnitCosts(), plan_of(), "0F0", "1B1", "U0") == [1, 2, 0]
    assert times(UnitCosts(f=3, bi=4, bw=5), plan_of("zb-h1"), "0F0", "0BI0", "0BW0") == [3, 4, 5]
    assert times(UnitCosts(), plan_of(recompute=True), "0F0", "0B0") == [1, 3]


def test_parts_of_a_stage_share_its_cost() -> None:
    """One stage of four equal layers of 2 MB, cut into four chunks by buckets of 1 MB."""
    plan = plan_of(p=1, replicas=2, bucket_size=1.0, model=uniform_model(4, param_bytes=2_000_000))
    assert len(plan.chunks) == 4
    assert times(UnitCosts(), plan, "0F0", "0.3B0") == [0.25, 0.5]
    measured = ProfileCosts(measured={(0, 0, "F"): 8.0, (0, 0, "B"): 16.0})
    assert times(measured, plan, "0F0", "0.1F0", "0.3B0") == [2.0, 2.0, 4.0]


def test_analytic_costs() -> None:
    """flops 1 at 2/s; 4 bytes at 8 bytes/s."""
    plan = plan_of()
    costs = AnalyticCosts(flops_per_s=2.0, bandwidth=8.0, latency=0.125)
    assert times(costs, plan, "0F0", "0B0") == [0.5, 1.0]
    assert costs.transfer(plan, find(plan, "0>1F0")) == (0.125, 0.5)


def test_ring_all_reduce() -> None:
    assert ring_seconds(4, 400, latency=1, bandwidth=100) == 6 * (1 + 1)
    assert ring_seconds(1, 400, latency=1, bandwidth=100) == 0


def test_one_object_serves_several_plans() -> None:
    costs, small, large = UnitCosts(), plan_of(), plan_of(recompute=True)
    assert times(costs, small, "0B0") + times(costs, large, "0B0") + times(costs, small, "0B0") == [2, 3, 2]


def test_measured_costs_serve_other_splits_of_the_same_stages() -> None:
    whole = ProfileCosts(measured={(s, 0, op): t for s in (0, 1) for op, t in (("F", 1.0), ("B", 3.0))})
    assert times(whole, plan_of("zb-h1"), "0BI0", "0BW0") == [1.5, 1.5]
    halves = {(s, 0, op): t for s in (0, 1) for op, t in (("F", 1.0), ("BI", 2.0), ("BW", 0.5), ("UPDATE", 7.0))}
    assert times(ProfileCosts(measured=halves), plan_of(), "0B0", "U1") == [2.5, 7.0]
    assert times(ProfileCosts(measured=halves), plan_of(recompute=True), "0F0", "0B0") == [1.0, 3.5]


def test_measured_under_recomputation() -> None:
    again = ProfileCosts(measured={(0, 0, "F"): 1.0, (0, 0, "B"): 3.0}, recomputed=((0, 0),))
    assert times(again, plan_of(p=1, recompute=True), "0B0") == [3.0]
    assert times(again, plan_of(p=1), "0B0") == [2.0]


def test_unmeasured_stage_is_an_input_error() -> None:
    costs = ProfileCosts(measured={(0, 0, "F"): 1.0, (0, 0, "B"): 2.0})
    with pytest.raises(InputError, match="do not give F of stage 1"):
        times(costs, plan_of(), "1F0")


def test_measured_costs_round_trip() -> None:
    costs = ProfileCosts(
        measured={(0, 0, "F"): 0.5, (1, 2, "BI"): 0.25, (1, 0, "UPDATE"): 1.0, (3, 0, "BW"): 0.0},
        latency=1e-4, bandwidth=1e9, collective_latency=2e-4, recomputed=((1, 2),),
    )  # fmt: skip
    text = json.dumps(costs.to_json(), allow_nan=False)
    assert ProfileCosts.from_json(json.loads(text)) == costs
    assert set(costs.to_json()["compute"]) == {"0F", "1.2BI", "1UPDATE", "3BW"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "reads version 1"),
        ({"compute": {"0X": 1}}, "no chunk and op"),
        ({"compute": {"0F": -1}}, "no number of seconds"),
        ({"compute": {"0F": float("nan")}}, "no number of seconds"),
        ({"latency": "slow"}, "no number"),
    ],
)
def test_bad_measured_costs_are_input_errors(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ProfileCosts.from_json({**ProfileCosts().to_json(), **change})
    with pytest.raises(InputError, match="not measured costs"):
        ProfileCosts.from_json([])


def test_costs_pickle_without_the_plan_they_saw() -> None:
    plan = plan_of("1f1b", 8, 32, model=load_profile(GPU).model())
    costs = load_profile(GPU).costs()
    fresh = len(pickle.dumps(costs))
    expected = simulate(plan, costs).makespan
    assert len(pickle.dumps(costs)) <= fresh + 100
    assert simulate(plan, pickle.loads(pickle.dumps(costs))).makespan == expected


def test_shipped_profiles() -> None:
    assert {FABRIC, GPU} <= set(shipped_profiles())
    stages = {name: load_profile(name).stages for name in shipped_profiles()}
    assert stages.items() >= {FABRIC: 8, GPU: 8}.items()
    with pytest.raises(InputError, match=r"one of .*equal-8, .*llama3-8b-a100-25g"):
        load_profile("equal-9")


def test_equal_profile_keeps_the_closed_forms() -> None:
    profile = load_profile(FABRIC)
    unit = profile.forward[0]
    for family, idle in (("gpipe", 3), ("1f1b", 3), ("zb-h1", 1)):
        result = simulate(plan_of(family, 8, 16, model=profile.model()), profile.costs())
        assert result.makespan == pytest.approx((3 * 16 + 7 * idle) * unit, rel=1e-4)


def test_published_profile_follows_from_the_published_model() -> None:
    """Llama 3 8B: parameters of the whole model; 6 N per token and attention 12 h s per token and block at 40% of an
    A100's 312e12 operations/s; activations of two bytes over 25 Gb/s."""
    profile = load_profile(GPU)
    assert sum(layer.parameter_bytes for layer in profile.layers) == 2 * 8_030_261_248
    s, h, blocks, vocabulary, rate = 8192, 4096, 32, 128256, 0.4 * 312e12
    total = sum(profile.forward) + sum(profile.backward_input) + sum(profile.backward_weight)
    matrices = 8_030_261_248 - vocabulary * h - (2 * blocks + 1) * h  # without the embedding and the norms
    assert total * rate == pytest.approx(s * (6 * matrices + 12 * blocks * h * s), rel=1e-3)
    block = profile.layers[1]
    assert block.boundary_bytes == 2 * s * h
    assert (block.backward_input - block.forward) * rate == pytest.approx(4 * s * s * h, rel=1e-3)
    assert profile.bandwidth * 8 == 25e9
    assert profile.cut == (5, 9, 13, 17, 21, 25, 29)


def test_a_profile_costs_what_its_layers_cost_when_the_cut_moves() -> None:
    profile = load_profile(GPU)
    block, head = profile.layers[1], profile.layers[-1]
    plan = plan_of("zb-h1", 2, 2, model=profile.model(), cut=[33])
    costs = profile.costs()
    assert times(costs, plan, "1F0", "1BI0", "1BW1") == pytest.approx(
        [head.forward, head.backward_input, head.backward_weight]
    )
    assert times(costs, plan, "0F0")[0] == pytest.approx(profile.layers[0].forward + 32 * block.forward)
    assert costs.transfer(plan, find(plan, "0>1F0")) == (5e-5, block.boundary_bytes / 3.125e9)
    assert costs.transfer(plan, find(plan, "1>0B0")) == (5e-5, block.boundary_bytes / 3.125e9)


def test_a_profile_maps_onto_another_model() -> None:
    """Eight stages of any model take what the profile's stages take; four take two each; sizes are the profile's."""
    profile = load_profile(GPU)
    small = plan_of("1f1b", 8, 2, model=uniform_model(16), replicas=2)
    assert times(profile.costs(), small, *(f"{s}F0" for s in range(8))) == pytest.approx(list(profile.forward))
    assert profile.costs().transfer(small, find(small, "3>4F1"))[1] == 2 * 8192 * 4096 / 3.125e9
    bucket = next(b for b in small.buckets if b.chunks[0].stage == 3)
    reduce = find(small, f"R{bucket.id}")
    nbytes = 4 * profile.layers[1].parameter_bytes
    assert profile.costs().collective(small, reduce) == pytest.approx(2 * (5e-5 + nbytes / 2 / 3.125e9))
    equal = load_profile(FABRIC)
    assert times(equal.costs(), plan_of("1f1b", 4, 2), "0F0", "3B1") == pytest.approx([0.04, 0.08])
    assert times(equal.costs(), plan_of("gpipe", 16, 2), "0F0", "15B1") == pytest.approx([0.01, 0.02])


def test_time_scale() -> None:
    profile = load_profile(GPU)
    slow = profile.scaled(shortest=0.02)
    shortest = min(*slow.forward, *slow.backward_input, *slow.backward_weight)
    assert shortest == pytest.approx(0.02)
    assert slow.time_scale == pytest.approx(0.02 / min(profile.backward_weight))
    plan = plan_of("1f1b", 8, 16, model=profile.model(), cut=list(profile.cut))
    ratio = simulate(plan, slow.costs()).makespan / simulate(plan, profile.costs()).makespan
    assert ratio == pytest.approx(slow.time_scale)
    of_plan = profile.scaled(shortest=0.02, plan=plan)  # its backwards are whole: the forward is the shortest
    assert of_plan.time_scale == pytest.approx(0.02 / min(profile.forward))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "reads version 1"),
        ({"extra": 1}, "unknown field 'extra'"),
        ({"name": None}, "name is text"),
        ({"cut": [4, 2]}, "ascending list"),
        ({"cut": [99]}, "ascending list"),
        ({"bandwidth": 0}, "more than 0"),
        ({"latency": "x"}, "latency is a finite number"),
        ({"layers": []}, "at least one layer"),
        ({"layers": [{"name": "a"}]}, r"layers\[0\] lacks count"),
    ],
)
def test_bad_profiles_are_input_errors(
    tmp_path: Path, repository: Path, change: dict[str, object], message: str
) -> None:
    good = json.loads((repository / "runtime" / "profiles" / f"{FABRIC}.json").read_text())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(InputError, match=message):
        load_profile(path)
    path.write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        load_profile(path)


def test_own_profile_loads_by_path(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text((repository / "runtime" / "profiles" / f"{GPU}.json").read_text())
    assert isinstance(load_profile(path), Profile)
    assert load_profile(path) == load_profile(GPU)
