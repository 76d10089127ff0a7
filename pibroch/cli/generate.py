"""`pibroch generate`: from a sentence to a proved schedule file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibroch.cli.common import (
    Address,
    Deadline,
    Json,
    LauncherName,
    Lm,
    MemoryLimit,
    Model,
    finish,
    parse_bytes,
    say,
)
from pibroch.runtime.files import check_writable, write_atomically

if TYPE_CHECKING:
    from pibroch.agents.intent import Intent
    from pibroch.agents.schedule_writer import Written

NAME = "generate"


def command(
    sentence: Annotated[str, typer.Argument(help="What you want, in your words.", show_default=False)],
    model: Model = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The schedule file. Default: stdout.", show_default=False)
    ] = None,
    lm: Lm = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Write the conversation here, for replay:DIR.", show_default=False)
    ] = None,
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="Tries per phase, with a language model.")] = 4,
    devices: Annotated[
        int | None, typer.Option("--devices", min=1, help="How many devices there are.", show_default=False)
    ] = None,
    memory_limit: MemoryLimit = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run it: a schedule that differs from one process is refused.")
    ] = False,
    launcher: LauncherName = "ray",
    address: Address = None,
    deadline: Deadline = 60.0,
    as_json: Json = False,
) -> None:
    """Write a schedule from a sentence; prove it, and with --measure run it. Nothing unproved is ever written."""
    from pibroch.agents.intent import read_intent
    from pibroch.agents.lm import open_lm
    from pibroch.agents.schedule_writer import write_schedule
    from pibroch.cli.loading import load_model
    from pibroch.cli.measuring import Measurement
    from pibroch.cli.running import Options
    from pibroch.project import find_project
    from pibroch.runtime.directives import schedule_text

    if out is not None:
        check_writable(out)
    read_intent(sentence)  # a contradiction is said at once, before anything is captured or asked
    limit = parse_bytes(memory_limit)
    for path in (out, record and record / "reply.json"):
        if path is not None:
            check_writable(path)
    project = find_project()
    writer = open_lm(lm or project.settings.get("lm"), record=record)
    loaded = load_model(model)
    options = Options(launcher=launcher, address=address, deadline=deadline)
    measurement = Measurement(loaded.workload, options) if measure else None
    written = write_schedule(
        sentence, loaded.spec, lm=writer, judge=measurement, attempts=attempts, memory_limit=limit,
        devices_available=devices, prompts=project.prompts(), say=say,
    )  # fmt: skip
    result: dict[str, Any] = {
        "ok": written.verified,
        "intent": written.intent.model_dump(mode="json", exclude_defaults=True),
        "unused_words": list(written.unused_words),
        "matches": written.matches,
        "schedule": written.schedule.to_json() if written.schedule else None,
        "file": out,
        "verified": written.verified,
        "phases": phase_rows(written),
        "lm": written.lm,
        "why": written.why,
        "measured": measurement.result if measurement else None,
    }
    lines = intent_lines(written.intent)
    if written.verified:
        lines += written_lines(written)
    if written.schedule is not None:
        text = schedule_text(written.schedule)
        if out is not None:
            write_atomically(out, text)
            lines.append(f"schedule   {out}")
        else:
            lines.append(text)
        lines += measurement.lines if measurement else []
    problems = [] if written.verified else written_lines(written)
    finish(result, lines, problems=problems, as_json=as_json)


def phase_rows(written: Written) -> list[dict[str, Any]]:
    """Attempts and feedback of each phase; the attempt that passed has none."""
    return [
        {
            "phase": p.phase,
            "attempts": p.attempts,
            "passed": p.passed,
            "feedback": [
                [{"rule": f.rule, "where": f.where, "message": f.message, "advice": f.advice} for f in rows]
                for rows in p.feedback
            ],
        }
        for p in written.phases
    ]


def intent_lines(intent: Intent) -> list[str]:
    """The sentence as understood, phrase by phrase, and what was not used."""
    lines = [f"intent     {intent.text}"]
    lines += [f"  {phrase!r}: {meaning}" for phrase, meaning in intent.used.items()]
    lines.append(
        f"not used   {'; '.join(intent.unused)}" if intent.unused else "not used   nothing: every word was read"
    )
    lines += [f"  not followed: {u.phrase!r}: {u.reason}" for u in intent.unsupported]
    return lines


def written_lines(written: Written) -> list[str]:
    """Who wrote it and how often it took; the last feedback where it failed."""
    from pibroch.cli.report import VERIFIED

    tries = ", ".join(f"phase {p.phase} in {p.attempts}" for p in written.phases if p.attempts)
    lines = [f"written    by {written.lm}: {tries}", *(f"  {reason}" for reason in written.why)]
    if written.verified:
        return [*lines, VERIFIED]
    last = next((p.feedback[-1] for p in reversed(written.phases) if p.feedback and p.feedback[-1]), [])
    return ["no candidate passed: nothing was written", *(f"  {row}" for row in last), *lines]
