"""What a request for a module says besides its instructions: the spec in sections, a skeleton, feedback.

All of it is made from the spec alone (and, for the functions of a clause library, from their documentation): no code
of the repository ever enters a request.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence

from pibroch.evals.speceval.verdict import Finding
from pibroch.specs.model import Clause, Operation, Rely, Spec, Unit

MAX_FINDINGS = 6
MAX_LINE = 600
MAX_CALLS = 40


def task(spec: Spec, phase: int) -> dict[str, str]:
    """The sections that every request of a phase carries, by the names of the writer's input fields."""
    given = {
        "intent": f"{spec.front.summary}\n\n{spec.sections['intent']}",
        "algorithm": spec.sections.get("algorithm", ""),
        "relies": "\n\n".join(_rely(r) for r in spec.relies),
        "facts": _facts(spec, phase),
        "words": "",
        "block": "",
    }
    if has_state(spec) or phase == 2:
        given["block"] = f"```text\n{spec.block.rstrip()}\n```"
    else:  # a small model copies the block instead of writing code; the skeleton's docstrings say the same
        given["words"] = _words(spec)
    if phase == 2:
        given["concurrency"] = spec.sections.get("concurrency", "")
        given["protocol"] = protocol(spec)
    return given


def protocol(spec: Spec) -> str:
    """The front matter's concurrency part in words."""
    c = spec.front.concurrency
    if c.model == "streams":
        return f"Phase 2 adds: {', '.join(c.order)}."
    rows = [f"- role {role}: one thread that calls {', '.join(names)}" for role, names in c.roles.items()]
    rows += [f"- lock {lock.name}: a threading.{lock.kind} of rank {lock.rank}" for lock in c.locks]
    rows += [f"- guarded by {lock}: {', '.join(names)}" for lock, names in c.guarded_by.items()]
    rows += [f"- single writer of {name}: the role {role}" for name, role in c.single_writer.items()]
    rows += [f"- atomic: {', '.join(c.atomic)}"] if c.atomic else []
    rows += [f"- no call while holding {lock}: {', '.join(n)}" for lock, n in c.no_call_while_holding.items()]
    return "\n".join(rows)


def written_now(spec: Spec, phase: int) -> set[str]:
    """The module-level functions that this phase writes: under `streams`, phase 1 leaves out those of `order`."""
    names = {name for unit in spec.units if not unit.is_class for name in unit.operations}
    return names - set(spec.front.concurrency.order) if phase == 1 else names


def allowed_imports(spec: Spec, phase: int) -> list[str]:
    """What a candidate of this phase may import."""
    return [name for name in spec.front.imports if phase == 2 or name != "threading"]


def has_state(spec: Spec) -> bool:
    """Whether any of its units has fields; without, the module is functions alone."""
    return any(unit.is_class or unit.fields for unit in spec.units)


def skeleton(spec: Spec, phase: int = 1) -> str:
    """The module with its signatures, their conditions as docstrings, and `...` for what is to be written."""
    parts = [f"import {name}" for name in allowed_imports(spec, phase)]
    parts = ["\n".join(parts)] if parts else []
    names = written_now(spec, phase)
    plain = not has_state(spec)
    intent = spec.sections["intent"] if len(names) == 1 and plain else ""  # told where it is read best
    private = private_helpers(spec) if plain else {}
    parts += [renamed(spec.helpers[name].source, private) for name in private]
    for unit in spec.units:
        parts += [_class(unit)] if unit.is_class else [renamed(p, private) for p in _functions(unit, names, intent)]
    return "\n\n\n".join(parts) + "\n"


