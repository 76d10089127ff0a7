"""The work of the compute stream: forwards, backwards (whole or split), recomputation, optimizer updates.

Tensors live in the plan's buffers. The generated activation store counts the tasks that still read each of them: the
last one frees it. What autograd keeps between a chunk's forward and backward lives in its `saved`
buffer as the graph's edges: the output itself is not held, so its bytes are free as soon as it has been sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pibroch.runtime.action import Chunk
from pibroch.runtime.chunk import ChunkModule, WeightQueue
from pibroch.runtime.generated import load_generated
from pibroch.runtime.plan import Task
from pibroch.runtime.program import Program
from pibroch.runtime.store import Store

Edges = list[tuple[Chunk, tuple[str, ...]]]


@dataclass(slots=True)
class _Kept:
    """What a forward leaves for its backward: leaf inputs and the outputs' places in autograd's graph, by value."""

    leaves: dict[str, torch.Tensor]
    outputs: dict[str, GradientEdge]
    queue: WeightQueue | None


class Compute:
    def __init__(
        self, program: Program, chunks: Mapping[Chunk, ChunkModule], store: Store, grad_values: frozenset[str],
    ) -> None:  # fmt: skip
        self.program = program
        self.chunks = chunks
        self.store = store
        self._grad_values = grad_values
        self._inputs = {key: _by_peer(c.inputs) for key, c in program.chunks.items()}
        self._outputs = {key: _by_peer(c.outputs) for key, c in program.chunks.items()}
        self._readers = Counter(b for task in program.tasks.values() for b in self._transient(task.reads))
        self._make_live = load_generated("activation_store").ActivationStore
        self._live: Any = self._make_live()
        self._buffers: dict[int, Any] = {}
        self._losses: list[tuple[torch.Tensor, float]] = []
        self._batch: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        self._step, self._total, self._forward_only = 0, 1.0, False
        self._sizes: Callable[[int, int], list[int]] = load_generated("microbatch_sizes").sizes

    def begin(
        self, batches: Mapping[int, Mapping[str, torch.Tensor]], *, step: int, total: float | None, forward_only: bool
    ) -> None:
        """Cut the batches of this device's replicas into microbatches."""
        m = self.program.microbatches
        self._batch = {}
        for replica, batch in batches.items():
            pieces = {name: leaf.split(self._sizes(leaf.shape[0], m)) for name, leaf in batch.items()}
            self._batch.update({(replica, mb): {name: pieces[name][mb] for name in pieces} for mb in range(m)})
        self._step, self._forward_only = step, forward_only
        self._total = total if total is not None else 1.0
        self._losses = []
        self._buffers = {}
        self._live = self._make_live()

    def finish(self) -> float:
        """This device's part of the step's loss, added up in the order of its forwards."""
        left = [self.program.buffers[b].label for b in self._live.live()]
        assert not left, f"buffers that no task has freed: {', '.join(left[:3])}"
        self._batch = {}
        self._buffers = {}
        return sum(float(loss) * weight for loss, weight in self._losses)

    # What communication streams use

    def held(self, buffer: int) -> list[torch.Tensor]:
        """The tensors of a buffer for a send, which has a use of them of its own until `sent`."""
        self._live.retain(buffer)
        tensors: list[torch.Tensor] = self._buffers[buffer]
        if self.store.device.type == "cuda":
            for t in tensors:
                t.record_stream(torch.cuda.current_stream())
        return tensors

    def hold(self, buffer: int, tensors: list[torch.Tensor]) -> None:
        if self.store.device.type == "cuda":
            for t in tensors:  # allocated on the receiving stream, but the compute stream uses them last
                t.record_stream(torch.cuda.default_stream(self.store.device))
        self._put(buffer, tensors)

    def allocate(self, buffer: int) -> list[torch.Tensor]:
        specs = self.program.buffers[buffer].tensors
        return [torch.empty(s.shape, dtype=getattr(torch, s.dtype), device=self.store.device) for s in specs]

    def sent(self, task: Task) -> None:
        """The tensors of a send have left."""
        self._release(task.reads[0])
        self._release_all(task.reads)

    # Tasks

    def run(self, task: Task) -> None:
        """Run one compute task, then free what it is the last to read."""
        work: dict[str, Callable[[Task], None]] = {
            "F": self._forward, "B": self._backward, "BI": self._backward, "BW": self._weight, "UPDATE": self._update,
        }  # fmt: skip
        work[task.op](task)
        self._release_all(task.reads)

    def _forward(self, task: Task) -> None:
        spec = self.program.chunks[task.chunk]
        inputs = self._gather_inputs(task, task.reads)
        keep = not (spec.recompute or self._forward_only)
        kept, outputs = self._apply(task, inputs, grad=keep)
        writes = list(task.writes)
        if not spec.recompute:
            saved = writes.pop(0)
            if keep:
                self._put(saved, kept)
        for b, (_, values) in zip(writes, self._outputs[task.chunk], strict=True):
            self._put(b, [outputs[v].detach() for v in values])
        if "loss" in outputs:
            self._losses.append((outputs["loss"].detach(), self._loss_weight()))

    def _backward(self, task: Task) -> None:
        spec = self.program.chunks[task.chunk]
        transient = self._transient(task.reads)
        count = len(self._inputs[task.chunk])
        rest = transient[count:]
        if spec.recompute:
            kept, _ = self._apply(task, self._gather_inputs(task, task.reads), grad=True)
        else:
            kept = self._buffers[rest[0]]
            rest = rest[1:]
        gradients = self._gather_gradients(task.chunk, rest)
        if kept.outputs:
            edges, seeds = [], []
            for value, edge in kept.outputs.items():
                seed = self._seed(task) if value == "loss" else gradients.get(value)
                if seed is not None:
                    edges.append(edge)
                    seeds.append(seed)
            if edges:
                torch.autograd.backward(edges, seeds)
        if task.op == "B" and kept.queue is not None:  # of this chunk's backwards only some are split
            kept.queue.run(self.store.params)
        writes = self._transient(task.writes)
        if spec.recompute:
            writes = writes[1:]
        for _, values in self._inputs[task.chunk]:
            wanted = [v for v in values if v in self._grad_values]
            if wanted:
                self._put(writes.pop(0), [_gradient_of(kept.leaves[v]) for v in wanted])
        if task.op == "BI":
            self._put(writes.pop(0), kept.queue)
        assert not writes, f"{task}: buffers left unwritten"
        kept.leaves.clear()
        kept.outputs.clear()

    def _weight(self, task: Task) -> None:
        queue: WeightQueue = self._buffers[task.reads[0]]
        queue.run(self.store.params)

    def _update(self, task: Task) -> None:
        self.store.optimizers[task.stage].step()

    # Pieces

    def _put(self, buffer: int, value: Any) -> None:
        """Hold what a task has written, until its last reader has ended."""
        if readers := self._readers[buffer]:
            self._buffers[buffer] = value
            self._live.put(buffer, readers)

    def _release(self, buffer: int) -> None:
        if self._live.release(buffer):
            del self._buffers[buffer]

    def _release_all(self, reads: Sequence[int]) -> None:
        for b in self._transient(reads):
            self._release(b)

    def _apply(
        self, task: Task, inputs: dict[str, torch.Tensor], *, grad: bool
    ) -> tuple[_Kept, dict[str, torch.Tensor]]:
        """Run a chunk's module on one microbatch; with `grad`, keep what its backward needs."""
        leaves = {v: t.detach().requires_grad_(grad and v in self._grad_values) for v, t in inputs.items()}
        queue = WeightQueue() if grad and task.chunk in self.program.split else None
        mb = task.replica * self.program.microbatches + task.mb
        module = self.chunks[task.chunk]
        buffers = self.store.buffers
        if task.op != "F" and module.mutated:  # a repeated forward must not count twice in running statistics
            buffers = {**buffers, **{name: buffers[name].clone() for name in module.mutated}}
        with torch.set_grad_enabled(grad):
            outputs = module(
                self.store.params, buffers, self._batch[task.replica, task.mb], leaves,
                seed=(self._step, mb), queue=queue,
            )  # fmt: skip
        edges = {v: get_gradient_edge(t) for v, t in outputs.items() if t.requires_grad} if grad else {}
        return _Kept(leaves, edges, queue), outputs

    def _gather_inputs(self, task: Task, reads: Sequence[int]) -> dict[str, torch.Tensor]:
        buffers = self._transient(reads)
        return {
            value: tensor
            for b, (_, values) in zip(buffers, self._inputs[task.chunk], strict=False)
            for value, tensor in zip(values, self._buffers[b], strict=True)
        }

    def _gather_gradients(self, chunk: Chunk, buffers: Sequence[int]) -> dict[str, torch.Tensor]:
        """Output gradients summed over consumers, the last consumer first, as autograd's engine would."""
        total: dict[str, torch.Tensor] = {}
        ends = [(peer, [v for v in values if v in self._grad_values]) for peer, values in self._outputs[chunk]]
        ends = [(peer, values) for peer, values in ends if values]
        for b, (_, values) in reversed(list(zip(buffers, ends, strict=True))):
            for value, tensor in zip(values, self._buffers[b], strict=True):
                total[value] = tensor if value not in total else total[value] + tensor
        return total

    def _seed(self, task: Task) -> torch.Tensor:
        assert task.scale is not None, f"{task}: a loss without a scale"
        weight = task.scale[0] / task.scale[1]
        if self.program.loss == "sum_count":
            weight *= self.program.microbatches * self.program.replicas / self._total
        loss = self._losses[0][0]
        return torch.full((), weight, dtype=loss.dtype, device=loss.device)  # on CUDA, torch.tensor would wait for it

    def _loss_weight(self) -> float:
        if self.program.loss == "sum_count":
            return 1.0 / self._total
        return 1.0 / (self.program.microbatches * self.program.replicas)

    def _transient(self, buffers: Sequence[int]) -> list[int]:
        return [b for b in buffers if not self.program.buffers[b].persistent]


def _by_peer(ends: tuple[tuple[str, Chunk], ...]) -> Edges:
    found: dict[Chunk, list[str]] = {}
    for value, peer in ends:
        found.setdefault(peer, []).append(value)
    return [(peer, tuple(values)) for peer, values in found.items()]


def _gradient_of(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
