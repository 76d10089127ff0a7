"""The planner's choices, checked against what can be computed by hand."""

from __future__ import annotations

import pytest

from pibroch.agents.constraints import degrees, stage_sizes
from pibroch.agents.intent import read_intent
from pibroch.agents.planner import PlannedSchedule, plan_schedule
from pibroch.runtime.directives import Replicate
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec, uniform_model
from pibroch.runtime.plan import Plan
from pibroch.runtime.verify import verify

MODEL = uniform_model(8, hidden_bytes=64, param_bytes=4_000_000, saved_bytes=100_000)


def planned(sentence: str, model: ModelSpec = MODEL, **options: int) -> tuple[PlannedSchedule, Plan]:
    result = plan_schedule(read_intent(sentence), model, **options)  # type: ignore[arg-type]
    plan = lower(result.schedule, model)
    assert verify(plan, model=model) == []
    return result, plan


def test_a_complete_sentence_leaves_nothing_to_choose() -> None:
    result, _ = planned("1F1B over 2 stages, 2 replicas, 8 microbatches, 25 MB buckets")
    expected = build("1f1b", devices=2, microbatches=8, replicas=2, bucket_size=25.0)
    assert result.schedule.directives == expected.directives
    assert (result.family, result.matches, result.alternatives) == ("1f1b", True, [])


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("GPipe over 4 stages, 4 microbatches", {"stages": 4, "pipeline": 4, "microbatches": 4}),
        ("PP=2, DP=2, 1F1B, 6 microbatches in total", {"pipeline": 2, "replicas": 2, "microbatches": 3}),
        ("interleaved over 2 devices with 2 stages per device, 4 microbatches", {"stages": 4, "pipeline": 2}),
        ("1F1B on 8 devices, 2 stages", {"replicas": 4, "num_devices": 8}),
        ("twice as many microbatches as stages, 1F1B, PP=4", {"microbatches": 8}),
        ("half as many microbatches as stages, 1F1B, PP=4", {"microbatches": 2}),
        ("twice as many replicas as stages, 1F1B, PP=2, 4 microbatches", {"replicas": 4}),
        ("1F1B over 2 stages, at most 3 microbatches", {"microbatches": 3}),
        ("1F1B over 2 stages, 3 or 5 microbatches", {"microbatches": 5}),
        ("between 3 and 4 stages, 1F1B, 4 microbatches, minimize memory", {"stages": 4}),
        ("pure data parallel over 2, 4 microbatches", {"pipeline": 1, "replicas": 2}),
        ("2 layers per stage, 1F1B, 4 microbatches", {"stages": 4}),
        ("1F1B over 2 stages, gradient buckets, 4 microbatches", {"replicas": 2}),
    ],
)
def test_degrees(sentence: str, expected: dict[str, int]) -> None:
    _, plan = planned(sentence)
    have = degrees(plan)
    assert {name: have[name] for name in expected} == expected


def test_zero_bubble_is_the_fastest_of_one_stage_per_device() -> None:
    # With equal F, BI and BW: ZB-H1 idles (p-1), 1F1B and GPipe 3(p-1) (ANCHORS: (p-1)(F+B-2W) against (p-1)(F+B)).
    result, _ = planned("the fastest schedule over 4 stages on 4 devices, 8 microbatches")
    assert result.family == "zb-h1"
    result, _ = planned("the fastest schedule over 4 stages on 4 devices, 8 microbatches, no zero bubble")
    assert result.family in ("1f1b", "gpipe")


def test_data_parallel_alone_takes_a_plain_family() -> None:
    result, plan = planned("pure data parallel over 4, 4 microbatches, gradient buckets")
    assert result.family in ("gpipe", "1f1b")
    assert (degrees(plan)["pipeline"], degrees(plan)["stages"], degrees(plan)["replicas"]) == (1, 1, 4)


def test_least_memory_is_not_gpipe() -> None:
    # On the first of 4 devices GPipe holds 8 microbatches, 1F1B 4.
    result, _ = planned("GPipe or 1F1B over 4 stages, 8 microbatches, lowest memory")
    assert result.family == "1f1b"


def test_a_memory_bound_decides_and_recompute_is_the_last_resort() -> None:
    # A stage of 4 layers has 16 MB of parameters: 64 MB with gradients and two optimizer slots. 1F1B holds at most
    # 2 x 400 kB of activations there, GPipe 8 x 400 kB.
    result, _ = planned("GPipe or 1F1B over 2 stages, 8 microbatches, fit in 65 MB")
    assert result.family == "1f1b"
    result, plan = planned("GPipe over 2 stages, 8 microbatches, fit in 66 MB")
    assert all(chunk.recompute for chunk in plan.chunks)
    assert any("recompute" in line for line in result.why)
    with pytest.raises(InputError, match="nothing fits 66000000 bytes"):
        planned("GPipe over 2 stages, 8 microbatches, fit in 66 MB, no recompute")
    with pytest.raises(InputError, match="nothing fits 60000000 bytes"):
        planned("over 2 stages, 8 microbatches", memory_limit=60_000_000)


def test_cuts() -> None:
    assert stage_sizes(planned("stages of 3 and 5 layers, 1F1B")[1]) == [3, 5]
    assert stage_sizes(planned("1F1B cut at layers 1, 2 and 3")[1]) == [1, 1, 1, 5]
    assert stage_sizes(planned("1F1B over 2 stages")[1]) == [4, 4]
    assert sorted(stage_sizes(planned("1F1B over 2 stages with an uneven cut")[1])) == [3, 5]


def test_streams_and_buckets_reach_the_directives() -> None:
    result, plan = planned("1F1B, PP=2, DP=2, reductions on a stream named grads, 4 MB buckets, 2 microbatches")
    rows = [d for d in result.schedule.directives if isinstance(d, Replicate)]
    assert {(d.reduce_stream, d.bucket_size) for d in rows} == {("grads", 4.0)}
    assert len(plan.buckets) == 8  # every layer of 4 MB is a bucket of its own


@pytest.mark.parametrize(
    ("sentence", "says"),
    [
        ("1F1B over 9 stages", "9 stages, but uniform-8 has 8 layers"),
        ("stages of 3 and 4 layers", "3+4 = 7 layers; uniform-8 has 8"),
        ("3 layers per stage", "do not divide"),
        ("cut at layer 8", "between layer 1 and layer 7"),
        ("a 12-layer model over 2 stages", "12 layers; model uniform-8 has 8"),
        ("half as many microbatches as stages, 1F1B, PP=3", "no schedule keeps every number"),
    ],
)
def test_impossible_sentences_are_errors(sentence: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        planned(sentence)
    assert says in str(error.value)


def test_available_devices_bound_the_plan() -> None:
    _, plan = planned("1F1B, 4 microbatches", devices_available=4)
    assert degrees(plan)["num_devices"] == 4
    with pytest.raises(InputError, match="4 available devices"):
        planned("1F1B over 8 stages", devices_available=4)


def test_what_is_not_followed_is_said() -> None:
    result, _ = planned("1F1B over 2 stages with FSDP on a Tuesday")
    assert not result.matches
    assert any("FSDP" in line and "not followed" in line for line in result.why)
    assert any("Tuesday" in line for line in result.why)
