"""A linear layer whose backward computes the input's gradient now and the weight's later.

Terms, for y = x W^T + b with x of shape (..., in), W (out, in), b (out), g = dL/dy (..., out), all but the last
dimension flattened:

    BI      dL/dx = g W, when autograd reaches the layer; (x, g) go to a queue
    BW      dL/dW = g^T x and dL/db = sum(g), when the queue runs

Products and sums are the ones that autograd itself performs, in its order, so gradients agree bitwise.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(slots=True)
class _Entry:
    weight: str | None
    bias: str | None
    x: Tensor | None
    g: Tensor


class WeightQueue:
    """The weight gradients that one backward of one chunk has put off. Use a fresh one per microbatch and chunk."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct storages that the queue keeps alive."""
        tensors = [t for entry in self._entries for t in (entry.x, entry.g) if t is not None]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())

    def put(self, weight: str | None, bias: str | None, x: Tensor | None, g: Tensor) -> None:
        """Queue one layer's gradients; a name that is None is not wanted."""
        self._entries.append(_Entry(weight, bias, x, g))

    @torch.no_grad()
    def run(self, params: Mapping[str, Tensor]) -> None:
        """Compute all queued gradients and add them to `.grad` of `params`, freeing each pair (x, g) on the way.

        A parameter that was used several times gets the sum of its contributions in the order in which they were
        queued, which is the order in which autograd would have added them, in one addition.
        """
        left = Counter(name for entry in self._entries for name in (entry.weight, entry.bias) if name)
        sums: dict[str, Tensor] = {}
        while self._entries:
            entry = self._entries.popleft()
            g = entry.g.reshape(-1, entry.g.shape[-1])
            for name in (entry.weight, entry.bias):
                if name is None:
                    continue
                if name == entry.weight and entry.x is not None:
                    value = g.t().mm(entry.x.reshape(-1, entry.x.shape[-1]))
                else:
                    value = g.sum(0)
                sums[name] = sums[name] + value if name in sums else value
                left[name] -= 1
                if not left[name]:
                    _accumulate(params[name], sums.pop(name))


def split_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, queue: WeightQueue | None, weight_name: str, bias_name: str | None
) -> Tensor:
    """`linear(x, weight, bias)` that puts the gradients of `weight` and `bias` on `queue`; plain linear without one."""
    if queue is None or not torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    output: Tensor = _SplitLinear.apply(x, weight, bias, queue, weight_name, bias_name)  # type: ignore[no-untyped-call]
    return output


class _SplitLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, queue: WeightQueue, weight_name: str, bias_name: str
    ) -> Tensor:
        ctx.queue = queue
        ctx.x_dtype = x.dtype
        ctx.weight_name = weight_name if weight.requires_grad else None
        ctx.bias_name = bias_name if bias is not None and bias.requires_grad else None
        if torch.is_autocast_enabled(x.device.type):
            # Autocast is off inside of backward: keep what the product really saw.
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        # autograd.Function runs forward without gradients, so this records nothing.
        ctx.save_for_backward(x if ctx.weight_name else None, weight)
        ctx.x_shape, ctx.x_stride = x.shape, x.stride()
        output = F.linear(x, weight, bias)
        # Linear may return a view of its matrix product, and a view made here could not be changed in place later.
        whole: Tensor = torch.ops.aten._unsafe_view(output, output.shape)
        return whole

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if ctx.weight_name or ctx.bias_name:
            ctx.queue.put(ctx.weight_name, ctx.bias_name, x, g)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = _grad_input(g, weight, ctx.x_shape, ctx.x_stride).to(ctx.x_dtype)
        return grad_x, None, None, None, None, None


def _grad_input(g: Tensor, weight: Tensor, shape: torch.Size, stride: tuple[int, ...]) -> Tensor:
    rows = g.reshape(-1, g.shape[-1])
    if len(shape) == 2 and stride[0] == 1 and stride[1] == shape[0]:
        return weight.t().mm(rows.t()).t()  # autograd's choice for a column-major input
    return rows.mm(weight).reshape(shape)


def _accumulate(parameter: Tensor, value: Tensor) -> None:
    value = value.to(parameter.dtype)
    if parameter.grad is None:
        parameter.grad = value
    else:
        parameter.grad.add_(value)
