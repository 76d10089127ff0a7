"""The compiler on cases small enough to work out by hand."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pibroch.runtime.action import Chunk
from pibroch.runtime.directives import schedule_from
from pibroch.runtime.errors import InputError
from pibroch.runtime.lower import PASS_NAMES, lower, lower_after
from pibroch.runtime.model import LayerSpec, ModelSpec, ParamSpec, TensorSpec, uniform_model
from pibroch.runtime.passes.stages import balanced_bounds
from pibroch.runtime.plan import Plan
from pibroch.runtime.verify import verify

TWO: list[dict[str, Any]] = [
    {"op": "place", "filter": {"PP": 0}, "devices": [0]},
    {"op": "place", "filter": {"PP": 1}, "devices": [1]},
]
REPLICATED: list[dict[str, Any]] = [
    {"op": "place", "filter": {"PP": 0}, "devices": [0, 2]},
    {"op": "place", "filter": {"PP": 1}, "devices": [1, 3]},
    {"op": "replicate", "filter": {"PP": 0}, "devices": [0, 2]},
    {"op": "replicate", "filter": {"PP": 1}, "devices": [1, 3]},
]


def compiled(rows: list[dict[str, Any]], model: ModelSpec | None = None, *, update: bool = True) -> Plan:
    return lower(schedule_from(rows), model or uniform_model(4), update=update)


def stream(plan: Plan, device: int, name: str = "compute") -> str:
    return " ".join(str(plan.tasks[i]) for i in plan.streams[device][name])


def split(m: int) -> dict[str, Any]:
    return {"op": "split", "num_microbatches": m}


def test_without_order_rows_all_forwards_precede_all_backwards() -> None:
    plan = compiled([*TWO, split(2)])
    assert stream(plan, 0) == "0F0 0F1 0B0 0B1 U0"
    assert stream(plan, 1) == "1F0 1F1 1B0 1B1 U1"
    assert stream(plan, 0, "transfer.0>1.F") == "0>1F0 0>1F1"
    assert stream(plan, 1, "transfer.0>1.F") == "1<0F0 1<0F1"
    assert stream(plan, 1, "transfer.1>0.B") == "1>0B0 1>0B1"


def test_a_row_orders_what_it_names_and_the_rest_follows_the_default() -> None:
    row = {"op": "order", "filters": [{"PP": 0, "MB": 1, "PASS": "F"}, {"PP": 0, "MB": 0, "PASS": "F"}]}
    assert stream(compiled([*TWO, split(3), row]), 0) == "0F1 0F0 0F2 0B0 0B1 0B2 U0"


def test_split_backward_only_where_a_row_names_it() -> None:
    row = {
        "op": "order",
        "filters": [{"PP": 1, "MB": 0, "PASS": p} for p in ("BI", "BW")] + [{"PP": 1, "MB": 1, "PASS": "B"}],
    }
    plan = compiled([*TWO, split(2), row])
    assert stream(plan, 1) == "1F0 1F1 1BI0 1BW0 1B1 U1"
    assert stream(plan, 0) == "0F0 0F1 0B0 0B1 U0"
    gradient = next(t for t in plan.tasks if str(t) == "1>0B0")
    assert [str(plan.tasks[w]) for w in gradient.waits] == ["1BI0"], "the gradient leaves before BW"


def test_overlap_groups_leave_the_two_filters_unordered() -> None:
    pair = [{"PP": 1, "MB": 1, "PASS": "F"}, {"PP": 1, "MB": 0, "PASS": "B"}]
    row = {"op": "order", "filters": [{"PP": 1, "MB": 0, "PASS": "F"}, pair, {"PP": 1, "MB": 1, "PASS": "B"}]}
    assert stream(compiled([*TWO, split(2), row]), 1) == "1F0 1F1 1B0 1B1 U1"


def test_replicas_reduce_once_per_step_after_their_last_backward() -> None:
    plan = compiled([*REPLICATED, split(2)])
    assert plan.replicas == 2
    assert [(b.group, b.chunks) for b in plan.buckets] == [((0, 2), (Chunk(0),)), ((1, 3), (Chunk(1),))]
    for device in range(4):
        (reduce,) = [t for t in plan.of(device) if t.op == "REDUCE"]
        last = plan.tasks[plan.streams[device]["compute"][-2]]
        assert [plan.tasks[w] for w in reduce.waits] == [last]
        update = plan.tasks[plan.streams[device]["compute"][-1]]
        assert update.waits == (reduce.id,)
    seeds = {t.scale for t in plan.tasks if t.op == "B" and t.stage == 1}
    assert seeds == {(1, 4)}


def test_bucket_size_cuts_chunks_at_layers_that_hold_at_least_so_much() -> None:
    model = uniform_model(7, param_bytes=1_000_000)
    rows: list[dict[str, Any]] = [
        {"op": "place", "filter": {"PP": 0}, "devices": [0, 1]},
        {"op": "replicate", "filter": {"PP": 0}, "devices": [0, 1], "bucket_size": 2.0, "reduce_stream": "g"},
    ]
    plan = compiled([*rows, split(1)], model)
    assert [(c.start, c.stop) for c in plan.chunks] == [(0, 2), (2, 4), (4, 7)]
    assert stream(plan, 0) == "0F0 0.1F0 0.2F0 0.2B0 0.1B0 0B0 U0"
    assert stream(plan, 0, "g") == "R0 R1 R2"
    assert plan.buckets[0].chunks == (Chunk(0, 2),), "the last chunk's gradients are ready first"


def test_recompute_by_stage_is_one_chunk_and_by_layer_one_each() -> None:
    whole = compiled([*TWO, {"op": "recompute", "filter": {"PP": 1}}])
    assert [(c.key, c.recompute) for c in whole.chunks] == [(Chunk(0), False), (Chunk(1), True)]
    each = compiled([*TWO, {"op": "recompute", "filter": {"LAYER": "*"}}])
    assert [(c.start, c.stop, c.recompute) for c in each.chunks] == [(i, i + 1, True) for i in range(4)]
    saved = [b for b in whole.buffers if b.kind == "saved" and b.device == 1]
    assert not saved, "nothing is kept from a recomputed forward"


def test_the_last_receives_are_posted_at_most_two_consumers_ahead() -> None:
    plan = compiled([*TWO, split(5)])
    receives = [plan.tasks[i] for i in plan.streams[1]["transfer.0>1.F"]]
    assert [[str(plan.tasks[w]) for w in t.waits] for t in receives] == [[], [], ["1F0"], ["1F1"], ["1F2"]]


def test_more_stages_than_devices_hand_over_locally() -> None:
    rows = [{"op": "place", "filter": {"PP": s}, "devices": [s % 2]} for s in range(4)]
    plan = compiled([*rows, split(1)])
    assert stream(plan, 0) == "0F0 2F0 2B0 0B0 U0 U2"
    assert {t.chunk.stage for t in plan.of(0) if t.op == "SEND"} == {0, 2}


def test_forward_and_backward_only() -> None:
    plan = compiled([*TWO], update=False)
    assert not [t for t in plan.tasks if t.op == "UPDATE"]
    assert not [b for b in plan.buffers if b.kind == "optimizer"]


def skip_model() -> ModelSpec:
    """Layer 2 reads layer 0's value too, and shares its parameter; layer 1 is frozen."""
    return ModelSpec(
        name="skip",
        layers=(
            LayerSpec(0, {"LAYER": 0}, ("w",), (), ("a",)),
            LayerSpec(1, {"LAYER": 1}, ("frozen",), ("a",), ("b", "n")),
            LayerSpec(2, {"LAYER": 2}, ("w",), ("a", "b", "n"), ()),
        ),
        params={"w": ParamSpec("w", (2,)), "frozen": ParamSpec("frozen", (3,), trainable=False)},
        values={"a": TensorSpec((4,)), "b": TensorSpec((4,)), "n": TensorSpec((1,), "int64", grad=False)},
    )


