"""Steps that look shorter than they are: work behind the clock, other clocks, and less work once it has been judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cheats
import pytest

from pibroch.evals.judge import audit, fresh_batches, judge
from pibroch.evals.models import load_workload
from pibroch.evals.roofline import floor_seconds, implausible
from pibroch.evals.setting import Setting
from pibroch.evals.task import Task
from pibroch.evals.timing import sample
from pibroch.runtime.costs import AnalyticCosts, UnitCosts
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.lower import lower
from pibroch.runtime.model import uniform_model
from pibroch.runtime.plan import Plan
from pibroch.runtime.plan import Task as PlanTask

REDUCTION = 0.25  # seconds that a reduction takes at least; long enough that no step without it is as long


class SlowReductions(UnitCosts):
    """Compute takes its own time, and every reduction of the last device a long one."""

    def seconds(self, plan: Plan, chunk: Any, op: str) -> float:
        return 0.0

    def collective(self, plan: Plan, task: PlanTask) -> float:
        return REDUCTION if task.device == plan.devices - 1 else 0.0


@pytest.fixture(scope="module")
def trainer() -> Iterator[cheats.CheatingTrainer]:
    """Two replicas of one stage, whose reductions are slow on the second rank only."""
    schedule = build("1f1b", devices=1, microbatches=2, replicas=2)
    with cheats.CheatingTrainer(
        load_workload("mlp-tiny"), schedule, launcher="local", deadline=30, emulate=SlowReductions()
    ) as trainer:
        trainer.prepare()
        yield trainer


def step_seconds(trainer: cheats.CheatingTrainer) -> float:
    """Wall seconds of one step, by the judge's clock."""
    batch = trainer.workload.batch(trainer.batch_size, 0)
    return sample(lambda: trainer.step(batch)).wall


def test_the_honest_run_passes_before_and_after_timed_steps(trainer: cheats.CheatingTrainer) -> None:
    assert judge(trainer, steps=2, peak=False).ok
    for _ in range(2):
        assert step_seconds(trainer) >= REDUCTION
    verdict = audit(trainer, steps=2)
    assert verdict.ok, verdict
    assert verdict.bitwise
    assert trainer.steps_done == 4


# Work on another stream or thread


def test_the_clock_waits_for_a_stream_that_nobody_waits_for(trainer: cheats.CheatingTrainer) -> None:
    """The updates do not wait for the sum: the compute streams end at once, the reduction of one rank later."""
    right, wrong = trainer.plan, cheats.without(trainer.plan, lambda t: False)
    for task in wrong.tasks:
        if task.op == "UPDATE":
            task.waits = ()
    trainer.load_plan(wrong)
    batch = trainer.workload.batch(trainer.batch_size, 0)
    reported: list[float] = []
    wall = sample(lambda: reported.append(trainer.step(batch).seconds)).wall
    trainer.load_plan(right)
    assert wall >= REDUCTION
    assert reported[0] >= REDUCTION


def test_a_thread_that_outlives_the_step_comes_too_late(trainer: cheats.CheatingTrainer) -> None:
    with trainer.cheating(cheats.Late):
        verdict = judge(trainer, steps=1, peak=False)
    assert not verdict.ok
    assert verdict.max_rel_grad_err == 0  # the gradients were there, the update was not


@pytest.mark.parametrize("loss", [cheats.threaded, cheats.deferred], ids=["thread", "lazy tensor"])
def test_a_loss_that_is_computed_elsewhere_is_no_graph(
    trainer: cheats.CheatingTrainer, loss: Callable[..., Any]
) -> None:
    with pytest.raises(InputError), trainer.training(loss=loss):
        pass


# Clocks


def test_a_model_cannot_touch_the_clock(trainer: cheats.CheatingTrainer) -> None:
    with pytest.raises(InputError, match="cannot be captured"), trainer.training(loss=cheats.stops_clocks):
        pass


