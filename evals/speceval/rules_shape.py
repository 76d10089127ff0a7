"""Rules that come from the spec: the exported names with exactly their signatures, fields, and phase 2's locks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pibroch.evals.speceval.verdict import Finding
from pibroch.specs.model import Operation, Spec, Unit

THREADING = ("Lock", "RLock", "Condition", "Semaphore", "Event")


def shape_findings(tree: ast.Module, spec: Spec, phase: int) -> list[Finding]:
    """What of the spec's signatures, fields and locks the candidate lacks or exceeds."""
    return [*_exports(tree, spec, phase), *(_locks(tree, spec) if phase == 2 else [])]


def _say(node: ast.AST, rule: str, message: str, line: int = 0) -> Finding:
    return Finding("rules", rule, message, line=line, code_lines=(int(getattr(node, "lineno", 1)),))


def _exports(tree: ast.Module, spec: Spec, phase: int) -> Iterator[Finding]:
    later = set(spec.front.concurrency.order) if phase == 1 else set()
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    functions = _functions(tree.body)
    wanted: set[str] = set()
    for unit in spec.units:
        if unit.is_class:
            wanted.add(unit.name)
            if unit.name not in classes:
                yield Finding("rules", "exports", f"class {unit.name} is missing", line=unit.line)
            else:
                yield from _members(classes[unit.name], unit, later)
        else:
            wanted |= set(unit.operations) - later | ({"view"} if unit.view else set())
            yield from _signatures(functions, unit, later, method=False)
    for name, node in [*classes.items(), *functions.items()]:
        if not name.startswith("_") and name not in wanted:
            yield _say(node, "exports", f"{name} is public and not in the spec: call it _{name}")


