"""What the operators make of costs measured on a task's own workers. They alone have halves of a backward that cost
more than the whole, and updates that take time."""

from __future__ import annotations

import pytest
from evolve_settings import emulated

from pibroch.agents.evolve.cuts import cut_in_bound
from pibroch.agents.evolve.design import Design, Rule, changed, encode
from pibroch.agents.evolve.edit_base import cut_by_costs
from pibroch.agents.evolve.order import build_rows
from pibroch.evals.layer_costs import LayerCosts
from pibroch.evals.models import load_workload
from pibroch.evals.setting import Setting
from pibroch.evals.task import Task

AUTO = Rule("list", "auto", split=True)
MICROBATCHES = 4


def setting(*, update: float = 0.0, half: float = 0.3) -> Setting:
    """Four layers of F = BI = BW = 1 s and B = 2 s, two devices; a half of a backward costs `half` more per task, and
    the first layer's update `update`."""
    layer = {"F": (1.0, 0.0), "B": (2.0, 0.0), "BI": (1.0, 0.0), "BW": (1.0, 0.0)}
    costs = LayerCosts(
        layers=tuple({**layer, "UPDATE": (0.0 if i else update, 0.0)} for i in range(4)),
        overhead={"F": 0.0, "B": 0.0, "BI": half, "BW": half},
        latency=0.0,
        bandwidth=1e18,
    )
    task = Task(
        name="measured", title="four layers", model="mlp:4", devices=2, samples=8, use="train", intent="the fastest"
    )  # fmt: skip
    return Setting(task, load_workload("mlp:4"), measured=costs)


def pipeline(cut: int) -> Design:
    return Design(
        microbatches=MICROBATCHES, placement=((0,), (1,)), rows=(), rule=AUTO, cut=(cut,), bucket_size=(None, None)
    )


def test_backwards_are_split_only_where_that_pays() -> None:
    """Three layers on device 0, whose 4 (3 + 6) seconds no order shortens, and one on device 1, which idles most of the
    time: with all backwards split device 0 works 4 (3 + 3.3 + 3.3) = 38.4 s."""
    one = setting()
    built = build_rows(pipeline(3), one, AUTO)
    assert built.makespan == pytest.approx(36)
    assert {op for op, _, _ in built.rows[0]} == {"F", "B"}
    assert one.simulate(one.lower(encode(changed(pipeline(3), rows=built.rows)))).makespan == pytest.approx(36)


def test_where_halves_cost_nothing_all_backwards_stay_split() -> None:
    built = build_rows(pipeline(2), setting(half=0.0), AUTO)
    assert built.split == {0, 1}
    assert built.makespan == pytest.approx(2 + MICROBATCHES * 6)  # device 1 waits for one F of two layers, and no more


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_updates_count(cut: int) -> None:
    one = setting(update=7.0)
    built = build_rows(pipeline(cut), one, AUTO)
    simulated = one.simulate(one.lower(encode(changed(pipeline(cut), rows=built.rows)))).makespan
    assert built.makespan == pytest.approx(simulated)
    assert built.makespan >= build_rows(pipeline(cut), setting(), AUTO).makespan


def test_a_cut_by_costs_counts_the_update() -> None:
    """Per microbatch a layer takes 3 s, the first one with an update of 36 s takes 3 + 36 / 4 = 12: as much as the
    other three and one more."""
    assert cut_by_costs(pipeline(2), setting()) == [2]
    assert cut_by_costs(pipeline(2), setting(update=36.0)) == [1]


@pytest.mark.parametrize("layers", [1, 2, 4, 7])
def test_one_device_recomputes_no_more_layers_than_memory_asks_for(layers: int) -> None:
    """Two replicas, each with all sixteen equal layers in two stages on one device. A stage of n layers that is
    recomputed saves what n layers keep: when its backward runs, nothing is left of the later stage."""
    free = emulated(devices=2, samples=4)
    rows = [item for mb in range(2) for item in (("F", 0, mb), ("F", 1, mb), ("B", 1, mb), ("B", 0, mb))]
    design = Design(
        microbatches=2, placement=((0, 1), (0, 1)), rows=(tuple(rows),), rule=Rule("rows"), cut=(layers,),
        recompute=frozenset({0}), bucket_size=(None, None),
    )  # fmt: skip
    peak = max(free.simulate(free.lower(encode(design))).peak_bytes)
    tight = emulated(devices=2, samples=4, limit=peak + 500_000)  # half a layer, for what a stage receives
    assert cut_in_bound(design, tight, (8,)) == (layers,)
