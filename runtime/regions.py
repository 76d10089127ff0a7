"""From an observed graph to layers: which node is in which layer, what crosses between them, what is derived.

Requires a graph and its `facts` (observe.py). Ensures a graph whose nodes lie in layer order without dead nodes and
without scope nodes (autocast, no_grad: kept as each node's state), and a `ModelSpec` of it.

Rules
    A node without tags belongs to the region before it; leading ones to the first, trailing ones to the last. A layer
    starts wherever the tags change. An item of a tuple belongs to the tuple's layer. A layer of derived nodes alone
    joins the next one. What crosses is a tensor: a tuple is taken apart where it is made.
    A change in place of a value of another layer must be the last use of the old value; it works on a copy there.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pibroch.runtime.annotate import tags_of
from pibroch.runtime.captured import NodeInfo, ancestors
from pibroch.runtime.errors import AnnotationWarning, InputError
from pibroch.runtime.model import LayerSpec, ModelSpec, ParamSpec, TensorSpec
from pibroch.runtime.observe import Fact, is_getitem

HINT = (
    'mark its regions in execution order with `with annotate("LAYER"):` around each block '
    '(from pibroch import annotate), or annotate("PP") around each stage'
)
MEANT = ("LAYER", "PP")  # the tags that have a meaning (docs/annotating.md)
_ENTER, _EXIT = "_enter_autocast", "_exit_autocast"
_HARMLESS = ("assert", "check", "log_api_usage", "lazy_load")  # calls without a value that may be left out


@dataclass(slots=True)
class Regions:
    """The result: per node its info, and the model's figures."""

    info: dict[str, NodeInfo]
    spec: ModelSpec


@dataclass(slots=True)
class _Work:
    name: str
    graph: fx.Graph
    facts: dict[fx.Node, Fact]
    bindings: dict[str, tuple[str, str]]
    loss: fx.Node
    count: fx.Node | None
    layer: dict[fx.Node, int] = field(default_factory=dict)
    tags: list[dict[str, int]] = field(default_factory=list)
    derived: set[fx.Node] = field(default_factory=set)

    def kind(self, node: fx.Node) -> str:
        return self.bindings[node.name][0] if node.op == "placeholder" else ""

    def body(self) -> list[fx.Node]:
        return [n for n in self.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]


def divide(
    *,
    name: str,
    graph: fx.Graph,
    facts: dict[fx.Node, Fact],
    bindings: dict[str, tuple[str, str]],
    params: dict[str, ParamSpec],
    loss: fx.Node,
    count: fx.Node | None,
) -> Regions:
    """Change `graph` and `bindings` in place as the module's text says. Raises `InputError` on what it forbids."""
    work = _Work(name, graph, facts, bindings, loss, count)
    tags = {node: tags_of(node) for node in work.body()}
    states = _scopes(work)
    _drop_dead(work)
    _assign(work, tags)
    _open_tuples(work, states)
    _find_derived(work)
    _settle_mutation(work)
    _merge_empty(work)
    return Regions(_info(work, states), _spec(work, params))


def _scopes(work: _Work) -> dict[fx.Node, tuple[tuple[tuple[Any, ...], ...], bool]]:
    """Each node's (autocast stack, gradients enabled); removes the nodes that enter and leave scopes."""
    stack: list[tuple[Any, ...]] = []
    enabled = True
    states: dict[fx.Node, tuple[tuple[tuple[Any, ...], ...], bool]] = {}
    scope_nodes: list[fx.Node] = []
    for node in work.body():
        called = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if called == _ENTER:
            stack.append(tuple(node.args))
        elif called == _EXIT:
            stack.pop()
        elif node.target is torch._C._set_grad_enabled:
            enabled = bool(node.args[0])
        else:
            states[node] = (tuple(stack), enabled)
            fact = work.facts[node]
            effect = not fact.is_tensor and fact.length < 0 and not fact.mutates and not node.users
            if effect and not any(word in called for word in _HARMLESS):
                raise InputError(
                    f"{work.name}: the call {called or node.target} changes a global state, "
                    f"which cannot be kept when the model is cut: remove it from the model's forward"
                )
            continue
        scope_nodes.append(node)
    for node in reversed(scope_nodes):
        work.graph.erase_node(node)
    return states


