"""Plain values as JSON, both ways, with exact types. Standard library only: both sides of the pipe use it.

JSON's own int, bool, str, null and finite floats stand for themselves, and a JSON array is a list. Everything else is
an object with one key:  `{"t": […]}` tuple · `{"d": [k, v, k, v, …]}` dict · `{"s": […]}` set · `{"z": […]}`
frozenset · `{"f": "nan"}` float · `{"x": "what"}` a value that is not plain (an instance, a subclass of int, a cycle).

`encode` and `decode` are the judge's; `pack` and `unpack` know no types and are what the child uses. `pack` looks at
`type(x) is …` only, so a subclass of a plain type is not plain, whatever its methods say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

DEPTH = 60  # of nesting; a cycle ends here
INT_BITS = 4096
_HUGE = 1 << INT_BITS
_AS_IT_IS = frozenset({bool, str, type(None)})
_WHAT = {
    int: "int", bool: "bool", str: "str", float: "float", list: "list", tuple: "tuple", dict: "dict", set: "set",
    frozenset: "frozenset", type(None): "None",
}  # fmt: skip


class TypeMismatch(ValueError):
    """A value is not of the type that it should be. The message is one line: where, what was wanted, what was there."""

    def __init__(self, message: str, where: str = "") -> None:
        self.what, self.where = message, where
        super().__init__(f"{where}: {message}" if where else message)

    def inside(self, step: str) -> TypeMismatch:
        """The same, seen from one level further out."""
        return TypeMismatch(self.what, step + self.where)


def pack(value: Any, depth: int = 0) -> Any:
    """`value` as JSON data; what is not plain becomes `{"x": …}` in its place."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is int:
        return value if -_HUGE < value < _HUGE else {"x": f"an int of more than {INT_BITS} bits"}
    if kind is float:
        return value if math.isfinite(value) else {"f": repr(value)}
    if depth > DEPTH:
        return {"x": f"a value nested deeper than {DEPTH}"}
    if kind is list:
        return [pack(x, depth + 1) for x in value]
    if kind is tuple:
        return {"t": [pack(x, depth + 1) for x in value]}
    if kind is dict:
        return {"d": [pack(x, depth + 1) for pair in value.items() for x in pair]}
    if kind is set or kind is frozenset:
        return {"s" if kind is set else "z": [pack(x, depth + 1) for x in value]}
    return {"x": f"an object of type {type.__dict__['__name__'].__get__(kind)}"[:80]}


def unpack(data: Any) -> Any:
    """The plain value of JSON data. Raises `TypeMismatch` where it holds something that is not plain."""
    kind = type(data)
    if kind is list:
        return [unpack(x) for x in data]
    if kind is not dict:
        return data
    if len(data) == 1:
        ((tag, inner),) = data.items()
        try:
            if tag == "t":
                return tuple([unpack(x) for x in inner])
            if tag == "d":
                items = [unpack(x) for x in inner]
                return dict(zip(items[::2], items[1::2], strict=True))
            if tag == "s":
                return {unpack(x) for x in inner}
            if tag == "z":
                return frozenset([unpack(x) for x in inner])
            if tag == "f" and inner in ("nan", "inf", "-inf"):
                return float(inner)
        except (TypeError, ValueError) as error:
            if isinstance(error, TypeMismatch):
                raise
            raise TypeMismatch(f"no value can be made of {str(data)[:80]}") from error
        if tag == "x":
            raise TypeMismatch(printable(inner))
    raise TypeMismatch(f"no value can be made of {str(data)[:80]}")


