"""The `python` block of a spec: signatures, fields, view, helpers and clauses, taken from its syntax tree."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

from pibroch.specs.errors import SpecError
from pibroch.specs.model import Clause, FrontMatter, Helper, Kind, Operation, Parameter, Rely, Unit

_IN_OPERATIONS = ("requires", "ensures", "raises", "when", "modifies")
_ON_UNITS = ("view", "invariant")


def read_block(
    path: Path, front: FrontMatter, source: str, first_line: int, lines: dict[str, int]
) -> tuple[tuple[Rely, ...], tuple[Unit, ...], dict[str, Helper]]:
    """Relies (of the front matter), units and helpers. Raises `SpecError`."""
    reader = _Reader(path, source, first_line)
    tree = reader.parse()
    relies = tuple(_rely(path, front, i, lines) for i in range(len(front.rely)))
    units: list[Unit] = []
    helpers: dict[str, Helper] = {}
    own: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            if node.bases or node.keywords or node.decorator_list:
                raise reader.fail(node, f"class {node.name}: no bases and no decorators; a spec says all itself")
            if node.name in {unit.name for unit in units} or node.name == front.module:
                raise reader.fail(node, f"{node.name} is specified twice")
            units.append(reader.unit(node.name, node.body, node, is_class=True, lines=lines))
        elif isinstance(node, ast.FunctionDef) and node.name not in front.guarantee.exports:
            if node.name in helpers:
                raise reader.fail(node, f"helper {node.name} is defined twice")
            helpers[node.name] = reader.helper(node)
        else:
            own.append(node)
    if own:
        units.insert(0, reader.unit(front.module, own, own[0], is_class=False, lines=lines))
    return relies, tuple(units), helpers


def _rely(path: Path, front: FrontMatter, index: int, lines: dict[str, int]) -> Rely:
    entry = front.rely[index]
    at = lines.get(f"rely.{index}.uses", lines.get(f"rely.{index}", 1))
    try:
        node, *rest = ast.parse(entry.uses.rstrip(" \n.:") + ": ...").body
    except (SyntaxError, ValueError) as error:
        message = getattr(error, "msg", error)
        raise SpecError(path, at, f"rely {entry.module}: `uses` is no signature: {message}") from error
    if rest or not isinstance(node, ast.FunctionDef):
        raise SpecError(path, at, f'rely {entry.module}: `uses` is a function, such as "def last(n: int) -> list[int]"')
    reader = _Reader(path, entry.uses, at)
    owner = f"rely:{entry.module}.{node.name}"
    clauses: list[Clause] = []
    for kind, texts in (("requires", entry.requires), ("ensures", entry.ensures)):
        for j, text in enumerate(texts):
            line = lines.get(f"rely.{index}.{kind}.{j}", at)
            try:
                tree = ast.parse(text.strip(), mode="eval").body
            except (SyntaxError, ValueError) as error:
                message = getattr(error, "msg", error)
                raise SpecError(path, line, f"rely {entry.module}, {kind}: {message}: {text}") from error
            identity = f"rely.{entry.module}.{node.name}.{kind}.{j}"
            clauses.append(Clause(identity, _kind(kind), owner, line, text, tree))
    params, returns = reader.signature(node, method=False)
    return Rely(entry.module, Operation(node.name, params, returns, (), tuple(clauses), at), at)


def _kind(name: str) -> Kind:
    assert name in get_args(Kind), name
    return name  # type: ignore[return-value]


class _Reader:
    def __init__(self, path: Path, source: str, first_line: int) -> None:
        self.path, self.source, self.first = path, source, first_line

    def fail(self, node: ast.AST | int, message: str) -> SpecError:
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return SpecError(self.path, self.first + line - 1, message)

    def parse(self) -> ast.Module:
        try:
            return ast.parse(self.source)
        except SyntaxError as error:
            raise self.fail(error.lineno or 1, f"syntax error: {error.msg}") from error
        except (ValueError, RecursionError) as error:
            raise self.fail(1, f"the block cannot be parsed: {error}") from error

    def text(self, node: ast.AST) -> str:
        """The source on one line."""
        segment = ast.get_source_segment(self.source, node)
        if segment is None or ("\n" in segment and "#" in segment):  # a comment would swallow what follows it
            segment = ast.unparse(node)
        return " ".join(segment.split())

    def line(self, node: ast.AST) -> int:
        return self.first + int(getattr(node, "lineno", 1)) - 1

    def unit(self, name: str, body: list[ast.stmt], at: ast.AST, *, is_class: bool, lines: dict[str, int]) -> Unit:
        fields: dict[str, str] = {}
        view: tuple[str, ...] = ()
        invariants: list[Clause] = []
        operations: dict[str, Operation] = {}
        for node in body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is None:
                if node.target.id in fields or node.target.id.startswith("_"):
                    raise self.fail(node, f"{name}: the field {node.target.id!r} stands twice or begins with `_`")
                fields[node.target.id] = self.text(node.annotation)
                lines[f"field.{name}.{node.target.id}"] = self.line(node)
            elif isinstance(node, ast.FunctionDef):
                if node.name in operations:
                    raise self.fail(node, f"{node.name} is specified twice")
                operations[node.name] = self.operation(node, method=is_class)
            elif (call := _call(node)) and call[0] == "view":
                if view or not call[1].args:
                    raise self.fail(node, f"{name}: one view(...), which names at least one field")
                view = tuple(self.names(call[1]))
            elif call and call[0] == "invariant":
                invariants.append(self.clause(call[1], "invariant", name))
            elif not _is_prose(node):
                raise self.fail(node, f"not part of a spec: {self.text(node)[:60]!r}; here stand fields, view(...), "
                                      "invariant(...), functions and classes")  # fmt: skip
        for field in view:
            if view.count(field) > 1:
                raise self.fail(at, f"{name}: view names {field!r} twice")
            if field not in fields:
                raise self.fail(at, f"{name}: view names {field!r}, which is no declared field")
        return Unit(name, is_class, fields, view, tuple(invariants), operations, self.line(at))

    def helper(self, node: ast.FunctionDef) -> Helper:
        words = {call[0] for statement in node.body if (call := _call(statement))}
        if words & set(_IN_OPERATIONS) or all(_is_prose(statement) for statement in node.body):
            raise self.fail(node, f"{node.name} is not exported and defines no word of the clauses: list it under "
                                  "guarantee.exports, or give it a body that returns something")  # fmt: skip
        params, returns = self.signature(node, method=False)
        source = ast.get_source_segment(self.source, node) or ""
        return Helper(node.name, params, returns, source, self.line(node), node)

    def operation(self, node: ast.FunctionDef, *, method: bool) -> Operation:
        params, returns = self.signature(node, method=method)
        clauses: list[Clause] = []
        modifies: tuple[str, ...] = ()
        for statement in node.body:
            call = _call(statement)
            if call and call[0] in ("modifies", "when") and node.name == "__init__":
                raise self.fail(statement, f"{call[0]}(...) has no meaning in a constructor")
            if call and call[0] == "modifies":
                modifies += tuple(self.names(call[1]))
            elif call and call[0] in _IN_OPERATIONS:
                clauses.append(self.clause(call[1], _kind(call[0]), node.name))
            elif call and call[0] in _ON_UNITS:
                raise self.fail(statement, f"{call[0]}(...) stands in a class or at the top, not in {node.name}")
            elif not _is_prose(statement):
                raise self.fail(statement, f"{node.name}: not a clause: {self.text(statement)[:60]!r}; the clauses are "
                                           f"{', '.join(_IN_OPERATIONS)}")  # fmt: skip
        return Operation(node.name, params, returns, modifies, tuple(clauses), self.line(node))

    def signature(self, node: ast.FunctionDef, *, method: bool) -> tuple[tuple[Parameter, ...], str]:
        a = node.args
        if a.vararg or a.kwarg or a.posonlyargs or a.kwonlyargs or node.decorator_list:
            raise self.fail(node, f"{node.name}: plain parameters only (no *, / or decorators)")
        named = a.args
        if method:
            if not named or named[0].arg != "self":
                raise self.fail(node, f"{node.name}: a method's first parameter is self")
            named = named[1:]
        if node.returns is None or any(p.annotation is None for p in named):
            raise self.fail(node, f"{node.name}: annotate every parameter and the result")
        defaults = ["", *[""] * (len(named) - len(a.defaults) - 1), *[self.text(d) for d in a.defaults]][-len(named) :]
        params = tuple(
            Parameter(p.arg, self.text(p.annotation), d)
            for p, d in zip(named, defaults, strict=True) if p.annotation is not None
        ) if named else ()  # fmt: skip
        return params, self.text(node.returns)

    def names(self, call: ast.Call) -> list[str]:
        if call.keywords or not all(isinstance(a, ast.Name) for a in call.args):
            raise self.fail(call, "name fields here, such as view(items, limit)")
        return [a.id for a in call.args if isinstance(a, ast.Name)]

    def clause(self, call: ast.Call, kind: Kind, owner: str) -> Clause:
        args = list(call.args)
        if not args or not (isinstance(args[0], ast.Constant) and isinstance(args[0].value, str)):
            raise self.fail(call, f'{kind} begins with an id in quotes: {kind}("P1", …)')
        name, exception = args[0].value, ""
        if kind == "raises":
            if len(args) != 2 or not isinstance(args[1], ast.Name) or [k.arg for k in call.keywords] != ["when"]:
                raise self.fail(call, 'write raises("R1", ValueError, when=condition)')
            exception, tree = args[1].id, call.keywords[0].value
        elif len(args) != 2 or call.keywords:
            raise self.fail(call, f'write {kind}("{name}", condition)')
        else:
            tree = args[1]
        return Clause(name, kind, owner, self.line(call), self.text(tree), tree, exception)


def _call(node: ast.stmt) -> tuple[str, ast.Call] | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
        return node.value.func.id, node.value
    return None


def _is_prose(node: ast.stmt) -> bool:
    """A docstring, `...` or `pass`."""
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
