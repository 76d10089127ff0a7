"""The judge: is a training run equal to the single process?

It runs the trainer from its initial weights on batches of its own choice, and after each step compares the loss, every
gradient (before the optimizer, which hides a scale and magnifies noise) and every weight, on every rank that holds it,
with a reference:

    float32 against the replay      gradients and weights bitwise equal, loss within 1e-6
    the same, three or more         gradients and loss within 1e-5, weights bitwise what the optimizer makes of these
    devices in one reduction        gradients; both continue from the run's own weights
    the same on CUDA                the same, and weights within 1e-5 too: kernels may sum in another order
    float64 against the unsplit     loss, gradients and weights within 1e-10

The relative error of a tensor is ‖Δ‖∞ / max(‖reference‖∞, 10⁻³ x the largest reference gradient of that step); a NaN
or infinity anywhere, a missing tensor and another shape are infinite errors. A gradient that the reference lacks (a
parameter without influence) may be absent or zero.
"""

from __future__ import annotations

import contextlib
import copy
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pibroch.evals.reference import Reference, Replay, Unsplit, exact_sums
from pibroch.runtime.errors import InputError
from pibroch.runtime.plan import Plan

if TYPE_CHECKING:
    from pibroch.runtime.trainer import Trainer

FLOOR = 1e-3
REPLAY_LOSS = 1e-6  # the loss is a sum over microbatches in whatever order the workers' reports come in
REPLAY_INEXACT = 1e-5
UNSPLIT = 1e-10


@dataclass(frozen=True, slots=True)
class Verdict:
    """`worst` names the tensor (or "loss") with the largest error, and the step; errors are relative (see above)."""

    ok: bool
    reference: str
    bitwise: bool
    max_rel_loss_err: float
    max_rel_grad_err: float
    max_rel_weight_err: float
    worst: str
    steps: int
    peak_bytes: list[int]
    losses: list[float]

    def to_json(self) -> dict[str, Any]:
        """Plain data; an infinite error is the string "inf"."""
        data = {name: getattr(self, name) for name in self.__slots__}
        return {k: "inf" if isinstance(v, float) and math.isinf(v) else v for k, v in data.items()}


@dataclass(slots=True)
class _Largest:
    """The largest error of one kind so far, and where."""

    error: float = 0.0
    where: str = ""
    bitwise: bool = True

    def add(self, where: str, mine: Tensor, reference: Tensor, floor: float) -> None:
        error = relative_error(mine, reference, floor=floor)
        self.bitwise = self.bitwise and math.isfinite(error) and torch.equal(mine, reference)
        if error > self.error:
            self.error, self.where = error, where

    def fail(self, where: str) -> None:
        self.error, self.where, self.bitwise = math.inf, where, False


@dataclass(slots=True)
class _Record:
    loss: _Largest = field(default_factory=_Largest)
    grad: _Largest = field(default_factory=_Largest)
    weight: _Largest = field(default_factory=_Largest)


def judge(
    trainer: Trainer,
    batches: Sequence[Any] | None = None,
    *,
    steps: int = 3,
    seed: int | None = None,
    peak: bool = True,
) -> Verdict:
    """Run `steps` steps from the initial weights and compare; the trainer is left reset.

    Without `batches` they are drawn from the workload under `seed`, by default a fresh one, so that no run can know
    them. `peak` also counts each rank's peak tensor bytes in one more step.
    """
    if batches is None:
        first = secrets.randbelow(1 << 30) if seed is None else seed
        batches = [trainer.workload.batch(trainer.batch_size, first + step) for step in range(steps)]
    if len(batches) < steps:
        raise InputError(f"{steps} steps need as many batches, not {len(batches)}")
    with _deterministic(trainer):
        return _judge(trainer, batches[:steps], peak=peak)


def _judge(trainer: Trainer, batches: Sequence[Any], *, peak: bool) -> Verdict:
    reference: Reference | None = None
    record, losses = _Record(), list[float]()
    trainer.reset()
    for step, batch in enumerate(batches):
        loss = trainer.step(batch).loss
        losses.append(loss)
        # Only now is it certain which shapes the trainer has captured.
        reference = reference or reference_for(trainer)
        exact = _exact(reference, trainer.plan)
        expected_loss, expected = reference.gradients(batch)
        record.loss.add(
            f"loss, step {step}", torch.tensor(loss).double(), torch.tensor(expected_loss).double(), floor=0.0
        )
        mine: list[Mapping[str, Tensor]] = trainer.pool.call("gradients")
        largest = max((float(g.abs().max()) for g in expected.values() if g.numel()), default=0.0)
        _compare(record.grad, mine, expected, step=step, floor=FLOOR * largest, absent_is_zero=True)
        theirs = {name: g for rank in reversed(mine) for name, g in rank.items() if name in expected}
        used = (expected if exact else theirs) if trainer.update else {}
        weights = reference.update(used)
        held = trainer.pool.call("values", [(list(weights),)] * trainer.pool.ranks)
        _compare(record.weight, [params for params, _ in held], weights, step=step, floor=FLOOR * largest)
        if step == len(batches) - 1:
            _compare(record.weight, [trainer.state_dict()], weights, step=step, floor=FLOOR * largest)
    peaks = trainer.peak_bytes() if peak else []
    trainer.reset()
    return _verdict(reference, record, plan=trainer.plan, losses=losses, peaks=peaks)


