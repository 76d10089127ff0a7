"""`pibroch playbook add` and the other commands that change the playbook."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pibroch.cli.common import Json, finish
from pibroch.cli.playbook_files import Edit, File, When, Why, change, conditions, edit_of, one, writing
from pibroch.runtime.errors import InputError

Evidence = Annotated[list[str] | None, typer.Option("--evidence", help="Where the figures are.", show_default=False)]
Id = Annotated[str, typer.Argument(help="A bullet's id.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands to the application of `pibroch playbook`."""
    for command in (add, edit, merge, prune, undo):
        app.command(command.__name__)(command)
    app.command("import")(import_)


def add(
    text: Annotated[str, typer.Argument(help="One lesson, in words.", show_default=False)],
    section: Annotated[
        str, typer.Option("--section", help="schedules, communication, memory, measuring, pitfalls or your own.")
    ] = "schedules",
    when: When = None,
    edit: Edit = None,
    evidence: Evidence = None,
    why: Why = "by hand",
    file: File = None,
    as_json: Json = False,
) -> None:
    """Add a bullet. One that the playbook has in other words is merged into it."""
    from pibroch.playbooks.model import Add

    store = writing(file)
    delta = Add(
        section=section, text=text, applies_when=conditions(when), edit=edit_of(edit), evidence=tuple(evidence or ())
    )
    change(store, [delta], why=why, as_json=as_json)


def edit(
    id: Id,
    text: Annotated[str | None, typer.Option("--text", help="New words.", show_default=False)] = None,
    section: Annotated[str | None, typer.Option("--section", help="Another section.", show_default=False)] = None,
    when: When = None,
    always: Annotated[bool, typer.Option("--always", help="Take the conditions away.")] = False,
    edit: Edit = None,
    evidence: Evidence = None,
    why: Why = "by hand",
    file: File = None,
    as_json: Json = False,
) -> None:
    """Change a bullet. Other conditions or another edit (`{}` takes it away) start its test counters from 0."""
    from pibroch.playbooks.model import Update

    if always and when:
        raise InputError("--always takes the conditions away: leave out --when")
    store = writing(file)
    one(store.load(), id)
    delta = Update(
        id=id, text=text, section=section, edit=edit_of(edit),
        applies_when=conditions(when) if when or always else None,
        evidence=tuple(evidence) if evidence else None,
    )  # fmt: skip
    change(store, [delta], why=why, as_json=as_json)


def merge(
    ids: Annotated[list[str], typer.Argument(help="The first takes the others in.", show_default=False)],
    text: Annotated[str | None, typer.Option("--text", help="Its new words.", show_default=False)] = None,
    why: Why = "by hand",
    file: File = None,
    as_json: Json = False,
) -> None:
    """Make one bullet of several that say the same; counters add up."""
    from pibroch.playbooks.model import Merge

    if len(ids) < 2:
        raise InputError("merge takes two ids or more")
    change(writing(file), [Merge(ids=tuple(ids), text=text)], why=why, as_json=as_json)


def prune(
    ids: Annotated[list[str] | None, typer.Argument(help="Remove just these.", show_default=False)] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=0, help="At most so many tokens in all.", show_default=False)
    ] = None,
    unused: Annotated[bool, typer.Option("--unused", help="Also what fits none of the tasks here.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    why: Why = "pruned",
    file: File = None,
    as_json: Json = False,
) -> None:
    """Remove what tests have shown to be harmful or without effect, or the bullets that you name."""
    from pibroch.cli.playbook_files import reading, tasks
    from pibroch.playbooks.model import Remove
    from pibroch.playbooks.prune import prune

    if ids and (tokens is not None or unused):
        raise InputError("name bullets, or let the rules choose (--tokens, --unused): not both")
    store = reading(file) if dry_run else writing(file)
    playbook = store.load()
    if ids:
        deltas = [Remove(id=one(playbook, id).id, why=why) for id in ids]
    else:
        deltas = prune(playbook, tokens=tokens, tasks=tasks() if unused else ())
    if dry_run or not deltas:
        lines = [f"would remove {delta.id}: {delta.why}" for delta in deltas] or ["nothing to prune"]
        finish({"ok": True, "file": str(store.path), "would_remove": deltas}, lines, as_json=as_json)
    else:
        change(store, deltas, why=why, as_json=as_json)


def undo(file: File = None, as_json: Json = False) -> None:
    """Take back the latest change; again, the one before."""
    entry = writing(file).undo()
    finish({"ok": True, "undone": entry}, f"took back {entry.seq}: {entry.why}", as_json=as_json)


def import_(
    source: Annotated[Path, typer.Argument(help="ACE's lines, or a playbook (JSON).", show_default=False)],
    why: Why = "imported",
    file: File = None,
    as_json: Json = False,
) -> None:
    """Add the bullets of another playbook: all of them or none. Its counters become evidence, not tests of ours."""
    from pibroch.playbooks.deltas import apply

    store = writing(file)
    named = _read(source)
    _, outcomes = apply(store.load(), [delta for _, delta in named])
    bad = [f"{where}: {o.reason}" for (where, _), o in zip(named, outcomes, strict=True) if o.done == "refused"]
    if bad:
        raise InputError(f"{source}: nothing was imported: " + "; ".join(bad[:5]))
    change(store, [delta for _, delta in named], why=why, as_json=as_json)


def _read(source: Path) -> list[tuple[str, Any]]:
    """Where each bullet stands, and the delta that adds it."""
    from pibroch.playbooks import ace
    from pibroch.playbooks.model import Add
    from pibroch.playbooks.store import read

    try:
        text = source.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: it is not UTF-8 text") from error
    if not text.lstrip().startswith("{"):
        lines = ace.parse(text, name=str(source))
        return [(f"line {n.number}", delta) for n, delta in zip(lines, ace.as_deltas(lines), strict=True)]
    return [
        (
            b.id,
            Add(
                section=b.section, text=b.text, applies_when=b.applies_when, edit=b.edit,
                evidence=(
                    *b.evidence,
                    f"imported: {b.id}, claimed tested={b.tested} helpful={b.helpful} harmful={b.harmful}",
                ),
            ),
        )
        for b in read(source).bullets
    ]  # fmt: skip
