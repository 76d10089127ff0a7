# Generated from anomaly_trigger.spec.md, version 5. Edit the spec, not this file.
import threading

import trace_ring


class AnomalyTrigger:
    """INV1: always len(self.base) <= self.window and 0 <= self.quiet <= self.cooldown
    """

    def __init__(self, window: int, drop_pct: int, cooldown: int) -> None:
        """Given window >= 1 and 1 <= drop_pct <= 99 and cooldown >= 1
        P0: ensure (self.window, self.drop_pct, self.cooldown, self.base, self.quiet) == (window, drop_pct, cooldown, [], 0)
        """
        self.window = window
        self.drop_pct = drop_pct
        self.cooldown = cooldown
        self.base: list[int] = []
        self.quiet = 0
        self.lock = threading.Lock()

    def view(self) -> dict[str, object]:
        with self.lock:
            return {"window": self.window, "drop_pct": self.drop_pct, "cooldown": self.cooldown, "base": list(self.base), "quiet": self.quiet}

    def observe(self, tput: int) -> bool:
        """Given tput >= 0
        P1: ensure implies(low(old, tput), self.base == old.base)
        P2: ensure implies(not low(old, tput), self.base == (old.base + [tput])[-self.window:])
        P3: return (low(old, tput) and old.quiet == 0)
        P4: ensure self.quiet == (self.cooldown if result else max(old.quiet - 1, 0))
        Change no other field than base, quiet
        """
        with self.lock:
            full = len(self.base) == self.window
            slow = full and tput * 100 * self.window < sum(self.base) * (100 - self.drop_pct)
            fires = slow and self.quiet == 0
            if not slow:
                self.base = (self.base + [tput])[-self.window:]
            if fires:
                self.quiet = self.cooldown
            else:
                self.quiet = max(self.quiet - 1, 0)
            return fires

    def set_drop_pct(self, pct: int) -> None:
        """Given 1 <= pct <= 99
        P5: ensure self.drop_pct == pct
        Change no other field than drop_pct
        """
        with self.lock:
            self.drop_pct = pct

    def warm_up(self, n: int) -> None:
        """Given n >= 1
        P6: ensure self.base == trace_ring.last(n)[-self.window:]
        Change no other field than base
        """
        newest = trace_ring.last(n)[-self.window:]
        with self.lock:
            self.base = newest
