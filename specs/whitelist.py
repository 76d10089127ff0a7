"""What clauses and helpers may be made of: an expression language without effects, loops with a bound, plain values.

A spec may come from a model, so nothing in it reaches further than the values it is given: no import, no attribute that
begins with `_`, no formatting (its width is a memory bomb), no call but of helpers, named builtins, relied-upon
functions and methods of plain values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from pibroch.specs.errors import SpecError
from pibroch.specs.model import Clause, Helper, Spec

BUILTINS: Mapping[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        abs, all, any, bool, dict, divmod, enumerate, float, frozenset, int, isinstance, len, list, max, min, range,
        reversed, round, set, sorted, str, sum, tuple, zip,
    )
}  # fmt: skip
WORDS = frozenset({"self", "old", "result", "implies"})
MUTATING = frozenset({
    "append", "extend", "insert", "pop", "remove", "sort", "reverse", "clear", "add", "discard", "update", "setdefault",
    "popitem", "difference_update", "intersection_update", "symmetric_difference_update",
})  # fmt: skip
METHODS = MUTATING | {
    "index", "count", "copy", "get", "keys", "values", "items", "union", "intersection", "difference",
    "symmetric_difference", "issubset", "issuperset", "isdisjoint", "startswith", "endswith", "split", "rsplit", "join",
    "strip", "lstrip", "rstrip", "lower", "upper", "isdigit", "isalpha", "isalnum", "isspace", "isidentifier", "find",
    "rfind", "replace", "partition", "rpartition", "splitlines", "removeprefix", "removesuffix", "bit_length",
    "bit_count", "is_integer",
}  # fmt: skip
_EXPRESSIONS = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, ast.Compare, ast.Call, ast.Constant, ast.Attribute, ast.Subscript, ast.Starred, ast.Name,
    ast.List, ast.Tuple, ast.Slice, ast.Lambda, ast.comprehension, ast.keyword, ast.arguments, ast.arg,
    ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip
_STATEMENTS = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Return, ast.Expr, ast.Pass, ast.Break,
    ast.Continue,
)  # fmt: skip
_NAMES = {
    "NamedExpr": "`:=`", "JoinedStr": "an f-string", "Await": "await", "Yield": "yield", "FunctionDef": "a function "
    "inside a function", "Raise": "raise", "Try": "try", "With": "with", "Import": "import", "ImportFrom": "import",
    "Global": "global", "Nonlocal": "nonlocal", "Delete": "del", "Assert": "assert", "Match": "match",
    "ClassDef": "a class", "AsyncFor": "async", "MatMult": "`@`",
}  # fmt: skip


def check_trees(spec: Spec) -> None:
    """Raises `SpecError` at the first clause or helper that holds something the language has not."""
    for unit in spec.units:
        for clause in (*unit.invariants, *(c for o in unit.operations.values() for c in o.clauses)):
            check_clause(spec, clause)
    for rely in spec.relies:
        for clause in rely.function.clauses:
            check_clause(spec, clause)
    for helper in spec.helpers.values():
        _check_helper(spec, helper)


def check_clause(spec: Spec, clause: Clause) -> None:
    """One clause. Raises `SpecError`."""
    check_expression(spec, clause.tree, clause.id, clause.line)


def check_expression(spec: Spec, tree: ast.expr, name: str, line: int) -> None:
    """Any expression of a spec that is evaluated; `name` and `line` are for messages. Raises `SpecError`."""
    try:
        _Checker(spec).expression(tree)
    except _Refused as error:
        raise SpecError(spec.path, line, f"{name}: {error}") from None


class _Refused(Exception):
    def __init__(self, node: ast.AST, message: str) -> None:
        self.node = node
        super().__init__(message)


class _Checker:
    def __init__(self, spec: Spec) -> None:
        self.fields = {name for unit in spec.units for name in unit.fields}
        self.open = bool(spec.front.library)  # what library functions return may have fields of its own
        self.relies = {rely.name for rely in spec.relies}
        self.modules = {rely.module for rely in spec.relies}

    def expression(self, tree: ast.AST, *, mutate: bool = False) -> None:
        called: set[int] = set()
        for node in ast.walk(tree):
            if not isinstance(node, _EXPRESSIONS) or isinstance(node, ast.MatMult):
                what = _NAMES.get(type(node).__name__, type(node).__name__)
                raise _Refused(node, f"{what} has no place in a clause")
            if isinstance(node, ast.Call):
                called.add(id(node.func))
                self.call(node, mutate=mutate)
            elif isinstance(node, ast.Name) and node.id.startswith("_") and node.id != "_":
                raise _Refused(node, f"the name {node.id!r} begins with an underscore")
            elif isinstance(node, ast.Attribute) and id(node) not in called:
                self.attribute(node)
            elif isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str | None):
                raise _Refused(node, f"{node.value!r} is no plain value")
            elif isinstance(node, ast.Lambda):
                a = node.args
                if a.vararg or a.kwarg or a.kwonlyargs or a.posonlyargs or a.defaults:
                    raise _Refused(node, "a lambda has plain parameters only")
            elif isinstance(node, ast.comprehension) and node.is_async:
                raise _Refused(tree, "async has no place in a clause")

    def attribute(self, node: ast.Attribute) -> None:
        if node.attr.startswith("_"):
            raise _Refused(node, f"the attribute {node.attr!r} begins with an underscore")
        if isinstance(node.value, ast.Name) and node.value.id in self.modules:
            raise _Refused(node, f"call {ast.unparse(node)}(…): only its value means something in a clause")
        if node.attr not in self.fields and not self.open:
            known = ", ".join(sorted(self.fields)) or "none"
            raise _Refused(node, f"{ast.unparse(node)}: this spec has no field {node.attr!r} (known: {known})")

    def call(self, node: ast.Call, *, mutate: bool) -> None:
        func = node.func
        if any(k.arg is None for k in node.keywords):
            raise _Refused(node, "`**` in a call has no place in a clause")
        if isinstance(func, ast.Name):
            if func.id == "implies" and (len(node.args) != 2 or node.keywords):
                raise _Refused(node, "implies takes two conditions: implies(a, b)")
            return
        if not isinstance(func, ast.Attribute):
            raise _Refused(node, f"{ast.unparse(func)[:40]} cannot be called")
        dotted = ast.unparse(func)
        if isinstance(func.value, ast.Name) and func.value.id in self.modules:
            if dotted not in self.relies:
                known = ", ".join(sorted(self.relies))
                raise _Refused(node, f"{dotted} is not among what this spec relies on ({known})")
            return
        if func.attr not in METHODS:
            raise _Refused(node, f"{dotted}(…): {func.attr!r} is no method that clauses may call")
        if func.attr in MUTATING and not mutate:
            raise _Refused(node, f"{dotted}(…) would change a value; clauses only look")

    def statement(self, node: ast.stmt) -> None:
        if not isinstance(node, _STATEMENTS):
            raise _Refused(node, f"{_NAMES.get(type(node).__name__, type(node).__name__)} has no place in a helper")
        if isinstance(node, ast.For | ast.While | ast.If):
            if isinstance(node, ast.For):
                _plain_target(node.target)
            self.expression(node.iter if isinstance(node, ast.For) else node.test)
            for inner in (*node.body, *node.orelse):
                self.statement(inner)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                _store_target(target)
                self.expression(target)
            if node.value is not None:  # `x = items.pop()` changes items: a local of the helper
                self.expression(node.value, mutate=_is_local_call(node.value))
        elif isinstance(node, ast.Expr):
            self.expression(node.value, mutate=_is_local_call(node.value))
        elif isinstance(node, ast.Return) and node.value is not None:
            self.expression(node.value)


def _is_local_call(node: ast.expr) -> bool:
    """`name.method(…)` or `name[i].method(…)`, the only place where a helper changes a value."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and root(node.func.value) is not None