def reference_for(trainer: Trainer) -> Reference:
    """The reference that fits the trainer's dtype. Raises `InputError` where a random model runs in float64."""
    workload = trainer.workload if trainer.update else replace(trainer.workload, clip_norm=None)  # clips in the update
    if trainer.dtype == torch.float64:
        if trainer.captured.spec.random:
            raise InputError(f"{workload.name} draws random numbers per microbatch: judge it in float32")
        return Unsplit(workload, seed=trainer.seed)
    device = trainer.pool.device
    return Replay(workload, trainer.captured, trainer.plan, seed=trainer.seed, dtype=trainer.dtype, device=device)


@contextlib.contextmanager
def _deterministic(trainer: Trainer) -> Iterator[None]:
    """On CUDA, operators without random order of summation here and in the workers, as far as there are such."""
    if trainer.pool.device == "cpu":
        yield
        return
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    trainer.pool.call("deterministic", [(True,)] * trainer.pool.ranks)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
    trainer.pool.call("deterministic", [(False,)] * trainer.pool.ranks)


def negative_control(trainer: Trainer, *, seed: int | None = None) -> bool:
    """True where the judge refuses this run once its gradients are made twice as large; the plan is put back.

    A judge that passes that would pass anything.
    """
    plan = trainer.plan
    trainer.load_plan(silenced(plan))
    try:
        return not judge(trainer, steps=1, seed=seed, peak=False).ok
    finally:
        trainer.load_plan(plan)


def silenced(plan: Plan) -> Plan:
    """The plan without the gradient of its first microbatch (a mere factor could hide behind clipping)."""
    wrong = copy.deepcopy(plan)
    seed = next(task for task in wrong.tasks if task.scale is not None)
    assert seed.scale is not None
    seed.scale = (0, seed.scale[1])
    return wrong


def relative_error(mine: Tensor, reference: Tensor, *, floor: float) -> float:
    """‖mine - reference‖∞ / max(‖reference‖∞, floor); infinite for another shape or anything not finite."""
    if mine.shape != reference.shape:
        return math.inf
    if not mine.numel():
        return 0.0
    a, b = mine.detach().double(), reference.detach().double()
    difference, scale = float((a - b).abs().max()), max(float(b.abs().max()), floor)
    if not (math.isfinite(difference) and math.isfinite(scale)):
        return math.inf
    if difference == 0:
        return 0.0
    return difference / scale if scale else math.inf


def _compare(
    largest: _Largest,
    ranks: Sequence[Mapping[str, Tensor]],
    reference: Mapping[str, Tensor],
    *,
    step: int,
    floor: float,
    absent_is_zero: bool = False,
) -> None:
    for name, expected in reference.items():
        holders = [(rank, held[name]) for rank, held in enumerate(ranks) if name in held]
        for rank, tensor in holders:
            largest.add(f"{name}, rank {rank}, step {step}", tensor, expected, floor)
        if not holders and not (absent_is_zero and not expected.any()):
            largest.fail(f"{name}, step {step}: missing")
    if absent_is_zero:
        for rank, held in enumerate(ranks):
            for name in held.keys() - reference.keys():
                if not torch.equal(held[name], torch.zeros_like(held[name])):
                    largest.fail(f"{name}, rank {rank}, step {step}: a gradient without influence on the loss")


def _exact(reference: Reference, plan: Plan) -> bool:
    """Whether the reference goes on from its own weights: its numbers are then the run's."""
    return reference.name == "unsplit" or (reference.device == "cpu" and exact_sums(plan))


def _verdict(
    reference: Reference | None, record: _Record, *, plan: Plan, losses: list[float], peaks: list[int]
) -> Verdict:
    bitwise = record.grad.bitwise and record.weight.bitwise
    if reference is None:
        ok = bitwise = False  # no step, no proof
    elif reference.name == "unsplit":
        ok = max(record.loss.error, record.grad.error, record.weight.error) <= UNSPLIT
    elif _exact(reference, plan):
        ok = bitwise and record.loss.error <= REPLAY_LOSS
    else:
        within = max(record.loss.error, record.grad.error) <= REPLAY_INEXACT
        ok = within and (record.weight.bitwise if reference.device == "cpu" else record.weight.error <= REPLAY_INEXACT)
    worst = max((record.loss, record.grad, record.weight), key=lambda kind: kind.error)
    return Verdict(
        ok=ok,
        reference=reference.name if reference else "none",
        bitwise=bitwise,
        max_rel_loss_err=record.loss.error,
        max_rel_grad_err=record.grad.error,
        max_rel_weight_err=record.weight.error,
        worst=worst.where,
        steps=len(losses),
        peak_bytes=peaks,
        losses=losses,
    )
