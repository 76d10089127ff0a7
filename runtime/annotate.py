"""Mark regions of a model in its own code.

    for block in self.blocks:
        with annotate("LAYER"):
            x = block(x)

Each entry of a tag's scope during one capture gets the next index of that tag, counted from 0 over the whole capture,
nested scopes included. Outside of a capture the scope does nothing, under the user's own `torch.compile` too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.fx.traceback

PREFIX = "pibroch."  # keeps our keys apart from others that use torch.fx.traceback.annotate

_CAPTURE = {"on": False}
_COUNTS: dict[str, int] = {}


@contextmanager
def annotate(tag: str) -> Iterator[None]:
    """Tag the operations inside as one region. `tag` is any name; scopes nest, and each loop turn is its own region."""
    if not _CAPTURE["on"]:
        yield
        return
    with torch.fx.traceback.annotate({PREFIX + tag: _next_index(tag)}):
        yield


# The tracer calls the next two while it traces and takes their results as constants (`counting` marks them). Written
# in the traced code itself, the counters would be side effects, which it refuses inside of activation checkpoints.
def _next_index(tag: str) -> int:
    index = _COUNTS.get(tag, 0)
    _COUNTS[tag] = index + 1
    return index


def restart() -> int:
    """All counters start at 0. A captured function begins with this, since a tracer may start over."""
    _COUNTS.clear()
    return 0


@contextmanager
def counting() -> Iterator[None]:
    """The extent of one capture: scopes of `annotate` are recorded."""
    for function in (_next_index, restart):  # marked here, since marking imports the tracer
        torch.compiler.assume_constant_result(function)  # type: ignore[no-untyped-call]
    _CAPTURE["on"] = True
    try:
        yield
    finally:
        _CAPTURE["on"] = False


def tags_of(node: torch.fx.Node) -> dict[str, int]:
    """The tags of a captured node, outermost first; those of its body for a node that calls a sub-graph."""
    tags = _own_tags(node.meta)
    graph_module = node.graph.owning_module
    if not tags and graph_module is not None:
        for argument in node.all_input_nodes:
            body = getattr(graph_module, str(argument.target), None) if argument.op == "get_attr" else None
            if isinstance(body, torch.fx.GraphModule):
                tags = next((inner for inner in map(tags_of, body.graph.nodes) if inner), {})
    return tags


def _own_tags(meta: dict[str, Any]) -> dict[str, int]:
    custom = meta.get("custom") or {}
    return {key.removeprefix(PREFIX): index for key, index in custom.items() if str(key).startswith(PREFIX)}
