"""Doubts about a spec: prose that can be read in two ways, behaviour that no clause pins. They warn, never refuse."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pibroch.specs.model import Clause, Operation, Spec, Unit
from pibroch.specs.names import clauses_of
from pibroch.specs.parse import prose_lines

VAGUE = {
    "should": "say what is, and put it into a clause",
    "appropriate": "say which", "appropriately": "say how", "suitable": "say which", "reasonable": "say how much",
    "adequate": "say how much", "sufficient": "say how much", "proper": "say which", "properly": "say how",
    "fast": "bound it under `cost`", "quickly": "bound it under `cost`", "slowly": "bound it under `cost`",
    "efficient": "bound it under `cost`", "efficiently": "bound it under `cost`", "soon": "say after how many calls",
    "if possible": "say when it is", "as needed": "say when it is", "if needed": "say when it is",
    "if necessary": "say when it is", "as necessary": "say when it is", "where appropriate": "say where",
    "etc": "list them all", "and so on": "list them all", "and the like": "list them all", "such as": "list them all",
    "usually": "say when not", "normally": "say when not", "typically": "say when not", "generally": "say when not",
    "sometimes": "say when", "occasionally": "say when", "probably": "say when",
    "roughly": "say how exactly", "approximately": "say how exactly", "about right": "say how exactly",
    "tbd": "decide it", "todo": "decide it", "fixme": "decide it", "to be decided": "decide it",
    "try to": "say what happens when it fails", "best effort": "say what happens when it fails",
    "user-friendly": "say what it does", "and/or": "say which",
}  # fmt: skip
_VAGUE = re.compile(
    r"(?<![\w-])(" + "|".join(map(re.escape, sorted(VAGUE, key=len, reverse=True))) + r")(?![\w-])", re.I
)
_NUMBER = re.compile(r"(?<![\w./-])\d+(?:\.\d+)?(?![\w/]|\.\d|-\w)")
_CODE = re.compile(r"`([^`]+)`")
_EXAMPLE = re.compile(r"\b[a-z]\w* = \d+")
_SMALL = {0, 1, -1, 2, 100}  # bounds, halves and percents stand in clauses in other forms
_LANGUAGE = {"self", "old", "result", "view", "implies", "deque", "none", "true", "false"}


@dataclass(frozen=True, slots=True)
class Doubt:
    """One warning. `rule` is the kind of doubt, `line` counts in the spec's file."""

    path: Path
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def lint(spec: Spec) -> list[Doubt]:
    """All doubts about a spec, by line."""
    found = [
        Doubt(spec.path, line, rule, message)
        for rows in (_prose(spec), _numbers(spec), _words(spec), _front(spec), _units(spec))
        for line, rule, message in rows
    ]
    return sorted(found, key=lambda doubt: (doubt.line, doubt.message))


Row = tuple[int, str, str]


def _prose(spec: Spec) -> Iterator[Row]:
    rows = [(spec.line("summary"), "summary", spec.front.summary), *prose_lines(spec)]
    for line, _, text in rows:
        for match in _VAGUE.finditer(_CODE.sub(lambda m: " " * len(m[0]), text)):
            yield line, "vague", f"{match[0]!r} can be read in two ways: {VAGUE[match[0].lower()]}"
    if spec.front.concurrency.model == "threads" and not spec.sections.get("concurrency"):
        yield spec.line("concurrency"), "prose", "threads, and no section `## Concurrency` says what phase 2 adds"


def _numbers(spec: Spec) -> Iterator[Row]:
    """Numbers of the Intent that no clause, helper or scope holds."""
    held: set[float] = set(_SMALL)
    for node in (n for tree in _trees(spec) for n in ast.walk(tree) if isinstance(n, ast.Constant)):
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            held.add(abs(node.value))
    known = {float(text) for text in _NUMBER.findall(" ".join(map(str, _flat(spec.front.scope))).replace("..", " "))}
    for line, section, text in prose_lines(spec):
        if section != "intent" or text.startswith("    ") or "arxiv" in text.lower():
            continue
        said = _CODE.sub(lambda m: m[0] if m[0].strip("`").isdigit() else " " * len(m[0]), _EXAMPLE.sub("", text))
        for match in _NUMBER.finditer(said):
            value = float(match[0])
            near = {value, value / 100, 100 - value, 100 + value}  # 5 % stands as 105 or as 0.05
            fits = any(abs(h - n) < 1e-9 or (n and h and abs(h) > 2 and n % h == 0) for h in held for n in near)
            if not fits and value not in known:
                yield line, "number", f"no clause holds the number {match[0]}"


