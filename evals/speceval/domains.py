"""The test domain of a spec (`scope`): what each parameter is drawn from, enumerated or at random.

Domains
    "a..b"                          ints, both ends included
    [v, …]                          one of these
    {list: D, min: 0, max: 6}       also {tuple: [D, …]} and {dict: [K, V], min: 0, max: 4}
    {draw: "EXPR"}                  an expression with pick(a, b), choose(xs), many(a, b), earlier parameters and self

A value is made by a *picker*, a function from two bounds to an int between them. What the picker does (count through
all answers, draw at random) is not the domain's matter, so every domain can be enumerated and drawn from.
"""

from __future__ import annotations

import ast
import contextlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pibroch.evals.speceval.wire import TypeMismatch, decode, pack
from pibroch.specs.errors import SpecError
from pibroch.specs.evaluate import Picker, draw
from pibroch.specs.model import Operation, Parameter, Spec, Unit
from pibroch.specs.whitelist import BUILTINS, check_expression

OPTIONS = ("calls", "acceptance", "scenarios")
CALLS, ACCEPTANCE = 8, 0.2
_RANGE = re.compile(r"(-?\d+)\s*\.\.\s*(-?\d+)")
_WIDE = 12  # of a wider range an enumeration takes both ends and the middle
Extra = Mapping[str, Callable[..., Any]] | None
Env = dict[str, Any]


@dataclass(frozen=True)
class Ints:
    """Ints from `low` to `high`, as floats where the parameter is one."""

    low: int
    high: int
    real: bool = False

    def make(self, picker: Picker, env: Env) -> Any:
        value = picker(self.low, self.high)
        return float(value) if self.real else value

    def contains(self, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True)
class Choices:
    """One of the listed values."""

    values: tuple[Any, ...]

    def make(self, picker: Picker, env: Env) -> Any:
        return self.values[picker(0, len(self.values) - 1)]

    def contains(self, value: Any) -> bool:
        return any(type(v) is type(value) and v == value for v in self.values)


@dataclass(frozen=True)
class Lists:
    """Lists of `low` to `high` items; `kind` also makes them sets or tuples of any length."""

    item: Domain
    low: int
    high: int
    kind: type = list

    def make(self, picker: Picker, env: Env) -> Any:
        return self.kind(self.item.make(picker, env) for _ in range(picker(self.low, self.high)))

    def contains(self, value: Any) -> bool:
        return self.low <= len(value) <= self.high and all(self.item.contains(v) for v in value)


@dataclass(frozen=True)
class Tuples:
    """Tuples of a fixed length."""

    items: tuple[Domain, ...]

    def make(self, picker: Picker, env: Env) -> Any:
        return tuple(item.make(picker, env) for item in self.items)

    def contains(self, value: Any) -> bool:
        return len(value) == len(self.items) and all(d.contains(v) for d, v in zip(self.items, value, strict=True))


@dataclass(frozen=True)
class Dicts:
    """Dicts of at most `high` entries (keys may coincide)."""

    key: Domain
    value: Domain
    low: int
    high: int

    def make(self, picker: Picker, env: Env) -> Any:
        return {self.key.make(picker, env): self.value.make(picker, env) for _ in range(picker(self.low, self.high))}

    def contains(self, value: Any) -> bool:
        pairs = list(value.items())
        return len(pairs) <= self.high and all(self.key.contains(k) and self.value.contains(v) for k, v in pairs)


@dataclass(frozen=True)
class Drawn:
    """An expression. Raises `IndexError` where there is nothing to choose from, `ClauseError` where it fails."""

    spec: Spec
    unit: str
    text: str
    type: str
    extra: Extra

    def make(self, picker: Picker, env: Env) -> Any:
        value = draw(self.spec, self.unit, self.text, env, picker, extra=self.extra)
        try:
            return decode(self.type, pack(value))
        except TypeMismatch as error:
            raise SpecError(self.spec.path, self.spec.line("scope"), f"draw {self.text!r}: {error}") from error

    def contains(self, value: Any) -> bool:
        return True


Domain = Ints | Choices | Lists | Tuples | Dicts | Drawn


def domain_of(spec: Spec, unit: Unit, operation: Operation, param: Parameter, extra: Extra = None) -> Domain:
    """The domain of one parameter. Raises `SpecError` where it is missing or malformed."""
    scope = spec.front.scope
    key = next((k for k in (f"{operation.name}.{param.name}", param.name) if k in scope), None)
    if key is None:
        if param.type == "bool":
            return Choices((False, True))
        if param.type == "int" and (bounds := _required(operation, param.name)):
            return Ints(*bounds)
        message = f"scope: no domain for parameter {param.name} of {operation.name}: add"
        hint = f'`{param.name}: 0..8`, `[v, …]`, `{{list: 0..8}}` or `{{draw: "…"}}`'
        raise SpecError(spec.path, spec.line("scope"), f"{message} {hint}")
    reader = _Reader(spec, unit.name, key, [p.name for p in operation.params], param.name, bool(unit.view), extra)
    return reader.read(scope[key], param.type)


