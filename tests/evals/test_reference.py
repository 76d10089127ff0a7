"""The references against gradients accumulated by hand, and what they take from a plan (an order, nothing else)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from pibroch.evals.gpt import GPT
from pibroch.evals.models import load_workload
from pibroch.evals.reference import Replay, Unsplit, exact_sums
from pibroch.runtime.capture import capture
from pibroch.runtime.captured import Captured
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.lower import lower
from pibroch.runtime.plan import Plan
from pibroch.runtime.workload import Workload


def captured_and_plan(workload: Workload, **options: int) -> tuple[Captured, Plan]:
    family = "interleaved" if options.get("stages_per_device", 1) > 1 else "1f1b"
    captured = capture(fresh(workload), workload.loss, workload.batch(workload.microbatch, 0), name=workload.name)
    return captured, lower(build(family, **options), captured.spec)  # type: ignore[arg-type]


def fresh(workload: Workload) -> nn.Module:
    torch.manual_seed(0)
    return workload.model()


def by_hand(workload: Workload, batch: dict[str, Tensor], order: list[int], weight: float) -> dict[str, Tensor]:
    """Gradients of the eager model, microbatch by microbatch in this order."""
    model = fresh(workload)
    for mb in order:
        part = slice(mb * workload.microbatch, (mb + 1) * workload.microbatch)
        loss = workload.loss(model, {name: t[part] for name, t in batch.items()})
        loss = loss[0] if isinstance(loss, tuple) else loss
        loss.backward(torch.tensor(weight))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_bitwise(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name, g in theirs.items():
        assert torch.equal(mine[name], g), name


def test_a_replay_equals_eager_accumulation_bitwise() -> None:
    workload = load_workload("gpt-tiny")
    replay = Replay(workload, *captured_and_plan(workload, devices=2, microbatches=3), seed=0)
    batch = workload.batch(6, 1)
    loss, gradients = replay.gradients(batch)
    assert_bitwise(gradients, by_hand(workload, batch, [0, 1, 2], 1 / 3))
    with torch.no_grad():
        assert loss == pytest.approx(float(workload.loss(fresh(workload), batch)), rel=1e-6)


def test_replicas_are_summed_in_rank_order() -> None:
    workload = load_workload("gpt-tiny")
    replay = Replay(workload, *captured_and_plan(workload, devices=1, microbatches=2, replicas=2), seed=0)
    batch = workload.batch(8, 1)
    first = by_hand(workload, batch, [0, 1], 1 / 4)
    second = by_hand(workload, batch, [2, 3], 1 / 4)
    assert_bitwise(replay.gradients(batch)[1], {name: first[name] + second[name] for name in first})


def test_the_order_is_the_plans_and_faults_of_the_plan_do_not_reach_the_reference() -> None:
    workload = load_workload("gpt-tiny")
    captured, plan = captured_and_plan(workload, devices=2, microbatches=3)
    batch = workload.batch(6, 1)
    turned = copy.deepcopy(plan)
    for streams in turned.streams.values():
        streams["compute"].reverse()
    assert_bitwise(
        Replay(workload, captured, turned, seed=0).gradients(batch)[1], by_hand(workload, batch, [2, 1, 0], 1 / 3)
    )
    broken = copy.deepcopy(plan)
    for task in broken.tasks:
        task.scale = (1, 1) if task.scale else None
    for streams in broken.streams.values():
        streams["compute"] = [i for i in streams["compute"] if not (broken.tasks[i].op == "B" and plan.tasks[i].mb > 0)]
    assert_bitwise(
        Replay(workload, captured, broken, seed=0).gradients(batch)[1], by_hand(workload, batch, [0, 1, 2], 1 / 3)
    )


def test_tied_weights_are_summed_per_device() -> None:
    workload = load_workload("gpt-tied")
    batch = workload.batch(4, 1)
    # Embedding and head on two devices: each accumulates over microbatches, then the two sums meet.
    two = Replay(workload, *captured_and_plan(workload, devices=2, microbatches=2), seed=0)
    model = fresh(workload)
    assert isinstance(model, GPT)
    model.tokens.weight = nn.Parameter(model.head.weight.detach().clone())  # untied: a leaf each
    for mb in range(2):
        part = {name: t[2 * mb : 2 * mb + 2] for name, t in batch.items()}
        workload.loss(model, part).backward(torch.tensor(1 / 2))
    ends = model.tokens.weight.grad, model.head.weight.grad
    assert ends[0] is not None
    assert ends[1] is not None
    assert torch.equal(two.gradients(batch)[1]["tokens.weight"], ends[0] + ends[1])
    # The unsplit gradient agrees, too.
    assert torch.allclose(
        two.gradients(batch)[1]["tokens.weight"].double(),
        Unsplit(workload, seed=0).gradients(batch)[1]["tokens.weight"],
        rtol=1e-4, atol=1e-6,
    )  # fmt: skip


def test_token_weights_make_a_replay_agree_with_the_whole_batch() -> None:
    workload = load_workload("gpt-masked")
    captured, plan = captured_and_plan(workload, devices=2, microbatches=3)
    batch = workload.batch(6, 1)
    replay = Replay(workload, captured, plan, seed=0, dtype=torch.float64)
    loss, gradients = replay.gradients(batch)
    expected_loss, expected = Unsplit(workload, seed=0).gradients(batch)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    for name, g in expected.items():
        assert torch.allclose(gradients[name], g, rtol=1e-9, atol=1e-14), name


def test_updates_follow_the_workloads_optimizer() -> None:
    workload = load_workload("mlp-tiny")
    unsplit = Unsplit(workload, seed=0)
    model = fresh(workload).double()
    optimizer = workload.optimizer(model.parameters())
    for step in range(2):
        x, y = (t.double() for t in workload.batch(4, step))
        optimizer.zero_grad()
        workload.loss(model, (x, y)).backward()
        _, gradients = unsplit.gradients(workload.batch(4, step))
        weights = unsplit.update(gradients)
        optimizer.step()
        assert_bitwise(weights, {name: p.detach() for name, p in model.named_parameters()})


def test_dropout_draws_the_same_numbers_whatever_the_stages() -> None:
    workload = load_workload("gpt-dropout")
    batch = workload.batch(4, 1)
    one = Replay(workload, *captured_and_plan(workload, devices=1, microbatches=2), seed=0)
    three = Replay(workload, *captured_and_plan(workload, devices=3, microbatches=2), seed=0)
    first = one.gradients(batch)[1]
    assert_bitwise(first, three.gradients(batch)[1])
    again = one.gradients(batch)[1]  # the next step draws others
    assert not torch.equal(first["blocks.0.up.weight"], again["blocks.0.up.weight"])


def test_what_a_replay_refuses_and_when_its_sums_are_exact() -> None:
    workload = load_workload("mlp-tiny")
    captured, plan = captured_and_plan(workload, devices=2, microbatches=3)
    with pytest.raises(InputError, match="5 samples does not divide into 1 replica x 3 microbatches"):
        Replay(workload, captured, plan, seed=0).gradients(workload.batch(5, 0))
    assert exact_sums(plan)
    assert exact_sums(captured_and_plan(workload, devices=2, microbatches=1, replicas=2)[1])
    assert not exact_sums(captured_and_plan(workload, devices=1, microbatches=1, replicas=3)[1])
    tied = load_workload("gpt-tied")
    assert not exact_sums(captured_and_plan(tied, devices=2, microbatches=1, replicas=2)[1])
