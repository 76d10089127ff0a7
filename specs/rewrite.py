"""Trees of clauses and helpers made safe to run: operators that can explode are bounded, values are never changed.

Rewrites
    implies(a, b)      -> (not a) or b: b is looked at only where a holds
    a * b, a ** b, …   -> functions that refuse results beyond a bound (in helpers `+` too: a loop can double a list)
    loops, helpers     -> charge the budget of steps, so that every evaluation ends
    x += y             -> x = x + y: a list that came in from outside stays as it was
    names that a helper changes in place hold copies of what is assigned to them, for the same reason
"""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Callable
from typing import Any

from pibroch.specs.whitelist import MUTATING, changed_names

MAX_STEPS = 10_000_000  # per evaluation; about a second
MAX_SIZE = 1_000_000  # elements of a value that a clause builds
MAX_BITS = 100_000  # of an int

_BOUNDED = {ast.Mult: "_mul", ast.Pow: "_pow", ast.LShift: "_shift", ast.Mod: "_mod"}


class TooMuch(Exception):
    """A clause wants more steps or memory than an evaluation may take."""


class Meter:
    """The budget of steps of one evaluation, and the bounded operations that the rewritten trees call."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def names(self) -> dict[str, Callable[..., Any]]:
        """What the rewritten trees need, by the names that they use."""
        return {
            "_mul": self.mul, "_pow": power, "_shift": shift, "_mod": modulo, "_add": add, "_step": self.step,
            "_copy": copy_plain, "range": self.range, "round": rounded,
        }  # fmt: skip

    def step(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise TooMuch(f"more than {MAX_STEPS} steps")

    def range(self, *bounds: int) -> range:
        made = range(*bounds)
        try:
            self.step(len(made))
        except OverflowError:
            raise TooMuch(f"more than {MAX_STEPS} steps") from None
        return made

    def mul(self, a: Any, b: Any) -> Any:
        if type(a) is int and type(b) is int:
            if a.bit_length() + b.bit_length() > MAX_BITS:
                raise TooMuch(f"a number of more than {MAX_BITS} bits")
        else:
            for one, other in ((a, b), (b, a)):
                if isinstance(one, str | list | tuple) and isinstance(other, int) and len(one) * other > MAX_SIZE:
                    raise TooMuch(f"a value of more than {MAX_SIZE} elements")
        return a * b


def add(a: Any, b: Any) -> Any:
    """`a + b`, bounded in size."""
    if isinstance(a, str | list | tuple) and isinstance(b, str | list | tuple) and len(a) + len(b) > MAX_SIZE:
        raise TooMuch(f"a value of more than {MAX_SIZE} elements")
    return a + b


def power(a: Any, b: Any) -> Any:
    """`a ** b`, bounded in bits."""
    if isinstance(a, int) and isinstance(b, int) and a.bit_length() * b > MAX_BITS:
        raise TooMuch(f"a number of more than {MAX_BITS} bits")
    return a**b


def shift(a: Any, b: Any) -> Any:
    """`a << b`, bounded in bits."""
    if isinstance(a, int) and isinstance(b, int) and a.bit_length() + b > MAX_BITS:
        raise TooMuch(f"a number of more than {MAX_BITS} bits")
    return a << b


def modulo(a: Any, b: Any) -> Any:
    """`a % b` of numbers; formatting has no place in a clause."""
    if isinstance(a, str):
        raise TypeError("% formats a text: not in a clause")
    return a % b


def rounded(value: Any, digits: int | None = None) -> Any:
    """`round`, with digits that a float can have."""
    if digits is not None and abs(digits) > 400:
        raise TooMuch("round to more than 400 digits")
    return round(value, digits)


def copy_plain(value: Any) -> Any:
    """A copy of a plain value, as deep as its lists, dicts and sets go."""
    kind = type(value)
    if kind is list:
        return [copy_plain(item) for item in value]
    if kind is dict:
        return {key: copy_plain(item) for key, item in value.items()}
    if kind is set:
        return set(value)
    if kind is tuple:
        return tuple(copy_plain(item) for item in value)
    return value


class _Rewriter(ast.NodeTransformer):
    def __init__(self, *, in_helper: bool) -> None:
        self.in_helper = in_helper

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        name = _BOUNDED.get(type(node.op))  # type: ignore[call-overload]
        if name is None and self.in_helper and isinstance(node.op, ast.Add):
            name = "_add"
        if name is None:
            return node
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [node.left, node.right], []), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "implies":
            first, second = node.args
            negated = ast.UnaryOp(ast.Not(), first)
            return ast.copy_location(ast.BoolOp(ast.Or(), [negated, second]), node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING:
            node.args = [_copied(argument) for argument in node.args]
        return node


def compile_expression(tree: ast.expr, params: list[str], namespace: dict[str, Any], name: str) -> Callable[..., Any]:
    """A function of `params` that evaluates a whitelisted expression in `namespace`."""
    body = _Rewriter(in_helper=False).visit(copy.deepcopy(tree))
    made = ast.Expression(ast.Lambda(_arguments(params), body))
    code = compile(ast.fix_missing_locations(made), f"<{name}>", "eval")
    function: Callable[..., Any] = eval(code, namespace)  # the tree is whitelisted and has no builtins but ours
    return function


def compile_helper(tree: ast.FunctionDef, namespace: dict[str, Any], helpers: set[str]) -> None:
    """Define a whitelisted helper in `namespace`, where clauses and other helpers call it."""
    function = copy.deepcopy(tree)
    changed = changed_names(function)
    params = [a.arg for a in function.args.args]
    recursive = any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in helpers
                    for n in ast.walk(function))  # fmt: skip
    body: list[ast.stmt] = [_step()] if recursive else []
    body += [_assign(name, _copied(ast.Name(name, ast.Load()))) for name in params if name in changed]
    rewriter = _Rewriter(in_helper=True)
    for statement in function.body:
        body.append(_statement(rewriter.visit(statement), changed))
    plain = _arguments(params)
    plain.defaults = function.args.defaults
    made = ast.FunctionDef(function.name, plain, body, [], None)
    made = ast.copy_location(made, tree)
    if sys.version_info >= (3, 12):
        made.type_params = []
    module = ast.fix_missing_locations(ast.Module([made], []))
    exec(compile(module, f"<{tree.name}>", "exec"), namespace)  # whitelisted, and has no builtins but ours


def _statement(node: ast.stmt, changed: set[str]) -> ast.stmt:
    if isinstance(node, ast.For | ast.While | ast.If):
        node.body = [_statement(inner, changed) for inner in node.body]
        node.orelse = [_statement(inner, changed) for inner in node.orelse]
        if not isinstance(node, ast.If):
            node.body.insert(0, _step())
    elif isinstance(node, ast.AnnAssign):
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return _statement(ast.copy_location(ast.Assign([node.target], node.value), node), changed)
    elif isinstance(node, ast.AugAssign):
        read = copy.deepcopy(node.target)
        for part in ast.walk(read):
            if isinstance(part, ast.Name | ast.Subscript):
                part.ctx = ast.Load()
        value = _Rewriter(in_helper=True).visit(ast.copy_location(ast.BinOp(read, node.op, node.value), node))
        return _statement(ast.copy_location(ast.Assign([node.target], value), node), changed)
    elif isinstance(node, ast.Assign):
        bound = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        if bound & changed:
            node.value = _copied(node.value)
    return node


def _copied(value: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("_copy", ast.Load()), [value], [])


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _step() -> ast.stmt:
    return ast.Expr(ast.Call(ast.Name("_step", ast.Load()), [], []))


def _arguments(names: list[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])
