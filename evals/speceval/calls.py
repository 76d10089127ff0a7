"""Runs of calls: what the judge makes a candidate do, how it is drawn, and how it is written in feedback."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from pibroch.evals.speceval.domains import Domain, Env, Extra, domain_of, every
from pibroch.specs.evaluate import Picker
from pibroch.specs.explain import show
from pibroch.specs.model import Operation, Rely, Spec, Unit

Call = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Run:
    """A fresh instance made with `init`, then `calls`. `seed` decides what relied-upon functions answer."""

    unit: str
    init: tuple[Any, ...]
    calls: tuple[Call, ...]
    seed: int = 0

    def written(self, spec: Spec) -> tuple[str, ...]:
        """The run as calls that a reader could type."""
        unit = unit_of(spec, self.unit)
        first = [f"{unit.name}({_list(self.init)})"] if unit.is_class else []
        return (*first, *(f"{name}({_list(args)})" for name, args in self.calls))


def _list(args: Sequence[Any]) -> str:
    return ", ".join(show(a) for a in args)


def unit_of(spec: Spec, name: str) -> Unit:
    """The unit of that name."""
    return next(u for u in spec.units if u.name == name)


def operations_of(spec: Spec, unit: Unit, phase: int) -> dict[str, Operation]:
    """What can be called in this phase: in phase 1 of a schedule not yet the functions of `concurrency.order`."""
    later = set(spec.front.concurrency.order) if phase == 1 else set()
    return {name: operation for name, operation in unit.calls.items() if name not in later}


def given(operation: Operation, args: Sequence[Any]) -> dict[str, Any]:
    """Arguments by name; those left out are at their defaults."""
    names = [p.name for p in operation.params]
    return dict(zip(names, args, strict=False))


def relied(spec: Spec, name: str) -> Rely:
    """The relied-upon function `module.function`."""
    return next(r for r in spec.relies if r.name == name)


class Drawer:
    """Draws the arguments of one operation from its domains."""

    def __init__(self, spec: Spec, unit: Unit, operation: Operation, extra: Extra) -> None:
        self.operation = operation
        self.domains: list[Domain] = [domain_of(spec, unit, operation, p, extra) for p in operation.params]
        self.looks = bool(unit.view) and operation.name != "__init__"
        self.free = not self.looks or not speaks_of_state(spec, operation)

    def draw(self, picker: Picker, view: dict[str, Any] | None) -> tuple[Any, ...]:
        """Arguments. Raises `IndexError` where a domain has nothing to choose from."""
        env: Env = {"self": view} if self.looks else {}
        args: list[Any] = []
        for param, domain in zip(self.operation.params, self.domains, strict=True):
            if param.default and picker(0, 3) == 0:
                break  # this argument and those behind it stay at their defaults
            env[param.name] = domain.make(picker, env)
            args.append(env[param.name])
        return tuple(args)

    def all(self, view: dict[str, Any] | None, limit: int) -> Iterator[tuple[Any, ...]]:
        """The arguments that the domains give, from at most `limit` tries."""
        return every(lambda picker: self.draw(picker, view), limit)

    def contains(self, args: Sequence[Any]) -> bool:
        """Whether all arguments lie in the domains."""
        return all(d.contains(a) for d, a in zip(self.domains, args, strict=False))


def speaks_of_state(spec: Spec, operation: Operation) -> bool:
    """Whether an operation's preconditions or domains depend on the view."""
    for clause in (*operation.of("requires"), *operation.of("when")):
        if {"self", "old"} & {n.id for n in ast.walk(clause.tree) if isinstance(n, ast.Name)}:
            return True
    scope = spec.front.scope
    raws = [scope.get(f"{operation.name}.{p.name}", scope.get(p.name)) for p in operation.params]
    return any("self" in repr(raw) for raw in raws)


# Values beyond the domains


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every int, float and text inside a value, with the way to it."""
    if isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, int | float | str) and not isinstance(value, bool):
        yield path, value


def put(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    """A copy of `value` with another leaf."""
    if not path:
        return leaf
    if isinstance(value, dict):
        return {k: put(v, path[1:], leaf) if k == path[0] else v for k, v in value.items()}
    items = [put(v, path[1:], leaf) if i == path[0] else v for i, v in enumerate(value)]
    return tuple(items) if isinstance(value, tuple) else items


@dataclass(frozen=True)
class Literals:
    """Constants of a candidate's code, and their neighbours."""

    ints: tuple[int, ...]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, source: str) -> Literals:
        ints: set[int] = set()
        texts: set[str] = set()
        nodes = list(ast.walk(ast.parse(source)))
        written = [n.value for n in nodes if isinstance(n, ast.Constant)]
        for value in [*written, *_folded(compile(source, "candidate", "exec", dont_inherit=True))]:
            if type(value) is int and abs(value) < 1 << 62:
                ints |= {value - 1, value, value + 1}
            elif type(value) is str and len(value) < 40 and value in written:
                texts.add(value)
        for node in nodes:
            if isinstance(node, ast.Compare):
                ints |= _solutions(node)
        return cls(tuple(sorted(ints)), tuple(sorted(texts)))


def _solutions(test: ast.Compare) -> set[int]:
    """Values that a comparison of a small expression may turn on: of `x * 7 == 343`, `x - 7 > 343`, `x * x == 49`."""
    written = [n.value for n in ast.walk(test) if isinstance(n, ast.Constant)]
    folded = _folded(compile(ast.Expression(test), "candidate", "eval"))
    found = {value for value in [*written, *folded] if type(value) is int}
    whole = {abs(n) for n in found if abs(n) < 1 << 62}
    made = {math.isqrt(a) for a in whole if a >= 4}
    for a in sorted(whole)[-6:]:
        for b in sorted(whole - {a, 0, 1})[:6]:
            made |= {a + b, a - b, a // b, a * b}
    return {n for n in made if abs(n) < 1 << 62}


def _folded(code: CodeType) -> Iterator[object]:
    """Constants of the compiled code: sums and products of literals are worked out there."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _folded(constant)
        else:
            yield constant
