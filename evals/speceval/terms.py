"""Values of the clauses as z3 terms: ints, bools, strings, tuples, optionals, lists of these, and records of fields.

A list is a length and a function from index to value, so that slices, sums of lists and comprehensions need no theory
of sequences: `list[int]` named `x` is the constant `x.len` and the uninterpreted function `x.item(i)`; a list of lists
is `x.item.len(i)` and `x.item.item(i, j)`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

LONGEST = 64  # a list of a model that is longer is no readable counterexample


class Outside(Exception):
    """A term or a type that the translation does not cover."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A list, a tuple of any length or a range. `items` are known where the length is; `key` names equal contents."""

    length: Any
    get: Callable[[Any], Any]
    kind: str = "list"
    items: tuple[Any, ...] | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Optional:
    """`value`, or None where `none` holds."""

    none: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Record:
    """The view of a unit."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value of a type outside the subset: known by its name alone."""

    key: str


def known(items: Sequence[Any], kind: str = "list") -> Listing:
    """A list whose items are given one by one."""
    import z3

    row = tuple(items)

    def get(index: Any) -> Any:
        if not row:
            raise Outside("an item of nothing")
        value = row[-1]
        for i in range(len(row) - 2, -1, -1):
            value = choose(index == i, row[i], value)
        return value

    return Listing(z3.IntVal(len(row)), get, kind, row)


@cache
def _parsed(text: str) -> ast.expr:
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise Outside(f"type {text}") from error
    return ast.parse(tree.value, mode="eval").body if _is_text(tree) else tree  # type: ignore[attr-defined]


def _is_text(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Constant) and isinstance(tree.value, str)


def variable(kind: str, name: str, facts: list[Any]) -> Any:
    """A free value of an annotation; what every such value satisfies (lengths are not negative) goes to `facts`."""
    return _variable(_parsed(kind), name, (), facts)


def _variable(tree: ast.expr, name: str, at: tuple[Any, ...], facts: list[Any] | None) -> Any:
    import z3

    def constant(sort: Any, suffix: str = "") -> Any:
        if not at:
            return z3.Const(name + suffix, sort)
        return z3.Function(name + suffix, *[z3.IntSort()] * len(at), sort)(*at)

    if isinstance(tree, ast.Constant) and tree.value is None:
        return None
    if isinstance(tree, ast.Name) and tree.id in ("int", "bool", "str"):
        sorts = {"int": z3.IntSort, "bool": z3.BoolSort, "str": z3.StringSort}
        return constant(sorts[tree.id]())
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        left, right = tree.left, tree.right
        if _is_none(left):
            left, right = right, left
        if _is_none(right):
            return Optional(constant(z3.BoolSort(), ".none"), _variable(left, name, at, facts))
    if isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name):
        inner = tree.slice
        if tree.value.id == "Optional":
            return Optional(constant(z3.BoolSort(), ".none"), _variable(inner, name, at, facts))
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if tree.value.id == "tuple" and not any(isinstance(p, ast.Constant) and p.value is ... for p in parts):
            return tuple(_variable(p, f"{name}.{i}", at, facts) for i, p in enumerate(parts))
        if tree.value.id in ("list", "tuple", "Sequence"):
            length = constant(z3.IntSort(), ".len")
            element = parts[0]
            if facts is not None:
                facts.append(z3.ForAll(list(at), length >= 0) if at else length >= 0)
                probe = z3.Int(f"{name}.probe")  # what holds of lists inside holds at every index
                _variable(element, f"{name}.item", (*at, probe), facts)
            kind = "tuple" if tree.value.id == "tuple" else "list"
            item = f"{name}.item"
            return Listing(length, lambda i: _variable(element, item, (*at, i), None), kind, key=f"{name}{at}")
    raise Outside(f"type {ast.unparse(tree)}")


def _is_none(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Constant) and tree.value is None


def constant(value: Any) -> Any:
    """A plain Python value as a term."""
    import z3

    if value is None:
        return None
    if isinstance(value, bool):
        return z3.BoolVal(value)
    if isinstance(value, int):
        return z3.IntVal(value)
    if isinstance(value, str):
        return z3.StringVal(value)
    if isinstance(value, tuple):
        return tuple(constant(v) for v in value)
    if isinstance(value, list):
        return known([constant(v) for v in value])
    raise Outside(type(value).__name__)


def integer(value: Any) -> Any:
    """The value as an int term; a bool counts 0 or 1 as in Python."""
    import z3

    if z3.is_expr(value) and z3.is_int(value):
        return value
    if z3.is_expr(value) and z3.is_bool(value):
        return z3.If(value, z3.IntVal(1), z3.IntVal(0))
    raise Outside("no int")


def truth(value: Any) -> Any:
    """Python's `bool(value)`."""
    import z3

    if value is None:
        return z3.BoolVal(False)
    if isinstance(value, Listing):
        return value.length > 0
    if isinstance(value, tuple):
        return z3.BoolVal(bool(value))
    if isinstance(value, Optional):
        return z3.And(z3.Not(value.none), truth(value.value))
    if z3.is_expr(value) and z3.is_bool(value):
        return value
    if z3.is_expr(value) and z3.is_int(value):
        return value != 0
    if z3.is_expr(value) and z3.is_string(value):
        return z3.Length(value) > 0
    raise Outside("no truth value")