def _drop_dead(work: _Work) -> None:
    """Keep what the loss and the count depend on and what changes a buffer (or anything else that is kept)."""
    roots = [work.loss, *([work.count] if work.count is not None else [])]
    kept = ancestors(*roots)
    buffers = {s for n in work.graph.nodes if work.kind(n) == "buffer" for s in work.facts[n].storages}
    grown = True
    while grown:
        alive = buffers | {s for n in kept for s in work.facts[n].storages}
        more = [n for n in work.body() if n not in kept and work.facts[n].mutates & alive]
        kept |= ancestors(*more)
        grown = bool(more)
    for node in reversed(list(work.graph.nodes)):
        if node not in kept and node.op != "output":
            work.graph.erase_node(node)
            work.bindings.pop(node.name, None)


def _assign(work: _Work, tags: dict[fx.Node, dict[str, int]]) -> None:
    body = work.body()
    found = dict.fromkeys(tag for node in body for tag in tags[node])
    if not found:
        raise InputError(f"{work.name}: the model has no annotated regions: {HINT}")
    if doubt := doubtful(list(found)):
        warnings.warn(f"{work.name}: {doubt}", AnnotationWarning, stacklevel=2)
    previous: dict[str, int] | None = None
    for node in body:
        source = node.args[0] if is_getitem(node) else None
        if isinstance(source, fx.Node) and work.facts[source].length >= 0 and source in work.layer:
            work.layer[node] = work.layer[source]
            continue
        own = tags[node]
        if own and own != previous:
            if previous is not None or not work.tags:
                work.tags.append(own)
            previous = own
        elif not work.tags:
            work.tags.append(next(tags[n] for n in body if tags[n]))
            previous = work.tags[0]
        work.layer[node] = len(work.tags) - 1


def doubtful(tags: Sequence[str]) -> str | None:
    """What is odd about the tags of a model: one that is nearly LAYER or PP, or none of these at all; else None."""
    for tag in tags:
        meant = next((m for m in MEANT if tag != m and _one_edit(tag.upper(), m)), None)
        if meant:
            return f"the tag {tag!r} is taken as a name of its own: did you mean {meant}? (tags: {', '.join(tags)})"
    if not set(tags) & set(MEANT):
        return f"no region is tagged LAYER or PP: stages are made of the regions {', '.join(tags)}"
    return None


def _one_edit(a: str, b: str) -> bool:
    """Equal after one letter is dropped, added, swapped with its neighbour or, but for two-letter names (TP, EP and
    DP are names of their own), changed."""
    if a == b:
        return True
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    x, y = a[start:], b[start:]
    return (x[1:] == y[1:] and len(b) > 2) or x[1:] == y or x == y[1:] or (x[:2] == y[:2][::-1] and x[2:] == y[2:])


def _open_tuples(work: _Work, states: dict[fx.Node, Any]) -> None:
    """Where a later layer uses a whole tuple, give it the tuple's items instead."""
    for node in work.body():
        length = work.facts[node].length
        users = [u for u in node.users if work.layer[u] != work.layer[node]]
        if length < 0 or not users:
            continue
        items: list[fx.Node] = []
        with work.graph.inserting_after(node):
            for index in reversed(range(length)):
                items.insert(0, work.graph.call_function(operator.getitem, (node, index)))
        for index, item in enumerate(items):
            work.facts[item] = _item_fact(work, node, index)
            work.layer[item], states[item] = work.layer[node], states[node]
        for user in users:

            def swap(argument: fx.Node, source: fx.Node = node, parts: tuple[fx.Node, ...] = tuple(items)) -> Any:
                return parts if argument is source else argument

            user.args, user.kwargs = fx.node.map_arg((user.args, user.kwargs), swap)


