"""Run a captured model as a chain of chunks in one process, without plan or executor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pibroch.runtime.action import Chunk
from pibroch.runtime.captured import Captured, flatten_batch
from pibroch.runtime.chunk import ChunkModule, WeightQueue, build_chunk
from pibroch.runtime.plan import ChunkSpec

Result = tuple[Tensor, dict[str, Tensor | None]]


def chunks_at(captured: Captured, cuts: Sequence[int], *, split: bool = False) -> list[ChunkModule]:
    """One chunk per range between `cuts`, joined by the values that the layers say they produce and consume."""
    layers = captured.spec.layers
    edges = [0, *cuts, len(layers)]
    maker = {value: next(i for i, end in enumerate(edges[1:]) if layer.index < end)
             for layer in layers for value in layer.produces}  # fmt: skip
    users: dict[str, dict[int, None]] = {value: {} for value in maker}
    for layer in layers:
        for value in layer.consumes:
            users[value][next(i for i, end in enumerate(edges[1:]) if layer.index < end)] = None
    specs = [
        ChunkSpec(
            stage,
            0,
            start,
            stop,
            inputs=tuple((v, Chunk(maker[v])) for v in maker if stage in users[v] and maker[v] != stage),
            outputs=tuple((v, Chunk(u)) for v in maker if maker[v] == stage for u in users[v] if u != stage),
        )
        for stage, (start, stop) in enumerate(itertools.pairwise(edges))
    ]
    return [build_chunk(captured, spec, split_backward=split) for spec in specs]


def run_chain(
    captured: Captured,
    model: nn.Module,
    batch: Any,
    cuts: Sequence[int] = (),
    *,
    split: bool = False,
    seed: tuple[int, int] = (0, 0),
) -> Result:
    """Loss and gradients of one microbatch by chunks, with fresh `.grad`s. Splits each backward into BI and BW."""
    params, buffers, leaves = dict(model.named_parameters()), dict(model.named_buffers()), flatten_batch(batch)
    for parameter in params.values():
        parameter.grad = None
    values: dict[str, Tensor] = {}
    tape = []
    for chunk in chunks_at(captured, cuts, split=split):
        inputs = {v: values[v].detach().requires_grad_(captured.spec.values[v].grad) for v in chunk.inputs}
        queue = WeightQueue() if split else None
        outputs = chunk(params, buffers, leaves, inputs, seed=seed, queue=queue)
        for value, tensor in outputs.items():
            if value != "loss":
                want = captured.spec.values[value]
                assert (tuple(tensor.shape), str(tensor.dtype)) == (want.shape, f"torch.{want.dtype}")
                assert tensor.requires_grad == want.grad
        values |= outputs
        tape.append((inputs, outputs, queue))
    flowing: dict[str, Tensor] = {}
    for inputs, outputs, queue in reversed(tape):
        roots = [name for name, tensor in outputs.items() if tensor.requires_grad]
        torch.autograd.backward([outputs[name] for name in roots], [flowing.get(name) for name in roots])
        for value, tensor in inputs.items():
            if tensor.grad is not None:
                flowing[value] = flowing[value] + tensor.grad if value in flowing else tensor.grad
        if queue is not None:
            queue.run(params)
    return values["loss"].detach(), {name: p.grad for name, p in params.items()}


def run_eager(model: nn.Module, loss: Callable[[nn.Module, Any], Any], batch: Any) -> Result:
    """The same by plain PyTorch."""
    for parameter in model.parameters():
        parameter.grad = None
    result = loss(model, batch)
    total = result[0] if isinstance(result, tuple) else result
    total.backward()
    return total.detach(), {name: p.grad for name, p in model.named_parameters()}


def assert_same(left: Result, right: Result) -> None:
    """Loss and every gradient are bitwise equal, and the same gradients are None."""
    assert torch.equal(left[0], right[0]), (left[0], right[0])
    assert left[1].keys() == right[1].keys()
    for name, gradient in left[1].items():
        other = right[1][name]
        if gradient is None or other is None:
            assert gradient is other, name
        else:
            assert torch.equal(gradient, other), name
