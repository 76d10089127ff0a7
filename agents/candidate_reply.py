"""From a reply's fenced block to a schedule: JSON as it is, Python through the sandbox."""

from __future__ import annotations

import json
from typing import Any

from pibroch.agents.feedback import Feedback
from pibroch.agents.lm.base import ReplyError, fenced_block
from pibroch.evals.sandbox import SandboxError, run_sandboxed
from pibroch.runtime.directives import Schedule, parse_schedule, schedule_from
from pibroch.runtime.errors import InputError

MAX_SHOWN = 6000


class Infeasible(Exception):
    """Phase 2 says that the placement rules the intent out; the message is for phase 1."""


def read_reply(text: str, *, phase: int, placement: Schedule | None) -> tuple[Schedule | None, list[Feedback]]:
    """The schedule, or what is wrong with the reply. Raises `Infeasible`, and `MissingError` without a sandbox."""
    try:
        language, body = fenced_block(text)
    except ReplyError as error:
        return None, [Feedback("FORMAT", "", str(error))]
    try:
        if language == "python":
            args: list[Any] = [] if phase == 1 or placement is None else [placement.to_json()["directives"]]
            return schedule_from(run_sandboxed(body, call="schedule", args=args), source="schedule()"), []
        if phase == 2 and (why := _infeasible(body)):
            raise Infeasible(why)
        return parse_schedule(body, source="the JSON block"), []
    except (InputError, SandboxError) as error:
        return None, [Feedback("FORMAT", "", str(error))]


def _infeasible(body: str) -> str | None:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(data, dict) and set(data) == {"placement_infeasible"}:
        return str(data["placement_infeasible"]).strip()[:2000] or "no reason given"
    return None


def shown(text: str) -> str:
    """A previous reply for the next prompt; the middle of a very long one is left out."""
    if len(text) <= MAX_SHOWN:
        return text
    half = MAX_SHOWN // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
