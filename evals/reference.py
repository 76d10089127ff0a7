"""The single-process references that the judge compares a training run with.

Replay   One thread runs the same microbatches in the same shapes through the captured graph as a whole, adds each
         parameter's contributions up in the order of the plan's backwards, then the devices' sums in rank order.
         Nothing else is taken from the plan: which microbatches there are, their weights and the averaging are the
         reference's own, so a plan that drops or scales anything differs. float32 equals it bitwise where no more than
         two devices are summed; gloo's all-reduce of three or more is not in rank order. It computes on the kind of
         device that the run is on: CPUs and GPUs round differently and draw other random numbers.
Unsplit  The eager model on the whole batch in float64: nothing captured, nothing split. A model that draws random
         numbers has no such reference, since each microbatch draws its own.

Parameters that several chunks share (tied ones) get a leaf per chunk in a replay, and the graph then runs chunk by
chunk (still one autograd graph), because their contributions are separate additions in the plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pibroch.runtime.action import Chunk
from pibroch.runtime.batches import cast, microbatch_size, piece
from pibroch.runtime.captured import Captured, flatten_batch
from pibroch.runtime.chunk import ChunkModule, build_chunk
from pibroch.runtime.plan import ChunkSpec, Plan
from pibroch.runtime.workload import Batch, Workload

Named = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class State:
    """Where a run stands: parameters, the buffers that changed, what the optimizer keeps per parameter, steps done."""

    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    optimizer: Mapping[str, Mapping[str, Any]]
    step: int


class Reference(Protocol):
    """`gradients` then `update`, step by step."""

    name: str
    device: str

    def gradients(self, batch: Batch) -> tuple[float, Named]:
        """The loss of this batch and the gradients before the optimizer, on the host; what has none is absent."""

    def update(self, gradients: Mapping[str, Tensor]) -> Named:
        """One optimizer step with these gradients; all weights after it, on the host."""

    def restore(self, state: State) -> None:
        """Go on from there instead of from the initial weights."""


class Unsplit:
    """The eager model in float64, the whole batch at once."""

    name = "unsplit"
    device = "cpu"  # whatever the run is on: float64 agrees closely enough everywhere

    def __init__(self, workload: Workload, *, seed: int) -> None:
        self._workload = workload
        self._model = fresh_model(workload, seed=seed, dtype=torch.float64)
        self._weights = _Weights(workload, self._model)

    def gradients(self, batch: Batch) -> tuple[float, Named]:
        """See `Reference`."""
        self._model.zero_grad(set_to_none=True)
        with one_thread():
            loss = self._workload.loss(self._model, cast(batch, torch.float64))
            mean = loss[0] / loss[1] if isinstance(loss, tuple) else loss
            mean.backward()
        found = {n: p.grad.clone() for n, p in self._model.named_parameters() if p.grad is not None}
        return float(mean.detach()), clipped(found, self._workload.clip_norm)

    def update(self, gradients: Mapping[str, Tensor]) -> Named:
        """See `Reference`."""
        return self._weights.update(gradients)

    def restore(self, state: State) -> None:
        """See `Reference`."""
        self._weights.restore(state)


class Replay:
    """The captured graph on the plan's microbatches; `dtype` is what the run compared with casts to, if anything, and
    `device` the kind of device that it is on."""

    name = "replay"

    def __init__(
        self, workload: Workload, captured: Captured, plan: Plan, *, seed: int, dtype: torch.dtype | None = None,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        self._workload, self._captured, self._plan, self._dtype = workload, captured, plan, dtype
        self.device = device
        self._model = fresh_model(workload, seed=seed, dtype=dtype).to(device)
        self._weights = _Weights(workload, self._model)
        self._params = dict(self._model.named_parameters())
        self._buffers = [{n: b.detach().clone() for n, b in self._model.named_buffers()} for _ in range(plan.replicas)]
        self._owners = _owners(plan)
        self._chunks = self._build()
        self._queued = self._queued_params()
        self._step = 0

    def gradients(self, batch: Batch) -> tuple[float, Named]:
        """See `Reference`. Raises `InputError` where the batch does not divide."""
        plan = self._plan
        batch = tree_map(lambda t: t.to(self.device) if isinstance(t, Tensor) else t, cast(batch, self._dtype))
        each, parts = microbatch_size(batch, plan), plan.replicas * plan.microbatches
        weight = 1 / self._count(batch) if plan.loss == "sum_count" else 1 / parts
        loss, sums = 0.0, dict[tuple[str, int], Tensor]()
        made: dict[tuple[str, Chunk, int, int], Tensor] = {}
        with one_thread():
            for replica in range(plan.replicas):
                for mb in range(plan.microbatches):
                    index = replica * plan.microbatches + mb
                    sample = piece(batch, index * each, (index + 1) * each)
                    value, found = self._microbatch(sample, replica=replica, index=index, weight=weight)
                    loss += value * weight
                    made.update({(name, chunk, replica, mb): g for (name, chunk), g in found.items()})
            for device, key in _order(plan, self._owners, self._queued):
                if (g := made.get(key)) is not None:
                    name = key[0]
                    sums[name, device] = sums[name, device] + g if (name, device) in sums else g
        self._step += 1
        total: Named = {}
        for (name, _), g in sorted(sums.items(), key=lambda row: row[0]):
            total[name] = total[name] + g if name in total else g
        return loss, clipped({name: g.cpu() for name, g in total.items()}, self._workload.clip_norm)

    def update(self, gradients: Mapping[str, Tensor]) -> Named:
        """See `Reference`."""
        return self._weights.update(gradients)

    def restore(self, state: State) -> None:
        """See `Reference`. Of buffers every replica takes the first one's: statistics do not enter a training step."""
        self._weights.restore(state)
        for buffers in self._buffers:
            buffers.update({name: value.to(self.device, copy=True) for name, value in state.buffers.items()})
        self._step = state.step

    def _build(self) -> list[tuple[Chunk | None, ChunkModule]]:
        """The whole graph as one chunk, or the plan's chunks in layer order where chunks share a parameter."""
        if all(len(chunks) == 1 for chunks in self._owners.values()):
            layers = len(self._captured.spec.layers)
            whole = ChunkSpec(stage=0, part=0, start=0, stop=layers, params=tuple(self._owners))
            return [(None, self._chunk(whole))]
        ordered = sorted(self._plan.chunks, key=lambda c: c.start)
        return [(c.key, self._chunk(c)) for c in ordered]

    def _chunk(self, spec: ChunkSpec) -> ChunkModule:
        elsewhere = self.device if self.device != self._captured.device else None
        return build_chunk(self._captured, spec, split_backward=False, device=elsewhere)

    def _queued_params(self) -> dict[Chunk, frozenset[str]]:
        """Of every chunk whose backward the plan splits, the parameters whose gradients come in BW."""
        split = {task.chunk for task in self._plan.tasks if task.op == "BW"}
        return {
            c.key: frozenset(build_chunk(self._captured, c, split_backward=True).split)
            for c in self._plan.chunks
            if c.key in split
        }

    def _microbatch(
        self, sample: Batch, *, replica: int, index: int, weight: float
    ) -> tuple[float, dict[tuple[str, Chunk], Tensor]]:
        values, leaves = dict[str, Tensor](), dict[tuple[str, Chunk], Tensor]()
        flat = flatten_batch(sample)
        for key, module in self._chunks:
            params: Named = {}
            for name in module.params:
                params[name] = leaf = self._params[name].detach().clone()
                if self._params[name].requires_grad:
                    leaves[name, key or self._owners[name][0]] = leaf.requires_grad_()
            inputs = {name: values[name] for name in module.inputs}
            needed = {name: flat[name] for name in module.batch_leaves}
            values |= module(params, self._buffers[replica], needed, inputs, seed=(self._step, index), queue=None)
        loss = values["loss"]
        seed = torch.full((), weight, dtype=loss.dtype, device=loss.device)
        grads = torch.autograd.grad(loss, list(leaves.values()), grad_outputs=seed, allow_unused=True)
        found = {key: g for key, g in zip(leaves, grads, strict=True) if g is not None}
        return float(loss.detach()), found

    def _count(self, batch: Batch) -> float:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            loss = self._workload.loss(self._model, batch)
        assert isinstance(loss, tuple)
        return float(loss[1])


