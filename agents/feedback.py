"""Typed feedback: what was wrong with a candidate, by rule and place. The same everywhere: no clock, no paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Feedback:
    """`rule`: V1 to V9 (the verifier's), FORMAT (the reply), PHASE (a field of the other phase), INTENT (a number or
    word of the sentence), BUBBLE and INFLIGHT (the simulator's), JUDGE. `where` names a directive, device or task.
    `advice` is what a family usually does, said about a sentence with words that no check covers: these may ask for
    something else, so a writer who repeats the schedule is believed."""

    rule: str
    where: str
    message: str
    advice: bool = False

    def __str__(self) -> str:
        text = f"[{self.rule}] {self.where}: {self.message}" if self.where else f"[{self.rule}] {self.message}"
        return f"{text} (advice: where the sentence asks for just this, send it again)" if self.advice else text

    @property
    def subject(self) -> str:
        """What the finding is about, without the numbers of one candidate."""
        return self.rule if self.rule in ("BUBBLE", "INFLIGHT") else f"{self.rule} {self.message}"


def as_text(rows: Sequence[Feedback]) -> str:
    """One bullet per finding; long lists are cut and say so."""
    lines = [f"- {row}" for row in rows[:MAX_SHOWN]]
    if len(rows) > MAX_SHOWN:
        lines.append(f"- ... and {len(rows) - MAX_SHOWN} more")
    return "\n".join(lines)
