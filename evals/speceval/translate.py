"""Clauses as z3 formulas: a small total translation of syntax trees, which gives up outside its subset.

A formula has two parts: the value of the clause, and when the clause is defined at all (an index in range, no division
by zero). Where only a part of a clause lies outside, that part may stand for an unknown truth value, the same one for
the same text over the same values: what is proved with it is proved, what is refuted with it is not.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pibroch.evals.speceval.terms import (
    Listing,
    Optional,
    Outside,
    Record,
    choose,
    equal,
    integer,
    joined,
    key_of,
    known,
    truth,
    variable,
)
from pibroch.evals.speceval.translate_loops import Loops
from pibroch.specs.model import Helper, Spec

DEEPEST = 8  # calls of helpers inside each other


@dataclass(frozen=True, slots=True)
class Formula:
    """`value` as Python would compute it where `defined` holds; not `exact` where unknown truth values stand in it.
    `sure` is the part of `defined` that holds whenever the clause is true; `facts` hold always."""

    value: Any
    defined: Any
    sure: Any
    facts: tuple[Any, ...]
    exact: bool


def translate(spec: Spec, tree: ast.expr, names: Mapping[str, Any]) -> Formula | None:
    """The clause over `names` (parameters, `result`, `self`, `old` as terms), or None outside the subset."""
    import z3

    work = _Translator(spec.helpers, {rely.name: rely.function for rely in spec.relies})
    try:
        value = work.condition(tree, dict(names))
    except (Outside, RecursionError, z3.Z3Exception):
        return None
    sure = [c for c, depth in work.defined if depth == 0]
    every = [c for c, _ in work.defined]
    return Formula(value, z3.And(every), z3.And(sure), tuple(work.facts), work.exact)


class _Translator(Loops):
    # Conditions: where a part lies outside, it becomes an unknown.

    def condition(self, node: ast.expr, env: dict[str, Any]) -> Any:
        import z3

        before, outer = len(self.defined), len(self.path)
        try:
            if isinstance(node, ast.BoolOp):
                return self.connective(node, env)
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                return z3.Not(self.condition(node.operand, env))
            if _is_call(node, "implies", 2):
                assert isinstance(node, ast.Call)
                first = self.condition(node.args[0], env)
                with self.where(first):
                    return z3.Implies(first, self.condition(node.args[1], env))
            if isinstance(node, ast.IfExp):
                test = self.condition(node.test, env)
                with self.where(test):
                    then = self.condition(node.body, env)
                with self.where(z3.Not(test)):
                    return z3.If(test, then, self.condition(node.orelse, env))
            return truth(self.value(node, env))
        except Outside:
            del self.defined[before:], self.path[outer:]
            return self.unknown(node, env)

    def connective(self, node: ast.BoolOp, env: dict[str, Any]) -> Any:
        import z3

        both = isinstance(node.op, ast.And)
        values: list[Any] = []
        outer = len(self.path)
        for part in node.values:
            values.append(self.condition(part, env))
            self.path.append(values[-1] if both else z3.Not(values[-1]))
        del self.path[outer:]
        return z3.And(values) if both else z3.Or(values)

    def unknown(self, node: ast.expr, env: dict[str, Any]) -> Any:
        import z3

        if self.depth:
            raise Outside("below a quantifier")
        words = sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)})
        keys = []
        for word in words:
            if word in env:
                key = key_of(env[word]) if env[word] is not None else "None"
                if not key:
                    raise Outside(f"{word} has no key")
                keys.append(f"{word}={key}")
            elif word in self.helpers:
                keys.append(self.reached(word, set()))
        self.exact = False
        name = f"{ast.dump(node)} {' '.join(keys)}"
        self.require(z3.Bool(f"defined {name}"))
        return z3.Bool(name)

    def reached(self, name: str, seen: set[str]) -> str:
        """The helper's tree, and those of the helpers that it calls."""
        seen.add(name)
        tree = self.helpers[name].tree
        inner = sorted({n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & set(self.helpers) - seen)
        return " ".join([ast.dump(tree), *(self.reached(word, seen) for word in inner if word not in seen)])

    # Values.

    def value(self, node: ast.expr, env: dict[str, Any]) -> Any:
        import z3

        if isinstance(node, ast.Constant):
            return _literal(node.value)
        if isinstance(node, ast.Name):
            if node.id not in env:
                raise Outside(node.id)
            return env[node.id]
        if isinstance(node, ast.BoolOp):
            return self.selected(node.op, node.values, env)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.condition(node, env)
        if isinstance(node, ast.UnaryOp):
            operand = integer(self.value(node.operand, env))
            return -operand if isinstance(node.op, ast.USub) else operand
        if isinstance(node, ast.BinOp):
            return self.arithmetic(node, env)
        if isinstance(node, ast.Compare):
            return self.comparison(node, env)
        if isinstance(node, ast.IfExp):
            test = self.condition(node.test, env)
            with self.where(test):
                then = self.value(node.body, env)
            with self.where(z3.Not(test)):
                return choose(test, then, self.value(node.orelse, env))
        if isinstance(node, ast.Tuple | ast.List):
            if any(isinstance(e, ast.Starred) for e in node.elts):
                raise Outside("a star")
            items = [self.value(e, env) for e in node.elts]
            return tuple(items) if isinstance(node, ast.Tuple) else known(items)
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value, env)
            if isinstance(owner, Record) and node.attr in owner.fields:
                return owner.fields[node.attr]
            raise Outside(node.attr)
        if isinstance(node, ast.Subscript):
            return self.item(node, env)
        if isinstance(node, ast.ListComp):
            return self.mapped(node, env)
        if isinstance(node, ast.Call):
            return self.call(node, env)
        raise Outside(type(node).__name__)

    def selected(self, op: ast.boolop, parts: list[ast.expr], env: dict[str, Any]) -> Any:
        """`a or b` as a value: one of its parts, which need not be a bool."""
        import z3

        first = self.value(parts[0], env)
        if len(parts) == 1:
            return first
        test = truth(first) if isinstance(op, ast.And) else z3.Not(truth(first))
        with self.where(test):
            return choose(test, self.selected(op, parts[1:], env), first)

    def arithmetic(self, node: ast.BinOp, env: dict[str, Any]) -> Any:
        import z3

        left, right = self.value(node.left, env), self.value(node.right, env)
        if isinstance(node.op, ast.Add) and isinstance(left, tuple) and isinstance(right, tuple):
            return left + right
        if isinstance(node.op, ast.Add) and isinstance(left, Listing) and isinstance(right, Listing):
            if left.kind != right.kind:
                raise Outside("a list and a tuple")
            return joined(left, right)
        a, b = integer(left), integer(right)
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            return a + b if isinstance(node.op, ast.Add) else a - b if isinstance(node.op, ast.Sub) else a * b
        if isinstance(node.op, ast.FloorDiv | ast.Mod):
            self.require(b != 0)
            quotient = z3.If(b > 0, a / b, (-a) / (-b))  # z3's remainder is never negative: floor for b > 0
            return quotient if isinstance(node.op, ast.FloorDiv) else a - b * quotient
        raise Outside(type(node.op).__name__)

    def comparison(self, node: ast.Compare, env: dict[str, Any]) -> Any:
        import z3

        left, parts, outer = self.value(node.left, env), [], len(self.path)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, env)
            parts.append(self.compared(op, left, right))
            self.path.append(parts[-1])
            left = right
        del self.path[outer:]
        return parts[0] if len(parts) == 1 else z3.And(parts)

    def compared(self, op: ast.cmpop, a: Any, b: Any) -> Any:
        import z3

        if isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
            if isinstance(op, ast.Is | ast.IsNot) and a is not None and b is not None:
                raise Outside("identity")
            same = equal(a, b)
            return same if isinstance(op, ast.Eq | ast.Is) else z3.Not(same)
        if isinstance(op, ast.In | ast.NotIn):
            row = known(b, "tuple") if isinstance(b, tuple) else b
            if not isinstance(row, Listing):
                raise Outside("in")
            found = self.quantified(row, lambda item: equal(item, a), every=False)
            return found if isinstance(op, ast.In) else z3.Not(found)
        if isinstance(a, tuple) and isinstance(b, tuple):
            return self.lexicographic(op, a, b)
        a, b = integer(self.present(a)), integer(self.present(b))
        return {ast.Lt: a < b, ast.LtE: a <= b, ast.Gt: a > b, ast.GtE: a >= b}[type(op)]

    def lexicographic(self, op: ast.cmpop, a: tuple[Any, ...], b: tuple[Any, ...]) -> Any:
        import z3

        if not a or not b:
            size = {ast.Lt: len(a) < len(b), ast.LtE: len(a) <= len(b), ast.Gt: len(a) > len(b)}
            return z3.BoolVal(size.get(type(op), len(a) >= len(b)))
        strict = ast.Lt() if isinstance(op, ast.Lt | ast.LtE) else ast.Gt()
        first = self.compared(strict, a[0], b[0])
        return z3.Or(first, z3.And(equal(a[0], b[0]), self.lexicographic(op, a[1:], b[1:])))

    def present(self, value: Any) -> Any:
        """An optional that is used as a value: None would raise."""
        import z3

        if isinstance(value, Optional):
            self.require(z3.Not(value.none))
            return value.value
        return value

    def item(self, node: ast.Subscript, env: dict[str, Any]) -> Any:
        import z3

        owner = self.value(node.value, env)
        if isinstance(node.slice, ast.Slice):
            return self.slice(owner, node.slice, env)
        index = integer(self.value(node.slice, env))
        if isinstance(owner, tuple):
            at = z3.simplify(index)
            if z3.is_int_value(at) and -len(owner) <= at.as_long() < len(owner):
                return owner[at.as_long()]
            owner = known(owner, "tuple")
        if not isinstance(owner, Listing) or owner.items == ():
            raise Outside("an item of this")
        self.require(z3.And(index >= -owner.length, index < owner.length))
        return owner.get(z3.If(index < 0, index + owner.length, index))

    def slice(self, owner: Any, node: ast.Slice, env: dict[str, Any]) -> Any:
        import z3

        row = known(owner, "tuple") if isinstance(owner, tuple) else owner
        if not isinstance(row, Listing) or node.step is not None or row.kind == "range":
            raise Outside("a slice of this")

        def bound(part: ast.expr | None, otherwise: Any) -> Any:
            if part is None:
                return otherwise
            raw = integer(self.value(part, env))
            at = z3.If(raw < 0, raw + row.length, raw)
            return z3.If(at < 0, z3.IntVal(0), z3.If(at > row.length, row.length, at))

        start, stop = bound(node.lower, z3.IntVal(0)), bound(node.upper, row.length)
        length = z3.If(stop > start, stop - start, z3.IntVal(0))
        key = f"{key_of(row)}[{start.sexpr()}:{stop.sexpr()}]" if key_of(row) else ""
        return Listing(length, lambda i: row.get(i + start), row.kind, key=key)

    def call(self, node: ast.Call, env: dict[str, Any]) -> Any:
        from pibroch.evals.speceval.translate_calls import builtin

        dotted = ast.unparse(node.func)
        if dotted in self.relies:
            return self.relied(dotted, node, env)
        if not isinstance(node.func, ast.Name) or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            raise Outside(dotted)
        name = node.func.id
        if name == "implies":
            return self.condition(node, env)
        if name in ("all", "any") and len(node.args) == 1:
            (inner,) = node.args
            if isinstance(inner, ast.GeneratorExp | ast.ListComp):
                return self.over(inner, env, 0, every=name == "all")
            return self.quantified(self.iterable(inner, env), truth, every=name == "all")
        if name in self.helpers:
            return self.inlined(self.helpers[name], [self.value(a, env) for a in node.args])
        return builtin(self, name, node.args, env)

    def relied(self, name: str, node: ast.Call, env: dict[str, Any]) -> Any:
        """What a relied-upon function gave: one unknown value for the same arguments."""
        operation = self.relies[name]
        keys = [key_of(self.value(a, env)) for a in node.args]
        if self.depth or node.keywords or not all(keys):
            raise Outside(name)
        return variable(operation.returns, f"{name}({', '.join(keys)})", self.facts)

    def inlined(self, helper: Helper, args: list[Any]) -> Any:
        if len(args) != len(helper.params) or self.calls >= DEEPEST:
            raise Outside(helper.name)
        self.calls += 1
        try:
            env = {p.name: a for p, a in zip(helper.params, args, strict=True)}
            return self.body(helper.tree.body, env)
        finally:
            self.calls -= 1

    def body(self, statements: list[ast.stmt], env: dict[str, Any]) -> Any:
        """The value that a helper returns: assignments, `if` and `return`; a loop is outside."""
        import z3

        if not statements:
            return None
        first, rest = statements[0], statements[1:]
        if isinstance(first, ast.Return):
            return None if first.value is None else self.value(first.value, env)
        if isinstance(first, ast.Assign) and len(first.targets) == 1 and isinstance(first.targets[0], ast.Name):
            return self.body(rest, {**env, first.targets[0].id: self.value(first.value, env)})
        if isinstance(first, ast.If):
            test = self.condition(first.test, env)
            with self.where(test):
                then = self.body([*first.body, *rest], env)
            with self.where(z3.Not(test)):
                return choose(test, then, self.body([*first.orelse, *rest], env))
        if isinstance(first, ast.Pass) or (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
            return self.body(rest, env)
        raise Outside(type(first).__name__)


def _literal(value: Any) -> Any:
    from pibroch.evals.speceval.terms import constant

    return constant(value)


def _is_call(node: ast.expr, name: str, count: int) -> bool:
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    return named and len(node.args) == count  # type: ignore[attr-defined]
