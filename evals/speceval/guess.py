"""Cases made at random that satisfy given statements as often as possible: types give the shapes, clauses the values.

`result == E` and `self.field == E` among the clauses are followed: E's value is taken (most of the time), so that even
a narrow guarantee is met. Everything is drawn from one seeded source: the same on every machine.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from typing import Any

from pibroch.evals.speceval.statements import Case, Place, Statement, library
from pibroch.specs.evaluate import ClauseError, View
from pibroch.specs.model import Spec
from pibroch.specs.rewrite import Meter, compile_expression, compile_helper
from pibroch.specs.whitelist import BUILTINS

DEPTH = 3


def cases(where: Place, statements: Sequence[Statement], *, seed: str, tries: int) -> Iterator[Case]:
    """Up to `tries` cases in which all statements hold."""
    rng = random.Random(seed)
    numbers = _numbers(statements)
    followers = _followers(statements)
    for _ in range(tries):
        case = _followed(_case(where, rng, numbers), where, followers, rng)
        if _all_hold(statements, case):
            yield case


def endings(where: Place, call: Case, statements: Sequence[Statement], *, seed: str, tries: int) -> Iterator[Case]:
    """The same call with results and states after it, in up to `tries` of which all statements hold."""
    rng = random.Random(seed)
    numbers = _numbers(statements)
    followers = _followers(statements)
    for _ in range(tries):
        other = _case(where, rng, numbers)
        state = None if other.state is None else {**other.state, **{
            n: v for n, v in (call.old or {}).items() if n not in where.modifies}}  # fmt: skip
        case = _followed(Case(call.args, other.result, state, call.old), where, followers, rng)
        if _all_hold(statements, case):
            yield case


def _followers(statements: Sequence[Statement]) -> list[_Equation]:
    after = [s for s in statements if s.clause.kind in ("ensures", "invariant") and not s.early and not s.negated]
    return [equation for statement in after for equation in _equations(statement)]


def _followed(case: Case, where: Place, followers: Sequence[_Equation], rng: random.Random) -> Case:
    for _ in range(2):  # an equation may use what another one sets
        for follower in followers:
            if rng.random() < 0.95:
                case = follower.follow(case, where)
    return case


def _all_hold(statements: Sequence[Statement], case: Case) -> bool:
    try:
        return all(s.holds(case) for s in statements)
    except ClauseError:
        return False


def _case(where: Place, rng: random.Random, numbers: list[int]) -> Case:
    size = rng.choice([0, 1, 2, 3, 5, 8])
    args = {p.name: value(p.type, rng, numbers, size) for p in where.operation.params}
    result = value(where.operation.returns, rng, numbers, size)
    if not where.unit.view:
        return Case(args, result)
    old = None if where.first else {n: value(t, rng, numbers, size) for n, t in where.fields.items()}
    state = {
        n: value(t, rng, numbers, size) if old is None or n in where.modifies else old[n]
        for n, t in where.fields.items()
    }
    return Case(args, result, state, old)


def value(kind: str, rng: random.Random, numbers: Sequence[int], size: int) -> Any:
    """A plain value of an annotation."""
    return _value(ast.parse(kind, mode="eval").body, rng, numbers, size)


def _value(tree: ast.expr, rng: random.Random, numbers: Sequence[int], size: int) -> Any:
    if isinstance(tree, ast.Constant):
        return None if tree.value is None else _value(ast.parse(str(tree.value), mode="eval").body, rng, numbers, size)
    if isinstance(tree, ast.BinOp):
        return _value(rng.choice([tree.left, tree.right]), rng, numbers, size)
    if isinstance(tree, ast.Subscript):
        parts = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        word = ast.unparse(tree.value)
        if word == "Optional":
            return rng.choice([None, _value(parts[0], rng, numbers, size)])
        if word == "tuple" and not (isinstance(parts[-1], ast.Constant) and parts[-1].value is ...):
            return tuple(_value(p, rng, numbers, size) for p in parts)
        length = rng.randint(0, size)
        row = [_value(parts[0], rng, numbers, max(size // 2, 1)) for _ in range(length)]
        if word == "dict":
            return {key: _value(parts[1], rng, numbers, max(size // 2, 1)) for key in row}
        return {"tuple": tuple, "set": set, "frozenset": frozenset}.get(word, list)(row)
    word = ast.unparse(tree)
    if word == "bool":
        return rng.random() < 0.5
    if word == "float":
        return rng.choice([0.0, 0.5, 1.0, -1.0, float(rng.choice(numbers)), rng.uniform(-10, 10)])
    if word == "str":
        return "".join(rng.choice("ab") for _ in range(rng.randint(0, 3)))
    if word == "int":
        return rng.choice(numbers) if rng.random() < 0.7 else rng.randint(-1, size)
    return {"list": [], "dict": {}, "set": set(), "tuple": ()}.get(word)


def _numbers(statements: Sequence[Statement]) -> list[int]:
    found = {-1, 0, 1, 2, 3, 4}
    for statement in statements:
        trees = [statement.clause.tree, *(h.tree for h in statement.spec.helpers.values())]
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**6:
                    found |= {node.value - 1, node.value, node.value + 1}
    return sorted(found)


class _Equation:
    """`target == tree`, where the conditions hold."""

    def __init__(self, statement: Statement, target: str, tree: ast.expr, conditions: tuple[ast.expr, ...]) -> None:
        self.target, self.tree, self.conditions = target, tree, conditions
        self.spec = statement.spec
        self.compiled: list[Any] | None = None

    def follow(self, case: Case, where: Place) -> Case:
        names = [p.name for p in where.operation.params]
        if self.compiled is None:
            namespace = _namespace(self.spec)
            params = ["self", "old", "result", *names]
            self.compiled = [compile_expression(t, params, namespace, "guess") for t in (*self.conditions, self.tree)]
        views = [None if v is None else View(v) for v in (case.state, case.old)]
        row = [*views, case.result, *(case.args[n] for n in names)]
        try:
            if not all(condition(*row) for condition in self.compiled[:-1]):
                return case
            found = self.compiled[-1](*row)
        except Exception:  # the clause itself reports what it raises
            return case
        if self.target == "result":
            return Case(case.args, found, case.state, case.old)
        name = self.target.removeprefix("self.")
        if case.state is None or (name not in where.modifies and not where.first):
            return case
        return Case(case.args, case.result, {**case.state, name: found}, case.old)


def _equations(statement: Statement) -> Iterator[_Equation]:
    def walk(tree: ast.expr, conditions: tuple[ast.expr, ...]) -> Iterator[_Equation]:
        if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
            for part in tree.values:
                yield from walk(part, conditions)
        elif isinstance(tree, ast.Call) and ast.unparse(tree.func) == "implies" and len(tree.args) == 2:
            yield from walk(tree.args[1], (*conditions, tree.args[0]))
        elif isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq | ast.Is):
            yield from pairs(tree.left, tree.comparators[0], conditions)
            yield from pairs(tree.comparators[0], tree.left, conditions)
        elif isinstance(tree, ast.Name | ast.Attribute) and _is_target(tree):
            yield _Equation(statement, ast.unparse(tree), ast.Constant(True), conditions)
        elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not) and _is_target(tree.operand):
            yield _Equation(statement, ast.unparse(tree.operand), ast.Constant(False), conditions)

    def pairs(left: ast.expr, right: ast.expr, conditions: tuple[ast.expr, ...]) -> Iterator[_Equation]:
        if isinstance(left, ast.Tuple):
            for i, part in enumerate(left.elts):
                item: ast.expr = ast.Subscript(right, ast.Constant(i), ast.Load())
                if isinstance(right, ast.Tuple) and len(right.elts) == len(left.elts):
                    item = right.elts[i]
                yield from pairs(part, item, conditions)
        elif _is_target(left):
            yield _Equation(statement, ast.unparse(left), right, conditions)

    yield from walk(statement.clause.tree, ())


def _is_target(tree: ast.expr) -> bool:
    if isinstance(tree, ast.Attribute):
        return isinstance(tree.value, ast.Name) and tree.value.id == "self"
    return isinstance(tree, ast.Name) and tree.id == "result"


def _namespace(spec: Spec) -> dict[str, Any]:
    names: dict[str, Any] = {"__builtins__": {}, **BUILTINS, **Meter().names(), **(library(spec) or {})}
    for helper in spec.helpers.values():
        compile_helper(helper.tree, names, set(spec.helpers))
    return names
