"""Mutants of a candidate: its code with one small, fixed change each, in the order of its lines.

Operators
    comparison, boolean negation, and/or, arithmetic, constants ± 1, texts, statement deletion, swapped arguments,
    results, slice bounds, ranges, break/continue, min/max and other pairs, exceptions, and (phase 2) locks left out

A change that makes no code (a syntax error) or the same code is left out, as is one that another operator made already.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Add,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,),
}  # fmt: skip
_PAIRS = [("min", "max"), ("any", "all"), ("bisect_left", "bisect_right"), ("append", "appendleft"), ("pop", "popleft"),
          ("floor", "ceil"), ("add", "discard"), ("notify_all", "notify")]  # fmt: skip
_DEQUE = ("appendleft", "popleft")
_SWAPS = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
_EXCEPTIONS = {
    "ValueError": "KeyError", "KeyError": "ValueError", "IndexError": "ValueError", "RuntimeError": "ValueError",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """`before` and `after` are the statement concerned, as one line each; `locks`: it leaves a lock out."""

    source: str
    line: int
    operator: str
    before: str
    after: str
    function: str
    locks: bool = False

    @property
    def diff(self) -> tuple[str, str]:
        """`- before` and `+ after`."""
        return f"- {self.before}", f"+ {self.after}"


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module."""
    tree = ast.parse(source)
    seen = {ast.unparse(tree)}
    found: list[Mutant] = []
    for place in _places(tree):
        for operator, node in _changes(place):
            changed = _replaced(tree, place, node)
            try:
                text = ast.unparse(changed)
                compile(text, "mutant", "exec", dont_inherit=True)
            except (SyntaxError, ValueError):
                continue
            if text in seen or any(f".{name}(" in text and f".{name}(" not in source for name in _DEQUE):
                continue  # a list has no popleft: such a change says nothing of the clauses
            seen.add(text)
            before, after = _statement(tree, place.statement), _after(place, node)
            locks = operator == "lock left out"
            found.append(Mutant(text, place.statement.lineno, operator, before, after, place.function, locks))
    return sorted(found, key=lambda m: m.line)


@dataclass(frozen=True)
class _Place:
    """A node that may change, with the way to it from the module: fields and indices."""

    node: ast.AST
    path: tuple[tuple[str, int | None], ...]
    statement: ast.stmt
    start: int  # length of the path to the statement
    function: str
    returns: str


def _places(tree: ast.Module) -> Iterator[_Place]:
    def walk(
        node: ast.AST, path: tuple[tuple[str, int | None], ...], statement: ast.stmt | None, start: int, function: str,
        returns: str,
    ) -> Iterator[_Place]:  # fmt: skip
        if isinstance(node, ast.stmt):
            statement, start = node, len(path)
        if isinstance(node, ast.FunctionDef):
            function, returns = node.name, ast.unparse(node.returns) if node.returns else ""
        if statement is not None:
            yield _Place(node, path, statement, start, function, returns)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
                continue  # signatures and types are the rules' matter
            if isinstance(node, ast.Raise) and name == "exc" and isinstance(value, ast.Call):
                yield from walk(value.func, (*path, (name, None), ("func", None)), statement, start, function, returns)
                continue  # the words of an error are free
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST):
                    yield from walk(child, (*path, (name, index)), statement, start, function, returns)

    for i, node in enumerate(tree.body):
        if not isinstance(node, ast.Import | ast.ImportFrom) and not _is_text(node):
            yield from walk(node, (("body", i),), None, 0, "", "")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _replaced(tree: ast.Module, place: _Place, node: ast.AST) -> ast.Module:
    """A copy of the tree with another node at that place."""
    changed = copy.deepcopy(tree)
    _put(changed, place.path, node)
    return ast.fix_missing_locations(changed)


def _put(at: ast.AST, path: tuple[tuple[str, int | None], ...], node: ast.AST) -> None:
    for name, index in path[:-1]:
        value = getattr(at, name)
        at = value if index is None else value[index]
    name, index = path[-1]
    if index is None:
        setattr(at, name, node)
    else:
        getattr(at, name)[index] = node


def _statement(tree: ast.AST, statement: ast.stmt) -> str:
    """A statement without its body, on one line."""
    return " ".join(ast.unparse(_head(statement)).split()).removesuffix(" pass").strip()


def _head(statement: ast.stmt) -> ast.stmt:
    if not hasattr(statement, "body"):
        return statement
    short = copy.deepcopy(statement)
    setattr(short, "body", [ast.Pass()])  # noqa: B010
    for name in ("orelse", "finalbody"):
        if hasattr(short, name):
            setattr(short, name, [])
    return ast.fix_missing_locations(short)


def _after(place: _Place, node: ast.AST) -> str:
    if len(place.path) == place.start:
        return _statement(node, node) if isinstance(node, ast.stmt) and not isinstance(node, ast.Pass) else "(deleted)"
    statement = copy.deepcopy(place.statement)
    _put(statement, place.path[place.start :], node)
    return _statement(statement, ast.fix_missing_locations(statement))


# Operators


def _changes(place: _Place) -> Iterator[tuple[str, ast.AST]]:
    node = place.node
    if isinstance(node, ast.expr):
        yield from _expressions(node, place)
    elif isinstance(node, ast.stmt):
        yield from _statements(node, place)
    elif isinstance(node, ast.Slice):
        yield from _slices(node)


