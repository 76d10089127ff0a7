"""Says when training has slowed: a step is slow only against a full baseline that slow steps never join.

A monitor: it fails open. Where the generated modules are missing or faulty, it says nothing and training goes on.

A slowdown that is still there when the silence after its report ends is reported once more, and the newest steps become
the baseline: from then on the new level is the usual one.
"""

from __future__ import annotations

from typing import Any

from pibroch.runtime.generated import load_generated

WINDOW = 8  # steps of the baseline
DROP_PCT = 20
COOLDOWN = 8


class SlowdownMonitor:
    """Watches the tokens per second of one training run, step by step."""

    def __init__(self, *, window: int = WINDOW, drop_pct: int = DROP_PCT, cooldown: int = COOLDOWN) -> None:
        self.window, self.cooldown = window, cooldown
        self._trigger: Any = None
        self._since = 0  # steps since the last report; 0 before the first
        try:
            self._ring = load_generated("trace_ring", fresh=True)  # not that of another run in this process
            relies = {"trace_ring": self._ring}
            self._trigger = load_generated("anomaly_trigger", relies=relies).AnomalyTrigger(window, drop_pct, cooldown)
        except Exception:
            self._trigger = None

    def step(self, tokens: int, seconds: float) -> str | None:
        """Note one step. What to tell the user where training has slowed, else None."""
        if self._trigger is None:
            return None
        try:
            return self._step(round(tokens / max(seconds, 1e-9)))
        except Exception:
            self._trigger = None
            return None

    def _step(self, speed: int) -> str | None:
        self._ring.record(speed)
        usual = self._trigger.view()["base"]
        self._since += bool(self._since)
        if not self._trigger.observe(speed):
            return None
        mean = sum(usual) / len(usual)
        text = f"{speed:,} tokens/s: {1 - speed / mean:.0%} slower than the last {len(usual)} usual steps"
        if self._since == self.cooldown + 2:
            self._trigger.warm_up(self.window)
            text += "; taken as the usual speed from now on"
        self._since = 1
        return text
