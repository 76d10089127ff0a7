"""Steps that do less than training: the verifier refuses such plans, and so does the judge once they really run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cheats
import pytest

from pibroch.evals.judge import judge
from pibroch.evals.models import load_workload
from pibroch.runtime.families import build
from pibroch.runtime.plan import Plan
from pibroch.runtime.verify import verify


@pytest.fixture(scope="module")
def trainer() -> Iterator[cheats.CheatingTrainer]:
    schedule = build("zb-h1", devices=2, microbatches=2, replicas=2)
    with cheats.CheatingTrainer(load_workload("mlp-tiny"), schedule, launcher="local", deadline=30) as trainer:
        trainer.prepare()
        yield trainer


def skipped_microbatch(plan: Plan) -> Plan:
    """The second microbatch of the second replica never runs, and the others make up for its weight."""
    wrong = cheats.without(plan, lambda t: t.mb == 1 and t.replica == 1)
    for task in wrong.tasks:
        if task.scale and task.replica == 1:
            task.scale = (2 * task.scale[0], task.scale[1])
    return wrong


def skipped_microbatch_everywhere(plan: Plan) -> Plan:
    wrong = cheats.without(plan, lambda t: t.mb == 1)
    for task in wrong.tasks:
        if task.scale:
            task.scale = (2 * task.scale[0], task.scale[1])
    return wrong


def skipped_backward(plan: Plan) -> Plan:
    """The loss of every microbatch is computed, the gradients of one are not."""
    return cheats.without(plan, lambda t: t.mb == 1 and (t.op in ("B", "BI", "BW") or t.payload == "B"))


def skipped_updates(plan: Plan) -> Plan:
    return cheats.without(plan, lambda t: t.op == "UPDATE")


def skipped_update_of_one_stage(plan: Plan) -> Plan:
    return cheats.without(plan, lambda t: t.op == "UPDATE" and t.stage == 1)


def dropped_reductions(plan: Plan) -> Plan:
    """Every replica trains by itself."""
    return cheats.without(plan, lambda t: t.op == "REDUCE")


def dropped_reduction_of_one_stage(plan: Plan) -> Plan:
    return cheats.without(plan, lambda t: t.op == "REDUCE" and t.device in (1, 3))


def reduced_with_itself(plan: Plan) -> Plan:
    """Every reduction is still there, over one member, with the weight that one replica alone would have."""
    wrong = copy.deepcopy(plan)
    for bucket in wrong.buckets:
        bucket.group = bucket.group[:1]
    for task in wrong.tasks:
        if task.op == "REDUCE":
            task.group = task.group[:1]
        if task.scale:
            task.scale = (2 * task.scale[0], task.scale[1])
    return cheats.without(wrong, lambda t: t.op == "REDUCE" and t.device not in t.group)


def frozen_weights(plan: Plan) -> Plan:
    """Gradients of inputs only: nothing that BW would have given."""
    return cheats.without(plan, lambda t: t.op == "BW")


def frozen_weights_of_one_stage(plan: Plan) -> Plan:
    return cheats.without(plan, lambda t: t.op == "BW" and t.stage == 0)


def updated_before_the_sum(plan: Plan) -> Plan:
    """Updates do not wait for the reductions; here these wait for the updates, so that it is no matter of luck."""
    wrong = copy.deepcopy(plan)
    reductions = {t.id for t in wrong.tasks if t.op == "REDUCE"}
    for task in wrong.tasks:
        if task.op == "UPDATE":
            task.waits = tuple(i for i in task.waits if i not in reductions)
    for device, streams in wrong.streams.items():
        updates = [i for i in streams["compute"] if wrong.tasks[i].op == "UPDATE"]
        for i in reductions:
            if wrong.tasks[i].device == device:
                wrong.tasks[i].waits = (updates[-1],)
    return wrong


def left_out_replica(plan: Plan) -> Plan:
    """The ranks of the second replica ran out of memory: the first one's gradients count twice."""
    wrong = reduced_with_itself(plan)
    return cheats.without(wrong, lambda t: t.device in (2, 3))


def left_out_loss(plan: Plan) -> Plan:
    """The gradient of one microbatch counts nothing."""
    wrong = copy.deepcopy(plan)
    next(t for t in wrong.tasks if t.scale and t.mb == 1).scale = (0, 1)
    return wrong


CHEATS = [
    skipped_microbatch, skipped_microbatch_everywhere, skipped_backward, skipped_updates, skipped_update_of_one_stage,
    dropped_reductions, dropped_reduction_of_one_stage, reduced_with_itself, frozen_weights,
    frozen_weights_of_one_stage, updated_before_the_sum, left_out_replica, left_out_loss,
]  # fmt: skip


def test_the_honest_plan_passes(trainer: cheats.CheatingTrainer) -> None:
    assert not verify(trainer.plan, model=trainer.captured.spec)
    verdict = cheats.judged(trainer, copy.deepcopy(trainer.plan), steps=2)
    assert verdict.ok, verdict
    assert verdict.bitwise


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda f: f.__name__)
def test_a_plan_that_does_less_is_refused(trainer: cheats.CheatingTrainer, cheat: Callable[[Plan], Plan]) -> None:
    plan = cheat(trainer.plan)
    assert verify(plan, model=trainer.captured.spec)
    verdict = cheats.judged(trainer, plan)
    assert not verdict.ok
    assert verdict.worst


OPTIMIZERS = {
    "skips every update": partial(cheats.Skips, steps=0),
    "skips from the second update on": partial(cheats.Skips, steps=1),
    "freezes a layer": cheats.Frozen,
    "leaves out the rank that ran out of memory": cheats.OutOfMemory,
    "returns before it is done": cheats.Late,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_does_less_is_refused(trainer: cheats.CheatingTrainer, name: str) -> None:
    optimizer: Any = OPTIMIZERS[name]
    with trainer.cheating(optimizer):
        verdict = judge(trainer, steps=2, peak=False)
    assert not verdict.ok
    assert "rank" in verdict.worst


@pytest.mark.parametrize("change", ["frozen", "detached"])
def test_a_layer_that_is_frozen_in_the_graph_is_refused(trainer: cheats.CheatingTrainer, change: str) -> None:
    with trainer.training(model=partial(cheats.model, change)):
        assert not judge(trainer, steps=1, peak=False).ok


def test_a_rank_without_weights_is_missed(trainer: cheats.CheatingTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replica's other ranks hold the right ones, and would have passed alone."""
    call = trainer.pool.call

    def without_the_last(method: str, args: Any = None) -> Any:
        found = call(method, args)
        return [*found[:-1], ({}, {})] if method == "values" else found

    monkeypatch.setattr(trainer.pool, "call", without_the_last)
    verdict = judge(trainer, steps=1, peak=False)
    assert not verdict.ok
    assert verdict.worst.endswith("rank 3, step 0: missing")