def _expressions(node: ast.expr, place: _Place) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Compare):
        for i, old in enumerate(node.ops):
            for kind in _COMPARE[type(old)]:
                ops = [*node.ops[:i], kind(), *node.ops[i + 1 :]]
                yield "comparison", ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BinOp):
        for other in _ARITHMETIC.get(type(node.op), ()):
            yield "arithmetic", ast.BinOp(node.left, other(), node.right)
    elif isinstance(node, ast.UnaryOp):
        yield "negation left out", node.operand
    elif isinstance(node, ast.BoolOp):
        yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.Constant):
        yield from _constants(node, place)
    elif isinstance(node, ast.IfExp):
        yield "condition negated", ast.IfExp(_not(node.test), node.body, node.orelse)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Slice):
        yield from _slices(node)
    elif isinstance(node, ast.Name) and isinstance(place.statement, ast.Raise) and node.id in _EXCEPTIONS:
        yield "exception", ast.Name(_EXCEPTIONS[node.id], ast.Load())
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        for i, generator in enumerate(node.generators):
            for j in range(len(generator.ifs)):
                changed = copy.deepcopy(node)
                changed.generators[i].ifs[j] = _not(changed.generators[i].ifs[j])
                yield "condition negated", changed


def _constants(node: ast.Constant, place: _Place) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int | float):
        yield "constant", ast.Constant(value + 1)
        yield "constant", ast.Constant(value - 1) if value > 0 else ast.UnaryOp(ast.USub(), ast.Constant(1 - value))
    elif isinstance(value, str) and not _is_text(place.statement) and place.function != "view":
        yield "text", ast.Constant(value + "x" if value else "x")


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    args = node.args
    if name in _SWAPS:
        changed = copy.deepcopy(node)
        if isinstance(changed.func, ast.Name):
            changed.func.id = _SWAPS[name]
        elif isinstance(changed.func, ast.Attribute):
            changed.func.attr = _SWAPS[name]
        yield "pair", changed
    if len(args) >= 2 and not any(isinstance(a, ast.Starred) for a in args[:2]) and name not in ("min", "max"):
        yield "arguments swapped", ast.Call(node.func, [args[1], args[0], *args[2:]], node.keywords)
    if name == "range":
        for i in range(min(len(args), 2)):
            if not isinstance(args[i], ast.Constant):
                for operator in (ast.Add(), ast.Sub()):
                    moved = ast.BinOp(args[i], operator, ast.Constant(1))
                    yield "range", ast.Call(node.func, [*args[:i], moved, *args[i + 1 :]], node.keywords)
        if len(args) == 1:
            yield "range", ast.Call(node.func, [ast.Constant(1), args[0]], node.keywords)
    if name in ("sorted", "reversed") and len(args) == 1:
        yield "order left out", ast.Call(ast.Name("list", ast.Load()), args, [])


def _slices(node: ast.Slice) -> Iterator[tuple[str, ast.AST]]:
    for name in ("lower", "upper"):
        bound = getattr(node, name)
        if bound is None:
            continue
        moved = [ast.BinOp(bound, operator, ast.Constant(1)) for operator in (ast.Add(), ast.Sub())]
        for changed in (None, *moved):
            made = ast.Slice(node.lower, node.upper, node.step)
            setattr(made, name, changed)
            yield "slice", made


def _statements(node: ast.stmt, place: _Place) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.If | ast.While):
        negated = copy.deepcopy(node)
        negated.test = _not(negated.test)
        yield "condition negated", negated
    if isinstance(node, ast.While) and isinstance(node.body[-1], ast.Expr) and "wait" in ast.unparse(node.body[-1]):
        yield "if for while", ast.If(node.test, node.body, [])
    if (isinstance(node, ast.If) and not node.orelse) or isinstance(node, ast.For | ast.While):
        yield "statement left out", ast.Pass()
    if isinstance(node, ast.AugAssign):
        for other in _ARITHMETIC.get(type(node.op), ()):
            yield "arithmetic", ast.AugAssign(node.target, other(), node.value)
    if isinstance(node, ast.AugAssign | ast.Raise | ast.Delete) or (isinstance(node, ast.Expr) and not _is_text(node)):
        yield "statement left out", ast.Pass()
    fields = isinstance(node, ast.Assign) and not all(isinstance(t, ast.Name) for t in node.targets)
    if fields and place.function != "__init__":
        yield "statement left out", ast.Pass()
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and ast.unparse(node.value) == "None":
        yield "initial value", _assigned(node, ast.Constant(0))
    if isinstance(node, ast.Break):
        yield "break/continue", ast.Continue()
    elif isinstance(node, ast.Continue):
        yield "break/continue", ast.Break()
    elif isinstance(node, ast.Return) and node.value is not None and place.function != "view":
        yield from _results(node.value, place.returns)
    elif isinstance(node, ast.With):
        yield "lock left out", ast.If(ast.Constant(True), node.body, [])


def _assigned(node: ast.Assign | ast.AnnAssign, value: ast.expr) -> ast.stmt:
    changed = copy.deepcopy(node)
    changed.value = value
    return changed


def _results(value: ast.expr, returns: str) -> Iterator[tuple[str, ast.AST]]:
    """Another result of the declared type."""
    plain = not isinstance(value, ast.Constant)
    if returns == "bool" and plain:
        yield "result", ast.Return(_not(value))
    if returns == "int" and plain:
        yield "result", ast.Return(ast.BinOp(value, ast.Add(), ast.Constant(1)))
    many = returns.startswith("list") or returns.endswith("...]")
    if many and plain and not isinstance(value, ast.Tuple):
        yield "result", ast.Return(ast.Subscript(value, ast.Slice(ast.Constant(1), None, None), ast.Load()))
    if "None" in returns and not (isinstance(value, ast.Constant) and value.value is None):
        yield "result", ast.Return(ast.Constant(None))


def _not(node: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), node)
