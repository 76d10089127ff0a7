"""The judge: is a training run equal to the single process?

It runs the trainer from its initial weights on batches of its own choice, and after each step compares the loss, every
gradient (before the optimizer, which hides a scale and magnifies noise) and every weight, on every rank that holds it,
with a reference:

    float32 against the replay      gradients and weights bitwise equal, loss within 1e-6
    the same, three or more         gradients and loss within 1e-5, weights bitwise what the optimizer makes of these
    devices in one reduction        gradients; both continue from the run's own weights
    the same on CUDA                the same, and weights within 1e-5 too: kernels may sum in another order
    float64 against the unsplit     loss, gradients and weights within 1e-10

The replay runs the graph that the run has captured. So the first step of a model that draws no random numbers is also
compared with the model itself, uncaptured, within 1e-4: half precision, a frozen layer, a shorter sequence or a
remembered result in the graph differ by more.

Nothing of a step is known to anyone before the run has handed its numbers over, and these are fetched as soon as the
step has returned: work that goes on behind its back comes too late. Only plain tensors are compared: a subclass could
answer for itself.

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

from pibroch.evals.reference import Reference, Replay, State, Unsplit, eager, exact_sums
from pibroch.runtime.batches import samples
from pibroch.runtime.captured import flatten_batch
from pibroch.runtime.errors import InputError
from pibroch.runtime.plan import Plan

if TYPE_CHECKING:
    from pibroch.runtime.trainer import Trainer
    from pibroch.runtime.workload import Workload

FLOOR = 1e-3
PLAIN = (Tensor, torch.nn.Parameter)
REPLAY_LOSS = 1e-6  # the loss is a sum over microbatches in whatever order the workers' reports come in
REPLAY_INEXACT = 1e-5
UNSPLIT = 1e-10
CAPTURED = 1e-4  # the graph holds the operators that the model calls; half precision is off by 1e-3 and more


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
    captured: _Largest = field(default_factory=_Largest)


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
        batches = fresh_batches(trainer.workload, trainer.batch_size, steps, seed=seed)
    if len(batches) < steps:
        raise InputError(f"{steps} steps need as many batches, not {len(batches)}")
    with _deterministic(trainer):
        trainer.reset()
        verdict = _judge(trainer, batches[:steps], None)
        peaks = trainer.peak_bytes() if peak else []
        trainer.reset()
    return replace(verdict, peak_bytes=peaks)


def audit(trainer: Trainer, *, steps: int = 1, seed: int | None = None) -> Verdict:
    """Judge `steps` more steps from where the run stands, against a reference that starts there too; nothing is reset.

    After steps that were timed, it finds what did its work only as long as it was being judged.
    """
    batches = fresh_batches(trainer.workload, trainer.batch_size, steps, seed=seed)
    names = list(trainer.captured.spec.params)
    params, buffers, kept = dict[str, Tensor](), dict[str, Tensor](), dict[str, Any]()
    for held, changed in trainer.pool.call("values", [(names,)] * trainer.pool.ranks):
        params, buffers = {**held, **params}, {**changed, **buffers}
    for state in trainer.pool.call("optimizer_state"):
        kept = {**state, **kept}
    reference = reference_for(trainer)
    reference.restore(State(params, buffers, kept, trainer.steps_done))
    with _deterministic(trainer):
        return _judge(trainer, batches, reference)


def fresh_batches(workload: Workload, size: int, steps: int, *, seed: int | None = None) -> list[Any]:
    """Batches for `steps` steps, under `seed` or one that nobody can know. Raises `InputError` where they hold another
    number of samples than asked for, or differ from each other in shape or dtype: they would be different work."""
    first = secrets.randbelow(1 << 30) if seed is None else seed
    batches = [workload.batch(size, first + step) for step in range(steps)]
    facts = [{n: (tuple(t.shape), t.dtype) for n, t in flatten_batch(batch).items()} for batch in batches]
    for step, batch in enumerate(batches):
        if (found := samples(batch)) != size:
            raise InputError(f"{workload.name}: batch({size}, {first + step}) returned {found} samples")
        if facts[step] != facts[0]:
            raise InputError(
                f"{workload.name}: the batches of steps {first} and {first + step} differ in shape or dtype: "
                f"{facts[0]} and {facts[step]}"
            )
    return batches


def _judge(trainer: Trainer, batches: Sequence[Any], reference: Reference | None) -> Verdict:
    """Without a `reference` the run must stand at its start."""
    record, losses, begins = _Record(), list[float](), reference is None
    for step, batch in enumerate(batches):
        loss = trainer.step(batch).loss
        losses.append(loss)
        names = list(trainer.captured.spec.params)
        held = trainer.pool.call("values", [(names,)] * trainer.pool.ranks)
        mine: list[Mapping[str, Tensor]] = trainer.pool.call("gradients")
        # Only now is it certain which shapes the trainer has captured.
        reference = reference or reference_for(trainer)
        exact = _exact(reference, trainer.plan)
        expected_loss, expected = reference.gradients(batch)
        record.loss.add(
            f"loss, step {step}", torch.tensor(loss).double(), torch.tensor(expected_loss).double(), floor=0.0
        )
        largest = max((float(g.abs().max()) for g in expected.values() if g.numel()), default=0.0)
        _compare(record.grad, mine, expected, step=step, floor=FLOOR * largest, absent_is_zero=True)
        if begins and step == 0 and reference.name == "replay" and not trainer.captured.spec.random:
            record.captured = _captured_error(trainer, batch, expected_loss, expected)
        theirs = {name: g for rank in reversed(mine) for name, g in rank.items() if name in expected}
        used = (expected if exact else theirs) if trainer.update else {}
        weights = reference.update(used)
        _compare(record.weight, [params for params, _ in held], weights, step=step, floor=FLOOR * largest)
        for name, device in _owed(trainer.plan):
            if name not in held[device][0]:
                record.weight.fail(f"{name}, rank {device}, step {step}: missing")
        if step == len(batches) - 1:
            _compare(record.weight, [trainer.state_dict()], weights, step=step, floor=FLOOR * largest)
    return _verdict(reference, record, plan=trainer.plan, losses=losses)


def _captured_error(trainer: Trainer, batch: Any, loss: float, gradients: Mapping[str, Tensor]) -> _Largest:
    """How far the graph's first step is from the model's."""
    expected_loss, expected = eager(
        _workload(trainer), trainer.plan, batch, seed=trainer.seed, dtype=trainer.dtype, device=trainer.pool.device
    )
    found = _Largest()
    found.add("the captured loss", torch.tensor(loss).double(), torch.tensor(expected_loss).double(), floor=0.0)
    largest = max((float(g.abs().max()) for g in expected.values() if g.numel()), default=0.0)
    _compare(found, [gradients], expected, step=0, floor=FLOOR * largest, absent_is_zero=True)
    found.where = f"the captured graph is not the model: {found.where}"
    return found


def reference_for(trainer: Trainer) -> Reference:
    """The reference that fits the trainer's dtype. Raises `InputError` where a random model runs in float64."""
    workload = _workload(trainer)
    if trainer.dtype == torch.float64:
        if trainer.captured.spec.random:
            raise InputError(f"{workload.name} draws random numbers per microbatch: judge it in float32")
        return Unsplit(workload, seed=trainer.seed)
    device = trainer.pool.device
    return Replay(workload, trainer.captured, trainer.plan, seed=trainer.seed, dtype=trainer.dtype, device=device)


