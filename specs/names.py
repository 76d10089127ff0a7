"""Names and annotations of a spec: each name in a clause leads somewhere, each type is one of plain values."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Iterator

from pibroch.specs.errors import SpecError
from pibroch.specs.model import Clause, Operation, Spec, Unit
from pibroch.specs.whitelist import BUILTINS, WORDS

_SCALARS = ("int", "bool", "str", "float", "None")
_HASHABLE = ("int", "bool", "str", "float", "None", "tuple", "frozenset")
_ARITY = {"list": 1, "set": 1, "frozenset": 1, "dict": 2, "Optional": 1}
_HINTS = "int, bool, str, float, None, list[T], tuple[T, ...], tuple[A, B], dict[K, V], set[T], frozenset[T], A | B"


def check_names(spec: Spec, library: Collection[str] = ()) -> None:
    """Every name used in a clause, a helper or a rely is bound. `library` are the functions of the front matter's
    `library`. Raises `SpecError` at the first that is not."""
    reserved = {*WORDS, *BUILTINS}
    for helper in spec.helpers.values():
        if helper.name in reserved or helper.name in library:
            raise SpecError(spec.path, helper.line, f"helper {helper.name}: the name is a word of the language")
    for unit in spec.units:
        for operation in unit.operations.values():
            _check_params(spec, operation.name, operation, operation.line)
    words = {*BUILTINS, "implies", *spec.helpers, *library, *(rely.module for rely in spec.relies)}
    for unit in spec.units:
        for clause, params, _ in clauses_of(unit):
            _check_clause(spec, unit, clause, words | set(params))
    for rely in spec.relies:
        asked = {p.name for p in rely.function.params}
        for clause in rely.function.clauses:
            allowed = {*BUILTINS, "implies", *spec.helpers, *library, *asked}
            _unknown(spec, clause.tree, allowed | ({"result"} if clause.kind == "ensures" else set()), clause)
        _check_params(spec, f"rely {rely.name}", rely.function, rely.line)
    for helper in spec.helpers.values():
        bound = {p.name for p in helper.params} | {
            n.id for n in ast.walk(helper.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        for node in _free(helper.tree.body, words | bound):
            line = helper.line + node.lineno - helper.tree.lineno
            raise SpecError(spec.path, line, f"{helper.name}: unknown name {node.id!r}")


def clauses_of(unit: Unit) -> Iterator[tuple[Clause, tuple[str, ...], Operation | None]]:
    """The clauses of a unit with the parameters that they may use, and their operation (None: invariants)."""
    for clause in unit.invariants:
        yield clause, (), None
    for operation in unit.operations.values():
        for clause in operation.clauses:
            yield clause, tuple(p.name for p in operation.params), operation


def states_of(unit: Unit, clause: Clause) -> tuple[str, ...]:
    """Which of `self` and `old` a clause of this unit may use."""
    if not unit.view:
        return ()
    if clause.kind == "invariant" or (clause.owner == "__init__" and clause.kind == "ensures"):
        return ("self",)
    return () if clause.owner == "__init__" else ("self", "old")


def _check_clause(spec: Spec, unit: Unit, clause: Clause, words: set[str]) -> None:
    states = states_of(unit, clause)
    extra = {*states, *({"result"} if clause.kind == "ensures" and clause.owner != "__init__" else ())}
    hints = {
        "self": "it has no view here" if not unit.view else "before the constructor there is no view",
        "old": "an invariant has no state before" if clause.kind == "invariant" else
               "before the constructor there is no view" if unit.view else "it has no view",
        "result": "only `ensures` of an operation speaks of it",
    }  # fmt: skip
    _unknown(spec, clause.tree, words | extra, clause, hints)
    if clause.kind == "raises":
        kind = getattr(builtins, clause.exception, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            message = f"{clause.id}: {clause.exception} is no built-in exception, such as ValueError"
            raise SpecError(spec.path, clause.line, message)


def _unknown(
    spec: Spec, tree: ast.expr, allowed: set[str], clause: Clause, hints: dict[str, str] | None = None
) -> None:
    for node in _free([tree], allowed):
        why = f" ({hints[node.id]})" if hints and node.id in hints else ""
        raise SpecError(spec.path, clause.line, f"{clause.id}: unknown name {node.id!r}{why}: {clause.text}")


def _free(trees: Iterable[ast.AST], allowed: Collection[str]) -> Iterator[ast.Name]:
    """Names that are read and neither allowed nor bound by a comprehension or lambda around them."""
    for tree in trees:
        if isinstance(tree, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            inner = set(allowed)
            for generator in tree.generators:
                yield from _free([generator.iter], inner)
                inner |= {n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name)}
                yield from _free(generator.ifs, inner)
            parts = [tree.key, tree.value] if isinstance(tree, ast.DictComp) else [tree.elt]
            yield from _free(parts, inner)
        elif isinstance(tree, ast.Lambda):
            yield from _free([tree.body], {*allowed, *(a.arg for a in tree.args.args)})
        elif isinstance(tree, ast.Name):
            if isinstance(tree.ctx, ast.Load) and tree.id not in allowed:
                yield tree
        elif isinstance(tree, ast.AnnAssign):
            yield from _free([tree.target, *([tree.value] if tree.value else [])], allowed)
        else:
            yield from _free(ast.iter_child_nodes(tree), allowed)


def _check_params(spec: Spec, where: str, operation: Operation, line: int) -> None:
    reserved = {*WORDS, *BUILTINS, *spec.helpers, *(rely.module for rely in spec.relies)}
    seen: set[str] = set()
    for parameter in operation.params:
        if parameter.name in reserved or parameter.name.startswith("_") or parameter.name in seen:
            message = f"{where}: the parameter {parameter.name!r} needs another name: clauses use this one already"
            raise SpecError(spec.path, line, message)
        seen.add(parameter.name)
        if parameter.default:
            try:
                ast.literal_eval(parameter.default)
            except (ValueError, SyntaxError):
                message = f"{where}: the default of {parameter.name} is a plain constant, not {parameter.default}"
                raise SpecError(spec.path, line, message) from None


def check_types(spec: Spec) -> None:
    """Fields, parameters and results have types of plain values; helpers may also take a unit. Raises `SpecError`."""
    for unit in spec.units:
        for name, text in unit.fields.items():
            _check_type(spec, text, f"{unit.name}.{name}", spec.lines.get(f"field.{unit.name}.{name}", unit.line))
        for operation in unit.operations.values():
            _check_signature(spec, operation.name, operation, operation.line)
    for rely in spec.relies:
        _check_signature(spec, f"rely {rely.name}", rely.function, rely.line)
    known = tuple(unit.name for unit in spec.units if unit.view)
    for helper in spec.helpers.values():
        for parameter in helper.params:
            _check_type(spec, parameter.type, f"{helper.name}, {parameter.name}", helper.line, also=known)
        _check_type(spec, helper.returns, f"{helper.name}, result", helper.line, also=known)


def _check_signature(spec: Spec, where: str, operation: Operation, line: int) -> None:
    for parameter in operation.params:
        _check_type(spec, parameter.type, f"{where}, {parameter.name}", line)
    _check_type(spec, operation.returns, f"{where}, result", line)
    if operation.name == "__init__" and operation.returns != "None":
        raise SpecError(spec.path, line, "__init__ returns None")


def _check_type(spec: Spec, text: str, where: str, line: int, *, also: tuple[str, ...] = ()) -> None:
    try:
        problem = _problem(ast.parse(text, mode="eval").body, also)
    except SyntaxError:
        problem = "is no type"
    if problem:
        raise SpecError(spec.path, line, f"{where}: {text} {problem}; types are {_HINTS}")


def _problem(tree: ast.expr, also: tuple[str, ...]) -> str:
    """What is wrong with an annotation; empty if nothing."""
    if isinstance(tree, ast.Constant):
        if tree.value is None:
            return ""
        return "" if tree.value in also else "is no type of a plain value"
    if isinstance(tree, ast.Name):
        if tree.id in _ARITY or tree.id == "tuple":
            return f"says not what it holds: {tree.id}[…]"
        return "" if tree.id in _SCALARS or tree.id in also else "is no type of a plain value"
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return _problem(tree.left, also) or _problem(tree.right, also)
    if isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name):
        parts = list(tree.slice.elts) if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        name = tree.value.id
        if name == "Literal":
            plain = all(isinstance(p, ast.Constant) and type(p.value) in (int, str, bool) for p in parts)
            return "" if plain else "holds something else than plain constants"
        if name == "tuple":
            open_end = len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...
            parts = parts[:1] if open_end else parts
        elif name == "Union":
            pass
        elif _ARITY.get(name) != len(parts):
            return "is no type of a plain value"
        if name in ("set", "frozenset", "dict") and not _hashable(parts[0]):
            return "has members that cannot be members of a set or keys"
        return next((problem for part in parts if (problem := _problem(part, also))), "")
    return "is no type of a plain value"


def _hashable(tree: ast.expr) -> bool:
    if isinstance(tree, ast.BinOp):
        return _hashable(tree.left) and _hashable(tree.right)
    if isinstance(tree, ast.Subscript):
        inner = list(tree.slice.elts) if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        name = tree.value.id if isinstance(tree.value, ast.Name) else ""
        return name == "Literal" or (name in _HASHABLE and all(_hashable(i) for i in inner))
    return (isinstance(tree, ast.Name) and tree.id in _HASHABLE) or isinstance(tree, ast.Constant)