def _words(spec: Spec) -> Iterator[Row]:
    """Names in backquotes that the spec does not define."""
    known = {*_LANGUAGE, spec.module, *spec.helpers, *sys.stdlib_module_names, *dir(builtins), *keyword.kwlist}
    for unit in spec.units:
        known |= {unit.name, *unit.fields, *unit.operations}
        known |= {p.name for o in unit.operations.values() for p in o.params}
    for rely in spec.relies:
        known |= {rely.module, rely.function.name, *(p.name for p in rely.function.params)}
    known |= {lock.name.rpartition(".")[2] for lock in spec.front.concurrency.locks} | set(spec.front.concurrency.roles)
    known |= {n.id for tree in _trees(spec) for n in ast.walk(tree) if isinstance(n, ast.Name)}
    known |= {str(n.value) for tree in _trees(spec) for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    text = " ".join(t for _, s, t in prose_lines(spec) if s in ("algorithm", "concurrency"))
    known |= set(re.findall(r"`(\w+)`", text))  # private names of the algorithm are its own
    for line, section, row in prose_lines(spec):
        for match in _CODE.finditer(row) if section == "intent" else ():
            for word in re.findall(r"(?<![.\w])[A-Za-z_]\w{2,}", match[1]):
                if word not in known and len(match[1]) < 60:
                    yield line, "word", f"the block has no {word!r}"


def _front(spec: Spec) -> Iterator[Row]:
    trees = list(_trees(spec))
    used = {ast.unparse(n.func) for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Call)}
    prose = " ".join(spec.sections.values())
    for i, rely in enumerate(spec.relies):
        if rely.name not in used and rely.module not in prose:
            at = spec.line(f"rely.{i}")
            yield at, "rely", f"relies on {rely.name}, which neither clause nor prose mentions"
        if not rely.function.of("ensures"):
            yield spec.line(f"rely.{i}"), "rely", f"relies on {rely.name} and says nothing of what it returns"
    for helper in spec.helpers.values():
        if helper.name not in used and not any(
            _mentions(tree, helper.name) for tree in trees if tree is not helper.tree
        ):
            yield helper.line, "helper", f"no clause uses helper {helper.name}"
    for i, name in enumerate(spec.front.imports):
        modules = {rely.module for rely in spec.relies}
        if name == "threading" and spec.front.concurrency.model != "threads" and name not in modules:
            yield spec.line(f"imports.{i}"), "imports", "imports threading, but concurrency.model is not `threads`"


def _units(spec: Spec) -> Iterator[Row]:
    attributes = {n.attr for tree in _trees(spec) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    protocol = spec.front.concurrency
    shared = {name for names in protocol.guarded_by.values() for name in names}
    shared |= {name.rpartition(".")[2] for name in protocol.single_writer}
    for unit in spec.units:
        whole = any(_bare(clause.tree, handed=False) for clause, _, _ in clauses_of(unit))
        for name in unit.fields:
            line = spec.line(f"field.{unit.name}.{name}")
            if name in unit.view and name not in attributes and not whole:
                yield line, "field", f"{unit.name}.{name} is in the view, and no clause mentions it"
            elif name not in unit.view and name not in shared:
                yield line, "field", f"{unit.name}.{name} is not in the view, so no clause can speak of it"
        for clause, _, _ in clauses_of(unit):
            yield from _clause(clause)
        for operation in unit.operations.values():
            yield from _operation(unit, operation)


def _clause(clause: Clause) -> Iterator[Row]:
    names = {n.id for n in ast.walk(clause.tree) if isinstance(n, ast.Name)}
    if not names:
        yield clause.line, "clause", f"{clause.id} says the same of every call: {clause.text}"
    for node in ast.walk(clause.tree):
        equal = isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops)
        floats = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is float] if equal else []
        if floats:
            yield (
                clause.line,
                "float",
                f"{clause.id} compares with {floats[0].value!r} exactly; say how close it must be",
            )


def _operation(unit: Unit, operation: Operation) -> Iterator[Row]:
    trees = [clause.tree for clause in operation.clauses]
    says = [clause.tree for clause in operation.clauses if clause.kind == "ensures"]
    used = {n.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)}
    for parameter in operation.params:
        if parameter.name not in used:
            yield operation.line, "parameter", f"{operation.name}: no clause mentions the parameter {parameter.name!r}"
    if not says:
        if operation.name != "__init__" or unit.view:
            yield operation.line, "ensures", f"{operation.name}: no ensures says what it does"
        return
    if operation.returns != "None" and not any(_mentions(tree, "result") for tree in says):
        yield operation.line, "result", f"{operation.name}: no ensures says what it returns"
    changed = unit.view if operation.name == "__init__" else operation.modifies
    for name in changed:
        if not any("self" in _bare(tree) or _reads(tree, "self", name) for tree in says):
            if any(_pins(c.tree, name) for c in unit.invariants):
                continue
            what = "sets" if operation.name == "__init__" else "may change"
            yield operation.line, "frame", f"{operation.name} {what} {name}, and no ensures says how"


def _trees(spec: Spec) -> Iterator[ast.AST]:
    for unit in spec.units:
        yield from (clause.tree for clause, _, _ in clauses_of(unit))
    for rely in spec.relies:
        yield from (clause.tree for clause in rely.function.clauses)
    yield from (helper.tree for helper in spec.helpers.values())


def _bare(tree: ast.AST, *, handed: bool = True) -> set[str]:
    """Which of `self` and `old` stand as a whole, as in `self == old` and, if `handed` on counts, `low(old, x)`."""
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    if not handed:
        inner |= {id(argument) for n in ast.walk(tree) if isinstance(n, ast.Call) for argument in n.args}
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in ("self", "old") and id(n) not in inner}


def _reads(tree: ast.AST, owner: str, name: str) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.value, ast.Name) and n.value.id == owner
               for n in ast.walk(tree))  # fmt: skip


def _pins(tree: ast.AST, name: str) -> bool:
    """Whether an equation speaks of `self.name`."""
    equations = (n for n in ast.walk(tree) if isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Eq))
    return any(_reads(node, "self", name) for node in equations)


def _mentions(tree: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(tree))


def _flat(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _flat(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _flat(inner)
    else:
        yield value