def test_skip_connections_tied_and_frozen_parameters() -> None:
    rows = [{"op": "place", "filter": {"PP": s}, "devices": [s]} for s in range(3)]
    plan = compiled([*rows], skip_model())
    assert stream(plan, 0) == "0F0 0B0 U0"
    assert stream(plan, 1) == "1F0 1B0", "a stage whose parameters are frozen has nothing to update"
    assert stream(plan, 2) == "2F0 2B0 U2"
    sends = {str(t): t.values for t in plan.tasks if t.op == "SEND"}
    assert sends == {
        "0>1F0": ("a",), "0>2F0": ("a",), "1>2F0": ("b", "n"), "2>1B0": ("b",), "2>0B0": ("a",), "1>0B0": ("a",),
    }  # fmt: skip
    (bucket,) = plan.buckets
    assert (bucket.params, bucket.group) == (("w",), (0, 2))


def test_a_tied_parameter_on_one_device_is_updated_once() -> None:
    rows = [{"op": "place", "filter": {"PP": s}, "devices": [d]} for s, d in enumerate((0, 1, 0))]
    plan = compiled([*rows], skip_model())
    assert plan.buckets == []
    assert [str(t) for t in plan.tasks if t.op == "UPDATE"] == ["U0"]


def test_clipping_follows_all_other_reductions_and_precedes_updates() -> None:
    plan = compiled([*REPLICATED, split(2)], dataclasses.replace(uniform_model(4), clip=True))
    assert [b.params for b in plan.buckets][-1] == ()
    for device in range(4):
        assert stream(plan, device, "clip") == "R2"
        (norm,) = [t for t in plan.of(device) if t.stream == "clip"]
        assert norm.group == (0, 1, 2, 3)
        assert [t.op for t in map(plan.tasks.__getitem__, norm.waits) if t.stream == "reduce"] == ["REDUCE"]
        update = plan.tasks[plan.streams[device]["compute"][-1]]
        assert norm.id in update.waits
    assert verify(plan) == []
    (first,) = [t for t in plan.of(0) if t.stream == "clip"]
    first.waits = tuple(w for w in first.waits if plan.tasks[w].op != "REDUCE")
    assert {v.rule for v in verify(plan)} & {"V6", "V8"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([TWO[0]], None),
        ([{"op": "place", "filter": {"PP": 1}, "devices": [0]}], "V9.*stage 0 is on no device"),
        (
            [*TWO, split(2), {"op": "order", "filters": [{"PP": 2, "PASS": "F"}, {"PP": 2, "PASS": "B"}]}],
            "V9: directive 3: order names stage 2, but the places give stages 0 and 1",
        ),
        ([TWO[0], {"op": "recompute", "filter": {"PP": 1}}], "directive 1: recompute names stage 1.*give stage 0:"),
        ([TWO[0], TWO[1], {"op": "cut", "at": [1, 2]}], "directive 2: cut makes 3 stages, .*give stages 0 and 1"),
        ([*TWO, TWO[1]], "V9: directive 2: stage 1 is placed by directive 1"),
        ([*TWO, {"op": "place", "filter": {"PP": 9}, "devices": [0]}], "9 stages|10 stages"),
        ([{"op": "place", "devices": [0, 0]}], "V9: directive 0.*twice"),
        ([{"op": "place", "devices": [1]}], "device 0 has nothing to do"),
        ([*TWO, {"op": "place", "filter": {"LYER": 0}, "devices": [0]}], "unknown tag 'LYER'.*LAYER"),
        ([{**TWO[0], "stream": "a"}, {**TWO[1], "stream": "b"}], "one transfer stream"),
        ([{**TWO[0], "devices": [0, 2]}, TWO[1]], "different numbers of replicas"),
        ([*TWO, {"op": "replicate", "filter": {"PP": 0}, "devices": [1]}], "directive 2.*placed on \\[0\\]"),
        ([*REPLICATED, REPLICATED[2]], "directive 4: stage 0 is replicated by directive 2"),
        ([*TWO, split(2), split(2)], "directive 3: a second split"),
        ([*TWO, {"op": "split", "num_microbatches": 2, "filter": {"PP": 0}}], "whole model"),
        ([*TWO, {"op": "split", "num_microbatches": 2, "dim_name": "LAYER"}], "'LAYER' is taken"),
        ([*TWO, {"op": "cut", "at": [4]}], "boundaries"),
        ([*TWO, {"op": "cut", "at": [2, 1]}], "boundaries"),
        ([{**TWO[1], "filter": {"PP": 2}}, {"op": "cut", "at": [2]}], "2 stages, but a filter names stage 2"),
        ([*TWO, {"op": "cut", "at": [1]}, {"op": "cut", "at": [1]}], "a second cut"),
        ([*TWO, {"op": "recompute", "filter": {"LAYER": 7}}], "matches no layer"),
        ([*TWO, {"op": "recompute"}, {"op": "recompute", "filter": {"PP": 0}}], "recomputed by directive 2"),
        ([*TWO, {"op": "recompute", "filter": {"PASS": "F"}}], "no place"),
        ([*TWO, {"op": "order", "filters": [{"PP": 0, "MB": 4}, {"PP": 0, "MB": 0}]}], "matches nothing"),
        ([*TWO, {"op": "order", "filters": [{"PP": 0, "PASS": "F"}, {"PP": 0, "PASS": "F"}]}], "0F0 appears twice"),
        ([*TWO, {"op": "order", "filters": [{"PP": 0, "PASS": "F"}, {"PP": 1, "PASS": "F"}]}], "one device set"),
        ([*TWO, {"op": "order", "filters": [{"PP": 0, "PASS": "B"}, {"PP": 0, "PASS": "F"}]}], "V5.*0F0.*0B0"),
        ([*TWO, {"op": "order", "filters": [{"PP": 0, "PASS": "BW"}, {"PP": 0, "PASS": "BI"}]}], "one BI and then"),
        ([*TWO, {"op": "order", "filters": [{"PP": 0, "PASS": "F"}, {"PP": 0, "PASS": "BI"}]}], "one BI and then"),
    ],
)
def test_mistakes_are_named(rows: list[dict[str, Any]], message: str | None) -> None:
    if message is None:
        assert compiled(rows).stages == 1
        return
    with pytest.raises(InputError, match=message):
        compiled(rows)


