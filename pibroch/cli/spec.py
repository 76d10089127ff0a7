"""`pibroch spec`: check, map and compare specs; `mutate` and `draft` stand in files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibroch.cli import spec_check, spec_draft, spec_mutate
from pibroch.cli.common import Json, finish
from pibroch.runtime.errors import InputError

if TYPE_CHECKING:
    from pibroch.specs.model import Spec

app = typer.Typer(
    help="Specs: check them, show who relies on whom, compare versions, draft one, and see what its clauses pin.",
    no_args_is_help=True,
    add_completion=False,
)
app.command("check")(spec_check.command)
app.command("mutate")(spec_mutate.command)
app.command("draft")(spec_draft.command)


@app.command("graph")
def graph(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these modules and what they rely on.", show_default=False)
    ] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Also write the map here.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Who relies on whom: modules in the order in which they are generated."""
    from pibroch.cli.spec_files import load_all, pick
    from pibroch.runtime.files import check_writable, write_atomically
    from pibroch.specs.graph import as_svg, as_text, edges
    from pibroch.specs.store import order

    if svg is not None:
        check_writable(svg)
    specs = pick(load_all(), names or [])
    if svg is not None:
        write_atomically(svg, as_svg(specs))
    result = {
        "ok": True,
        "order": order(specs),
        "relies": [{"module": a, "on": b, "functions": list(functions)} for a, b, functions in edges(specs)],
        "svg": svg,
    }
    finish(result, as_text(specs), as_json=as_json)


@app.command("diff")
def diff(
    old: Annotated[str, typer.Argument(help="A file, a module's name, or REV:FILE of git.", show_default=False)],
    new: Annotated[str, typer.Argument(help="The same, for the newer one.", show_default=False)],
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what changed: not whether it is weaker or stronger.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What a change of a spec means: clause by clause, which relies it breaks, what is judged or written again."""
    from pibroch.cli.spec_files import files, read_version
    from pibroch.specs.diff import compare
    from pibroch.specs.store import check_relies, load_each

    before, after = read_version(old), read_version(new)
    if before.module != after.module:
        raise InputError(f"two modules, not two versions of one: {before.module} and {after.module}")
    others, _ = load_each({n: p for n, p in files().items() if n != after.module})
    specs = _related({**others, after.module: after}, after.module)
    check_relies(specs, [after.module])
    changes = compare(before, after)
    result: dict[str, Any] = {
        "ok": True,
        "module": after.module,
        "changes": [
            {"kind": c.kind, "part": c.part, "name": c.name, "owner": c.owner, "old": c.old, "new": c.new,
             "line": c.line}
            for c in changes
        ],
    }  # fmt: skip
    lines = [str(change) for change in changes] or ["the two say the same"]
    problems: list[str] = []
    if changes and not quick:
        problems = _consequences({**specs, before.module: before}, specs, result, lines)
    finish(result, lines, problems=problems, as_json=as_json)


def _consequences(
    old: Mapping[str, Spec], new: Mapping[str, Spec], result: dict[str, Any], lines: list[str]
) -> list[str]:
    """Directions, breaches and work to do, added to the result. Returns the problems."""
    from pibroch.evals.speceval.evolution import evolve

    found = evolve(old, new)
    result |= {
        "directions": [
            {"name": c.name, "kind": c.kind, "owner": c.owner, "direction": c.direction, "promise": c.promise,
             "guaranteed": c.guaranteed}
            for c in found.changes
        ],
        "breaches": [
            {"module": b.module, "clause": b.clause, "path": str(b.path), "line": b.line, "message": b.message,
             "weakened": list(b.weakened), "values": dict(b.values)}
            for b in found.breaches
        ],
        "judge_again": list(found.judge_again),
        "regenerate": list(found.regenerate),
        "ok": not found.blocked,
    }  # fmt: skip
    if found.changes:
        lines += ["", "direction"]
    for change in found.changes:
        promise = "" if change.promise == change.direction else f"; the promise is {change.promise}"
        lines.append(f"    {change.kind} {change.name}: {change.direction}{promise}")
    lines += ["", f"regenerate   {', '.join(found.regenerate) or 'nothing'}",
              f"judge again  {', '.join(found.judge_again) or 'nothing'}"]  # fmt: skip
    return [str(breach) for breach in found.breaches]


def _related(specs: Mapping[str, Spec], name: str) -> dict[str, Spec]:
    """The module, what it relies on, and who relies on it."""
    from pibroch.specs.store import closure, dependents

    wanted = closure(specs, [name, *dependents(specs, name)])
    return {n: specs[n] for n in wanted}
