"""Tables: lists, dicts and sets that stand at the top of a module and are only read.

A table is as good as a constant, if nothing changes it. So its name may only be walked over, searched, subscripted or
asked by a reading method, and what is taken out of it must not be changed either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from pibroch.evals.speceval.shared import MUTATORS

_READING = {"get", "items", "keys", "values", "index", "count", "copy", "union", "intersection", "difference",
            "issubset", "issuperset", "isdisjoint"}  # fmt: skip
_FUNCTIONS = {"len", "sorted", "list", "tuple", "set", "frozenset", "dict", "min", "max", "sum", "any", "all",
              "enumerate", "reversed", "zip"}  # fmt: skip


def table_name(node: ast.stmt) -> str | None:
    """The name of an assignment whose value is a display, such as `_RANK = {"send": 0}`."""
    if isinstance(node, ast.AnnAssign):
        targets: list[ast.expr] = [node.target]
    elif isinstance(node, ast.Assign):
        targets = node.targets
    else:
        return None
    one = targets[0] if len(targets) == 1 else None
    value = node.value
    parts: list[Any] = []
    if isinstance(value, ast.List | ast.Set | ast.Tuple | ast.Dict):
        parts = value.keys if isinstance(value, ast.Dict) else value.elts  # type: ignore[assignment]
    return one.id if isinstance(one, ast.Name) and parts else None  # an empty one is of use only if it is filled


def display_parts(node: ast.expr) -> Iterator[ast.expr]:
    """The leaves of a display."""
    if isinstance(node, ast.List | ast.Set | ast.Tuple):
        for item in node.elts:
            yield from display_parts(item)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                yield value
                return
            yield from display_parts(key)
            yield from display_parts(value)
    else:
        yield node


def misuses(tree: ast.Module, name: str) -> Iterator[tuple[ast.AST, str]]:
    """Uses of a table that could change it or give it away, with what is wrong."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    borrowed: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            problem = _use(node, parents, borrowed)
            if problem:
                yield node, problem
    for node in ast.walk(tree):
        if _changes(node, borrowed):
            yield node, f"what was taken out of {name} is changed"


def _use(node: ast.Name, parents: dict[ast.AST, ast.AST], borrowed: set[str]) -> str:
    parent = parents[node]
    if isinstance(parent, ast.Compare) and node in parent.comparators:
        return ""
    if isinstance(parent, ast.For | ast.comprehension) and parent.iter is node:
        borrowed |= _names(parent.target)
        return ""
    if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.ctx, ast.Load):
        return _taken(parent, parents, borrowed)
    if isinstance(parent, ast.Attribute) and parent.attr in _READING:
        call = parents[parent]
        called = isinstance(call, ast.Call) and call.func is parent
        return _taken(call, parents, borrowed) if isinstance(call, ast.Call) and called else "is given away"
    if isinstance(parent, ast.Call) and node in parent.args and ast.unparse(parent.func) in _FUNCTIONS:
        return _taken(parent, parents, borrowed)
    return "is changed or given away: a table at the top of the module is only read"


def _taken(node: ast.expr, parents: dict[ast.AST, ast.AST], borrowed: set[str]) -> str:
    """Where a part of the table goes."""
    parent = parents[node]
    if isinstance(parent, ast.Assign) and parent.value is node:
        for target in parent.targets:
            borrowed |= _names(target)
    elif isinstance(parent, ast.For | ast.comprehension) and parent.iter is node:
        borrowed |= _names(parent.target)
    elif isinstance(parent, ast.Attribute) and parent.attr in MUTATORS:
        return "is changed: a table at the top of the module is only read"
    return ""


def _names(target: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


def _changes(node: ast.AST, borrowed: set[str]) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in MUTATORS:
        return isinstance(node.value, ast.Name) and node.value.id in borrowed
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return isinstance(node.value, ast.Name) and node.value.id in borrowed
    return isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in borrowed
