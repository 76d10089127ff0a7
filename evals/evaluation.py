"""What became of one candidate on the evaluation ladder."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pibroch.evals.finding import Finding

Rung = Literal["verify", "simulate", "short", "paired"]
Verdict = Literal["invalid", "same", "unequal", "slower", "undecided", "faster"]


class Evaluation(BaseModel):
    """`rung` is the last one reached. `verdict`: refused before it ran (`invalid`), the incumbent's very plan (`same`),
    other numbers than the single process (`unequal`), or its speed against the incumbent's.

    `ratio` is speed over the incumbent's with its interval: paired where the rung is `paired`, simulated where
    `simulated` is True and that is all there is. Seconds: `simulated_s` a step in the simulator, `step_s` a measured
    step, `steps_s` spent in steps for this evaluation, `total_s` in all. `peak_bytes` of the fullest device.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    plan: str = ""
    rung: Rung
    verdict: Verdict
    reason: str
    simulated: bool = False
    emulated: bool = False
    simulated_s: float | None = None
    peak_bytes: int | None = None
    ratio: float | None = None
    lower: float | None = None
    upper: float | None = None
    pairs: int = 0
    step_s: float | None = None
    tokens_per_s: float | None = None
    steps_s: float = 0.0
    total_s: float = 0.0
    findings: tuple[Finding, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether it takes the incumbent's place."""
        return self.verdict == "faster"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return self.model_dump(mode="json")
