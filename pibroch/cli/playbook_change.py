"""`pibroch playbook add` and the other commands that change the playbook."""

from __future__ import annotations

from typing import Annotated

import typer

from pibroch.cli.common import Json
from pibroch.cli.playbook_files import Edit, File, When, Why, change, conditions, edit_of, writing

Section = Annotated[
    str, typer.Option("--section", help="schedules, communication, memory, measuring, pitfalls or your own.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application of `pibroch playbook`."""
    app.command("add")(add)


def add(
    text: Annotated[str, typer.Argument(help="One lesson, in words.", show_default=False)],
    section: Section = "schedules",
    when: When = None,
    edit: Edit = None,
    evidence: Annotated[
        list[str] | None, typer.Option("--evidence", help="Where the figures are.", show_default=False)
    ] = None,
    why: Why = "by hand",
    file: File = None,
    as_json: Json = False,
) -> None:
    """Add a bullet. One that the playbook has in other words is merged into it."""
    from pibroch.playbooks.model import Add

    delta = Add(
        section=section, text=text, applies_when=conditions(when), edit=edit_of(edit), evidence=tuple(evidence or ())
    )
    change(writing(file), [delta], why=why, as_json=as_json)