def eager(
    workload: Workload, plan: Plan, batch: Batch, *, seed: int, dtype: torch.dtype | None, device: str
) -> tuple[float, Named]:
    """Loss and gradients of a batch from the initial weights, as the uncaptured model gives them, microbatch by
    microbatch. The replay runs the graph that the run has captured: only this can tell that the graph is the model."""
    model = fresh_model(workload, seed=seed, dtype=dtype).to(device)
    batch = tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, cast(batch, dtype))
    each, parts = microbatch_size(batch, plan), plan.replicas * plan.microbatches
    losses: list[Tensor] = []
    with one_thread(), torch.random.fork_rng(devices=[]):
        found = [workload.loss(model, piece(batch, i * each, (i + 1) * each)) for i in range(parts)]
        pairs = [row if isinstance(row, tuple) else (row, 1.0) for row in found]
        total = float(sum(float(count) for _, count in pairs))
        for value, _ in pairs:
            (value / total).backward()
            losses.append(value.detach() / total)
    grads = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    return float(sum(losses)), clipped(grads, workload.clip_norm)


class _Weights:
    """The reference's parameters under the workload's optimizer."""

    def __init__(self, workload: Workload, model: nn.Module) -> None:
        self._model = model
        self._params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._optimizer = workload.optimizer(list(self._params.items()))  # named, as the trainer passes them

    def update(self, gradients: Mapping[str, Tensor]) -> Named:
        for name, p in self._params.items():
            p.grad = gradients[name].detach().to(p.device, copy=True) if name in gradients else None
        with one_thread():
            self._optimizer.step()
        return {n: p.detach().to("cpu", copy=True) for n, p in self._model.named_parameters()}

    def restore(self, state: State) -> None:
        with torch.no_grad():
            for name, p in self._model.named_parameters():
                p.copy_(state.params[name])
        for name, p in self._params.items():
            if kept := state.optimizer.get(name):
                # A step counter stays on the host, where the optimizers look for it.
                self._optimizer.state[p] = {
                    k: v.to("cpu" if k == "step" else p.device, copy=True) if isinstance(v, Tensor) else v
                    for k, v in kept.items()
                }


