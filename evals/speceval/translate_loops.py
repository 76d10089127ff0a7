"""Loops inside clauses as z3 quantifiers: comprehensions, `all`, `any`; and the state of a translation."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pibroch.evals.speceval.terms import Listing, Outside, known
from pibroch.specs.model import Helper, Operation

FEW = 12  # items that are written out rather than quantified over


class Loops:
    """What the translation of one clause knows so far; `translate.py` adds values and conditions."""

    def __init__(self, helpers: Mapping[str, Helper], relies: Mapping[str, Operation]) -> None:
        self.helpers, self.relies = helpers, relies
        self.path: list[Any] = []  # what holds where the present part is evaluated
        self.defined: list[tuple[Any, int]] = []
        self.facts: list[Any] = []
        self.depth, self.calls, self.exact = 0, 0, True

    @abstractmethod
    def condition(self, node: ast.expr, env: dict[str, Any]) -> Any:
        """A term of z3's bools."""

    @abstractmethod
    def value(self, node: ast.expr, env: dict[str, Any]) -> Any:
        """Any value of `terms.py`. Raises `Outside`."""

    @contextmanager
    def where(self, condition: Any) -> Iterator[None]:
        self.path.append(condition)
        yield
        self.path.pop()

    def require(self, condition: Any) -> None:
        import z3

        self.defined.append((z3.Implies(z3.And(self.path), condition) if self.path else condition, self.depth))

    def mapped(self, node: ast.ListComp, env: dict[str, Any]) -> Any:
        if len(node.generators) != 1 or node.generators[0].ifs:
            raise Outside("a comprehension with a filter")
        part = node.generators[0]
        row = self.iterable(part.iter, env)

        def get(index: Any) -> Any:
            self.depth += 1  # its conditions depend on the index: not tracked, so nothing that can fail
            before = len(self.defined)
            try:
                value = self.value(node.elt, {**env, **_bound(part.target, row.get(index))})
                if len(self.defined) > before:
                    raise Outside("a part that can fail in a comprehension")
                return value
            finally:
                self.depth -= 1

        if row.items is not None:
            return known([self.value(node.elt, {**env, **_bound(part.target, item)}) for item in row.items])
        import z3

        get(z3.FreshInt("i"))  # outside the subset now rather than later
        return Listing(row.length, get)

    def iterable(self, node: ast.expr, env: dict[str, Any]) -> Listing:
        value = self.value(node, env)
        if isinstance(value, tuple):
            return known(value, "tuple")
        if isinstance(value, Listing):
            return value
        raise Outside("no list to go through")

    def quantified(self, row: Listing, body: Callable[[Any], Any], *, every: bool) -> Any:
        """`all` or `any` over a list."""
        import z3

        items = row.items
        if items is None:
            length = z3.simplify(row.length)
            if z3.is_int_value(length) and length.as_long() <= FEW:
                items = tuple(row.get(z3.IntVal(i)) for i in range(length.as_long()))
        self.depth += 1
        try:
            if items is not None:
                values = [body(item) for item in items]
                return z3.And(values) if every else z3.Or(values)
            i = z3.FreshInt("i")
            inside = z3.And(i >= 0, i < row.length)
            before = len(self.defined)
            with self.where(inside):
                value = body(row.get(i))
            self.defined[before:] = [(z3.ForAll([i], c), depth) for c, depth in self.defined[before:]]
            if every:
                return z3.ForAll([i], z3.Implies(inside, value))
            return z3.Exists([i], z3.And(inside, value))
        finally:
            self.depth -= 1

    def over(self, node: ast.GeneratorExp | ast.ListComp, env: dict[str, Any], at: int, *, every: bool) -> Any:
        import z3

        if at == len(node.generators):
            return self.condition(node.elt, env)
        part = node.generators[at]

        def body(item: Any) -> Any:
            inner = {**env, **_bound(part.target, item)}
            outer, tests = len(self.path), []
            for test in part.ifs:
                tests.append(self.condition(test, inner))
                self.path.append(tests[-1])
            value = self.over(node, inner, at + 1, every=every)
            del self.path[outer:]
            if not tests:
                return value
            return z3.Implies(z3.And(tests), value) if every else z3.And(*tests, value)

        return self.quantified(self.iterable(part.iter, env), body, every=every)


def _bound(target: ast.expr, item: Any) -> dict[str, Any]:
    if isinstance(target, ast.Name):
        return {target.id: item}
    if isinstance(target, ast.Tuple) and isinstance(item, tuple) and len(item) == len(target.elts):
        found: dict[str, Any] = {}
        for part, value in zip(target.elts, item, strict=True):
            found |= _bound(part, value)
        return found
    raise Outside("a loop over parts")