def _required(operation: Operation, name: str) -> tuple[int, int] | None:
    """The bounds that `requires` gives an int on both sides in so many words, as `1 <= pct <= 99`."""
    for clause in operation.of("requires"):
        tree = clause.tree
        for part in tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]:
            match part:
                case ast.Compare(ast.Constant(int(a)), [ast.LtE(), ast.LtE()], [ast.Name(n), ast.Constant(int(b))]):
                    if n == name and a <= b:
                        return a, b
    return None


def answers_of(spec: Spec, name: str, extra: Extra = None) -> Domain | None:
    """The domain of what a relied-upon function answers (`scope: {"trace_ring.last": …}`), if the spec gives one."""
    if name not in spec.front.scope:
        return None
    rely = next(r for r in spec.relies if r.name == name)
    params = [p.name for p in rely.function.params]
    reader = _Reader(spec, spec.module, name, params, "", False, extra)
    return reader.read(spec.front.scope[name], rely.function.returns)


def check_scope(spec: Spec) -> None:
    """Every parameter has a well-formed domain that fits its type. Raises `SpecError` with the line."""
    known = set(OPTIONS) | {rely.name for rely in spec.relies}
    for unit in spec.units:
        for operation in unit.operations.values():
            for param in operation.params:
                known |= {param.name, f"{operation.name}.{param.name}"}
                domain_of(spec, unit, operation, param)
    for rely in spec.relies:
        answers_of(spec, rely.name)
    for key in spec.front.scope:
        if key not in known:
            message = f"scope: {key} is no parameter, no relied-upon function and none of {', '.join(OPTIONS)}"
            raise SpecError(spec.path, spec.line(f"scope.{key}"), message)
    calls, floor = longest(spec), acceptance_floor(spec)
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 1:
        raise SpecError(spec.path, spec.line("scope.calls"), f"scope: calls is a number of calls, not {calls!r}")
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 < floor <= 1:
        raise SpecError(spec.path, spec.line("scope.acceptance"), f"scope: acceptance lies in 0..1, not {floor!r}")


def longest(spec: Spec) -> int:
    """`scope.calls`: the longest ordinary sequence of calls."""
    calls: int = spec.front.scope.get("calls", CALLS)
    return calls


def acceptance_floor(spec: Spec) -> float:
    """`scope.acceptance`: the least share of draws that must meet an operation's `requires`."""
    floor: float = spec.front.scope.get("acceptance", ACCEPTANCE)
    return floor


class _Reader:
    def __init__(self, spec: Spec, unit: str, key: str, params: list[str], own: str, view: bool, extra: Extra) -> None:
        self.spec, self.unit, self.key, self.extra = spec, unit, key, extra
        earlier = params[: params.index(own)] if own in params else params
        self.names = {*earlier, *(["self"] if view else [])}

    def fail(self, message: str, inner: str = "") -> NoReturn:
        where = f"scope.{self.key}{inner}"
        raise SpecError(self.spec.path, self.spec.line(where), f"scope: {self.key}: {message}")

    def read(self, raw: Any, type_text: str) -> Domain:
        if isinstance(raw, str):
            return self.ints(raw, type_text)
        if isinstance(raw, list):
            return self.choices(raw, type_text)
        if not isinstance(raw, dict):
            self.fail(f"{raw!r} is no domain: write a range `0..8`, a list `[v, …]`, or {{list: …}}, {{draw: …}}")
        kinds = [k for k in ("list", "tuple", "dict", "draw") if k in raw]
        if len(kinds) != 1 or set(raw) - {kinds[0], "min", "max"}:
            given = ", ".join(map(str, raw))
            self.fail(f"a domain has one of list, tuple, dict, draw (and min, max); this one has {given}")
        kind = kinds[0]
        if kind == "draw":
            return self.drawn(str(raw["draw"]), type_text)
        name, inner = _split(type_text)
        low, high = raw.get("min", 0), raw.get("max", 4 if kind == "dict" else 6)
        if not (type(low) is int and type(high) is int and 0 <= low <= high):
            self.fail(f"min and max are sizes, not {low!r} and {high!r}", ".max")
        if kind == "list" and name in ("list", "set", "frozenset", "tuple") and inner:
            return Lists(self.read(raw["list"], inner[0]), low, high,
                         {"list": list, "set": set, "frozenset": frozenset, "tuple": tuple}[name])  # fmt: skip
        parts = raw[kind]
        if kind == "tuple" and name == "tuple" and isinstance(parts, list) and len(parts) == len(inner):
            return Tuples(tuple(self.read(d, t) for d, t in zip(parts, inner, strict=True)))
        if kind == "dict" and name == "dict" and isinstance(parts, list) and len(parts) == len(inner) == 2:
            return Dicts(self.read(parts[0], inner[0]), self.read(parts[1], inner[1]), low, high)
        self.fail(f"{{{kind}: {parts!r}}} does not fit the type {type_text}")

    def ints(self, text: str, type_text: str) -> Domain:
        match = _RANGE.fullmatch(text.strip())
        if not match:
            self.fail(f"{text!r} is no range such as 0..8 (a text to choose: [{text}])")
        low, high = int(match[1]), int(match[2])
        if low > high:
            self.fail(f"{text}: the range is empty")
        options = [part.strip() for part in type_text.split("|")]
        if not {"int", "float"} & set(options):
            self.fail(f"{text} gives ints, and the type is {type_text}")
        return Ints(low, high, real="int" not in options)

    def choices(self, raw: list[Any], type_text: str) -> Domain:
        if not raw:
            self.fail("an empty list gives nothing to choose")
        try:
            return Choices(tuple(decode(type_text, pack(_fit(value, type_text))) for value in raw))
        except TypeMismatch as error:
            self.fail(f"{raw!r}: {error}")

    def drawn(self, text: str, type_text: str) -> Domain:
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError) as error:
            self.fail(f"draw {text!r} is no expression: {getattr(error, 'msg', error)}")
        check_expression(self.spec, tree, f"scope: {self.key}", self.spec.line(f"scope.{self.key}"))
        bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        bound |= {a.arg for n in ast.walk(tree) if isinstance(n, ast.Lambda) for a in n.args.args}
        known = {*bound, *self.names, "pick", "choose", "many", "implies", *BUILTINS, *self.spec.helpers}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in known and not self.spec.front.library:
                mine = ", ".join(sorted(self.names)) or "none"
                self.fail(f"draw {text!r}: {node.id} is not known here (earlier parameters and self: {mine})")
        return Drawn(self.spec, self.unit, text, type_text, self.extra)