def test_clocks_that_a_users_module_stops_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("monotonic", "perf_counter", "time", "process_time", "sleep"):
        monkeypatch.setattr(time, name, getattr(time, name))  # put back afterwards
    (tmp_path / "stops_clocks_on_import.py").write_text(
        "import cheats\ncheats.stop_clocks()\nfrom pibroch.evals.models import load_workload\n"
        "def workload():\n    return load_workload('mlp-tiny')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    work = load_workload("stops_clocks_on_import:workload")
    assert time.perf_counter() == time.perf_counter() == time.monotonic()  # they stand still
    assert sample(lambda: work.batch(100_000, 0)).wall > 0


def test_clocks_that_code_in_a_worker_stops(trainer: cheats.CheatingTrainer) -> None:
    """Nor does the worker's own report get shorter, or an emulated task."""
    with trainer.cheating(cheats.StopsClocks):
        batch = trainer.workload.batch(trainer.batch_size, 0)
        reported: list[float] = []
        wall = sample(lambda: reported.append(trainer.step(batch).seconds)).wall
    assert wall >= REDUCTION
    assert wall >= reported[0] >= REDUCTION


# Less work once it has been judged


def test_updates_that_stop_when_the_judge_has_gone(trainer: cheats.CheatingTrainer) -> None:
    with trainer.cheating(partial(cheats.Skips, steps=3)):
        assert judge(trainer, steps=2, peak=False).ok
        for step in range(4):
            trainer.step(trainer.workload.batch(trainer.batch_size, step))
        verdict = audit(trainer)
    assert not verdict.ok
    assert verdict.max_rel_grad_err == 0


@pytest.mark.parametrize(
    ("model", "batch", "problem"),
    [("mlp-tiny", cheats.fewer_later, "returned 4 samples"), ("gpt-tiny", cheats.shorter_later, "differ in shape")],
)
def test_batches_that_shrink(model: str, batch: Callable[[int, int], Any], problem: str) -> None:
    work = load_workload(model)
    assert len(fresh_batches(work, 8, 4, seed=1)) == 4
    cheats.CALLS.clear()
    with pytest.raises(InputError, match=problem):
        fresh_batches(replace(work, batch=batch), 8, 4, seed=1)


# Fewer iterations


def test_a_schedule_cannot_do_fewer_samples() -> None:
    task = Task(name="small", title="Small", model="mlp-tiny", devices=2, samples=8, intent="Fast.")
    setting = Setting(task, load_workload("mlp-tiny"))
    with pytest.raises(InputError, match="do not divide"):
        setting.lower(build("1f1b", devices=2, microbatches=3))
    for devices, replicas, microbatches in ((2, 1, 2), (2, 1, 8), (1, 2, 1)):
        plan = setting.lower(build("gpipe", devices=devices, replicas=replicas, microbatches=microbatches))
        size = setting.model(replicas, microbatches).values  # the boundary's shape begins with a microbatch's samples
        held = {spec.shape[0] for spec in size.values()}
        assert {plan.replicas * plan.microbatches * samples for samples in held} == {8}


def test_tokens_are_those_of_the_batch_that_ran(trainer: cheats.CheatingTrainer) -> None:
    whole = trainer.step(trainer.workload.batch(8, 0)).tokens
    half = trainer.step(trainer.workload.batch(4, 0)).tokens
    trainer.step(trainer.workload.batch(8, 0))
    assert whole == 2 * half == 8


# Above the roofline


def plan_of(schedule: Schedule) -> Plan:
    return lower(schedule, uniform_model(4))


def test_the_floor_is_the_closed_form_without_communication() -> None:
    plan = plan_of(build("1f1b", devices=2, microbatches=4))
    assert floor_seconds(plan, UnitCosts()) == pytest.approx((4 + 2 - 1) * 3)  # (m + p - 1) (F + B)
    slow = AnalyticCosts(flops_per_s=1.0, bandwidth=1e-6, latency=1e3)
    busy = sum(slow.compute(plan, t) for t in plan.of(0) if t.stream == "compute")
    assert busy <= floor_seconds(plan, slow) < 1e3 * 2  # neither latency nor bandwidth


def test_a_step_below_the_floor_is_not_believed() -> None:
    plan = plan_of(build("1f1b", devices=2, microbatches=4))
    assert implausible(15.0, plan, UnitCosts(), emulated=True) is None
    assert "above the roofline" in str(implausible(14.8, plan, UnitCosts(), emulated=True))
    assert implausible(9.1, plan, UnitCosts(), emulated=False) is None  # measured times may be too long
    for seconds in (8.9, 0.0, float("nan")):
        assert implausible(seconds, plan, UnitCosts(), emulated=False)