def _item_fact(work: _Work, node: fx.Node, index: int) -> Fact:
    known = next((work.facts[u] for u in node.users if is_getitem(u) and u.args[1] == index and u in work.facts), None)
    if known is None:
        raise InputError(
            f"{work.name}: {node.name} ({node.target}) gives a tuple that a later region uses as a whole: "
            f"index it inside of its own region"
        )
    return known


def _settle_mutation(work: _Work) -> None:
    """Let later uses of a value that was changed in place use the change's result; refuse what a cut would break."""
    order = {node: i for i, node in enumerate(work.graph.nodes)}
    for change in work.body():
        fact = work.facts[change]
        if not fact.mutates or change in work.derived:
            continue
        here = work.layer[change]
        aliases = [n for n in order if order[n] < order[change] and fact.mutates & set(work.facts[n].storages)]
        foreign = [n for n in aliases if work.layer.get(n, -1) != here]
        for alias in foreign:
            if work.kind(alias) == "param":
                raise InputError(f"{work.name}: forward changes the parameter {work.bindings[alias.name][1]} in place")
            if alias.op == "get_attr":
                raise InputError(f"{work.name}: forward changes the constant {alias.target} in place: make it a buffer")
            later = [u for u in alias.users if order[u] > order[change]]
            if work.kind(alias) != "buffer" and fact.same_as is alias:
                for user in later:
                    user.replace_input_with(alias, change)
                later = []
            if work.kind(alias) == "buffer":
                later = list(alias.users)  # each device has its own copy of a buffer
            if {work.layer[u] for u in later} - {here}:
                _refuse(work, change, alias)
        used = [n for n in foreign if work.kind(n) != "buffer" and any(work.layer[u] == here for u in n.users)]
        for i, alias in enumerate(used):
            if any({*work.facts[alias].storages} & {*work.facts[other].storages} for other in used[:i]):
                _refuse(work, change, alias)  # each would be a copy of its own


def _refuse(work: _Work, change: fx.Node, alias: fx.Node) -> None:
    what = " ".join(work.bindings.get(alias.name, ("the value", alias.name)))
    raise InputError(
        f"{work.name}: {change.name} in region {work.tags[work.layer[change]]} changes {what} in place, "
        f"which another region uses too: use an operation that makes a new tensor"
    )


def _find_derived(work: _Work) -> None:
    """The largest set that needs nothing else and that nothing else changes; a buffer's change is never part of it."""
    lasting = {s for n in work.graph.nodes if n.op == "get_attr" or work.kind(n) == "buffer"
               for s in work.facts[n].storages}  # fmt: skip
    changed = {s for n in work.body() for s in work.facts[n].mutates} & lasting
    while True:
        work.derived = set()
        for node in work.graph.nodes:
            fact = work.facts.get(node)
            if fact is None or fact.random or work.kind(node) == "param" or changed & {*fact.storages, *fact.mutates}:
                continue
            if all(argument in work.derived for argument in node.all_input_nodes):
                work.derived.add(node)
        more = {s for n in work.body() if n not in work.derived for s in work.facts[n].mutates}
        if more <= changed:
            return
        changed |= more


def _merge_empty(work: _Work) -> None:
    """Number the layers that compute something; derived ones join the next of them, and the loss is in the last."""
    real = sorted({work.layer[n] for n in work.body() if n not in work.derived})
    if not real:
        raise InputError(f"{work.name}: the loss does not depend on any parameter")
    number = {old: next((i for i, r in enumerate(real) if r >= old), len(real) - 1) for old in range(len(work.tags))}
    work.layer = {node: number[old] for node, old in work.layer.items()}
    work.tags = [work.tags[old] for old in real]


