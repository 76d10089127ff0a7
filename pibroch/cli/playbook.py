"""`pibroch playbook`: read what was learned; the commands that change it stand in a file of their own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from pibroch.cli import playbook_change
from pibroch.cli.common import Json, finish
from pibroch.cli.playbook_files import File, facts_of, one, reading, table

app = typer.Typer(
    help="The playbook: what was learned from runs, as small tested items.",
    no_args_is_help=True,
    add_completion=False,
)
playbook_change.register(app)


@app.command("show")
def show(
    ids: Annotated[list[str] | None, typer.Argument(help="Only these bullets.", show_default=False)] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option("--fact", help="KEY=VALUE: only what fits such a task, the best first.", show_default=False),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="With --fact: at most so many tokens.")] = 2000,
    file: File = None,
    as_json: Json = False,
) -> None:
    """The bullets, with their counters, conditions and edits."""
    from pibroch.playbooks.retrieve import render, select

    store = reading(file)
    playbook = store.load()
    if fact:
        bullets = select(playbook, facts_of(fact), tokens=tokens, warnings=True)
        lines = [render(bullets) or "no bullet fits"]
    else:
        bullets = [one(playbook, id) for id in ids] if ids else list(playbook.bullets)
        lines = table(bullets) or ["the playbook is empty"]
    finish({"ok": True, "file": str(store.path), "bullets": bullets}, lines, as_json=as_json)


@app.command("search")
def search(
    query: Annotated[str, typer.Argument(help="A few words.", show_default=False)],
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many bullets.")] = 10,
    file: File = None,
    as_json: Json = False,
) -> None:
    """The bullets whose words are most like a query's."""
    from pibroch.playbooks.retrieve import search

    found = search(reading(file).load(), query, limit=limit)
    rows = [{"likeness": round(like, 3), "bullet": bullet} for like, bullet in found]
    lines = [f"{like:.2f}  [{bullet.id}] {bullet.text}" for like, bullet in found] or ["nothing found"]
    finish({"ok": True, "found": rows}, lines, as_json=as_json)


@app.command("history")
def history(file: File = None, as_json: Json = False) -> None:
    """Every change, the oldest first, with what became of each delta."""
    from pibroch.cli.playbook_files import said

    entries = reading(file).history()
    lines = []
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
        lines.append(f"{entry.seq}  {when}  {entry.why}")
        lines += [f"     {said(outcome)}" for outcome in entry.outcomes]
    finish({"ok": True, "entries": entries}, lines or ["no change yet"], as_json=as_json)


@app.command("stats")
def stats(file: File = None, as_json: Json = False) -> None:
    """How many bullets there are, what tests said of them, and what the whole costs in tokens."""
    from pibroch.playbooks.retrieve import estimate, render
    from pibroch.playbooks.verdict import verdict

    playbook = reading(file).load()
    bullets = playbook.bullets
    verdicts = [verdict(b) for b in bullets]
    result = {
        "ok": True,
        "bullets": len(bullets),
        "sections": {s: sum(b.section == s for b in bullets) for s in dict.fromkeys(b.section for b in bullets)},
        "verdicts": {v: verdicts.count(v) for v in ("helpful", "placebo", "harmful", "unclear", "untested")},
        "counters": {
            name: sum(getattr(b, name) for b in bullets) for name in ("shown", "cited", "tested", "helpful", "harmful")
        },
        "tokens": estimate(render(bullets)),
    }
    lines = [f"{len(bullets)} bullets, about {result['tokens']} tokens"]
    for name in ("sections", "verdicts", "counters"):
        row = result[name]
        assert isinstance(row, dict)
        lines.append(f"{name}: " + (", ".join(f"{key} {count}" for key, count in row.items()) or "none"))
    finish(result, lines, as_json=as_json)


@app.command("export")
def export(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write here.", show_default=False)] = None,
    form: Annotated[
        Literal["ace", "json"], typer.Option("--format", help="ACE's lines, or the whole playbook.")
    ] = "ace",
    file: File = None,
    as_json: Json = False,
) -> None:
    """The playbook as text: in ACE's line format, or whole."""
    from pibroch.playbooks import ace
    from pibroch.playbooks.store import dumps
    from pibroch.runtime.files import write_atomically

    playbook = reading(file).load()
    text = ace.dumps(ace.as_lines(playbook)) if form == "ace" else dumps(playbook)
    if out is not None:
        write_atomically(out, text)
    lines = text.rstrip("\n") if out is None else f"wrote {len(playbook.bullets)} bullets to {out}"
    result = {"ok": True, "bullets": len(playbook.bullets), "out": out, "text": text if out is None else None}
    finish(result, lines, as_json=as_json)
