"""`pibroch regenerate`: modules and schedule builders from their specs, judged and locked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibroch.cli.common import Json, finish, say, show_seconds
from pibroch.runtime.errors import InputError
from pibroch.runtime.files import check_writable

if TYPE_CHECKING:
    from pibroch.agents.lm import LanguageModel
    from pibroch.agents.lock import Drift
    from pibroch.agents.regenerate import Regenerated
    from pibroch.project import Project

NAME = "regenerate"
HINT = "a model writes modules: name one with --lm openai, --lm local, --lm mailbox:DIR or --lm replay:DIR"


def command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Modules, by the names of their specs.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All modules whose spec has changed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --all: also those that fit their specs.")] = False,
    lm: Annotated[
        str | None,
        typer.Option("--lm", help="openai[:MODEL], local[:FILE], mailbox:DIR or replay:DIR.", show_default=False),
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Write the conversation here, for replay:DIR.", show_default=False)
    ] = None,
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="Tries per phase and writer.")] = 4,
    no_review: Annotated[
        bool, typer.Option("--no-review", help="Skip the reviewer of prose; the lock says so.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: fail where specs, files and lock differ.")
    ] = False,
    show_diff: Annotated[bool, typer.Option("--diff/--no-diff", help="Show what changes against the old file.")] = True,
    as_json: Json = False,
) -> None:
    """Write modules from their specs: two writers, a judge, feedback; nothing unproved is ever written."""
    from pibroch.agents.regenerate import Shelf, choose, regenerate
    from pibroch.project import find_project
    from pibroch.specs.store import load_all

    if not check and not every and not names:
        raise typer.BadParameter("name a module, or say --all")
    if every and names:
        raise typer.BadParameter("name modules or say --all, not both")
    project = find_project()
    shelf = Shelf(project.root / "generated" if project.root else Path(), project.layers("generated"))
    specs = load_all(project.layers("specs"))
    if check:
        rows = shelf.drift(_named(specs, names or []))
        _check([row for row in rows if not names or row.module in names], as_json=as_json)
        return
    if project.root is None:
        raise InputError("no project here: `pibroch init` makes one, and its generated/ is where modules go")
    wanted = choose(specs, shelf, names or [], every=every, force=force)
    if not wanted:
        finish({"ok": True, "modules": []}, "nothing to do: every module fits its spec", as_json=as_json)
        return
    check_writable(shelf.own / "lock.json")
    model = open_model(project, lm, record)
    review = not no_review and _reviews(lm or project.settings.get("lm") or "")
    done: list[Regenerated] = []
    for name in wanted:
        done.append(
            regenerate(specs[name], model, specs=specs, shelf=shelf, attempts=attempts, review=review, say=say)
        )  # one after the other: a later one is judged with the earlier one's new code
    _report(done, many=every or len(wanted) > 1, show_diff=show_diff, as_json=as_json)


def _named(specs: dict[str, Any], names: list[str]) -> dict[str, Any]:
    for name in names:
        if name not in specs:
            raise InputError(f"{name}: no spec of that name (known: {', '.join(sorted(specs)) or 'none'})")
    return {name: specs[name] for name in names} if names else specs


def open_model(project: Project, lm: str | None, record: Path | None) -> LanguageModel:
    """The model that --lm or pibroch.toml names. Raises `InputError` where neither does."""
    from pibroch.agents.lm import open_lm

    if record is not None:
        check_writable(record / "reply.json")
    model = open_lm(lm or project.settings.get("lm"), record=record)
    if model is None:
        raise InputError(HINT)
    return model


def _reviews(lm: str) -> bool:
    """Whether the reviewer is on by default: not for a small local model, nor where its replies were not recorded."""
    kind, _, rest = lm.partition(":")
    if kind == "replay":
        return any(Path(rest).glob("reviewer-*.json"))
    return kind != "local"


def _check(rows: list[Drift], *, as_json: bool) -> None:
    errors = [row.message for row in rows if row.error]
    warnings = [row.message for row in rows if not row.error]
    result = {
        "ok": not errors,
        "drift": [{"module": r.module, "kind": r.kind, "error": r.error, "message": r.message} for r in rows],
    }
    lines = [f"warning: {text}" for text in warnings]
    lines += [] if errors else ["every generated file is the one that its lock records, and fits its spec"]
    finish(result, lines, problems=errors, as_json=as_json)


def _report(done: list[Regenerated], *, many: bool, show_diff: bool, as_json: bool) -> None:
    rows = [one.to_json() for one in done]
    ok = all(one.ok for one in done)
    lines: list[str] = []
    problems: list[str] = []
    for one in done:
        lines += _lines(one, show_diff=show_diff) if one.ok else []
        problems += [] if one.ok else [f"{one.written.spec.module}: {one.written.problem}", "  nothing was written"]
    result = {"ok": ok, "modules": rows} if many else {**rows[0], "ok": ok}
    finish(result, lines, problems=problems, as_json=as_json)


def _lines(one: Regenerated, *, show_diff: bool) -> list[str]:
    w = one.written
    tries = "; ".join(f"{t.name}: {t.attempts}" for t in w.tracks)
    counts: dict[str, int] = {}
    for ruling in w.verdicts.values():
        counts[ruling] = counts.get(ruling, 0) + 1
    verdicts = ", ".join(f"{n} {ruling}" for ruling, n in sorted(counts.items()))
    assert w.entry is not None
    who = w.entry.model + (f" ({w.entry.who})" if w.entry.who and w.entry.who != w.entry.model else "")
    lines = [
        f"module     {w.spec.module}, version {w.spec.front.version}",
        f"written    by {who}; attempts: {tries}",
        f"verdicts   {verdicts}; reviewer: {w.review}",
        f"file       {one.file}",
    ]
    for track, row in zip(w.tracks, one.to_json()["phases"], strict=True):
        times = ", ".join(f"{stage} {show_seconds(s)}" for stage, s in row["seconds"].items())
        lines.append(f"judged     {track.name}: {times}")
        rates = _rates(row["evidence"])
        lines += [f"accepted   {', '.join(rates)}"] if rates else []
    if w.stale:
        lines.append(f"stale      {w.stale} recorded replies answer an older wording of the prompt")
    if show_diff:
        lines += [one.diff or "unchanged"]
    return lines


def _rates(evidence: dict[str, Any]) -> list[str]:
    """The generators' acceptance rates, wherever a stage reports them."""
    rows = []
    for stage in evidence.values():
        for key, value in stage.items():
            if re.match(r"accept", key):
                pairs = value.items() if isinstance(value, dict) else [("", value)]
                rows += [f"{name} {rate:.0%}".strip() for name, rate in pairs if isinstance(rate, int | float)]
    return rows
