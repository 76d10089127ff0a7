"""`pibroch playbook`: read and change what was learned; the changing commands stand in a file of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from pibroch.cli import playbook_change
from pibroch.cli.common import Json, finish
from pibroch.cli.playbook_files import File, reading, table

app = typer.Typer(
    help="The playbook: what was learned from runs, as small tested items.",
    no_args_is_help=True,
    add_completion=False,
)
playbook_change.register(app)


@app.command("show")
def show(
    ids: Annotated[list[str] | None, typer.Argument(help="Only these bullets.", show_default=False)] = None,
    file: File = None,
    as_json: Json = False,
) -> None:
    """The bullets, with their counters, conditions and edits."""
    from pibroch.cli.playbook_files import one

    store = reading(file)
    playbook = store.load()
    bullets = [one(playbook, id) for id in ids] if ids else list(playbook.bullets)
    lines = table(bullets) or ["the playbook is empty"]
    finish({"ok": True, "file": str(store.path), "bullets": bullets}, lines, as_json=as_json)
