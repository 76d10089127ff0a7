"""Edits: each does what its sentence says, on plain data, and refuses what has no meaning."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from evolve_settings import emulated, unit

from pibroch.agents.evolve.design import Design, decode, encode
from pibroch.agents.evolve.edit_base import even_positions, layout_of
from pibroch.agents.evolve.edits import OPS, NotApplicable, apply_edit, describe, edit_key, parse_edit
from pibroch.agents.evolve.figures import figures, most_bytes
from pibroch.evals.setting import Setting
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build

SETTING = emulated(devices=8, samples=8, profile="llama3-8b-a100-25g")


def start(setting: Setting = SETTING, family: str = "1f1b", p: int = 4, k: int = 2, **more: Any) -> Design:
    (m,) = setting.choices(k)
    return decode(build(family, devices=p, microbatches=m, replicas=k, **more), setting)


def edited(data: dict[str, Any], design: Design | None = None, setting: Setting = SETTING) -> Design:
    new = apply_edit(parse_edit(data), design or start(setting), setting)
    plan = setting.lower(encode(new))
    assert setting.check(plan, setting.simulate(plan)) == []
    return new


EXAMPLES: list[dict[str, Any]] = [
    {"op": "replicas", "by": 1},
    {"op": "pipeline", "by": -1},
    {"op": "shift_layers", "stage": "last", "to": "previous"},
    {"op": "balance_cut", "by": "costs"},
    {"op": "bucket_size", "factor": 0.25},
    {"op": "recompute", "stage": 0, "on": True},
    {"op": "stream", "name": "links"},
    {"op": "split_backward", "on": True},
    {"op": "reorder", "split": True},
    {"op": "family", "name": "zb-h1"},
    {"op": "divide", "replicas": 2, "stages_per_device": 2, "layout": "v"},
    {"op": "stages_per_device", "by": 1, "layout": "v"},
    {"op": "swap_stages", "first": 0, "second": -1},
    {"op": "move_chunk", "chunk": "F", "stage": 0, "microbatch": 3, "by": 1},
    {"op": "warm_up", "position": "last", "by": 1},
    {"op": "overlap", "on": True},
]


@pytest.mark.parametrize("data", EXAMPLES, ids=lambda d: d["op"])
def test_edits_are_plain_data_and_one_sentence(data: dict[str, Any]) -> None:
    setting = emulated(devices=8, samples=8)
    edit = parse_edit(data)
    assert parse_edit(edit.to_json()) == edit
    assert edit_key(parse_edit(edit.to_json())) == edit_key(edit)
    sentence = describe(edit)
    assert sentence.endswith(".")
    assert sentence.count(". ") == 0
    before = start(setting, cut=[3, 7, 12])
    after = edited(data, before, setting)
    assert after != before
    assert len(figures(after, setting).fixed) == len(after.positions)


def test_every_op_has_an_example_or_a_test() -> None:
    tested = {"microbatches", "fit_recompute", "reduce_stream", "layout", "shift_weights"}
    assert {data["op"] for data in EXAMPLES} | tested == set(OPS)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"op": "faster"}, "unknown op 'faster'; there are microbatches"),
        ({"by": 1}, "unknown op None"),
        ({"op": "warm_up", "position": "all"}, "by"),
        ({"op": "reorder", "rows": []}, "rows: Extra inputs"),
        ({"op": "bucket_size", "factor": -1}, "factor"),
        ("reorder", "an object with an op, not 'reorder'"),
    ],
)
def test_what_is_no_edit_is_named(data: Any, says: str) -> None:
    with pytest.raises(InputError, match=says.replace("(", r"\(")):
        parse_edit(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"op": "shift_layers", "stage": 0, "to": "previous"}, "no previous stage"),
        ({"op": "shift_layers", "stage": 1, "to": "next", "layers": 60}, "no 60 layers to give"),
        ({"op": "recompute", "stage": 7, "on": True}, "there is no stage 7: there are 4"),
        ({"op": "recompute", "on": False}, "that is so already"),
        ({"op": "family", "name": "1f1b"}, "the rows stay the same"),
        ({"op": "family", "name": "interleaved"}, "no rows for 4 stages"),
        ({"op": "microbatches", "by": 1}, "no choice of microbatches"),
        ({"op": "pipeline", "by": 1}, "10 devices|5 x 2 devices"),
        ({"op": "divide", "replicas": 3, "stages_per_device": 1}, "do not divide"),
        ({"op": "divide", "replicas": 2, "stages_per_device": 1, "microbatches": 1}, "microbatches, not 1"),
        ({"op": "layout", "to": "v"}, "one stage per device has no other"),
        ({"op": "shift_weights", "by": 1}, "not split"),
        ({"op": "reduce_stream", "each": True}, "one stage only"),
        ({"op": "move_chunk", "chunk": "B", "stage": 0, "microbatch": 0, "by": -4}, "would wait for itself"),
        ({"op": "move_chunk", "chunk": "BW", "stage": 0, "microbatch": 0, "by": 1}, "there is no BW"),
    ],
)
def test_what_has_no_meaning_says_why(data: dict[str, Any], why: str) -> None:
    with pytest.raises(NotApplicable, match=why):
        apply_edit(parse_edit(data), start(), SETTING)


def test_trading_replicas_keeps_the_devices_and_the_batch() -> None:
    new = edited({"op": "replicas", "by": 1})
    assert (new.replicas, len(new.positions), new.stages, new.microbatches) == (4, 2, 2, 2)
    kept = edited({"op": "replicas", "by": 1, "keep": "stages"})
    assert (kept.replicas, len(kept.positions), kept.stages) == (4, 2, 4)
    assert str(kept.rule) == "family:interleaved"  # what 1F1B is over several stages per device


def test_microbatches_step_through_what_divides_the_batch() -> None:
    from pibroch.evals.setting import open_setting
    from pibroch.evals.task import Task

    small = open_setting(Task(name="t", title="t", model="gpt-tiny", devices=2, samples=8, intent="x"))
    design = decode(build("zb-h1", devices=2, microbatches=2), small)
    new = edited({"op": "microbatches", "by": 1}, design, small)
    assert new.microbatches == 4
    assert str(new.rule) == "family:zb-h1"


def test_layers_move_one_boundary() -> None:
    before = start()
    after = edited({"op": "shift_layers", "stage": 1, "to": "next", "layers": 2}, before)
    assert before.cut is not None
    assert after.cut == (before.cut[0], before.cut[1] - 2, before.cut[2])
    assert after.rows == before.rows


def test_a_cut_by_costs_evens_the_positions() -> None:
    """Two positions to and fro over four stages: the heavy last layer's position gets fewer of the others."""
    seconds = [1.0] * 7 + [3.0]
    where = layout_of(4, 2, "v")
    bounds = [0, *even_positions(seconds, where), 8]
    loads = [0.0, 0.0]
    for s, (a, b) in enumerate(pairwise(bounds)):
        assert b > a
        loads[where[s]] += sum(seconds[a:b])
    assert loads == [5.0, 5.0]


