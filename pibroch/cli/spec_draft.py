"""`pibroch spec draft`: a model drafts a spec from prose; the draft says what it assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pibroch.cli.common import Json, finish, say
from pibroch.cli.regenerate import open_model
from pibroch.runtime.files import check_writable, write_atomically

NAME = "draft"


def command(
    wish: Annotated[str, typer.Argument(help="What the module shall do, in your words.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The spec's file. Default: stdout.", show_default=False)
    ] = None,
    lm: Annotated[
        str | None,
        typer.Option("--lm", help="openai[:MODEL], local[:FILE], mailbox:DIR or replay:DIR.", show_default=False),
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Write the conversation here, for replay:DIR.", show_default=False)
    ] = None,
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="Tries until a draft parses and checks.")] = 4,
    as_json: Json = False,
) -> None:
    """Draft a spec from prose. It is parsed and checked, and says what it assumed: read that before you keep it."""
    from pibroch.agents.spec_draft import draft_spec, file_name
    from pibroch.project import find_project
    from pibroch.specs.store import load_all

    if out is not None:
        check_writable(out)
    project = find_project()
    known = load_all(project.layers("specs"))
    model = open_model(project, lm, record)
    draft = draft_spec(wish, model, known=known, attempts=attempts, say=say)
    result: dict[str, Any] = {
        "ok": draft.spec is not None,
        "module": draft.spec.module if draft.spec else None,
        "spec": draft.text or None,
        "assumptions": draft.assumptions,
        "attempts": draft.attempts,
        "feedback": draft.feedback,
        "file": out if draft.spec else None,
    }
    if draft.spec is None:
        problems = [f"no draft passed in {draft.attempts}: nothing was written", *draft.feedback[-1]]
        finish(result, [], problems=problems, as_json=as_json)
        return
    lines = [draft.text.rstrip()]
    if out is not None:
        write_atomically(out, draft.text)
        lines = [f"spec       {out}", f"assumed    {draft.assumptions}"]
        lines.append("next       read it, then `pibroch spec check` and `pibroch regenerate`")
    else:
        say(f"it belongs into {file_name(draft.spec)}; it assumed: {draft.assumptions}")
    finish(result, lines, as_json=as_json)
