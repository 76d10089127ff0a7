"""The builtins that `translate.py` knows as z3 terms."""

from __future__ import annotations

import ast
from typing import Any, Protocol

from pibroch.evals.speceval.terms import Listing, Outside, integer, key_of, known, truth


class Work(Protocol):
    """What of the translator these need."""

    depth: int

    def value(self, node: ast.expr, env: dict[str, Any]) -> Any: ...
    def iterable(self, node: ast.expr, env: dict[str, Any]) -> Listing: ...
    def require(self, condition: Any) -> None: ...


def builtin(work: Work, name: str, args: list[ast.expr], env: dict[str, Any]) -> Any:
    """The value of `name(*args)`. Raises `Outside`."""
    import z3

    if name == "range" and args:
        return _range([integer(work.value(a, env)) for a in args])
    if name in ("zip", "enumerate"):
        return _together(name, [work.iterable(a, env) for a in args])
    if name in ("min", "max") and len(args) > 1:
        best, *others = [integer(work.value(a, env)) for a in args]
        for other in others:
            best = z3.If(other < best if name == "min" else other > best, other, best)
        return best
    if len(args) != 1:
        raise Outside(name)
    if name in ("sum", "min", "max"):
        return _folded(work, name, work.iterable(args[0], env))
    if name == "reversed":
        row = work.iterable(args[0], env)
        if row.items is not None:
            return known(row.items[::-1], row.kind)
        return Listing(row.length, lambda i: row.get(row.length - 1 - i), "range")
    if name in ("list", "tuple"):
        row = work.iterable(args[0], env)
        if name == "tuple" and row.items is not None:
            return tuple(row.items)
        return Listing(row.length, row.get, name, row.items, row.key)
    value = work.value(args[0], env)
    if name == "len":
        if isinstance(value, tuple):
            return z3.IntVal(len(value))
        if isinstance(value, Listing):
            return value.length
        if z3.is_expr(value) and z3.is_string(value):
            return z3.Length(value)
    if name == "abs":
        number = integer(value)
        return z3.If(number < 0, -number, number)
    if name == "int":
        return integer(value)
    if name == "bool":
        return truth(value)
    raise Outside(name)


def _range(bounds: list[Any]) -> Listing:
    import z3

    if len(bounds) == 3:
        raise Outside("a step")
    start, stop = (z3.IntVal(0), bounds[0]) if len(bounds) == 1 else bounds
    length = z3.If(stop > start, stop - start, z3.IntVal(0))
    return Listing(length, lambda i: start + i, "range", key=f"range({start.sexpr()},{stop.sexpr()})")


def _together(name: str, rows: list[Listing]) -> Listing:
    import z3

    if not rows or (name == "enumerate" and len(rows) != 1):
        raise Outside(name)
    if all(row.items is not None for row in rows):
        plain = [row.items or () for row in rows]
        if name == "enumerate":
            return known([(z3.IntVal(i), item) for i, item in enumerate(plain[0])], "range")
        return known(list(zip(*plain, strict=False)), "range")
    if name == "enumerate":
        return Listing(rows[0].length, lambda i: (i, rows[0].get(i)), "range")
    length = rows[0].length
    for row in rows[1:]:
        length = z3.If(row.length < length, row.length, length)
    return Listing(length, lambda i: tuple(row.get(i) for row in rows), "range")


def _folded(work: Work, name: str, row: Listing) -> Any:
    """A sum, minimum or maximum: written out where the items are known, else one unknown number per list."""
    import z3

    if row.items is not None:
        numbers = [integer(item) for item in row.items]
        if name == "sum":
            return z3.Sum(numbers) if numbers else z3.IntVal(0)
        if not numbers:
            raise Outside(name)
        best = numbers[0]
        for other in numbers[1:]:
            best = z3.If(other < best if name == "min" else other > best, other, best)
        return best
    key = key_of(row)
    if work.depth or not key:
        raise Outside(name)
    integer(row.get(z3.IntVal(0)))
    work.exact = False  # type: ignore[attr-defined]
    if name != "sum":
        work.require(row.length > 0)
    return z3.Int(f"{name} {key}")