def test_buckets_are_parts_of_a_stage() -> None:
    before = start()
    halves = edited({"op": "bucket_size", "factor": 0.5}, before)
    model = SETTING.model(2, 4)
    cut = before.bounds(len(model.layers))
    whole = sum(model.params[p].nbytes for layer in model.layers[: cut[1]] for p in layer.params) / 1e6
    assert halves.bucket_size[0] == pytest.approx(whole / 2, rel=0.06)  # two digits
    assert edited({"op": "bucket_size", "factor": 64.0}, halves).bucket_size == (None,) * 4
    assert edited({"op": "bucket_size", "factor": None}, halves).bucket_size == (None,) * 4


def test_recompute_where_memory_asks_for_it_and_nowhere_else() -> None:
    free = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g")
    design = start(free, p=4, k=1)
    need = most_bytes(design, figures(design, free))
    limit = sorted(need)[2] + 1  # the fullest position does not fit
    tight = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g", limit=limit)
    new = edited({"op": "fit_recompute"}, design, tight)
    assert new.recompute == {need.index(max(need))}
    loose = apply_edit(parse_edit({"op": "fit_recompute"}), new, free)
    assert loose.recompute == frozenset()


def test_splitting_and_joining_are_inverse() -> None:
    before = start()
    split = edited({"op": "split_backward", "stage": "last", "on": True}, before)
    assert split.split_stages == {3}
    assert edited({"op": "split_backward", "stage": 3, "on": False}, split).rows == before.rows


def test_weight_gradients_move_no_further_than_their_inputs_allow() -> None:
    setting = unit(devices=2, samples=4)
    split = edited({"op": "split_backward", "on": True}, start(setting, p=2, k=1), setting)
    later = edited({"op": "shift_weights", "stage": 1, "by": 1}, split, setting)
    assert later.rows[0] == split.rows[0]
    assert later.rows[1][:4] == (("F", 1, 0), ("BI", 1, 0), ("F", 1, 1), ("BW", 1, 0))
    assert edited({"op": "shift_weights", "by": -4}, later, setting).rows == split.rows


def test_warm_up_is_the_depth_of_1f1b() -> None:
    setting = unit(devices=2, samples=4)
    before = start(setting, p=2, k=1)
    deeper = edited({"op": "warm_up", "position": "last", "by": 1}, before, setting)
    assert deeper.rows[1] == tuple(
        (op, 1, i) for op, i in (("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("F", 3), ("B", 2), ("B", 3))
    )
    assert edited({"op": "warm_up", "position": 1, "by": -1}, deeper, setting).rows == before.rows


def test_warm_up_of_a_list_rule_outlives_what_remakes_its_rows() -> None:
    setting = unit(devices=4, samples=8)
    listed = edited(
        {"op": "reorder", "policy": "backward-first", "split": False, "depth": 1.5}, start(setting, k=1), setting
    )
    deeper = edited({"op": "warm_up", "position": 0, "by": -3}, listed, setting)
    assert deeper.rule.extra == (-3, 0, 0, 0)
    assert edited({"op": "split_backward", "on": True}, deeper, setting).rule.extra == (-3, 0, 0, 0)


def test_placements() -> None:
    v = edited({"op": "stages_per_device", "by": 1, "layout": "v"})
    assert [devices[0] for devices in v.placement] == [0, 1, 2, 3, 3, 2, 1, 0]
    loop = edited({"op": "layout", "to": "loop"}, v)
    assert [devices[0] for devices in loop.placement] == [0, 1, 2, 3, 0, 1, 2, 3]
    swapped = edited({"op": "swap_stages", "first": 0, "second": 3})
    assert list(swapped.placement) == [(3, 7), (1, 5), (2, 6), (0, 4)]
    each = edited({"op": "reduce_stream", "each": True}, v)
    assert len(set(each.reduce_stream or ())) == 8
