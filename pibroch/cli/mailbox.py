"""`pibroch mailbox`: answer a language model's requests by hand, or with a program."""

from __future__ import annotations

import typer

app = typer.Typer(help="Answer requests by hand or with a program.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """Open requests."""
