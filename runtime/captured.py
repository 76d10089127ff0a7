"""A captured model as data: a graph, what is known of each node, and which tensor each placeholder stands for.

Terms
    layer       a region of the model; the nodes of layer i come before those of layer i + 1
    binding     a placeholder's (kind, name): "param" or "buffer" with its name in the model, "batch" with its leaf's
    derived     a node that depends on batch leaves, constants and unchanging buffers alone and is not random, in memory
                that no other kind of node changes in place: simpler to repeat where it is needed than to send
    state       the autocast and no_grad scopes that a node runs in; the graph has no nodes for them

Reading one needs torch.fx but no tracer, so workers start quickly.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from pibroch.runtime.errors import InputError
from pibroch.runtime.model import ModelSpec


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """`layer` is -1 for placeholders and constants; `random` is the index among random nodes, or -1; `storages` number
    the memory that the node's tensors lie in, `mutates` what it changes; `ndim` is -1 where it is not a tensor."""

    layer: int = -1
    derived: bool = False
    random: int = -1
    storages: tuple[int, ...] = ()
    mutates: tuple[int, ...] = ()
    autocast: tuple[tuple[Any, ...], ...] = ()
    grad_enabled: bool = True
    ndim: int = -1


@dataclass(slots=True)
class Captured:
    """`loss` names the node of the loss (the mean, or the sum); `count` is the node of the count, a number, or None;
    `device` is the kind of device that the model was captured on ("cpu", "cuda").

    `attributes` holds what `get_attr` nodes refer to: constant tensors and the bodies of higher-order operators.
    Plain `pickle` works and needs nothing of the user's modules except custom operators and wrapped functions.
    """

    name: str
    spec: ModelSpec
    graph: fx.Graph
    info: dict[str, NodeInfo]
    bindings: dict[str, tuple[str, str]]
    loss: str
    device: str
    count: str | float | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    def node(self, name: str) -> fx.Node:
        """The node of that name."""
        found: fx.Node = next(node for node in self.graph.nodes if node.name == name)
        return found

    def cone(self, *roots: fx.Node, layers: range = range(0)) -> set[fx.Node]:
        """What `roots` need: derived nodes and those of `layers`, what changes their memory in place, and their inputs.

        A statement that changes a value in place (`x[0] = 1`) is nobody's argument, but counts as needed.
        """

        def repeatable(node: fx.Node) -> bool:
            return self.info[node.name].derived or self.info[node.name].layer in layers

        changes = [node for node in self.graph.nodes if self.info[node.name].mutates and repeatable(node)]
        cone: set[fx.Node] = set()
        memory: set[int] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in cone:
                cone.add(node)
                memory.update(self.info[node.name].storages)
                if repeatable(node):
                    stack.extend(node.all_input_nodes)
            if not stack:
                stack = [n for n in changes if n not in cone and memory & {*self.info[n.name].mutates}]
        return cone

    def count_of(self, batch: Any) -> Tensor | None:
        """The count of a (sum, count) loss for one batch of the captured shapes; None for a mean loss."""
        if self.count is None:
            return None
        if not isinstance(self.count, str):
            return torch.tensor(self.count)
        leaves = flatten_batch(batch)
        wanted = self.cone(self.node(self.count))
        values: dict[fx.Node, Any] = {}
        with torch.no_grad():
            for node in self.graph.nodes:
                if node not in wanted:
                    continue
                if node.op == "placeholder":
                    values[node] = leaves[self.bindings[node.name][1]].clone()  # it may be changed in place
                elif node.op == "get_attr":
                    values[node] = self.attributes[str(node.target)]
                else:
                    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                    if callable(node.target):
                        values[node] = node.target(*args, **kwargs)
                    else:
                        values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        count = values[self.node(self.count)]
        assert isinstance(count, Tensor)
        return count

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in self.__slots__}
        state["graph"] = _encode(self.graph)
        state["attributes"] = {name: _encode_attribute(value) for name, value in self.attributes.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.graph = _decode(state["graph"])
        self.attributes = {name: _decode_attribute(value) for name, value in state["attributes"].items()}


def flatten_batch(batch: Any) -> dict[str, Tensor]:
    """The tensors of a nest of mappings, lists and tuples, each named by its path: "0", "ids", "masks.1".

    A bare tensor is named "batch". Other leaves are constants of the model and left out. The result of a call is
    its own result. Raises `InputError` where two leaves would have one name.
    """
    leaves: dict[str, Tensor] = {}

    def visit(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, Tensor):
            name = ".".join(path) or "batch"
            if name in leaves:
                raise InputError(f"the batch has two tensors at {name!r}: rename one of the keys")
            leaves[name] = value
        elif isinstance(value, Mapping):
            for key, item in value.items():
                visit(item, (*path, str(key)))
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                visit(item, (*path, str(index)))

    visit(batch, ())
    return leaves


def ancestors(*roots: fx.Node) -> set[fx.Node]:
    """All nodes that `roots` depend on, themselves included."""
    seen: set[fx.Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return seen


@dataclass(frozen=True, slots=True)
class _Ref:
    name: str


@dataclass(frozen=True, slots=True)
class _Named:
    """A function that pickle cannot find by itself, by the path to it."""

    path: str


@dataclass(frozen=True, slots=True)
class _Body:
    rows: list[tuple[Any, ...]]
    attributes: dict[str, Any]


def _encode(graph: fx.Graph) -> list[tuple[Any, ...]]:
    def plain(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return _Ref(value.name)
        return _encode_target(value) if callable(value) and not isinstance(value, type) else value

    return [
        (n.op, n.name, _encode_target(n.target), map_aggregate(n.args, plain), map_aggregate(n.kwargs, plain))
        for n in graph.nodes
    ]


def _decode(rows: list[tuple[Any, ...]]) -> fx.Graph:
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}

    def live(value: Any) -> Any:
        return nodes[value.name] if isinstance(value, _Ref) else _decode_target(value)

    for op, name, target, args, kwargs in rows:
        args, kwargs = map_aggregate(args, live), map_aggregate(kwargs, live)
        node = graph.create_node(op, _decode_target(target), args, kwargs, name)
        assert node.name == name, f"{node.name} != {name}"
        nodes[name] = node
    return graph


def _encode_target(target: Any) -> Any:
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _Named(f"torch.ops.higher_order.{target.__name__}")
    try:
        pickle.dumps(target)
    except Exception:  # pickle raises whatever the object's own hooks raise
        return _Named(str(target) if str(target).startswith("torch.") else f"torch.ops.{target}")
    return target


def _decode_target(target: Any) -> Any:
    if not isinstance(target, _Named):
        return target
    if target.path.startswith("torch.ops.higher_order."):
        importlib.import_module("torch._higher_order_ops")
    value: Any = torch
    for part in target.path.split(".")[1:]:
        value = getattr(value, part)
    return value


def _encode_attribute(value: Any) -> Any:
    if isinstance(value, fx.GraphModule):
        names = [str(n.target) for n in value.graph.nodes if n.op == "get_attr"]
        return _Body(_encode(value.graph), {name: _encode_attribute(getattr(value, name)) for name in names})
    return value.detach() if isinstance(value, Tensor) else value


def _decode_attribute(value: Any) -> Any:
    if isinstance(value, _Body):
        attributes = {name: _decode_attribute(item) for name, item in value.attributes.items()}
        return fx.GraphModule(attributes, _decode(value.rows))
    return value
