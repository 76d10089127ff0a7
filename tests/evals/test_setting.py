"""Settings: divisions of the batch, sizes, one time scale under emulation, measured costs in place of guessed ones."""

from __future__ import annotations

import pytest

from pibroch.evals.layer_costs import LayerCosts
from pibroch.evals.models import load_workload
from pibroch.evals.setting import Setting, division, emulated_profile, open_setting
from pibroch.evals.task import Task, find_task, task_names
from pibroch.runtime.directives import Cut, Recompute, Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.profile import load_profile


def task(**fields: object) -> Task:
    return Task.model_validate(
        {"name": "t", "title": "t", "model": "mlp:4", "devices": 2, "samples": 12, "intent": "t", **fields}
    )


def test_divisions_of_a_measured_task_are_the_divisors() -> None:
    setting = Setting(task(), load_workload("mlp:4"))
    assert setting.choices(1) == (1, 2, 3, 4, 6, 12)
    assert setting.choices(2) == (1, 2, 3, 6)
    assert setting.choices(5) == ()
    assert setting.size(2, 3) == 2
    # Activations of two samples take twice the bytes of one.
    one, two = setting.model(1, 12), setting.model(1, 6)
    assert two.values[two.layers[1].consumes[0]].nbytes == 2 * one.values[one.layers[1].consumes[0]].nbytes
    with pytest.raises(InputError, match="12 samples"):
        setting.model(1, 5)


@pytest.mark.parametrize("name", [name for name in task_names() if find_task(name).emulate])
def test_an_emulated_task_fits_its_profile(name: str) -> None:
    setting = open_setting(find_task(name))
    assert setting.profile is not None
    assert setting.choices(1) == (setting.task.samples,)
    times = [t for x in setting.profile.layers for t in (x.forward, x.backward_input, x.backward_weight)]
    # The shortest operation that matters takes 20 ms; what is less than a tenth of the longest does not matter.
    assert min(t for t in times if t >= max(times) / 10) == pytest.approx(0.02)
    described = load_profile(str(setting.task.emulate))
    assert setting.profile.time_scale == pytest.approx(setting.profile.layers[1].forward / described.layers[1].forward)


def test_the_same_cut_must_fit_model_and_profile() -> None:
    with pytest.raises(InputError, match="mlp:16"):
        open_setting(task(model="mlp:15", emulate="equal-8"))
    assert emulated_profile("equal-8").time_scale == pytest.approx(2.0)  # layers of 10 ms


def test_lowering_refuses_more_devices_than_the_task_has() -> None:
    setting = Setting(task(), load_workload("mlp:4"))
    assert division(build("1f1b", devices=1, microbatches=3, replicas=2)) == (2, 3)
    with pytest.raises(InputError, match="2 devices"):
        setting.lower(build("1f1b", devices=3, microbatches=4))


def test_the_memory_bound_is_checked_against_the_simulated_peak() -> None:
    setting = Setting(task(memory_limit=1), load_workload("mlp:4"))
    plan = setting.lower(build("1f1b", devices=2, microbatches=4))
    assert {v.rule for v in setting.check(plan, setting.simulate(plan))} == {"V7"}


MEASURED = LayerCosts(
    layers=tuple(
        {"F": (1.0, i), "B": (2.0, 2 * i), "BI": (1.0, i), "BW": (1.0, i + 1), "UPDATE": (0.5, 0.0)} for i in range(4)
    ),
    overhead={"F": 0.1, "B": 0.2, "BI": 0.3, "BW": 0.4},
    latency=0.01,
    bandwidth=1000.0,
)


def test_measured_costs_are_sums_over_layers_and_an_overhead_per_task() -> None:
    setting = Setting(task(), load_workload("mlp:4"), measured=MEASURED)
    schedule = build("1f1b", devices=2, microbatches=4)
    at_three = Schedule(directives=[*schedule.directives, Cut(at=[3]), Recompute(filter={"PP": 1})])
    plan = setting.lower(at_three)
    costs = setting.costs(1, 4)  # three samples each
    found = {(t.stage, t.op): costs.compute(plan, t) for t in plan.tasks if t.op in ("F", "B", "UPDATE")}
    assert found[0, "F"] == pytest.approx(3 * 1 + (0 + 1 + 2) * 3 + 0.1)
    assert found[0, "B"] == pytest.approx(3 * 2 + 2 * (0 + 1 + 2) * 3 + 0.2)
    assert found[1, "F"] == pytest.approx(1 + 3 * 3 + 0.1)
    assert found[1, "B"] == pytest.approx(2 + 2 * 3 * 3 + 0.2 + (1 + 3 * 3))  # and its forward again
    assert found[0, "UPDATE"] == pytest.approx(1.5)
    send = next(t for t in plan.tasks if t.op == "SEND")
    assert list(costs.transfer(plan, send)) == pytest.approx([0.01, 3 * 16 * 4 / 1000])
    least = setting.without_overhead().costs(1, 4)
    assert least.compute(plan, next(t for t in plan.tasks if t.op == "F")) == pytest.approx(found[0, "F"] - 0.1)


def test_measured_costs_survive_json() -> None:
    assert LayerCosts.from_json(MEASURED.to_json()) == MEASURED
    with pytest.raises(InputError, match="no field 'overhead'"):
        LayerCosts.from_json({k: v for k, v in MEASURED.to_json().items() if k != "overhead"})
    with pytest.raises(InputError, match="version 2"):
        LayerCosts.from_json({**MEASURED.to_json(), "version": 2})
