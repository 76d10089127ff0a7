"""Typed feedback: what was wrong with a candidate, by rule and place. The same everywhere: no clock, no paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Feedback:
    """`rule`: V1 to V9 (the verifier's), FORMAT (the reply), PHASE (a field of the other phase), INTENT (a number or
    word of the sentence), BUBBLE and INFLIGHT (the simulator's), JUDGE. `where` names a directive, device or task."""

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.where}: {self.message}" if self.where else f"[{self.rule}] {self.message}"


def as_text(rows: Sequence[Feedback]) -> str:
    """One bullet per finding; long lists are cut and say so."""
    lines = [f"- {row}" for row in rows[:MAX_SHOWN]]
    if len(rows) > MAX_SHOWN:
        lines.append(f"- ... and {len(rows) - MAX_SHOWN} more")
    return "\n".join(lines)