def _functions(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {n.name: n for n in body if isinstance(n, ast.FunctionDef)}


def _members(node: ast.ClassDef, unit: Unit, later: set[str]) -> Iterator[Finding]:
    methods = _functions(node.body)
    if node.bases and [ast.unparse(b) for b in node.bases] != ["object"]:
        yield _say(node, "exports", f"class {node.name} has no bases")
    yield from _signatures(methods, unit, later, method=True)
    for name, method in methods.items():
        if not name.startswith("_") and name != "view" and name not in unit.operations:
            yield _say(method, "exports", f"{node.name}.{name} is public and not in the spec: call it _{name}")


def _signatures(found: dict[str, ast.FunctionDef], unit: Unit, later: set[str], *, method: bool) -> Iterator[Finding]:
    prefix = f"{unit.name}." if method else ""
    for name, operation in unit.operations.items():
        if name in later:
            continue
        if name not in found:
            yield Finding("rules", "exports", f"{prefix}{operation.signature} is missing", line=operation.line)
        elif problem := _differs(found[name], operation, method):
            message = f"{prefix}{name}: {problem}; the spec says `{operation.signature}`"
            yield _say(found[name], "signature", message, operation.line)
    if unit.view:
        wanted = "def view(self) -> dict[str, Any]" if method else "def view() -> dict[str, Any]"
        if "view" not in found:
            names = ", ".join(unit.view)
            yield Finding("rules", "exports", f"{prefix}view is missing: {wanted}, with {names}", line=unit.line)
        elif len(found["view"].args.args) != int(method) or _other_arguments(found["view"]):
            yield _say(found["view"], "signature", f"{prefix}view: write {wanted}")


def _other_arguments(node: ast.FunctionDef) -> bool:
    a = node.args
    return bool(a.vararg or a.kwarg or a.posonlyargs or a.kwonlyargs)


def _differs(node: ast.FunctionDef, operation: Operation, method: bool) -> str:
    """What differs from the specified signature, in words; empty where nothing does."""
    named = node.args.args
    if _other_arguments(node):
        return "plain parameters only (no *, ** or /)"
    if node.decorator_list:
        return "an exported function has no decorator"
    if method and (not named or named[0].arg != "self"):
        return "its first parameter is self"
    named = named[1:] if method else named
    if [p.arg for p in named] != [p.name for p in operation.params]:
        return f"its parameters are ({', '.join(p.arg for p in named)})"
    for given, wanted in zip(named, operation.params, strict=True):
        if _type(given.annotation) != _type(_expression(wanted.type)):
            return f"parameter {given.arg} is annotated {_type(given.annotation) or 'not at all'}, not {wanted.type}"
    if _type(node.returns) != _type(_expression(operation.returns)):
        return f"it returns {_type(node.returns) or 'an unannotated value'}, not {operation.returns}"
    given_defaults = [ast.unparse(d) for d in node.args.defaults]
    defaults = [""] * (len(named) - len(given_defaults)) + given_defaults[-len(named) :] if named else []
    specified = [ast.unparse(_expression(p.default)) if p.default else "" for p in operation.params]
    return "" if defaults == specified else "its defaults differ"


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _type(node: ast.expr | None) -> str:
    """An annotation in one spelling: without quotes, `Optional[X]` as `X | None`, `List` as `list`."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return _type(_expression(node.value))
        except SyntaxError:
            return str(node.value)
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] == "Optional":
        return f"{_type(node.slice)} | None"
    return ast.unparse(node)


# Phase 2


def _locks(tree: ast.Module, spec: Spec) -> Iterator[Finding]:
    declared = {lock.name: lock.kind for lock in spec.front.concurrency.locks}
    line = spec.line("concurrency.locks")
    made: dict[str, str] = {}
    right: set[int] = set()  # calls of threading that make a declared lock in its place
    for owner, body in _constructors(tree, spec.module):
        for node in (n for s in body for n in ast.walk(s)):
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            target = node.target if isinstance(node, ast.AnnAssign) else target
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if target is None or not (kind := _makes(value)):
                continue
            name = f"{owner}.{target.attr if isinstance(target, ast.Attribute) else getattr(target, 'id', '?')}"
            right.add(id(value.func if isinstance(value, ast.Call) else value))
            made[name] = kind
            if name not in declared:
                known = ", ".join(declared) or "none"
                yield _say(node, "locks", f"{name} is no declared lock (declared: {known})", line)
            elif kind != declared[name]:
                yield _say(node, "locks", f"{name} is a {kind}; the spec declares a {declared[name]}", line)
    for name in declared:
        if name not in made:
            owner, _, attribute = name.partition(".")
            where = f"self.{attribute}" if any(u.is_class and u.name == owner for u in spec.units) else attribute
            message = f"lock {name} is missing: {owner}'s __init__ sets {where} = threading.{declared[name]}()"
            yield Finding("rules", "locks", message, line=line)
    yield from _uses(tree, right)
    yield from _fields(tree, spec)


def _constructors(tree: ast.Module, module: str) -> Iterator[tuple[str, list[ast.stmt]]]:
    yield module, [n for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for method in _functions(node.body).values():
                if method.name == "__init__":
                    yield node.name, method.body


def _makes(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Name):
        return value.func.attr if value.func.value.id == "threading" else ""
    return ""


def _uses(tree: ast.Module, right: set[int]) -> Iterator[Finding]:
    types = {id(n) for node in ast.walk(tree) for a in ("annotation", "returns") if (x := getattr(node, a, None))
             for n in ast.walk(x)}  # fmt: skip
    events = {ast.unparse(t) for n in ast.walk(tree) if isinstance(n, ast.Assign) and _makes(n.value) == "Event"
              for t in n.targets}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "threading":
            if node.attr not in THREADING:
                yield _say(node, "locks", f"threading.{node.attr}: only {', '.join(THREADING)}")
            elif id(node) not in right and id(node) not in types:
                yield _say(node, "locks", f"threading.{node.attr}: locks are made in __init__, as declared fields")
    yield from _waits(tree, None, events)


def _waits(node: ast.AST, loop: ast.While | None, events: set[str]) -> Iterator[Finding]:
    """`wait()` stands in the body of a `while` that asks for the condition anew."""
    if isinstance(node, ast.FunctionDef | ast.Lambda | ast.For):
        loop = None
    if isinstance(node, ast.While):
        loop = node
    waits = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "wait"
    if waits and (loop is None or isinstance(loop.test, ast.Constant)) and _waited(node) not in events:
        message = "wait() outside `while <condition>`: a thread may wake before its condition holds"
        yield _say(node, "wait", f"{message}; write `while not …: {ast.unparse(node)}`")
    for child in ast.iter_child_nodes(node):
        yield from _waits(child, loop, events)


def _waited(node: ast.AST) -> str:
    return ast.unparse(node.func.value) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _fields(tree: ast.Module, spec: Spec) -> Iterator[Finding]:
    """Fields of the protocol exist as attributes of that name."""
    protocol = spec.front.concurrency
    named = {f"{lock.partition('.')[0]}.{f}" for lock, fields in protocol.guarded_by.items() for f in fields}
    made = [(owner, n) for owner, body in _constructors(tree, spec.module) for s in body for n in ast.walk(s)]
    stored = [(owner, n) for owner, n in made if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    assigned = {f"{owner}.{n.attr}" for owner, n in stored}
    classes = {u.name for u in spec.units if u.is_class}
    for name in sorted(named | set(protocol.single_writer)):
        if name.partition(".")[0] in classes and name not in assigned:
            field = name.partition(".")[2]
            message = f"field {name} of the protocol is missing: __init__ sets self.{field}"
            yield Finding("rules", "fields", message, line=spec.line("concurrency"))