def fresh_model(workload: Workload, *, seed: int, dtype: torch.dtype | None) -> nn.Module:
    """The model with the initial weights of a run under this seed, drawn in its own dtype and then cast, if at all."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = workload.model()
    return model if dtype is None else model.to(dtype)


def clipped(gradients: Named, limit: float | None) -> Named:
    """The gradients scaled so that their 2-norm, over all of them, is at most `limit`; as they are for None."""
    if limit is None:
        return gradients
    norm = torch.stack([g.double().norm() for g in gradients.values()]).norm()
    factor = min(1.0, limit / (float(norm) + 1e-6))
    return {name: g * factor for name, g in gradients.items()}


def exact_sums(plan: Plan) -> bool:
    """True where float32 gradients must equal a replay bitwise: no reduction sums more than two devices, and nothing
    is clipped (a norm depends on the order in which squares are added)."""
    return all(len(bucket.group) <= 2 and bucket.params for bucket in plan.buckets) and plan.replicas <= 2


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Several threads may add up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _owners(plan: Plan) -> dict[str, list[Chunk]]:
    owners: dict[str, list[Chunk]] = {}
    for chunk in sorted(plan.chunks, key=lambda c: c.start):
        for name in chunk.params:
            owners.setdefault(name, []).append(chunk.key)
    return owners


def _order(
    plan: Plan, owners: Mapping[str, list[Chunk]], queued: Mapping[Chunk, frozenset[str]]
) -> list[tuple[int, tuple[str, Chunk, int, int]]]:
    """The device of each (parameter, chunk, replica, microbatch), in the order in which the plan adds them up.

    The plan's order decides only between additions that must happen anyway: what it lacks is appended, what it does
    twice counts once. A backward that is split adds the queued parameters in BW, the others in BI.
    """
    names: dict[Chunk, list[str]] = {}
    for name, chunks in owners.items():
        for chunk in chunks:
            names.setdefault(chunk, []).append(name)
    cells = [(replica, mb) for replica in range(plan.replicas) for mb in range(plan.microbatches)]
    due = {(name, chunk, *cell): None for cell in cells for chunk in names for name in names[chunk]}
    ordered: dict[tuple[str, Chunk, int, int], None] = {}
    for streams in plan.streams.values():
        for task in (plan.tasks[i] for ids in streams.values() for i in ids):
            if task.op in ("B", "BI", "BW") and task.chunk in names:
                late = queued.get(task.chunk, frozenset())
                for name in names[task.chunk]:
                    if task.op == "B" or (task.op == "BW") == (name in late):
                        ordered[name, task.chunk, task.replica, task.mb] = None
    rows = [key for key in ordered if key in due] + [key for key in due if key not in ordered]
    return [(plan.placement[key[1].stage][key[2]], key) for key in rows]