def _workload(trainer: Trainer) -> Workload:
    return trainer.workload if trainer.update else replace(trainer.workload, clip_norm=None)  # clips in the update


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
            if type(tensor) in PLAIN:
                largest.add(f"{name}, rank {rank}, step {step}", tensor, expected, floor)
            else:
                largest.fail(f"{name}, rank {rank}, step {step}: a {type(tensor).__name__} instead of a plain tensor")
        if not holders and not (absent_is_zero and not expected.any()):
            largest.fail(f"{name}, step {step}: missing")
    if absent_is_zero:
        for rank, held in enumerate(ranks):
            for name in held.keys() - reference.keys():
                if not torch.equal(held[name], torch.zeros_like(held[name])):
                    largest.fail(f"{name}, rank {rank}, step {step}: a gradient without influence on the loss")


def _owed(plan: Plan) -> set[tuple[str, int]]:
    """The parameters that each device must hold after a step: a rank that was left out has none."""
    return {(name, device) for c in plan.chunks for device in plan.placement[c.stage] for name in c.params}


def _exact(reference: Reference, plan: Plan) -> bool:
    """Whether the reference goes on from its own weights: its numbers are then the run's."""
    return reference.name == "unsplit" or (reference.device == "cpu" and exact_sums(plan))


def _verdict(reference: Reference | None, record: _Record, *, plan: Plan, losses: list[float]) -> Verdict:
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
    if record.captured.error > CAPTURED:
        ok, worst = False, record.captured
    return Verdict(
        ok=ok,
        reference=reference.name if reference else "none",
        bitwise=bitwise,
        max_rel_loss_err=record.loss.error,
        max_rel_grad_err=record.grad.error,
        max_rel_weight_err=record.weight.error,
        worst=worst.where,
        steps=len(losses),
        peak_bytes=[],
        losses=losses,
    )
