"""The judge accepts a right run and refuses every fault that we know of."""

from __future__ import annotations

import math

import pytest
import torch
from eager_trainer import EagerTrainer

from pibroch.evals.judge import judge, negative_control, relative_error
from pibroch.evals.models import load_workload
from pibroch.runtime.errors import InputError


def test_a_right_run_passes_in_float64() -> None:
    verdict = judge(EagerTrainer(load_workload("mlp-tiny"), microbatches=3))  # type: ignore[arg-type]
    assert verdict.ok
    assert verdict.reference == "unsplit"
    assert verdict.steps == len(verdict.losses) == 3
    assert verdict.peak_bytes == [1]
    assert 0 < verdict.max_rel_grad_err < 1e-12  # sums in another order: close, not the same


@pytest.mark.parametrize(
    "fault",
    [
        "drops a microbatch", "labels of another microbatch", "freezes a layer", "NaN gradient", "NaN loss",
        "skips the second update", "reports half the loss", "hides a gradient", "another shape",
    ],
)  # fmt: skip
def test_known_faults_fail(fault: str) -> None:
    verdict = judge(EagerTrainer(load_workload("mlp-tiny"), fault=fault), seed=3)  # type: ignore[arg-type]
    assert not verdict.ok
    assert verdict.worst
    assert not verdict.bitwise or "loss" in verdict.worst


def test_the_negative_control_is_refused_and_the_plan_put_back() -> None:
    trainer = EagerTrainer(load_workload("mlp-tiny"))
    plan = trainer.plan
    assert negative_control(trainer)  # type: ignore[arg-type]
    assert trainer.plan is plan
    assert judge(trainer, steps=1).ok  # type: ignore[arg-type]


def test_no_steps_and_too_few_batches_are_no_pass() -> None:
    trainer = EagerTrainer(load_workload("mlp-tiny"))
    assert not judge(trainer, steps=0).ok  # type: ignore[arg-type]
    with pytest.raises(InputError, match="3 steps need as many batches"):
        judge(trainer, [trainer.workload.batch(4, 0)])  # type: ignore[arg-type]


def test_relative_error_by_hand() -> None:
    t = torch.tensor
    assert relative_error(t([1.0, 2.5]), t([1.0, 2.0]), floor=0.0) == 0.25
    assert relative_error(t([0.1]), t([0.0]), floor=0.2) == pytest.approx(0.5)  # a true gradient of zero
    assert relative_error(t([0.1]), t([0.0]), floor=0.0) == math.inf
    assert relative_error(t([0.0]), t([0.0]), floor=0.0) == 0.0
    nan, inf = t([math.nan]), t([math.inf])
    for mine, reference in [(nan, nan), (inf, inf), (nan, t([1.0])), (t([1.0]), nan), (t([1.0, 1.0]), t([1.0]))]:
        assert relative_error(mine, reference, floor=1.0) == math.inf
