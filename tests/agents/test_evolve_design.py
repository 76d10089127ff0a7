"""Designs: every legal schedule becomes one, and the way back gives a plan of the same work in the same order."""

from __future__ import annotations

import random

import pytest
from evolve_settings import emulated
from hypothesis import given, settings
from hypothesis import strategies as st

from pibroch.agents.evolve.design import decode, encode, schedule_hash
from pibroch.agents.evolve.edits import NotApplicable, apply_edit
from pibroch.agents.evolve.operators import random_edit
from pibroch.evals.setting import Setting
from pibroch.evals.task import Task
from pibroch.runtime.directives import Schedule, schedule_from
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.plan import Plan

CELLS = [
    {"family": "gpipe", "devices": 2, "microbatches": 4, "replicas": 2},
    {"family": "gpipe", "devices": 2, "microbatches": 8, "stages_per_device": 2},
    {"family": "1f1b", "devices": 4, "microbatches": 8, "recompute": True},
    {"family": "1f1b", "devices": 2, "microbatches": 4, "replicas": 2, "bucket_size": 0.01, "reduce_stream": "grads"},
    {"family": "interleaved", "devices": 4, "microbatches": 8, "stages_per_device": 2},
    {"family": "zb-h1", "devices": 4, "microbatches": 8, "cut": [3, 8, 12], "stream": "links"},
    {"family": "1f1b", "devices": 1, "microbatches": 2, "replicas": 4},
]


def setting() -> Setting:
    return emulated(devices=4, samples=8)


def work(plan: Plan) -> dict[tuple[int, str], list[tuple[str, tuple[str, ...]]]]:
    """Per device and stream what runs, in order, and what each waits for: a plan without the numbering of its tasks."""
    return {
        (device, name): [
            (str(plan.tasks[i]), tuple(sorted(str(plan.tasks[w]) for w in plan.tasks[i].waits))) for i in ids
        ]
        for device, names in plan.streams.items()
        for name, ids in names.items()
    }


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: str(c["family"]))
def test_a_family_comes_back_as_the_same_plan_and_is_recognised(cell: dict[str, object]) -> None:
    schedule = build(**cell)  # type: ignore[arg-type]
    one = setting()
    design = decode(schedule, one)
    assert one.lower(encode(design)).hash() == one.lower(schedule).hash()
    assert design.rule.kind == "family"
    assert [list(row) for row in design.rows] == [
        [(f["PASS"], f["PP"], f["MB"]) for (f,) in d.groups()] for d in schedule.directives if d.op == "order"
    ]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(CELLS))
def test_random_edits_come_back_as_the_same_plan(seed: int, cell: dict[str, object]) -> None:
    rng, one = random.Random(seed), setting()
    design = decode(build(**cell), one)  # type: ignore[arg-type]
    for _ in range(3):
        try:
            design = apply_edit(random_edit(design, one, rng), design, one)
        except NotApplicable:
            break
    schedule = encode(design)
    again = decode(schedule, one)
    assert encode(again) == schedule
    assert one.lower(encode(again)).hash() == one.lower(schedule).hash()


def free_form() -> Schedule:
    """As a person may write it: wildcards, overlaps, rows in another order, another name for microbatches, half the
    rows left to the default."""
    return schedule_from(
        [
            {"op": "split", "num_microbatches": 2, "dim_name": "K"},
            {"op": "order", "filters": [
                {"PP": 1, "K": 0, "PASS": "F"}, {"PP": 1, "K": 0, "PASS": "BI"},
                [{"PP": 1, "K": 1, "PASS": "F"}, {"PP": 1, "K": 0, "PASS": "BW"}],
                {"PP": 1, "K": 1, "PASS": "B"},
            ]},
            {"op": "place", "filter": {"PP": 1}, "devices": [2, 3]},
            {"op": "place", "filter": {"PP": 0}, "devices": [0, 1], "stream": "t"},
            {"op": "replicate", "filter": {"PP": "*"}, "devices": [0, 1]},
        ]
    )  # fmt: skip


def test_a_schedule_of_another_form_becomes_the_same_work() -> None:
    one = emulated(devices=4, samples=4)
    raw = free_form().to_json()["directives"]
    raw[-1]["filter"] = {"PP": 0}
    raw.append({"op": "replicate", "filter": {"PP": 1}, "devices": [2, 3]})
    raw.append({"op": "recompute", "filter": {"LAYER": 3}})
    schedule = schedule_from(raw)
    design = decode(schedule, one)
    assert design.dim_name == "K"
    assert design.layer_recompute == ((("LAYER", 3),),)
    assert work(one.lower(encode(design))) == work(one.lower(schedule))
    assert design.split_stages == {1}
    assert len(design.overlaps) == 1


def test_rows_that_the_schedule_leaves_out_are_the_default_order() -> None:
    one = emulated(devices=2, samples=2)
    places = [{"op": "place", "filter": {"PP": s}, "devices": [s]} for s in range(2)]
    design = decode(schedule_from([{"op": "split", "num_microbatches": 2}, *places]), one)
    assert design.rows == tuple((("F", s, 0), ("F", s, 1), ("B", s, 0), ("B", s, 1)) for s in range(2))
    assert str(design.rule) == "family:gpipe"


def test_a_model_that_fixes_its_stages_and_ties_parameters() -> None:
    from pibroch.evals.setting import open_setting

    given = Task(name="t", title="t", model="gpt-tiny", devices=2, samples=4, intent="x")
    one = open_setting(given)
    design = decode(build("zb-h1", devices=2, microbatches=2), one)
    assert one.lower(encode(design)).hash() == one.lower(build("zb-h1", devices=2, microbatches=2)).hash()


def test_positions_of_a_v_placement() -> None:
    one = emulated(devices=2, samples=4)
    rows = [{"op": "place", "filter": {"PP": s}, "devices": [d]} for s, d in enumerate([0, 1, 1, 0])]
    design = decode(schedule_from([{"op": "split", "num_microbatches": 4}, *rows]), one)
    assert design.positions == ((0, 3), (1, 2))
    assert design.position_of == (0, 1, 1, 0)


def test_what_does_not_lower_is_the_users_mistake() -> None:
    with pytest.raises(InputError, match="4 devices, the schedule uses 8"):
        decode(build("1f1b", devices=8, microbatches=8), setting())


def test_the_hash_is_of_the_directives() -> None:
    one, other = build("gpipe", devices=2, microbatches=2), build("1f1b", devices=2, microbatches=2)
    assert schedule_hash(one) != schedule_hash(other)
    assert schedule_hash(one) == schedule_hash(schedule_from(one.to_json()))