def printable(text: Any, limit: int = 80) -> str:
    """Text from the other side: one line, bounded, printable."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:limit])


def encode(value: Any) -> Any:
    """`value` as JSON data. Raises `TypeMismatch` where it is not plain."""
    data = pack(value)
    if type(data) is list or type(data) is dict:
        unpack(data)  # finds what is not plain
    return data


def decode(type_text: str, data: Any) -> Any:
    """The value of JSON data, if it is exactly of the annotated type, such as `list[int] | None`.

    Exactly: a bool is no int, a list is no tuple. Only an int is taken for a `float`, as typing has it, and becomes
    one. Raises `TypeMismatch`; `ValueError` where the annotation is no plain type.
    """
    return checker(type_text)(data)


Checker = Callable[[Any], Any]


@lru_cache(maxsize=4096)
def checker(type_text: str) -> Checker:
    """What `decode` does for one annotation. Raises `ValueError` where that is no plain type."""
    import ast

    try:
        tree = ast.parse(type_text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"no type: {type_text!r}") from error
    return _checker(tree, type_text.strip())


def _checker(tree: Any, text: str) -> Checker:
    import ast

    if isinstance(tree, ast.Constant) and tree.value is None:
        return _scalar(type(None), text)
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return checker(tree.value)
    if isinstance(tree, ast.Name) and tree.id in _NAMES:
        return _NAMES[tree.id]
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return _union([_checker(x, ast.unparse(x)) for x in (tree.left, tree.right)], text)
    if isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name):
        inner = list(tree.slice.elts) if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        if tree.value.id == "Literal":
            return _literal([ast.literal_eval(x) for x in inner], text)
        rest = bool(inner) and isinstance(inner[-1], ast.Constant) and inner[-1].value is ...
        made = [_checker(x, ast.unparse(x)) for x in (inner[:-1] if rest else inner)]
        name = tree.value.id
        if name == "Optional" and len(made) == 1:
            return _union([made[0], _scalar(type(None), "None")], text)
        if name == "Union":
            return _union(made, text)
        if name in ("list", "List", "set", "frozenset") and len(made) == 1:
            return _many(name.lower(), made[0], text)
        if name in ("tuple", "Tuple"):
            return _many("tuple", made[0], text) if rest and len(made) == 1 else _fixed(made, text)
        if name in ("dict", "Dict") and len(made) == 2:
            return _mapping(made[0], made[1], text)
    raise ValueError(f"no plain type: {text!r}")


def what(data: Any) -> str:
    """The type of JSON data, in words."""
    try:
        return _WHAT[type(unpack(data))]
    except TypeMismatch as error:
        return error.what


def _wanted(text: str, data: Any) -> TypeMismatch:
    return TypeMismatch(f"expected {text}, got {what(data)}")


def _scalar(kind: type, text: str) -> Checker:
    def check(data: Any) -> Any:
        if type(data) is kind:
            return data
        raise _wanted(text, data)

    return check


def _float(data: Any) -> float:
    if type(data) is float:
        return data
    if type(data) is int and abs(data) < 1 << 53:
        return float(data)
    if type(data) is dict:
        value = unpack(data)
        if type(value) is float:
            return value
    raise _wanted("float", data)


def _inner(data: Any, tag: str, text: str) -> list[Any]:
    """The elements of a container."""
    inner = data if tag == "" else data.get(tag) if type(data) is dict and len(data) == 1 else None
    if type(inner) is not list:
        raise _wanted(text, data)
    return inner


def _many(name: str, element: Checker, text: str) -> Checker:
    tag = {"list": "", "tuple": "t", "set": "s", "frozenset": "z"}[name]
    make = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[name]

    def check(data: Any) -> Any:
        inner = _inner(data, tag, text)
        made = []
        for i, x in enumerate(inner):
            try:
                made.append(element(x))
            except TypeMismatch as error:
                raise error.inside(f"[{i}]") from None
        if name == "list":
            return made
        try:
            return make(made)
        except TypeError:
            raise _wanted(text, data) from None

    return check


def _fixed(elements: list[Checker], text: str) -> Checker:
    def check(data: Any) -> Any:
        inner = _inner(data, "t", text)
        if len(inner) != len(elements):
            raise TypeMismatch(f"expected {text}, got a tuple of {len(inner)}")
        made = []
        for i, (element, x) in enumerate(zip(elements, inner, strict=True)):
            try:
                made.append(element(x))
            except TypeMismatch as error:
                raise error.inside(f"[{i}]") from None
        return tuple(made)

    return check


def _mapping(key: Checker, value: Checker, text: str) -> Checker:
    def check(data: Any) -> Any:
        inner = _inner(data, "d", text)
        if len(inner) % 2:
            raise TypeMismatch(f"no value can be made of {str(data)[:80]}")
        made = {}
        for k, v in zip(inner[::2], inner[1::2], strict=True):
            try:
                name = key(k)
            except TypeMismatch as error:
                raise error.inside(" key") from None
            try:
                made[name] = value(v)
            except TypeMismatch as error:
                raise error.inside(f"[{name!r:.40}]") from None
            except TypeError:
                raise _wanted(text, data) from None
        return made

    return check


def _union(options: list[Checker], text: str) -> Checker:
    def check(data: Any) -> Any:
        for option in options:
            try:
                return option(data)
            except TypeMismatch:
                continue
        raise _wanted(text, data)

    return check


def _literal(values: list[Any], text: str) -> Checker:
    def check(data: Any) -> Any:
        for value in values:
            if type(data) is type(value) and data == value:
                return data
        raise TypeMismatch(f"expected {text}, got {str(data)[:40]!r}")

    return check


def _bare(kind: type) -> Checker:
    def check(data: Any) -> Any:
        value = unpack(data)
        if type(value) is kind:
            return value
        raise _wanted(_WHAT[kind], data)

    return check


_NAMES: dict[str, Checker] = {
    **{k.__name__: _scalar(k, k.__name__) for k in (int, bool, str)},
    **{k.__name__: _bare(k) for k in (list, tuple, dict, set, frozenset)},
    "float": _float, "None": _scalar(type(None), "None"), "Any": unpack, "object": unpack,
}  # fmt: skip