def private_helpers(spec: Spec) -> dict[str, str]:
    """Helpers of the block that are code as they stand, with the names that they get in a module."""
    known = {*spec.helpers, *dir(builtins)}
    used = {
        name: {n.func.id for n in ast.walk(helper.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        for name, helper in spec.helpers.items()
    }
    relied = {rely.module for rely in spec.relies}
    found = [name for name, calls in used.items() if calls <= known and not _names(spec.helpers[name].tree) & relied]
    return {name: f"_{name}" for name in found}


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def renamed(code: str, names: Mapping[str, str]) -> str:
    """Code whose calls of helpers have the names that those get in a module."""
    pattern = "|".join(rf"(?<![\w.]){re.escape(name)}(?=\()" for name in names)
    return re.sub(pattern, lambda match: names[match[0]], code) if names else code


def feedback_text(findings: Sequence[Finding], spec: Spec, source: str) -> str:
    """Findings for the writer: the clause's own text, the calls, the values, the lines of the candidate."""
    rows = []
    code = source.splitlines()
    for finding in findings[:MAX_FINDINGS]:
        clause = spec.clauses.get(finding.clause)
        rows.append(f"- [{finding.stage} {finding.clause}] {_cut(finding.message)}")
        if clause is not None:
            when = f" (raises {clause.exception})" if clause.exception else ""
            rows.append(f"    the clause, {clause.kind} of {clause.owner}{when}: {clause.text}")
        if len(finding.calls) > MAX_CALLS:
            rows.append(f"    after {len(finding.calls) - MAX_CALLS} more calls:")
        rows += [f"    call: {_cut(call)}" for call in finding.calls[-MAX_CALLS:]]
        rows += [f"    {name} = {_cut(value)}" for name, value in finding.values.items()]
        rows += [f"    your line {n}: {_cut(code[n - 1].strip())}" for n in finding.code_lines if 0 < n <= len(code)]
    if len(findings) > MAX_FINDINGS:
        rows.append(f"- and {len(findings) - MAX_FINDINGS} more")
    return "\n".join(rows)


def _words(spec: Spec) -> str:
    """The helpers that the skeleton does not have, which define words of the conditions, and the block's comments."""
    private = private_helpers(spec)
    code = "\n\n".join(helper.source for name, helper in spec.helpers.items() if name not in private)
    tokens = tokenize.generate_tokens(io.StringIO(spec.block).readline)
    notes = [f"- {t.string.lstrip('# ')}" for t in tokens if t.type == tokenize.COMMENT]
    return "\n\n".join(part for part in (f"```text\n{code}\n```" if code else "", "\n".join(notes)) if part)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]} […]"


def _rely(rely: Rely) -> str:
    rows = [f"`import {rely.module}`, then `{rely.module}.{rely.function.signature}`"]
    rows += [f"- you call it only when: {clause.text}" for clause in rely.function.of("requires")]
    rows += [f"- its result: {clause.text}" for clause in rely.function.of("ensures")]
    return "\n".join(rows)


def _facts(spec: Spec, phase: int) -> str:
    imports = ", ".join(allowed_imports(spec, phase)) or "none"
    rows = [f"- Allowed imports: {imports}"]
    for name, cost in spec.front.cost.items():
        bound = cost if isinstance(cost, str) else cost.bound
        rows.append(f"- Cost of {name}: {bound}")
    if phase == 1 and any(clause.kind == "when" for clause in spec.clauses.values()):
        rows.append("- `when` conditions are true at each call in this phase: nothing waits, no lock")
    if phase == 1 and spec.front.concurrency.order:
        rows.append(f"- Leave out, as phase 2 adds them: {', '.join(spec.front.concurrency.order)}")
    if spec.front.several_answers:
        rows.append(f"- Several answers are right: {spec.front.several_answers}")
    rows += _library(spec)
    return "\n".join(rows)


