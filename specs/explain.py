"""What a failing clause shows: the values of its parts, short and the same on every machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any


def show(value: Any, limit: int = 160) -> str:
    """A short repr that is the same on every machine: sets are sorted, long values cut in the middle."""
    text = _repr(value)
    half = (limit - 3) // 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"


def parts(tree: ast.expr, skip: set[str]) -> list[tuple[str, ast.expr]]:
    """Sub-expressions that say something, with their source: names (but for `skip`), fields, calls, subscripts; nothing
    that speaks of variables bound inside the clause."""
    found: list[tuple[str, ast.expr]] = []

    def walk(node: ast.AST, *, top: bool = False) -> None:
        if isinstance(node, ast.Constant | ast.Lambda):
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            walk(node.generators[0].iter)
            if not isinstance(node, ast.GeneratorExp):
                found.append((ast.unparse(node), node))
            return
        if isinstance(node, ast.Name):
            if node.id not in skip and node.id not in ("self", "old"):
                found.append((node.id, node))
            return
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "old"):
                found.append((ast.unparse(node), node))
            else:
                walk(node.value)
            return
        if isinstance(node, ast.Call):
            for inner in ([node.func.value] if isinstance(node.func, ast.Attribute) else []) + node.args:
                walk(inner)
            for keyword in node.keywords:
                walk(keyword.value)
            if isinstance(node.func, ast.Name) and node.func.id == "implies":
                return
            if witness := _witness(node):
                found.append(witness)
            elif not top:
                found.append((ast.unparse(node), node))
            return
        for child in ast.iter_child_nodes(node):
            walk(child)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            found.append((ast.unparse(node), node))

    walk(tree, top=True)
    return found


def _witness(node: ast.Call) -> tuple[str, ast.expr] | None:
    """`all(cond for x in xs)`: the list of the first x that breaks it (`any`: that meets it), if any."""
    if not (isinstance(node.func, ast.Name) and node.func.id in ("all", "any") and len(node.args) == 1):
        return None
    generator = node.args[0]
    if not isinstance(generator, ast.GeneratorExp):
        return None
    names = sorted({n.id for g in generator.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)})
    condition = generator.elt if node.func.id == "any" else ast.UnaryOp(ast.Not(), generator.elt)
    generators = [ast.comprehension(g.target, g.iter, list(g.ifs), 0) for g in generator.generators]
    generators[-1].ifs.append(condition)
    one = len(names) == 1
    read: list[ast.expr] = [ast.Name(name, ast.Load()) for name in names]
    shown = read[0] if one else ast.Tuple(read, ast.Load())
    made = ast.ListComp(shown, generators)
    first = ast.Subscript(made, ast.Slice(None, ast.Constant(1), None), ast.Load())
    word = "meets" if node.func.id == "any" else "breaks"
    text = f"first {names[0] if one else '(' + ', '.join(names) + ')'} that {word} {ast.unparse(node)}"
    return text, ast.fix_missing_locations(first)


def _repr(value: Any) -> str:
    kind = type(value)
    if kind in (set, frozenset):
        inner = ", ".join(sorted(_repr(item) for item in value))
        braces = f"{{{inner}}}" if inner else ""
        return braces if kind is set and inner else f"{kind.__name__}({braces})"
    if kind is list:
        return f"[{', '.join(_repr(item) for item in value)}]"
    if kind is tuple:
        return f"({', '.join(_repr(item) for item in value)}{',' if len(value) == 1 else ''})"
    if kind is dict:
        return "{" + ", ".join(f"{_repr(k)}: {_repr(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Iterator):  # enumerate and the like: their own repr is an address
        return _repr(list(value))
    return repr(value)
