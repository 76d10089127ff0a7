"""`pibroch spec check`: everything that can be said of specs before any code exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibroch.cli.common import Json, finish, say

if TYPE_CHECKING:
    from pibroch.specs.errors import SpecError
    from pibroch.specs.model import Spec

NAME = "check"


def command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Modules or spec files. Default: all.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Load, type-check clauses, try test domains, compose over the relies; warn of what can be read in two ways."""
    from pibroch.cli.spec_files import load_some
    from pibroch.specs.lint import lint

    specs, chosen, errors = load_some(names or [])
    rows: dict[str, dict[str, Any]] = {name: _row(specs[name]) for name in chosen}
    if chosen:
        say(f"{len(chosen)} specs" if len(chosen) > 1 else f"spec {chosen[0]}")
        errors += _judged(specs, chosen, rows)
    doubts = [doubt for name in chosen for doubt in lint(specs[name])]
    for name in chosen:
        rows[name]["warnings"] = [{"line": d.line, "message": d.message} for d in doubts if d.path == specs[name].path]
    unique = list({(str(e.path), e.line, e.message): e for e in errors}.values())
    bad = {str(e.path) for e in unique}
    result = {
        "ok": not unique,
        "specs": list(rows.values()),
        "errors": [{"path": str(e.path), "line": e.line, "message": e.message} for e in unique],
    }
    lines = [_line(row, bad) for row in rows.values()]
    lines += [f"warning: {doubt}" for doubt in doubts]
    finish(result, lines, problems=[str(e) for e in unique], as_json=as_json)


def _judged(specs: dict[str, Spec], chosen: list[str], rows: dict[str, dict[str, Any]]) -> list[SpecError]:
    """What the judge's part of the check says, added to the rows."""
    from pibroch.evals.speceval.domains import check_scope
    from pibroch.evals.speceval.typecheck import check
    from pibroch.specs.errors import SpecError

    errors = check([specs[name] for name in chosen])
    for name in chosen:
        try:
            check_scope(specs[name])
        except SpecError as error:
            errors.append(error)
    return errors


def _line(row: dict[str, Any], bad: set[str]) -> str:
    word = "wrong" if row["path"] in bad else "ok"
    warned = len(row["warnings"])
    doubts = f", {warned} warning{'s' if warned != 1 else ''}" if warned else ""
    return f"{word:<6} {row['module']} v{row['version']}: {row['clauses']} clauses{doubts}"


def _row(spec: Spec) -> dict[str, Any]:
    return {
        "module": spec.module, "version": spec.front.version, "path": str(spec.path), "phases": list(spec.phases),
        "clauses": len(spec.clauses), "relies": [rely.name for rely in spec.relies], "warnings": [],
    }  # fmt: skip
