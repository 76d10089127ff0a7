"""`pibroch spec check`: everything that can be said of specs before any code exists."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibroch.cli.common import Json, finish, say, show_seconds

if TYPE_CHECKING:
    from pibroch.evals.speceval.spec_check import ModuleCheck
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

    started = time.monotonic()
    specs, chosen, unread = load_some(names or [])
    if chosen:
        from pibroch.evals.speceval import spec_check  # late: it takes the judge's tools along

        say(f"checking {len(chosen)} specs" if len(chosen) > 1 else f"checking {chosen[0]}")
        found = spec_check.check(specs, chosen)
        found.unread = [*unread, *found.unread]
        errors, modules = found.errors, found.modules
    else:
        errors, modules = unread, {}
    seconds = time.monotonic() - started
    lines = [line for name, module in modules.items() for line in _lines(specs[name], module)]
    warnings = sum(len(module.warnings) for module in modules.values())
    lines.append(f"{len(modules)} checked, {_count(len(errors), 'error')}, {_count(warnings, 'warning')}, "
                 f"{show_seconds(seconds)}")  # fmt: skip
    result = {
        "ok": not errors,
        "specs": [_row(specs[name], module) for name, module in modules.items()],
        "errors": [_place(error) for error in errors],
        "warnings": warnings,
        "seconds": round(seconds, 3),
    }
    finish(result, lines, problems=[str(error) for error in errors], as_json=as_json)


def _lines(spec: Spec, module: ModuleCheck) -> list[str]:
    word = "wrong" if module.errors else "ok"
    took = " (as before)" if module.cached else f" ({show_seconds(module.seconds)})" if module.seconds else ""
    head = f"{word:<6} {spec.module} v{spec.front.version}: {_count(len(spec.clauses), 'clause')}{took}"
    return [head, *module.lines(), *(f"    warning: {warning}" for warning in module.warnings)]


def _row(spec: Spec, module: ModuleCheck) -> dict[str, Any]:
    return {
        "module": spec.module, "version": spec.front.version, "path": str(spec.path), "ok": not module.errors,
        "clauses": len(spec.clauses), "phases": list(spec.phases), "acceptance": module.acceptance,
        "satisfiable": module.satisfiable, "relies": module.relies, "seconds": module.seconds, "cached": module.cached,
        "errors": [_place(e) for e in module.errors], "warnings": [_place(w) for w in module.warnings],
    }  # fmt: skip


def _place(error: SpecError) -> dict[str, Any]:
    return {"path": str(error.path), "line": error.line, "message": error.message}


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")
