"""What a user brings: a model, a loss, an optimizer and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Batch = Any  # a pytree of tensors that all have the samples along dimension 0


@dataclass(frozen=True, slots=True)
class Workload:
    """A training job without a schedule. `--model module:function` names a function that returns one.

    `model()` builds the module (called under a fixed seed); `loss(model, batch)` returns the mean loss over the
    batch's samples, or `(sum, count)`; `optimizer(pairs)` builds the optimizer from (name, parameter) pairs, as every
    torch optimizer takes them; `batch(size, step)` returns the batch of that step with `size` samples. Optimizer and
    batch are sent to other processes: module-level functions or `functools.partial`, not lambdas. `microbatch` is the
    number of samples in one microbatch, `tokens` the tokens in one sample. With `clip_norm`, gradients are scaled
    before each update so that their 2-norm over the whole model is at most that.
    """

    name: str
    model: Callable[[], torch.nn.Module]
    loss: Callable[[torch.nn.Module, Batch], Any]
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer]
    batch: Callable[[int, int], Batch]
    microbatch: int = 1
    tokens: int = 1
    clip_norm: float | None = None
