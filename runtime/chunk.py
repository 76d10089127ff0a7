"""Callable chunks of a captured model: layers [start, stop) as one plain function.

    first chunk     batch leaves                        -> values
    middle chunk    values (and batch leaves)           -> values
    last chunk      values (and batch leaves)           -> "loss"

A chunk takes exactly the parameters, buffers and batch leaves that its own nodes need. Derived nodes of earlier layers
are repeated in it. It runs each node under the autocast and no_grad scopes that the unsplit model ran it in, random
nodes under their own seeds, and works on copies of inputs that it changes in place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils.checkpoint import checkpoint

from pibroch.runtime.captured import Captured, NodeInfo
from pibroch.runtime.plan import ChunkSpec
from pibroch.runtime.randomness import method, seeded
from pibroch.runtime.split_linear import WeightQueue, split_linear

__all__ = ["ChunkModule", "WeightQueue", "build_chunk"]

SEED, QUEUE = "pibroch_seed", "pibroch_queue"


@dataclass(frozen=True, slots=True)
class ChunkModule:
    """`params`, `buffers`, `batch_leaves`, `inputs` and `outputs` name what a call takes and returns.

    `mutated` names the buffers that a call changes: one that only repeats a forward (recompute) passes copies of them.
    `split` names the parameters whose gradients go to the queue.
    """

    params: tuple[str, ...]
    buffers: tuple[str, ...]
    batch_leaves: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mutated: tuple[str, ...]
    split: tuple[str, ...]
    module: fx.GraphModule
    forward: Callable[..., tuple[Tensor, ...]]

    def __call__(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
        *,
        seed: tuple[int, int] = (0, 0),
        queue: WeightQueue | None = None,
    ) -> dict[str, Tensor]:
        """Run the chunk's forward on one microbatch. `seed` is (step, global microbatch).

        With a `queue`, a chunk built with `split_backward` leaves its linear layers' weight gradients there during
        backward; without one it behaves as any other.
        """
        results = self.forward(
            *[params[name] for name in self.params],
            *[buffers[name] for name in self.buffers],
            *[batch[name] for name in self.batch_leaves],
            *[inputs[name] for name in self.inputs],
            seed,
            queue,
        )
        return dict(zip(self.outputs, results, strict=True))


def build_chunk(
    captured: Captured, chunk: ChunkSpec, *, split_backward: bool, device: torch.device | str | None = None
) -> ChunkModule:
    """The function of layers [chunk.start, chunk.stop). Its values are those that `chunk` names, in that order.

    `device` is where it will run, if not where the model was captured: tensors that the model makes are made there.
    """
    return _Builder(captured, chunk, split_backward, None if device is None else torch.device(device)).build()


class _Builder:
    def __init__(self, captured: Captured, chunk: ChunkSpec, split_backward: bool, device: torch.device | None) -> None:
        self.device = device
        self.captured, self.chunk = captured, chunk
        self.info = captured.info
        self.last = chunk.stop == len(captured.spec.layers)
        self.inputs = tuple(dict.fromkeys(value for value, _ in chunk.inputs))
        self.outputs = ("loss",) if self.last else tuple(dict.fromkeys(value for value, _ in chunk.outputs))
        self.by_name = {node.name: node for node in captured.graph.nodes}
        self.roots = [self.by_name[captured.loss if self.last else name] for name in self.outputs]
        self.needed = self._needed()
        self.nodes = [node for node in captured.graph.nodes if node in self.needed]
        self.split = self._splittable() if split_backward else set()
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}

    def _inside(self, node: fx.Node) -> bool:
        return self.chunk.start <= self.info[node.name].layer < self.chunk.stop

    def _needed(self) -> set[fx.Node]:
        """What the outputs need and what changes a buffer, up to the chunk's inputs."""
        buffers = {s for name, (kind, _) in self.captured.bindings.items() if kind == "buffer"
                   for s in self.info[name].storages}  # fmt: skip
        effects = [n for n in self.captured.graph.nodes if self._inside(n) and buffers & {*self.info[n.name].mutates}]
        needed = self.captured.cone(*self.roots, *effects, layers=range(self.chunk.start, self.chunk.stop))
        for node in needed:
            here = self._inside(node) or self.info[node.name].derived or node.op in ("placeholder", "get_attr")
            assert here or node.name in self.inputs, f"{node.name} is not an input of chunk {self.chunk.key}"
        return needed

    def _splittable(self) -> set[fx.Node]:
        """Linear nodes whose weight and bias are parameters that the chunk uses in no other way."""
        found = {node for node in self.nodes if self._inside(node) and self._is_param_linear(node)}
        while True:
            users = {p: [u for u in p.users if u in self.needed] for node in found for p in _weights(node)}
            mixed = {p for p, nodes in users.items() if any(u not in found for u in nodes) or _two_roles(p, nodes)}
            rest = {node for node in found if not mixed & set(_weights(node))}
            if rest == found:
                return found
            found = rest

    def _is_param_linear(self, node: fx.Node) -> bool:
        info = self.info[node.name]
        if node.op != "call_function" or node.target is not torch.nn.functional.linear or not info.grad_enabled:
            return False
        x, weight, bias = _linear_arguments(node)
        if not isinstance(x, fx.Node) or self.info[x.name].ndim < 2:
            return False
        return self._is_param(weight) and (bias is None or self._is_param(bias))

    def _is_param(self, node: Any) -> bool:
        return isinstance(node, fx.Node) and self.captured.bindings.get(node.name, ("",))[0] == "param"

    def build(self) -> ChunkModule:
        mutated = {s for n in self.nodes if n.name not in self.inputs for s in self.info[n.name].mutates}
        names = {kind: self._placeholders(kind) for kind in ("param", "buffer", "batch")}
        for name in self.inputs:
            self.copies[self.by_name[name]] = self.graph.placeholder(name)
        self.seed, self.queue = self.graph.placeholder(SEED), self.graph.placeholder(QUEUE)
        for node in list(self.copies):
            if self._binding(node)[0] in ("", "batch") and mutated & {*self.info[node.name].storages}:
                self.copies[node] = self.graph.call_method("clone", (self.copies[node],))
        scope = _Scope(self.graph, self._moved)
        for node in self.nodes:
            if node not in self.copies:
                if node.op != "get_attr":
                    scope.enter(self.info[node.name])
                self.copies[node] = self._copy(node)
        scope.enter(NodeInfo())
        self.graph.output(tuple(self.copies[root] for root in self.roots))
        names_used = {str(node.target) for node in self.nodes if node.op == "get_attr"}
        attributes = {name: self._moved_attribute(self.captured.attributes[name]) for name in names_used}
        module = fx.GraphModule(attributes, self.graph, class_name="Chunk")
        return ChunkModule(
            params=names["param"],
            buffers=names["buffer"],
            batch_leaves=names["batch"],
            inputs=self.inputs,
            outputs=self.outputs,
            mutated=tuple(
                self._binding(n)[1]
                for n in self.nodes
                if self._binding(n)[0] == "buffer" and mutated & {*self.info[n.name].storages}
            ),
            split=tuple(dict.fromkeys(self._binding(p)[1] for n in self.nodes if n in self.split for p in _weights(n))),
            module=module,
            forward=module.forward,
        )

    def _moved(self, value: Any) -> Any:
        """A device of the captured kind becomes the chunk's."""
        if self.device is not None and isinstance(value, torch.device) and value.type == self.captured.device:
            return self.device
        return value

    def _moved_attribute(self, value: Any) -> Any:
        if self.device is None:
            return value
        if isinstance(value, Tensor):
            return value.to(self.device) if value.device.type == self.captured.device else value
        body: fx.GraphModule = copy.deepcopy(value)
        for node in body.graph.nodes:
            node.args, node.kwargs = map_aggregate(node.args, self._moved), map_aggregate(node.kwargs, self._moved)
        body.recompile()
        return body.to(self.device)

    def _binding(self, node: fx.Node) -> tuple[str, str]:
        return self.captured.bindings.get(node.name, ("", ""))

    def _placeholders(self, kind: str) -> tuple[str, ...]:
        nodes = [node for node in self.nodes if node.op == "placeholder" and self._binding(node)[0] == kind]
        self.copies.update({node: self.graph.placeholder(node.name) for node in nodes})
        return tuple(self._binding(node)[1] for node in nodes)

    def _copy(self, node: fx.Node) -> fx.Node:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.copies.__getitem__)
        args, kwargs = map_aggregate(args, self._moved), map_aggregate(kwargs, self._moved)
        if node in self.split:
            x, weight, bias = _linear_arguments(node)
            names = self._binding(weight)[1], None if bias is None else self._binding(bias)[1]
            tensors = [None if a is None else self.copies[a] for a in (x, weight, bias)]
            return self.graph.call_function(split_linear, (*tensors, self.queue, *names))
        index = self.info[node.name].random
        function = method(node.target) if isinstance(node.target, str) else node.target
        if getattr(function, "__name__", "") == "tag_activation_checkpoint":
            function, kwargs = checkpointed, {"preserve_rng_state": index >= 0}
        if index >= 0:
            return self.graph.call_function(seeded(function, index), (self.seed, *args), kwargs)
        if function is checkpointed:
            return self.graph.call_function(function, args, kwargs)
        return self.graph.create_node(node.op, node.target, args, kwargs, node.name)