def test_rows_that_contradict_each_other_across_devices_name_the_cycle() -> None:
    rows = [
        {"op": "order", "filters": [{"PP": 0, "MB": 0, "PASS": "B"}, {"PP": 0, "MB": 1, "PASS": "F"}]},
        {"op": "order", "filters": [{"PP": 1, "MB": 1, "PASS": "F"}, {"PP": 1, "MB": 0, "PASS": "F"}]},
    ]
    with pytest.raises(InputError, match=r"V5.*0B0 .*-> .*0F1"):
        compiled([*TWO, split(2), *rows])


@pytest.mark.parametrize("name", PASS_NAMES)
def test_every_pass_can_be_printed(name: str) -> None:
    text = lower_after(schedule_from([*REPLICATED, split(2)]), uniform_model(4), name)
    assert text.startswith(f"after {name}: 2 chunks")


def test_an_unknown_pass_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="transfers"):
        lower_after(schedule_from([*TWO]), uniform_model(2), "magic")


def test_json_round_trip_and_hash() -> None:
    plan = compiled([*REPLICATED, split(3), {"op": "recompute", "filter": {"PP": 0}}])
    again = Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json()
    assert again.hash() == plan.hash() != compiled([*TWO]).hash()
    with pytest.raises(ValueError, match="version"):
        Plan.from_json({**plan.to_json(), "version": 99})
    with pytest.raises(ValueError, match="not a plan"):
        Plan.from_json({"version": 1})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 8))
def test_balanced_stages_against_every_possible_cut(costs: list[int], stages: int) -> None:
    stages = min(stages, len(costs))
    bounds = balanced_bounds([float(c) for c in costs], stages)
    assert bounds[0] == 0
    assert bounds[-1] == len(costs)
    assert len(bounds) == stages + 1
    assert all(a < b for a, b in itertools.pairwise(bounds))
    best = min(
        max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *cut, len(costs))))
        for cut in itertools.combinations(range(1, len(costs)), stages - 1)
    )
    assert max(sum(costs[a:b]) for a, b in itertools.pairwise(bounds)) == best


def test_equal_layers_are_cut_evenly() -> None:
    bounds = balanced_bounds([1.0] * 10, 4)
    assert {b - a for a, b in itertools.pairwise(bounds)} == {2, 3}