def _info(work: _Work, states: dict[fx.Node, Any]) -> dict[str, NodeInfo]:
    info: dict[str, NodeInfo] = {}
    drawn = 0
    for node in work.graph.nodes:
        if node.op == "output":
            continue
        fact = work.facts[node]
        autocast, enabled = states.get(node, ((), True))
        info[node.name] = NodeInfo(
            layer=work.layer.get(node, -1),
            derived=node in work.derived,
            random=drawn if fact.random else -1,
            storages=fact.storages,
            mutates=tuple(sorted(fact.mutates)),
            autocast=autocast,
            grad_enabled=enabled,
            ndim=len(fact.shape) if fact.is_tensor else -1,
        )
        drawn += fact.random
    return info


def _spec(work: _Work, params: dict[str, ParamSpec]) -> ModelSpec:
    layers = range(len(work.tags))
    used: list[dict[str, None]] = [{} for _ in layers]
    consumes: list[dict[str, None]] = [{} for _ in layers]
    produces: list[dict[str, None]] = [{} for _ in layers]
    flops = [0.0 for _ in layers]
    values: dict[str, TensorSpec] = {}

    def cross(value: fx.Node, layer: int) -> None:
        fact = work.facts[value]
        assert fact.is_tensor, value
        consumes[layer][value.name] = None
        produces[work.layer[value]][value.name] = None
        values[value.name] = TensorSpec(fact.shape, fact.dtype, fact.grad)

    for node in work.body():
        layer = work.layer[node]
        flops[layer] += work.facts[node].flops
        if node in work.derived:
            continue
        for argument in node.all_input_nodes:
            if work.kind(argument) == "param":
                used[layer][work.bindings[argument.name][1]] = None
            elif argument in work.layer and argument not in work.derived and work.layer[argument] != layer:
                cross(argument, layer)
    if work.layer[work.loss] != len(layers) - 1:
        cross(work.loss, len(layers) - 1)
    saved = _saved_bytes(work)
    weight_saved = _weight_saved_bytes(work, params)
    return ModelSpec(
        name=work.name,
        layers=tuple(
            LayerSpec(
                index=i,
                tags=dict(work.tags[i]),
                params=tuple(used[i]),
                consumes=tuple(consumes[i]),
                produces=tuple(produces[i]),
                saved_bytes=saved[i],
                weight_saved_bytes=weight_saved[i],
                flops=max(flops[i], 1.0),
            )
            for i in layers
        ),
        params={p: params[p] for p in dict.fromkeys(name for names in used for name in names)},
        values=values,
        loss="mean" if work.count is None else "sum_count",
        random=any(work.facts[node].random for node in work.body()),
    )


def _resident(work: _Work) -> set[int]:
    """Storages that are there anyway: parameters, buffers, batch leaves, constants."""
    return {s for n in work.graph.nodes if n.op in ("placeholder", "get_attr") for s in work.facts[n].storages}


def _saved_bytes(work: _Work) -> list[int]:
    resident = _resident(work)
    saved: list[dict[int, int]] = [{} for _ in work.tags]
    for node in work.body():
        kept = {s: n for s, n in work.facts[node].saved.items() if s not in resident}
        saved[work.layer[node]].update(kept)
    return [sum(storages.values()) for storages in saved]


def _weight_saved_bytes(work: _Work, params: dict[str, ParamSpec]) -> list[int]:
    """The inputs (each storage once) and output gradients of linear layers with a trainable weight."""
    resident = _resident(work)
    inputs: list[dict[int, int]] = [{} for _ in work.tags]
    gradients = [0 for _ in work.tags]
    for node in work.body():
        if node.target is not torch.nn.functional.linear or len(node.args) < 2:
            continue
        x, weight = node.args[:2]
        if not isinstance(x, fx.Node) or not isinstance(weight, fx.Node) or work.kind(weight) != "param":
            continue
        if params[work.bindings[weight.name][1]].trainable:
            kept = {s: work.facts[x].nbytes for s in work.facts[x].storages if s not in resident}
            inputs[work.layer[node]].update(kept)
            gradients[work.layer[node]] += work.facts[node].nbytes
    return [sum(storages.values()) + g for storages, g in zip(inputs, gradients, strict=True)]
