"""`pibroch spec mutate`: what a module's clauses pin, by small changes of its code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibroch.cli.common import Json, finish, say
from pibroch.runtime.errors import InputError

if TYPE_CHECKING:
    from pibroch.evals.speceval.mutate import Judged, Mutation

NAME = "mutate"


def command(
    names: Annotated[list[str], typer.Argument(help="Modules that have been generated.", show_default=False)],
    code: Annotated[
        Path | None, typer.Option("--code", help="Mutate this file, not the generated one.", show_default=False)
    ] = None,
    phase: Annotated[
        int | None, typer.Option("--phase", min=1, max=2, help="Of --code. Default: the last.", show_default=False)
    ] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Interleavings explored per mutant that survives.")] = 300,
    as_json: Json = False,
) -> None:
    """Change a module's code in small ways: each change must break a clause. Survivors show what no clause pins.

    Fails where fewer than 95% of the mutants are killed, or more than 3% are waived in specs/waivers.toml.
    """
    from pibroch.cli import spec_files
    from pibroch.evals.speceval.mutate import mutate, read_waivers
    from pibroch.project import find_project

    project = find_project()
    specs = spec_files.load_all()
    waivers = [row for folder in spec_files.folders() for row in read_waivers(folder / "waivers.toml")]
    if code is not None and len(names) != 1:
        raise InputError("--code is the code of one module: name that one")
    results: list[Mutation] = []
    for name in names:
        if name not in specs:
            raise spec_files.unknown(name, specs)
        files = [project.find("generated", f"{kind}/{name}.py") for kind in ("modules", "schedules")]
        path = code or next((file for file in files if file), None)
        if path is None or not path.is_file():
            raise InputError(f"{name}: no generated module; `pibroch regenerate {name}` writes it, --code names a file")
        say(f"mutating {name}")
        spec = specs[name]
        source = path.read_text(encoding="utf-8")
        results.append(
            mutate(source, spec, phase=phase or spec.phases[-1], peers=specs, waivers=waivers, runs=runs)
        )  # one after the other: each has every processor that the sandbox may use
    failed = [r.module for r in results if not r.passed]
    finish(
        {"ok": not failed, "modules": [_as_data(r) for r in results]},
        [line for r in results for line in _lines(r)],
        as_json=as_json,
        problems=[f"{name}: fewer than 95% of its mutants are killed, or too many are waived" for name in failed],
    )


def _as_data(result: Mutation) -> dict[str, Any]:
    return {
        "module": result.module, "mutants": result.counted, "killed": len(result.of("killed")),
        "score": round(result.score, 4), "equivalent": len(result.of("equivalent")),
        "left_out": len(result.of("left out")), "waived": [_row(j) for j in result.of("waived")],
        "survivors": [_row(j) for j in result.of("survived")], "unneeded_clauses": result.unneeded,
        "kills": _kills(result), "seconds": round(result.seconds, 2), "ok": result.passed,
    }  # fmt: skip


def _row(judged: Judged) -> dict[str, Any]:
    mutant = judged.mutant
    return {
        "line": mutant.line, "operator": mutant.operator, "before": mutant.before, "after": mutant.after,
        "calls": list(judged.run), "values": dict(judged.values), "reason": judged.reason,
    }  # fmt: skip


def _kills(result: Mutation) -> dict[str, int]:
    """By clause, how many mutants break it."""
    counts = dict.fromkeys(result.clauses, 0)
    for judged in result.of("killed"):
        for name in judged.clauses:
            counts[name] = counts.get(name, 0) + 1
    return counts


def _lines(result: Mutation) -> list[str]:
    killed, counted = len(result.of("killed")), result.counted
    lines = [f"{result.module}: {killed} of {counted} mutants killed ({result.score:.1%}); "
             f"{len(result.of('equivalent'))} equivalent, {len(result.of('left out'))} left out"]  # fmt: skip
    for fate, title in (("survived", "no clause pins this"), ("waived", "waived")):
        for judged in result.of(fate):  # type: ignore[arg-type]
            mutant = judged.mutant
            lines.append(f"  {title}: line {mutant.line}, {mutant.operator}")
            lines += [f"    {row}" for row in mutant.diff]
            lines += [f"    call  {call}" for call in judged.run]
            lines += [f"    value {name} = {value}" for name, value in judged.values.items()]
            lines += [f"    {judged.reason}"] if judged.reason else []
    if result.unneeded:
        lines.append(f"  clauses that no mutant needs: {', '.join(result.unneeded)}")
    return lines
