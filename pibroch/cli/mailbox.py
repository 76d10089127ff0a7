"""`pibroch mailbox`: answer a language model's requests by hand, or with a program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pibroch.cli.common import Json, finish, say

app = typer.Typer(
    help="Answer what `--lm mailbox:DIR` asks: by hand, or with a program.", no_args_is_help=True, add_completion=False
)
Folder = Annotated[Path, typer.Argument(help="The mailbox's folder.", show_default=False)]
Ident = Annotated[str, typer.Argument(help="A request's number, id or file name.", show_default=False)]


@app.command("list")
def list_requests(
    folder: Folder,
    everything: Annotated[bool, typer.Option("--all", help="Answered and expired ones too.")] = False,
    as_json: Json = False,
) -> None:
    """The open requests, in the order in which they were asked."""
    from pibroch.agents.lm.mailbox import mailbox_list

    entries = mailbox_list(folder, everything=everything)
    rows = [
        {
            "id": e.id, "role": e.role, "subject": e.subject, "phase": e.phase, "attempt": e.attempt,
            "status": e.status, "left_s": round(e.left_s), "claimed_by": e.claimed_by, "path": str(e.path),
        }
        for e in entries
    ]  # fmt: skip
    lines = [f"{e.id}  {e.status}  {e.left_s / 60:.0f} min left  {e.path}" for e in entries] or ["nothing is open"]
    finish({"ok": True, "requests": rows}, lines, as_json=as_json)


@app.command("show")
def show(folder: Folder, ident: Ident, as_json: Json = False) -> None:
    """A request's text, and why its last reply was refused."""
    from pibroch.agents.lm.mailbox import mailbox_show

    text = mailbox_show(folder, ident)
    finish({"ok": True, "text": text}, text, as_json=as_json)


@app.command("reply")
def reply(
    folder: Folder,
    ident: Ident,
    file: Annotated[Path | None, typer.Argument(help="The reply. Default: standard input.", show_default=False)] = None,
    who: Annotated[str, typer.Option("--who", help="Who answers; recorded with the reply.")] = "",
    as_json: Json = False,
) -> None:
    """File a reply. A malformed one is refused, and the request stays open."""
    from pibroch.agents.lm.mailbox import mailbox_reply

    text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    path = mailbox_reply(folder, ident, text, who=who)
    finish({"ok": True, "reply": str(path)}, f"filed {path}", as_json=as_json)


@app.command("serve")
def serve(
    folder: Folder,
    exec_: Annotated[
        str, typer.Option("--exec", help="Command: request on its standard input, reply on its standard output.")
    ],
    once: Annotated[bool, typer.Option("--once", help="End when nothing is open.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for one reply.")] = 900.0,
    as_json: Json = False,
) -> None:
    """Answer every request with a command, until interrupted."""
    from pibroch.agents.lm.mailbox_serve import mailbox_serve

    count = mailbox_serve(folder, exec_, once=once, timeout_s=timeout, say=say)
    finish({"ok": True, "answered": count}, f"answered {count}", as_json=as_json)
