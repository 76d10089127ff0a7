"""What a run may use, and how it learns that it has used it up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pibroch.runtime.errors import InputError


@dataclass(frozen=True, slots=True)
class Budget:
    """`evaluations` of candidates; `seconds` of wall time in all sessions; `tokens` and `money` of language models."""

    evaluations: int = 40
    seconds: float | None = None
    tokens: int | None = None
    money: float | None = None

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise InputError(f"a budget has at least 1 evaluation, not {self.evaluations}")
        for name in ("seconds", "tokens", "money"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"a budget of {value} {name} allows nothing: give more, or leave it out")

    def spent(self, *, evaluations: int, seconds: float) -> str | None:
        """Why the run is over, or None. Tokens and money end the model's part of a run, not the run."""
        if evaluations >= self.evaluations:
            return f"budget: {self.evaluations} evaluations"
        if self.seconds is not None and seconds >= self.seconds:
            return f"budget: {self.seconds:g} s of wall time"
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
