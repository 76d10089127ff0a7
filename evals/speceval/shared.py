"""What a candidate's syntax tree says of shared data: names that may be shared, and where their insides change."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from pibroch.specs.model import Spec

MUTATORS = frozenset({
    "append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "remove", "clear", "sort",
    "reverse", "rotate", "add", "discard", "update", "setdefault", "difference_update", "intersection_update",
    "symmetric_difference_update",
})  # fmt: skip


def shared_names(tree: ast.Module, spec: Spec) -> tuple[list[str], list[str]]:
    """Attributes whose use may be interrupted at an opcode, and the module's variables that are its state.

    Locks, and attributes that only constructors write and that are nowhere changed inside, need no switch.
    """
    variables = {name for unit in spec.units if not unit.is_class for name in unit.fields}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(node.value, ast.Constant | ast.Tuple):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            variables |= {t.id for t in targets if isinstance(t, ast.Name)}
    changed: set[str] = set()
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        for inner in ast.walk(function):
            if isinstance(inner, ast.Global):
                variables |= set(inner.names)
            elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store | ast.Del):
                changed |= {inner.attr} if function.name != "__init__" else set()
    protocol = spec.front.concurrency
    locks = {lock.name.rpartition(".")[2] for lock in protocol.locks}
    named = {name for names in protocol.guarded_by.values() for name in names}
    named |= {name.rpartition(".")[2] for name in protocol.single_writer}
    return sorted((changed | _indexed(tree) | named) - locks), sorted(variables - locks)


def _indexed(tree: ast.Module) -> set[str]:
    """Attributes that are more than numbers: subscripted, iterated, called upon, or handed to a function."""
    found: set[str] = set()

    def note(node: ast.expr | None) -> None:
        if isinstance(node, ast.Attribute):
            found.add(node.attr)

    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
            note(node.value)
        elif isinstance(node, ast.For | ast.comprehension):
            note(node.iter)
        elif isinstance(node, ast.Compare):
            for each in node.comparators:
                note(each)
        elif isinstance(node, ast.Call):
            for each in node.args:
                note(each)
        elif isinstance(node, ast.Assign | ast.Return):
            note(node.value)
    return found


def mutation_lines(tree: ast.Module) -> frozenset[tuple[int, str]]:
    """(line, name) wherever the inside of `x.name`, of a variable `name`, or of a local alias of these is changed."""
    found: set[tuple[int, str]] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        aliases: dict[str, str] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                if isinstance(node.value, ast.Attribute):
                    aliases[node.targets[0].id] = node.value.attr
                elif isinstance(node.value, ast.Name):
                    aliases[node.targets[0].id] = node.value.id
        for node in ast.walk(function):
            for target in _changed(node):
                name = _base(target, aliases)
                if name:
                    last = target.end_lineno or target.lineno
                    found |= {(line, name) for line in range(target.lineno, last + 1)}
    return frozenset(found)


def _changed(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return [node.value]
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        return [node.func.value]
    return []


def _base(node: ast.expr, aliases: Mapping[str, str]) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return aliases.get(node.id, node.id) if isinstance(node, ast.Name) else ""