def _library(spec: Spec) -> list[str]:
    """What the words mean that clauses take from the library; they are not there for the module."""
    if not spec.front.library:
        return []
    from importlib.util import find_spec

    found = find_spec("pibroch.evals.speceval.library")
    if found is None or found.origin is None:
        return []
    with open(found.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    rows = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and f"{node.name}(" in spec.block:
            result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            text = " ".join((ast.get_docstring(node) or "").split())
            rows.append(f"- Word of the conditions: `{node.name}({ast.unparse(node.args)}){result}`: {text}")
    return rows


def _class(unit: Unit) -> str:
    parts = [f"class {unit.name}:"]
    if unit.invariants:
        parts.append("\n".join(_docstring([f"{c.id}: always {c.text}" for c in unit.invariants], "    ")) + "\n")
    for operation in unit.operations.values():
        body = [f"        self.{name} = ..." for name in unit.fields] if operation.name == "__init__" else []
        said = _docstring(conditions(operation), "        ")
        parts.append("\n".join([f"    {_def(operation, 'self')}", *said, *(body or ["        ..."])]) + "\n")
        if operation.name == "__init__" and unit.view:
            parts.append(f"    def view(self) -> dict[str, object]:\n        return {_view(unit, 'self.')}\n")
    return "\n".join(parts).rstrip()


def _functions(unit: Unit, names: Iterable[str], intent: str = "") -> list[str]:
    kept = set(names)
    parts = []
    if unit.fields:
        parts.append("\n".join(f"{name}: {kind} = ..." for name, kind in unit.fields.items()))
    if unit.view:
        parts.append(f"def view() -> dict[str, object]:\n    return {_view(unit, '')}")
    for operation in unit.operations.values():
        if operation.name in kept:
            body = [f"    global {', '.join(operation.modifies)}"] if operation.modifies else []
            said = [*intent.splitlines(), *([""] if intent else []), *conditions(operation)]
            parts.append("\n".join([_def(operation), *_docstring(said, "    "), *body, "    ..."]))
    return parts


def conditions(operation: Operation) -> list[str]:
    """An operation's clauses, one line each."""
    rows = [f"Given {clause.text}" for clause in operation.of("requires")]
    rows += [f"{clause.id}: wait until {clause.text}" for clause in operation.of("when")]
    rows += [f"{clause.id}: raise {clause.exception} if {clause.text}" for clause in operation.of("raises")]
    rows += [f"{clause.id}: {ensured(clause)}" for clause in operation.of("ensures")]
    if operation.modifies:
        rows.append(f"Change no other field than {', '.join(operation.modifies)}")
    return rows


def ensured(clause: Clause) -> str:
    """`return X` for `result == X`, which small models understand better, else `ensure C`."""
    tree = clause.tree
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq):
        left, right = tree.left, tree.comparators[0]
        if isinstance(left, ast.Name) and left.id == "result" and not {"result", "self"} & _names(right):
            return f"return {clause.text.partition('==')[2].strip()}"
    return f"ensure {clause.text}"


def _docstring(rows: Sequence[str], indent: str) -> list[str]:
    """The lines of a docstring; raw where a condition has a backslash."""
    if not rows:
        return []
    quotes = "'''" if any('"""' in row for row in rows) else '"""'
    start = "r" if any("\\" in row for row in rows) else ""
    head, *rest = rows
    return [f"{indent}{start}{quotes}{head}", *((indent + row).rstrip() for row in rest), f"{indent}{quotes}"]


def _def(operation: Operation, first: str = "") -> str:
    name, _, rest = operation.signature.partition("(")
    comma = ", " if first and operation.params else ""
    return f"def {name}({first}{comma}{rest}:"


def _view(unit: Unit, prefix: str) -> str:
    rows = [f'"{name}": {copied(unit.fields[name], prefix + name)}' for name in unit.view]
    return "{" + ", ".join(rows) + "}"


def copied(annotation: str, value: str, depth: int = 0) -> str:
    """An expression that copies `value` as deep as its type has mutable parts: `[list(x) for x in self.rows]`."""
    try:
        node = ast.parse(annotation, mode="eval").body
    except SyntaxError:
        return value
    return _copied(node, value, depth)


def _copied(node: ast.expr, value: str, depth: int) -> str:
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        return f"{node.id}({value})" if isinstance(node, ast.Name) and node.id in ("list", "dict", "set") else value
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    name, x, y = node.value.id, f"x{depth or ''}", f"y{depth or ''}"
    if name in ("list", "set"):
        inner = _copied(parts[0], x, depth + 1)
        return f"{name}({value})" if inner == x else f"[{inner} for {x} in {value}]"
    if name == "dict" and len(parts) == 2:
        inner = _copied(parts[1], y, depth + 1)
        return f"dict({value})" if inner == y else f"{{{x}: {inner} for {x}, {y} in {value}.items()}}"
    return value