def equal(a: Any, b: Any) -> Any:
    """Python's `a == b`."""
    import z3

    if isinstance(a, Opaque) or isinstance(b, Opaque):
        if a == b:
            return z3.BoolVal(True)
        raise Outside("opaque")
    if isinstance(a, Optional) or isinstance(b, Optional):
        a, b = _optional(a), _optional(b)
        both = z3.BoolVal(True) if a.value is None or b.value is None else equal(a.value, b.value)
        return z3.And(a.none == b.none, z3.Or(a.none, both))
    if a is None or b is None:
        return z3.BoolVal(a is b)
    if isinstance(a, tuple) and isinstance(b, Listing):
        a = known(a, "tuple")
    if isinstance(b, tuple) and isinstance(a, Listing):
        b = known(b, "tuple")
    if isinstance(a, tuple) and isinstance(b, tuple):
        if len(a) != len(b):
            return z3.BoolVal(False)
        return z3.And([equal(x, y) for x, y in zip(a, b, strict=True)])
    if isinstance(a, Listing) and isinstance(b, Listing):
        return _equal_lists(a, b)
    if isinstance(a, Record) and isinstance(b, Record) and set(a.fields) == set(b.fields):
        return z3.And([equal(a.fields[f], b.fields[f]) for f in a.fields])
    if z3.is_expr(a) and z3.is_expr(b):
        if z3.is_string(a) or z3.is_string(b):
            return a == b if z3.is_string(a) and z3.is_string(b) else z3.BoolVal(False)
        return a == b if a.sort() == b.sort() else integer(a) == integer(b)
    return z3.BoolVal(False)  # of two kinds, such as an int and a list


def _equal_lists(a: Listing, b: Listing) -> Any:
    import z3

    if a.kind != b.kind:
        return z3.BoolVal(False)
    if a.key and a.key == b.key:
        return z3.BoolVal(True)
    if a.items is None and b.items is not None:
        a, b = b, a
    if a.items is not None:
        return z3.And(b.length == len(a.items), *[equal(x, b.get(z3.IntVal(i))) for i, x in enumerate(a.items)])
    i = z3.FreshInt("i")
    return z3.And(
        a.length == b.length, z3.ForAll([i], z3.Implies(z3.And(i >= 0, i < a.length), equal(a.get(i), b.get(i))))
    )


def _optional(value: Any) -> Optional:
    import z3

    if isinstance(value, Optional):
        return value
    if isinstance(value, Opaque):
        raise Outside("opaque")
    return Optional(z3.BoolVal(value is None), value)


def choose(condition: Any, a: Any, b: Any) -> Any:
    """`a if condition else b`."""
    import z3

    if a is b:
        return a
    if a is None or b is None or isinstance(a, Optional) or isinstance(b, Optional):
        a, b = _optional(a), _optional(b)
        inner = b.value if a.value is None else a.value if b.value is None else choose(condition, a.value, b.value)
        return Optional(z3.If(condition, a.none, b.none), inner)
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(choose(condition, x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Listing) and isinstance(b, Listing) and a.kind == b.kind:
        def get(i: Any) -> Any:
            if b.items == () or a.items == ():
                return (a if b.items == () else b).get(i)
            return choose(condition, a.get(i), b.get(i))

        return Listing(z3.If(condition, a.length, b.length), get, a.kind)
    if z3.is_expr(a) and z3.is_expr(b) and a.sort() == b.sort():
        return z3.If(condition, a, b)
    raise Outside("a choice between two kinds")


def joined(a: Listing, b: Listing) -> Listing:
    """`a + b`."""
    if a.items is not None and b.items is not None:
        return known([*a.items, *b.items], a.kind)
    if a.items == ():
        return b
    if b.items == ():
        return a
    keys = key_of(a), key_of(b)
    return Listing(
        a.length + b.length, lambda i: choose(i < a.length, a.get(i), b.get(i - a.length)), a.kind,
        key=f"({keys[0]}+{keys[1]})" if all(keys) else "",
    )  # fmt: skip


def key_of(value: Any) -> str:
    """A text that is equal only for equal values; empty where there is none."""
    import z3

    if isinstance(value, Opaque):
        return value.key
    if isinstance(value, Listing):
        if value.key or value.items is None:
            return value.key
        value = value.items
    if isinstance(value, tuple):
        parts = [key_of(v) for v in value]
        return f"[{' '.join(parts)}]" if all(parts) else ""
    if isinstance(value, Record):
        parts = [f"{f}={k}" if (k := key_of(v)) else "" for f, v in value.fields.items()]
        return f"{{{' '.join(parts)}}}" if all(parts) else ""
    if isinstance(value, Optional):
        inner = key_of(value.value)
        return f"?{value.none.sexpr()}:{inner}" if inner else ""
    return str(value.sexpr()) if z3.is_expr(value) else "None"


def read(value: Any, model: Any) -> Any:
    """The plain Python value of a term in a model of z3. Raises `Outside` where it is too long or not decided."""
    import z3

    if value is None:
        return None
    if isinstance(value, Opaque):
        raise Outside(value.key)
    if isinstance(value, Optional):
        return None if read(value.none, model) else read(value.value, model)
    if isinstance(value, tuple):
        return tuple(read(v, model) for v in value)
    if isinstance(value, Record):
        return {name: read(v, model) for name, v in value.fields.items()}
    if isinstance(value, Listing):
        length = read(value.length, model)
        if length > LONGEST:
            raise Outside("a long list")
        row = [read(value.get(z3.IntVal(i)), model) for i in range(length)]
        return tuple(row) if value.kind == "tuple" else row
    found = model.eval(value, model_completion=True)
    if z3.is_int_value(found):
        return found.as_long()
    if z3.is_true(found) or z3.is_false(found):
        return z3.is_true(found)
    if z3.is_string_value(found):
        return found.as_string()
    raise Outside("not decided")
