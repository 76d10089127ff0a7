"""Run a captured graph once for real and note, node by node, what no static look at it could tell reliably.

Observed rather than derived from operator names: which nodes draw random numbers (a generator's state moves), which
change memory in place (version counters and buffer contents move), what lies in which storage, what autograd saves, and
how much arithmetic was done. All of this holds for any operator, the user's own included.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


@dataclass(slots=True)
class Fact:
    """What one node's run showed. `shape`, `dtype` and `grad` describe a tensor (`is_tensor`); `length` is the number
    of items of a tuple or list of values, else -1. `storages` and `mutates` hold storage numbers. `same_as` is the
    input that the node returned itself. `saved` maps a storage to the bytes that autograd keeps because of it."""

    is_tensor: bool = False
    shape: tuple[int, ...] = ()
    dtype: str = ""
    grad: bool = False
    nbytes: int = 0
    length: int = -1
    storages: tuple[int, ...] = ()
    mutates: set[int] = field(default_factory=set)
    same_as: fx.Node | None = None
    random: bool = False
    flops: float = 0.0
    saved: dict[int, int] = field(default_factory=dict)


class Observer(fx.Interpreter):
    """Interprets `module`. `facts` covers every node but the output; `results` are the graph's outputs.

    Buffers that the run changes in place and the generators are as before afterwards (`restore`).
    """

    def __init__(self, module: fx.GraphModule, buffers: Sequence[Tensor]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.facts: dict[fx.Node, Fact] = {}
        self.results: tuple[Any, ...] = ()
        self._storages: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in buffers]
        self._current = Fact()
        self._flops = _Flops()
        # Those of CUDA devices exist once CUDA is in use.
        self._generators = [torch.default_generator, *torch.cuda.default_generators]

    def observe(self, *inputs: Any) -> tuple[Any, ...]:
        """Run on real inputs in placeholder order."""
        states = [generator.get_state() for generator in self._generators]
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        try:
            with torch.enable_grad(), hooks, self._flops:
                result = self.run(*inputs, enable_io_processing=False)
        finally:
            for generator, state in zip(self._generators, states, strict=True):
                generator.set_state(state)
        self.results = tuple(result)
        return self.results

    @torch.no_grad()
    def restore(self) -> None:
        """Give all buffers their first contents back."""
        for buffer, before in self._buffers:
            if not _same(buffer, before):
                buffer.copy_(before)

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "output":
            return super().run_node(n)
        fact = self._current = Fact()
        inputs = _tensors(self.env[a] for a in n.all_input_nodes)
        versions = [_version(t) for t in inputs]
        touched = {self._storage(t) for t in inputs}
        watched = [(b, b.detach().clone()) for b, _ in self._buffers if self._storage(b) in touched]
        states = [] if n.op in ("placeholder", "get_attr") else [g.get_state() for g in self._generators]
        self._flops.total = 0.0
        result = super().run_node(n)
        fact.flops = self._flops.total
        fact.random = any(not torch.equal(g.get_state(), s) for g, s in zip(self._generators, states, strict=False))
        fact.mutates = {self._storage(t) for t, v in zip(inputs, versions, strict=True) if _version(t) != v}
        fact.mutates |= {self._storage(b) for b, before in watched if not _same(b, before)}
        if isinstance(result, Tensor):
            fact.same_as = next((a for a in n.all_input_nodes if self.env[a] is result), None)
        self._describe(fact, result)
        self.facts[n] = fact
        return result

    def _describe(self, fact: Fact, result: Any) -> None:
        tensors = _tensors([result])
        fact.storages = tuple(sorted({self._storage(t) for t in tensors}))
        fact.nbytes = sum(t.numel() * t.element_size() for t in tensors)
        if isinstance(result, Tensor):
            fact.is_tensor = True
            fact.shape, fact.grad = tuple(result.shape), result.requires_grad
            fact.dtype = str(result.dtype).removeprefix("torch.")
        elif isinstance(result, list | tuple):
            fact.length = len(result)

    def _storage(self, tensor: Tensor) -> int:
        # All values, and what `_pack` sees of them, stay alive during the run: an address is a storage's identity.
        return self._storages.setdefault(tensor.untyped_storage()._cdata, len(self._storages))

    def _pack(self, tensor: Tensor) -> None:
        self._alive.append(tensor.detach())
        self._current.saved[self._storage(tensor)] = tensor.untyped_storage().nbytes()


def _unpack(_: Any) -> Tensor:
    raise RuntimeError("a captured forward has no backward")


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def note(value: Any) -> Any:
        if isinstance(value, Tensor):
            found.append(value)
        return value

    for value in values:
        map_aggregate(tuple(value) if isinstance(value, tuple) else value, note)
    return found


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, so that NaN equals itself."""
    return torch.equal(a.detach().reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


class _Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the floating-point operations of what runs inside; an elementwise operator counts one per result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.total += _cost(func, args, kwargs or {}, result)
        return result


def _cost(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> float:
    if getattr(func, "is_view", False):
        return 0.0
    formula: Callable[..., Any] | None = flop_registry.get(getattr(func, "_overloadpacket", None))
    if formula is not None:
        try:
            return float(formula(*args, **kwargs, out_val=result))
        except (TypeError, AssertionError, ValueError):
            pass  # a formula for other arguments than these: count results instead
    if "scaled_dot_product" in str(func):
        query, key, value = (tuple(t.shape) for t in args[:3])
        return 2.0 * float(prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))
    return float(sum(t.numel() for t in _tensors([result])))


def is_getitem(node: fx.Node) -> bool:
    """True for `source[index]` of a tuple- or list-valued node as well as of a tensor."""
    return node.op == "call_function" and node.target is operator.getitem
