"""CrossHair on an implication: the premises as leading asserts, the conclusion as the last one, in a child process.

The clauses become a Python file of its own; CrossHair runs it symbolically within an iteration budget. What it finds is
only a proposal: the caller evaluates the clauses over the values.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pibroch.evals.speceval.statements import Case, Place, Statement, need
from pibroch.specs.model import Spec

ITERATIONS = 25
SECONDS = 3  # per condition; a guard
_CALL = re.compile(r"when calling (check\(.*\))", re.DOTALL)


def find_case(where: Place, premises: Sequence[Statement], conclusion: Statement) -> Case | None:
    """A case that CrossHair claims to refute the implication; None where it found none or cannot be asked."""
    need("crosshair")
    source = program(where, premises, conclusion)
    if source is None:
        return None
    text = run_crosshair(source)
    match = _CALL.search(text)
    return _case(where, match[1]) if match else None


def run_crosshair(source: str) -> str:
    """What `crosshair check` prints of a file with asserts."""
    with tempfile.TemporaryDirectory(prefix="pibroch-crosshair-") as folder:
        path = Path(folder) / "implication.py"
        path.write_text(source, encoding="utf-8")
        command = [
            sys.executable, "-m", "crosshair", "check", "--analysis_kind=asserts",
            f"--max_uninteresting_iterations={ITERATIONS}", f"--per_condition_timeout={SECONDS}", str(path),
        ]  # fmt: skip
        environment = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")} | {"PYTHONHASHSEED": "0"}
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS * 4, env=environment, cwd=folder
            )
            return done.stdout
    return ""


def program(where: Place, premises: Sequence[Statement], conclusion: Statement) -> str | None:
    """The file; None where helpers of two specs have one name and two meanings, or a clause needs more than them."""
    if any(s.spec.front.library or _asks(s) for s in (*premises, conclusion)):
        return None
    helpers = helpers_of([s.spec for s in (*premises, conclusion)])
    if helpers is None:
        return None
    params = [f"{p.name}: {p.type}" for p in where.operation.params]
    params.append(f"result: {where.operation.returns}")
    views: dict[str, str] = {}
    if where.unit.view:
        fields = where.fields
        if not where.first:
            params += [f"old_{n}: {t}" for n, t in fields.items()]
            views["old"] = ", ".join(f"{n}=old_{n}" for n in fields)
        changing = [n for n in fields if where.first or n in where.modifies]
        params += [f"self_{n}: {fields[n]}" for n in changing]
        views["self"] = ", ".join(f"{n}=self_{n}" if n in changing else f"{n}=old_{n}" for n in fields)
    rows = ["from types import SimpleNamespace", "from typing import *"]
    rows += helpers
    names = [p.name for p in where.operation.params]
    inner = ", ".join([*names, "result", "self", "old"])
    for i, statement in enumerate((*premises, conclusion)):
        early = statement.early or statement.clause.kind in ("requires", "when", "raises")
        text = lazy(statement.clause.tree)
        rows += [f"def clause{i}({inner}):", "    self = old" if early else "    pass"]
        rows.append(f"    return {'not ' if statement.negated else ''}({text})")
    made = [f"SimpleNamespace({views[v]})" if v in views else "None" for v in ("self", "old")]
    call = ", ".join([*names, "result", *made])
    rows.append(f"def check({', '.join(params)}) -> None:")
    rows += [f"    assert clause{i}({call})" for i in range(len(premises))] or ["    assert True"]
    rows += ["    done = True", f"    assert clause{len(premises)}({call})"]
    return "\n".join(rows) + "\n"


def helpers_of(specs: Sequence[Spec]) -> list[str] | None:
    """The helpers as source, without annotations; None where one name has two meanings."""
    found: dict[str, str] = {}
    for helper in (h for spec in specs for h in spec.helpers.values()):
        tree = ast.parse(ast.unparse(helper.tree)).body[0]
        assert isinstance(tree, ast.FunctionDef)
        tree.returns = None
        for parameter in tree.args.args:
            parameter.annotation = None
        tree.body = [_Lazy().visit(statement) for statement in tree.body]
        text = ast.unparse(tree)
        if found.setdefault(helper.name, text) != text:
            return None
    return list(found.values())


class _Lazy(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "implies" and len(node.args) == 2:
            return ast.BoolOp(ast.Or(), [ast.UnaryOp(ast.Not(), node.args[0]), node.args[1]])
        return node


def lazy(tree: ast.expr) -> str:
    """A clause as an expression of plain Python: `implies` looks at its second part only where the first holds."""
    made = ast.parse(ast.unparse(tree), mode="eval").body
    return ast.unparse(_Lazy().visit(made))


def _asks(statement: Statement) -> bool:
    modules = {rely.module for rely in statement.spec.relies}
    return any(isinstance(n, ast.Name) and n.id in modules for n in ast.walk(statement.clause.tree))


def _case(where: Place, text: str) -> Case | None:
    """The values of `check(...)`, if they are all plain."""
    names = [p.name for p in where.operation.params] + ["result"]
    fields = list(where.fields)
    if not where.first:
        names += [f"old.{n}" for n in fields]
    names += [f"self.{n}" for n in fields if where.first or n in where.modifies]
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        values: dict[str, Any] = dict(zip(names, [ast.literal_eval(a) for a in call.args], strict=False))
        values |= {(k.arg or "").replace("_", ".", 1) if k.arg not in names else str(k.arg): ast.literal_eval(k.value)
                   for k in call.keywords}  # fmt: skip
    except (SyntaxError, ValueError, AssertionError):
        return None
    if set(values) != set(names):
        return None
    args = {p.name: values[p.name] for p in where.operation.params}
    if not fields:
        return Case(args, values["result"])
    old = None if where.first else {n: values[f"old.{n}"] for n in fields}
    state = {n: values.get(f"self.{n}", (old or {}).get(n)) for n in fields}
    return Case(args, values["result"], state, old)
