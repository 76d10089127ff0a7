"""What one measured edit taught: the reflector's result and the curator's input."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pibroch.evals.evaluation import Evaluation
from pibroch.evals.ladder import Scores

Effect = Literal["helped", "hurt", "nothing"]

PITFALLS = "pitfalls"  # the section of warnings: a bullet in it names the edit to avoid

# The simulator is exact about its costs, not about the machine: differences below this are none.
SIMULATED_MARGIN = 0.01


class Lesson(BaseModel):
    """One edit that was applied alone to the incumbent, and what came of it.

    `edit` has relative parameters where it can; None where it says nothing beyond that one schedule. `ratio` is speed
    over the incumbent's, with its interval where there is one. `evidence` is `run:<id>#<evaluation>`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    text: str = Field(min_length=1, max_length=600)
    section: str
    applies_when: dict[str, str] = {}
    edit: dict[str, Any] | None = None
    effect: Effect
    ratio: float | None = None
    lower: float | None = None
    upper: float | None = None
    evidence: str


def effect_of(evaluation: Evaluation, *, scores: Scores) -> Effect | None:
    """What an evaluation says of the speed; None where it says nothing.

    Measured: the interval decides, and a figure without one (or of the simulator alone) says nothing. Other scores: the
    ratio decides, beyond `SIMULATED_MARGIN`. The incumbent's very plan is known to change nothing.
    """
    if evaluation.verdict == "same":
        return "nothing"
    if evaluation.verdict in ("invalid", "unequal") or evaluation.ratio is None:
        return None
    if scores != "measured":
        lower, upper = evaluation.ratio - SIMULATED_MARGIN, evaluation.ratio + SIMULATED_MARGIN
    elif evaluation.simulated or evaluation.lower is None or evaluation.upper is None:
        return None
    else:
        lower, upper = evaluation.lower, evaluation.upper
    return "helped" if lower > 1 else "hurt" if upper < 1 else "nothing"