def _split(type_text: str) -> tuple[str, list[str]]:
    """`dict[str, int]` as `("dict", ["str", "int"])`; of `X | None` the X."""
    tree = ast.parse(type_text, mode="eval").body
    while isinstance(tree, ast.BinOp):
        none = isinstance(tree.right, ast.Constant) and tree.right.value is None
        tree = tree.left if none else tree.right
    if not isinstance(tree, ast.Subscript):
        return ast.unparse(tree), []
    inner = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
    kept = [e for e in inner if not (isinstance(e, ast.Constant) and e.value is ...)]
    return ast.unparse(tree.value).lower(), [ast.unparse(e) for e in kept]


def _fit(value: Any, type_text: str) -> Any:
    """YAML has lists only: they become tuples and sets where the type says so."""
    name, inner = _split(type_text)
    if isinstance(value, list):
        types = inner if name == "tuple" and len(inner) == len(value) else (inner or ["object"]) * len(value)
        items = [_fit(v, t) for v, t in zip(value, types, strict=False)]
        makers: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
        return makers.get(name, list)(items)
    if isinstance(value, dict) and len(inner) == 2:
        return {_fit(k, inner[0]): _fit(v, inner[1]) for k, v in value.items()}
    return value


# Pickers


class RandomPicker:
    """Draws from a seeded source, with a liking for ends and earlier picks: faults sit where values coincide."""

    def __init__(self, seed: str) -> None:
        self.source = random.Random(seed)
        self.recent: list[int] = []

    def __call__(self, low: int, high: int) -> int:
        if high - low > 2:
            chance = self.source.random()
            if chance < 0.2:
                return low if chance < 0.1 else high
            if chance < 0.4 and self.recent:
                value = self.recent[self.source.randrange(len(self.recent))]
                if low <= value <= high:
                    return value
        value = self.source.randint(low, high)
        self.recent = [*self.recent[-5:], value]
        return value


def every(make: Callable[[Picker], Any], limit: int) -> Iterator[Any]:
    """All values that `make` gives for all answers of its picker, from at most `limit` tries (IndexError: no value)."""
    path: list[tuple[int, int]] = []  # answers so far, and how many each question has
    for _ in range(limit):
        at = 0

        def picker(low: int, high: int) -> int:
            nonlocal at
            width = high - low + 1
            wide = width > _WIDE
            if at == len(path):
                path.append((0, 6 if wide else width))
            index = path[at][0]
            at += 1
            return (low, low + 1, low + 2, (low + high) // 2, high - 1, high)[index] if wide else low + index

        with contextlib.suppress(IndexError):
            yield make(picker)
        del path[at:]
        while path and path[-1][0] + 1 >= path[-1][1]:
            path.pop()
        if not path:
            return
        path[-1] = (path[-1][0] + 1, path[-1][1])
