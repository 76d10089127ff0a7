"""Findings: why a step took as long as it did, one typed and evidenced cause each."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Finding(BaseModel):
    """One cause. `seconds` is the time per step that it costs (0 where it is about memory), `share` that over the step.

    `origin` is where the remedy lies: in the schedule, or in the machine. `tasks` are ids of the plan's tasks that show
    it, the most telling first (a few). `directive` is the index in the schedule's directives that it points at.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: str
    origin: Literal["schedule", "machine"]
    seconds: float = 0.0
    share: float = 0.0
    device: int | None = None
    stage: int | None = None
    tasks: tuple[int, ...] = ()
    directive: int | None = None
    numbers: dict[str, Any] = {}
    text: str
