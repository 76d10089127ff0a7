"""Batches as pytrees of tensors with the samples along dimension 0: their size, slices and dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from pibroch.runtime.captured import flatten_batch
from pibroch.runtime.errors import InputError
from pibroch.runtime.plan import Plan
from pibroch.runtime.words import count
from pibroch.runtime.workload import Batch


def samples(batch: Batch) -> int:
    """Samples in a batch. Raises `InputError` where its tensors disagree."""
    sizes = {n: t.shape[0] if t.ndim else 0 for n, t in flatten_batch(batch).items()}
    if not sizes or len(set(sizes.values())) > 1 or 0 in sizes.values():
        raise InputError(f"every tensor of a batch has the samples along dimension 0, but the sizes are {sizes}")
    return next(iter(sizes.values()))


def microbatch_size(batch: Batch, plan: Plan) -> int:
    """Samples in one microbatch. Raises `InputError` where the batch does not divide."""
    size, parts = samples(batch), plan.replicas * plan.microbatches
    if size % parts:
        raise InputError(
            f"a batch of {count(size, 'sample')} does not divide into {count(plan.replicas, 'replica')} x "
            f"{count(plan.microbatches, 'microbatch')}: use a multiple of {parts}"
        )
    return size // parts


def piece(batch: Batch, start: int, stop: int) -> Batch:
    """Samples [start, stop) of every tensor."""
    return tree_map(lambda t: t[start:stop] if isinstance(t, torch.Tensor) else t, batch)


def cast(batch: Batch, dtype: torch.dtype | None) -> Batch:
    """The batch with its floating-point tensors in `dtype`; as it is for None."""

    def one(t: Any) -> Any:
        floats = isinstance(t, torch.Tensor) and t.is_floating_point()
        return t.to(dtype) if floats and dtype is not None else t

    return tree_map(one, batch)
