"""Numbers that were not computed, or not as precisely as they should be: the judge refuses each on real workers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import cheats
import pytest
import torch
from eager_trainer import EagerTrainer

from pibroch.evals import judge as judging
from pibroch.evals.judge import Verdict, audit, judge
from pibroch.evals.models import load_workload
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.plan import Plan
from pibroch.runtime.verify import verify


@pytest.fixture(scope="module")
def trainer() -> Iterator[cheats.CheatingTrainer]:
    schedule = build("1f1b", devices=2, microbatches=2)
    with cheats.CheatingTrainer(load_workload("mlp-tiny"), schedule, launcher="local", deadline=30) as trainer:
        trainer.prepare()
        yield trainer


def test_the_honest_run_passes(trainer: cheats.CheatingTrainer) -> None:
    with trainer.training(model=cheats.model):
        verdict = judge(trainer, peak=False)
    assert verdict.ok, verdict
    assert verdict.bitwise


@pytest.mark.parametrize("change", ["dropout", "norm"])
def test_an_honest_run_passes_from_wherever_it_stands(trainer: cheats.CheatingTrainer, change: str) -> None:
    """Dropout draws by the step's number, and batch statistics are part of where a run stands."""
    honest = trainer.workload
    with trainer.training(model=partial(cheats.model, change)):
        trainer.workload = replace(honest, model=partial(cheats.model, change))
        for step in range(2):
            trainer.step(trainer.workload.batch(trainer.batch_size, step))
        verdict = audit(trainer, steps=2)
    assert verdict.ok, verdict
    assert verdict.bitwise


# Results that belong to others


