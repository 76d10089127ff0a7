"""Which iterations of a training loop are slow, and whether it is blocked: no one has to say what an iteration is.

The detector is generated (`specs/modules/iteration_detector.spec.md`); it finds the sequence of calls that repeats. A
watch fails open: where the detector is missing or raises, the loop goes on unwatched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pibroch.runtime.generated import load_generated

log = logging.getLogger("pibroch.watch")
REPEATS = 3  # identical sequences that make an iteration
LIMIT = 32  # calls in the longest iteration
WINDOW = 10  # durations that a slow one is compared with
MADS = 5  # PerfTracker's k


class Watch:
    """Watches one sequence of named operations. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._names: dict[str, int] = {}
        self._detector: Any = None
        self._works = True
        self.slow = 0  # iterations so far

    def record(self, name: str) -> str:
        """An operation begins. What the detector says of it; "" where there is none."""
        try:
            detector = self._load()
            if detector is None:
                return ""
            said = str(detector.record(self._names.setdefault(name, len(self._names)), self._now()))
        except Exception as error:  # a monitor never stops what it watches
            self._fail(error)
            return ""
        if said == "slow":
            self.slow += 1
            log.info("slow iteration: %d so far", self.slow)
        return said

    def blocked(self) -> bool:
        """Whether nothing has begun for more than five typical iterations."""
        try:
            detector = self._load()
            return detector is not None and bool(detector.blocked(self._now()))
        except Exception as error:
            self._fail(error)
            return False

    def _load(self) -> Any:
        if self._detector is None and self._works:
            made = load_generated("iteration_detector")
            self._detector = made.IterationDetector(REPEATS, LIMIT, WINDOW, MADS)
        return self._detector

    def _now(self) -> int:
        return int(self._clock() * 1e6)

    def _fail(self, error: Exception) -> None:
        self._detector, self._works = None, False
        log.warning("iterations are not watched: %s", error)