def root(node: ast.expr) -> str | None:
    """The name that `name[i][j]` starts from; None for anything else."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _plain_target(node: ast.expr) -> None:
    if isinstance(node, ast.Tuple | ast.List):
        for part in node.elts:
            _plain_target(part)
    elif not isinstance(node, ast.Name):
        raise _Refused(node, "a loop runs over plain names")


def _store_target(node: ast.expr) -> None:
    if isinstance(node, ast.Tuple | ast.List):
        for part in node.elts:
            _store_target(part)
    elif root(node) is None:
        raise _Refused(node, f"{ast.unparse(node)}: assign to a name, or to a place in one")


def _check_helper(spec: Spec, helper: Helper) -> None:
    checker = _Checker(spec)
    try:
        for statement in helper.tree.body:
            checker.statement(statement)
        for default in helper.tree.args.defaults:
            if not isinstance(default, ast.Constant):
                raise _Refused(default, "a default is a plain constant")
        if both := changed_names(helper.tree) & loop_names(helper.tree):
            raise _Refused(helper.tree, f"{min(both)} comes from a loop and is changed: build a new value instead")
    except _Refused as error:
        line = helper.line + getattr(error.node, "lineno", helper.tree.lineno) - helper.tree.lineno
        raise SpecError(spec.path, line, f"{helper.name}: {error}") from None


def changed_names(tree: ast.FunctionDef) -> set[str]:
    """The names whose values a helper changes in place: by a method, or by assigning to a place in them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING:
            name = root(node.func.value)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            name = root(node)
        if name is not None:
            found.add(name)
    return found


def loop_names(tree: ast.FunctionDef) -> set[str]:
    """The names that `for` statements bind."""
    targets = [node.target for node in ast.walk(tree) if isinstance(node, ast.For)]
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
