"""`pibroch lower`: the plan, or what it looks like after one of the compiler's passes."""

from __future__ import annotations

from typing import Annotated

import typer

from pibroch.cli.common import Json, Model, ScheduleFile, finish
from pibroch.runtime.words import count

NAME = "lower"


def command(
    schedule: ScheduleFile,
    model: Model = None,
    after: Annotated[
        str | None, typer.Option("--after", help="Stop after this pass and print the DAG.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the plan of a schedule, or the DAG after one pass."""
    from pibroch.cli.loading import load_model, load_schedule_named, lower_named
    from pibroch.runtime.errors import InputError
    from pibroch.runtime.lower import PASS_NAMES, lower_after

    if after is not None and after not in PASS_NAMES:
        raise InputError(f"--after {after}: no such pass; the passes are {', '.join(PASS_NAMES)}")
    parsed = load_schedule_named(schedule)
    spec = load_model(model).spec
    plan = lower_named(schedule, parsed, spec)
    if after is None:
        text = "\n".join(
            f"{device} {stream}: {' '.join(str(plan.tasks[i]) for i in ids)}"
            for device, streams in sorted(plan.streams.items())
            for stream, ids in streams.items()
        )
        size = f"{count(plan.devices, 'device')}, {len(plan.tasks)} tasks, {len(plan.buffers)} buffers"
        head = f"plan {plan.hash()}: {size}"
        finish({"ok": True, "hash": plan.hash(), "plan": plan.to_json()}, [head, text], as_json=as_json)
    else:
        text = lower_after(parsed, spec, after)
        finish({"ok": True, "after": after, "dag": text.splitlines()}, text, as_json=as_json)
