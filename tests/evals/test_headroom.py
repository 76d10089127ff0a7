"""The lower bound against closed forms, and against every schedule that chance makes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pibroch.evals.headroom import bound_of, fits, headroom, layer_times, lower_bound, paths, table
from pibroch.evals.models import load_workload
from pibroch.evals.setting import Setting, open_setting
from pibroch.evals.task import Task, find_task
from pibroch.runtime.costs import UnitCosts
from pibroch.runtime.directives import AnyDirective, Cut, Place, Recompute, Replicate, Schedule, Split
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import FAMILIES, build, excluded
from pibroch.runtime.model import LayerSpec, ModelSpec, ParamSpec, TensorSpec, uniform_model
from pibroch.runtime.profile import Profile, ProfileLayer, load_profile


def unit_bound(*, layers: int, devices: int, microbatches: int) -> float:
    model = uniform_model(layers)
    times = layer_times(model, UnitCosts(), replicas=1)
    return bound_of(times, paths(model, times), devices=devices, replicas=1, microbatches=microbatches)


def test_closed_forms_under_unit_costs() -> None:
    # One microbatch: there and back, with W of the first stage at the end: 4 F, 4 BI and one BW.
    assert unit_bound(layers=4, devices=4, microbatches=1) == pytest.approx(4 + 4 + 1)
    # One device: all work.
    assert unit_bound(layers=4, devices=1, microbatches=5) == pytest.approx(5 * 4 * 3)
    # Four stages on four devices: the last one waits for 3 forwards, then has its m x 3.
    assert unit_bound(layers=4, devices=4, microbatches=8) == pytest.approx(3 + 8 * 3)
    # Three equal layers on two devices: one of these has two.
    assert unit_bound(layers=3, devices=2, microbatches=10) >= 10 * 2 * 3


def test_the_bound_of_the_closed_forms_is_reached_by_a_zero_bubble_schedule() -> None:
    # ZB-H1 with p = 2 and m = 4 takes 13 (published), which is m x 3 and one F of fill.
    assert unit_bound(layers=2, devices=2, microbatches=4) == pytest.approx(13)


def test_persistent_bytes_decide_which_replicas_fit() -> None:
    model = uniform_model(4, param_bytes=100)  # with its gradient and two slots 400 bytes a layer
    assert fits(model, devices=2, replicas=1, limit=800)
    assert not fits(model, devices=2, replicas=1, limit=799)
    assert not fits(model, devices=2, replicas=2, limit=1599)
    assert fits(model, devices=2, replicas=2, limit=None)
    assert not fits(uniform_model(3, param_bytes=100), devices=2, replicas=1, limit=700)  # two of three share one


def test_headroom_is_relative_to_the_bound() -> None:
    assert headroom(2.0, 2.5) == pytest.approx(0.25)


def chain(draw: st.DrawFn) -> Profile:
    number = st.integers(0, 5).map(float)
    layers = [
        ProfileLayer(
            name="layer", forward=draw(number), backward_input=draw(number), backward_weight=draw(number),
            parameter_bytes=2 * draw(st.integers(1, 50)), saved_bytes=draw(st.integers(0, 50)),
            weight_saved_bytes=draw(st.integers(0, 50)), boundary_bytes=2 * draw(st.integers(1, 5)),
        )
        for _ in range(draw(st.integers(1, 6)))
    ]  # fmt: skip
    link: dict[str, Any] = {"latency": draw(number) / 10, "bandwidth": draw(st.sampled_from((1.0, 4.0, 1e9)))}
    many = {f"collective_{name}": value for name, value in link.items()}
    return replace(load_profile("equal-8"), layers=tuple(layers), cut=(), **link, **many)


def graph(draw: st.DrawFn) -> ModelSpec:
    """A model whose layers consume from any earlier ones."""
    count = draw(st.integers(2, 5))
    sources = [draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set[int]() for i in range(count)]
    used = [i for i in range(count) if any(i in s for s in sources)]
    sources[-1] |= {i for i in range(count - 1) if i not in used}  # all reach the loss
    return ModelSpec(
        name="graph",
        layers=tuple(
            LayerSpec(
                index=i, tags={"LAYER": i}, params=(f"w{i}",), consumes=tuple(f"h{s}" for s in sorted(sources[i])),
                produces=(f"h{i}",) if i < count - 1 else (), saved_bytes=8, weight_saved_bytes=8,
                flops=float(draw(st.integers(1, 4))),
            )
            for i in range(count)
        ),
        params={f"w{i}": ParamSpec(f"w{i}", (draw(st.integers(1, 9)),)) for i in range(count)},
        values={f"h{i}": TensorSpec((2,), grad=draw(st.booleans()) or i == count - 2) for i in range(count - 1)},
    )  # fmt: skip


def schedule(draw: st.DrawFn, *, layers: int, devices: int, samples: int) -> Schedule:
    """A family, or stages placed anywhere (replicas may cross each other's devices)."""
    replicas = draw(st.sampled_from([k for k in range(1, devices + 1) if samples % k == 0]))
    microbatches = samples // replicas
    if draw(st.booleans()):
        family, per_device = draw(st.sampled_from(FAMILIES)), draw(st.integers(1, 2))
        positions = max(devices // replicas, 1)
        numbers: dict[str, Any] = {"devices": positions, "microbatches": microbatches, "replicas": replicas}
        if excluded(family, stages_per_device=per_device, **numbers):
            raise InputError("excluded")
        return build(family, stages_per_device=per_device, recompute=draw(st.booleans()), **numbers)
    cut = sorted(draw(st.sets(st.integers(1, layers - 1)))) if layers > 1 else []
    directives: list[AnyDirective] = [Split(num_microbatches=microbatches)]
    directives += [Cut(at=cut)] if cut else []
    for stage in range(len(cut) + 1):
        members = draw(st.permutations(range(devices)))[:replicas]
        directives.append(Place(filter={"PP": stage}, devices=members))
        if replicas > 1:
            directives.append(Replicate(filter={"PP": stage}, devices=members))
    if draw(st.booleans()):
        directives.append(Recompute(filter={"LAYER": draw(st.integers(0, layers - 1))}))
    return Schedule(directives=directives)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Setting, Schedule]:
    devices, samples = draw(st.integers(1, 4)), draw(st.sampled_from((1, 2, 3, 4, 6)))
    task = Task(name="t", title="t", model="mlp:1", devices=devices, samples=samples, intent="t")
    workload = load_workload("mlp:1")
    if draw(st.booleans()):
        setting = Setting(task, workload, chain(draw))
        layers = len(setting.model(1, samples).layers)
    else:
        model = graph(draw)
        setting = Setting(task, workload)
        setting._models.update(dict.fromkeys(range(1, samples + 1), model))
        layers = len(model.layers)
    try:
        return setting, schedule(draw, layers=layers, devices=devices, samples=samples)
    except InputError:
        return setting, Schedule(directives=[Split(num_microbatches=samples), Place(devices=[0])])


@settings(max_examples=300, deadline=None)
@given(cases())
def test_no_legal_schedule_is_below_the_bound(case: tuple[Setting, Schedule]) -> None:
    setting, schedule = case
    try:
        plan = setting.lower(schedule)
        simulation = setting.simulate(plan)
    except InputError:  # more stages than layers, devices without work, rows that wait for themselves
        return
    if setting.check(plan, simulation):
        return
    # With the memory that it needs as the bound it is legal still, and the bound may be higher.
    setting.task = setting.task.model_copy(update={"memory_limit": max(simulation.peak_bytes)})
    assert lower_bound(setting) <= simulation.makespan * (1 + 1e-9)


def test_the_table_has_a_bound_below_the_best_family() -> None:
    (row,) = table(["equal-8"])
    assert row["kind"] == "emulated"
    assert row["bound_s"] < row["best_family_s"]
    assert row["headroom"] == pytest.approx(row["best_family_s"] / row["bound_s"] - 1)
    # 24 MB hold no second replica: the best is one pipeline, whose ZB-H1 takes 27 units of 40 ms.
    assert row["best_family_s"] == pytest.approx(1.08, abs=1e-3)
    assert row["best_family"] == "zb-h1, 1 x 6 microbatches"


def test_memory_raises_the_bound_where_replicas_do_not_fit() -> None:
    free = open_setting(find_task("equal-8").model_copy(update={"memory_limit": None}))
    tight = Setting(free.task.model_copy(update={"memory_limit": 9_000_000}), free.workload, free.profile)
    assert lower_bound(tight) > lower_bound(free)
    assert math.isfinite(lower_bound(tight))