def _linear_arguments(node: fx.Node) -> tuple[Any, Any, Any]:
    values = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
    return values["input"], values["weight"], values.get("bias")


def _weights(node: fx.Node) -> list[fx.Node]:
    return [p for p in _linear_arguments(node)[1:] if p is not None]


def _two_roles(parameter: fx.Node, users: list[fx.Node]) -> bool:
    """True where one parameter is input, weight and bias in more than one of these ways."""
    roles = {role for u in users for role, p in enumerate(_linear_arguments(u)) if p is parameter}
    return len(roles) > 1


class _Scope:
    """Writes the entering and leaving of autocast and no_grad scopes into a graph, between nodes of other states."""

    def __init__(self, graph: fx.Graph, moved: Callable[[Any], Any]) -> None:
        self.graph, self.moved = graph, moved
        self.autocast: list[tuple[tuple[Any, ...], fx.Node]] = []
        self.grad: fx.Node | None = None

    def enter(self, info: NodeInfo) -> None:
        same = 0
        for (have, _), want in zip(self.autocast, info.autocast, strict=False):
            if have != want:
                break
            same += 1
        while len(self.autocast) > same:
            self.graph.call_function(torch.amp.autocast_mode._exit_autocast, (self.autocast.pop()[1],))
        for want in info.autocast[same:]:
            kind = self.moved(torch.device(want[0])).type
            enter = self.graph.call_function(torch.amp.autocast_mode._enter_autocast, (kind, *want[1:]))
            self.autocast.append((want, enter))
        if self.grad is None and not info.grad_enabled:
            self.grad = self.graph.call_function(no_grad_enter)
        elif self.grad is not None and info.grad_enabled:
            self.graph.call_function(torch._C._set_grad_enabled, (self.grad,))
            self.grad = None


def checkpointed(body: fx.GraphModule, *args: Any, preserve_rng_state: bool) -> Any:
    """An activation checkpoint as eager PyTorch runs it; the traced operator forgets the random state."""
    return checkpoint(body.forward, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)


def no_grad_enter() -> bool:
    """Turn gradients off; the result is whether they were on, which may be off too (evaluation, recompute)."""
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    return before