def test_no_reference_is_computed_before_the_run_has_handed_its_numbers_over(
    trainer: cheats.CheatingTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step could read of freed memory is its own: when it runs, the right numbers do not exist anywhere."""
    order: list[str] = []
    call, make = trainer.pool.call, judging.reference_for

    def calls(method: str, args: Any = None) -> list[Any]:
        order.append(method)
        return call(method, args)

    class Reference:
        def __init__(self, inner: Any) -> None:
            self.inner, self.name, self.device = inner, inner.name, inner.device

        def gradients(self, batch: Any) -> Any:
            order.append("REFERENCE")
            return self.inner.gradients(batch)

        def update(self, gradients: Mapping[str, torch.Tensor]) -> Any:
            return self.inner.update(gradients)

    monkeypatch.setattr(trainer.pool, "call", calls)
    monkeypatch.setattr(judging, "reference_for", lambda t: Reference(make(t)))
    assert judge(trainer, steps=2, peak=False).ok
    told = [name for name in order if name in ("step", "values", "gradients", "REFERENCE")]
    step = ["step", "values", "gradients", "REFERENCE"]
    assert told[: len(step)] == step
    assert told[len(step) :][-len(step) - 1 : -1] == step  # the last values are those of state_dict()


def test_a_worker_finds_no_reference_to_copy_from(trainer: cheats.CheatingTrainer) -> None:
    with trainer.cheating(cheats.Peeks):
        assert not judge(trainer, steps=1, peak=False).ok


def stale_saved(plan: Plan) -> Plan:
    """The second microbatch's backward reads what the first one saved."""
    wrong = copy.deepcopy(plan)
    kinds = {b.id: b.kind for b in wrong.buffers}
    first, second = [t for t in wrong.tasks if t.op == "B" and t.stage == 0 and t.mb in (0, 1)][:2]
    old = next(b for b in second.reads if kinds[b] == "saved")
    new = next(b for b in first.reads if kinds[b] == "saved")
    second.reads = tuple(new if b == old else b for b in second.reads)
    return wrong


def never_sent(plan: Plan) -> Plan:
    """The receiver reads memory that nothing has arrived in."""
    return cheats.without(plan, lambda t: t.op in ("SEND", "RECV") and t.payload == "F" and t.mb == 1)


@pytest.mark.parametrize("cheat", [stale_saved, never_sent], ids=lambda f: f.__name__)
def test_plans_that_read_what_is_not_there(trainer: cheats.CheatingTrainer, cheat: Callable[[Plan], Plan]) -> None:
    assert {v.rule for v in verify(cheat(trainer.plan), model=trainer.captured.spec)} & {"V1", "V3", "V6"}


# Results from memory


def test_a_remembered_update_is_stale_in_the_second_step(trainer: cheats.CheatingTrainer) -> None:
    with trainer.cheating(cheats.Remembers):
        assert judge(trainer, steps=1, peak=False).ok  # which is why there are three
        verdict = judge(trainer, steps=2, peak=False)
    assert not verdict.ok
    assert verdict.worst.endswith("step 1")


@pytest.mark.parametrize("loss", [cheats.remembers, cheats.by_address])
def test_a_memory_in_the_model_does_not_reach_the_workers(trainer: cheats.CheatingTrainer, loss: Any) -> None:
    """They run the captured operators: after the tracer there is no dictionary to look anything up in."""
    cheats.MEMORY.clear()
    with trainer.training(loss=loss):
        modules = {n.target.__module__ for n in trainer.captured.graph.nodes if n.op == "call_function"}
        assert {(module or "torch").partition(".")[0] for module in modules} <= {"torch", "_operator"}
        assert judge(trainer, peak=False).ok
    cheats.MEMORY.clear()


def test_a_remembered_result_from_before_the_capture_is_refused(trainer: cheats.CheatingTrainer) -> None:
    sample = trainer.workload.batch(trainer.workload.microbatch, 0)
    cheats.MEMORY.clear()
    cheats.remembers(trainer.workload.model(), sample)
    with pytest.raises(InputError, match="is no parameter of the model"), trainer.training(loss=cheats.remembers):
        pass
    cheats.MEMORY.update({key: value.detach() for key, value in cheats.MEMORY.items()})
    with pytest.raises(InputError, match="does not depend on any trainable"), trainer.training(loss=cheats.remembers):
        pass
    cheats.MEMORY.clear()


def test_a_memory_inside_of_the_workers_is_found(trainer: cheats.CheatingTrainer) -> None:
    with trainer.training(model=partial(cheats.model, "kept")):
        targets = {getattr(node.target, "__name__", "") for node in trainer.captured.graph.nodes}
        assert "kept_linear" in targets  # the user's own function, by name
        assert not judge(trainer, steps=1, peak=False).ok


def test_a_constant_for_a_known_input_is_refused(trainer: cheats.CheatingTrainer) -> None:
    with pytest.raises(InputError, match="data-dependent"), trainer.training(loss=cheats.constant):
        pass


def test_nobody_knows_the_judges_inputs() -> None:
    asked: list[int] = []
    work = load_workload("mlp-tiny")

    def batch(size: int, step: int) -> Any:
        asked.append(step)
        return work.batch(size, step)

    trainer = EagerTrainer(work)
    trainer.workload = replace(work, batch=batch)
    for _ in range(3):
        assert judge(trainer, steps=2, peak=False).ok  # type: ignore[arg-type]
    assert len(set(asked)) == 6


# Results that are not numbers, or less precise ones


def test_nan_is_no_wildcard_even_where_the_reference_has_it_too(trainer: cheats.CheatingTrainer) -> None:
    honest = trainer.workload
    with trainer.training(model=partial(cheats.model, "nan")):
        trainer.workload = replace(honest, model=partial(cheats.model, "nan"))  # the reference is NaN too
        verdict = judge(trainer, peak=False)
    assert trainer.workload is honest
    assert not verdict.ok
    assert verdict.max_rel_loss_err == verdict.max_rel_grad_err == float("inf")


@pytest.mark.parametrize("change", ["half", "narrow", "detached", "frozen"])
def test_a_graph_that_computes_less_than_the_model(trainer: cheats.CheatingTrainer, change: str) -> None:
    """The replay runs that very graph and agrees with it bitwise: the uncaptured model does not."""
    with trainer.training(model=partial(cheats.model, change)):
        verdict = judge(trainer, peak=False)
    assert not verdict.ok
    if change in ("half", "narrow"):
        assert verdict.bitwise
        assert verdict.worst.startswith("the captured graph is not the model")


def test_half_precision_in_the_update(trainer: cheats.CheatingTrainer) -> None:
    with trainer.cheating(cheats.Halved):
        assert not judge(trainer, steps=1, peak=False).ok


def test_single_precision_does_not_pass_for_double() -> None:
    assert judge(EagerTrainer(load_workload("mlp-tiny"))).ok  # type: ignore[arg-type]
    verdict = judge(EagerTrainer(load_workload("mlp-tiny"), fault="single precision"))  # type: ignore[arg-type]
    assert not verdict.ok
    assert 1e-10 < verdict.max_rel_grad_err < 1e-4  # a tolerance for single precision would have let it pass


def half_transfers(plan: Plan) -> Plan:
    """Activations travel in half precision."""
    wrong = copy.deepcopy(plan)
    for buffer in wrong.buffers:
        if buffer.kind in ("activation", "received"):
            buffer.tensors = tuple(replace(t, dtype="float16") for t in buffer.tensors)
            buffer.nbytes //= 2
    return wrong


def test_half_precision_in_transfers_is_refused_before_it_runs(trainer: cheats.CheatingTrainer) -> None:
    assert verify(half_transfers(trainer.plan), model=trainer.captured.spec)


# Answers for themselves


def test_gradients_that_are_equal_to_everything(trainer: cheats.CheatingTrainer) -> None:
    mine, right = torch.zeros(2).as_subclass(cheats.Agreeable), torch.ones(2)
    assert torch.equal(mine, right)  # the object's own word
    with trainer.cheating(cheats.Agrees):
        verdict: Verdict = judge(trainer, steps=1, peak=False)
    assert not verdict.ok
    assert "a Agreeable instead of a plain tensor" in verdict.worst
