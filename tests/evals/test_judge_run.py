"""The judge on real workers: right plans pass, and every kind of broken plan is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest

from pibroch.evals import bench_equivalence
from pibroch.evals.judge import judge, negative_control
from pibroch.evals.models import load_workload
from pibroch.runtime.families import build
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.trainer import Trainer


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    schedule = build("1f1b", devices=2, microbatches=2, replicas=2)
    with Trainer(load_workload("mlp-tiny"), schedule, launcher="local") as trainer:
        yield trainer


def tasks(plan: Plan, op: str) -> list[Task]:
    return [task for task in plan.tasks if task.op == op]


def no_reduction(plan: Plan) -> None:
    """Every replica keeps its own gradients of one bucket."""
    dropped = {task.id for task in tasks(plan, "REDUCE") if task.bucket == 0}
    for streams in plan.streams.values():
        for name, ids in streams.items():
            streams[name] = [i for i in ids if i not in dropped]
    for task in plan.tasks:
        task.waits = tuple(i for i in task.waits if i not in dropped)


def late_replica_alone(plan: Plan) -> None:
    """The second replica's update does not happen: its weights stay as they were."""
    for device in (2, 3):
        compute = plan.streams[device]["compute"]
        plan.streams[device]["compute"] = [i for i in compute if plan.tasks[i].op != "UPDATE"]


def crossed_transfers(plan: Plan) -> None:
    """Two activations of one device arrive in each other's place."""
    first, second = [task for task in tasks(plan, "SEND") if task.device == 0 and task.payload == "F"][:2]
    for field in ("reads", "frees", "waits"):
        a, b = getattr(first, field), getattr(second, field)
        setattr(first, field, b)
        setattr(second, field, a)


def dropped_microbatch(plan: Plan) -> None:
    """One microbatch's backward contributes nothing."""
    next(task for task in plan.tasks if task.scale and task.mb == 1).scale = (0, 1)


def repeated_microbatch(plan: Plan) -> None:
    """Microbatch 0 runs twice, in the place of microbatch 1."""
    for task in tasks(plan, "F"):
        task.mb = 0


def dropped_scale(plan: Plan) -> None:
    """Sums instead of averages."""
    for task in plan.tasks:
        task.scale = (1, 1) if task.scale else None


FAULTS = [no_reduction, late_replica_alone, crossed_transfers, dropped_microbatch, repeated_microbatch, dropped_scale]


def test_a_right_plan_passes_bitwise_and_its_bytes_are_counted(trainer: Trainer) -> None:
    verdict = judge(trainer, seed=1)
    assert verdict.ok, verdict
    assert verdict.bitwise
    assert verdict.reference == "replay"
    assert len(verdict.peak_bytes) == 4
    # Four layers of 16 x 16 weights and 16 biases per stage, with gradients and two optimizer slots, in float32.
    assert min(verdict.peak_bytes) >= 4 * 4 * (16 * 16 + 16) * 4


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_broken_plans_are_refused(trainer: Trainer, fault: Callable[[Plan], None]) -> None:
    right = trainer.plan
    wrong = copy.deepcopy(right)
    fault(wrong)
    trainer.load_plan(wrong)
    try:
        verdict = judge(trainer, seed=1, steps=1, peak=False)
    finally:
        trainer.load_plan(right)
    assert not verdict.ok
    assert verdict.worst


def test_the_negative_control_leaves_a_run_that_passes(trainer: Trainer) -> None:
    assert negative_control(trainer, seed=1)
    assert judge(trainer, seed=1, steps=1, peak=False).ok


@pytest.mark.slow
def test_equivalence_over_cells_that_span_the_grid() -> None:
    result = bench_equivalence.run(bench_equivalence.spanning_cells())
    assert result["ok"], bench_equivalence.report(result)
    assert {row["reference"] for row in result["cells"]} == {"replay", "unsplit"}
    assert all(row["bitwise"] for row in result["cells"] if row["reference"] == "replay")


def test_excluded_cells_come_with_their_reason() -> None:
    assert "3 stages do not divide by 2" in str(bench_equivalence.Cell("interleaved", 3, 1, 2).excluded())
    assert bench_equivalence.Cell("interleaved", 4, 2, 5).excluded() is None
    cells = bench_equivalence.grid()
    assert len(cells) == 4 * 4 * 2 * 5
    assert max(cell.devices * cell.replicas for cell in cells) == 8
