"""Requests to a small model for functions without state: what to write in a few words, and failed calls as assertions.

A model of half a billion parameters copies a skeleton together with its docstrings instead of writing code. So it gets
no skeleton, only signatures and one line per condition; and it starts afresh at every other attempt, since a new draw
mends more than its repairs do. Capable models get the whole request of `module_task.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from pibroch.agents.lm.base import LanguageModel, backend
from pibroch.agents.module_task import (
    allowed_imports,
    ensured,
    feedback_text,
    has_state,
    private_helpers,
    renamed,
    written_now,
)
from pibroch.evals.speceval.verdict import Finding
from pibroch.specs.model import Clause, Operation, Spec

SMALL_MODELS = ("local",)
MAX_TESTS = 5
_SHOULD = re.compile(r"; `result` is (.*) and should be (.*)$", re.DOTALL)


def suits(spec: Spec, phase: int, lm: LanguageModel) -> bool:
    """Whether the short request is enough: a small model, and functions that need nothing but themselves."""
    if phase != 1 or backend(lm) not in SMALL_MODELS:
        return False
    whole = not spec.relies and not spec.front.library and not allowed_imports(spec, 1)
    return whole and not has_state(spec) and set(private_helpers(spec)) == set(spec.helpers)


def short_task(spec: Spec) -> str:
    """Signatures, intent, and a line per condition."""
    private, names = private_helpers(spec), written_now(spec, 1)
    operations = [o for unit in spec.units for o in unit.operations.values() if o.name in names]
    helpers = {private[name]: renamed(spec.helpers[name].source, private) for name in private}
    heads = [code.partition("\n")[0].rstrip(":") for code in helpers.values()]
    heads += [f"def {operation.signature}" for operation in operations]
    many = len(heads) > 1
    asked = f"Write these {len(heads)} functions, all in one block, in this order:\n\n" if many else "Write "
    parts = [asked + "\n".join(f"- `{head}`" if many else f"`{head}`." for head in heads)]
    parts += [spec.sections["intent"], spec.sections.get("algorithm", "")]
    parts += [f"`{name}`:\n\n```python\n{code}\n```" for name, code in helpers.items()]
    examples = _examples(spec)
    for operation in operations:
        rows = [*_lines(operation, private), *(f"- Example: `{text}`" for text in examples.get(operation.name, ()))]
        parts.append(f"`{operation.name}`:\n\n" + "\n".join(rows))
    if many:
        named = [*helpers, *(operation.name for operation in operations)]
        parts.append("Write all of them: " + ", ".join(f"`{name}`" for name in named) + ".")
    return "\n\n".join(part for part in parts if part)


def assertions(feedback: Sequence[Sequence[Finding]], spec: Spec) -> str:
    """What earlier attempts failed: the calls whose right result the spec tells."""
    found = [_expected(finding, spec) for findings in feedback for finding in findings]
    rows = list(dict.fromkeys(f"assert {row[0]} == {row[2]}" for row in found if row))[-MAX_TESTS:]
    return "```python\n" + "\n".join(rows) + "\n```" if rows else ""


def wrong(findings: Sequence[Finding], spec: Spec, source: str) -> str:
    """What is wrong with the last attempt, its first finding alone."""
    for finding in findings[:1]:
        row = _expected(finding, spec)
        if row:
            return f"```python\nassert {row[0]} == {row[2]}  # yours returned {row[1]}\n```"
        clause = spec.clauses.get(finding.clause)
        if clause is not None and clause.kind == "ensures" and "result" in finding.values and finding.calls:
            got = finding.values["result"]
            said = f"`{finding.calls[-1]}` returned `{got}`, but this must be true: `{clause.text}`"
            return said + finding.message.partition(f"after {clause.owner}")[2]
    return feedback_text(findings[:1], spec, source)


def _expected(finding: Finding, spec: Spec) -> tuple[str, str, str] | None:
    """The call, what it returned and what it should return, where a clause says `result == X`."""
    clause, match = spec.clauses.get(finding.clause), _SHOULD.search(finding.message)
    if clause is None or match is None or not finding.calls or not _returned(clause):
        return None
    return finding.calls[-1], match[1], match[2]


def _lines(operation: Operation, private: Mapping[str, str]) -> list[str]:
    rows = [f"- Always true, so do not test it: `{clause.text}`" for clause in operation.of("requires")]
    rows += [f"- If `{clause.text}`: raise {clause.exception}" for clause in operation.of("raises")]
    for clause in operation.of("ensures"):
        text = renamed(_returned(clause) or ensured(clause), private)
        word = text.removeprefix("ensure ")
        rows.append(f"- In every case it is true of the result: `{word}`" if word != text else f"- `{text}`")
    return rows


def _returned(clause: Clause) -> str:
    """`return X` for `result == X`, and `if C: return X` for `implies(C, result == X)`; else empty."""
    text = ensured(clause)
    if text.startswith("return "):
        return text
    tree = clause.tree
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "implies":
        test, then = (ast.unparse(node) for node in tree.args)
        if isinstance(tree.args[1], ast.Compare) and then.startswith("result == "):
            return f"if {test}: return {then.removeprefix('result == ')}"
    return ""


def _examples(spec: Spec) -> dict[str, list[str]]:
    """The docstrings of the block's functions."""
    try:
        tree = ast.parse(spec.block)
    except SyntaxError:
        return {}
    found = {node.name: ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {name: text.splitlines() for name, text in found.items() if text}
