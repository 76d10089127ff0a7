"""A session whose child may use only so much processor time per request.

The deadline of a session is by the clock, and generous, since a machine may be busy; an endless loop would cost all of
it each time. Processor time is the child's own, so it can be short: honest calls take milliseconds.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import Any

from pibroch.evals.speceval.session import Session, SessionEnded

CPU_S = 1.0
_SLICE_MS = 30


class BoundedSession(Session):
    """As `Session`; raises `SessionEnded` too where one request takes more than `cpu_s` of the child's processor."""

    def __init__(self, *args: Any, cpu_s: float = CPU_S, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cpu_s = cpu_s

    def _wait(self, poller: select.poll, ends: float) -> None:
        if poller.poll(_SLICE_MS):
            return
        begun = self._used()
        while not poller.poll(_SLICE_MS):
            if self._used() - begun > self.cpu_s or time.monotonic() > ends:
                self.kill()
                raise SessionEnded("the code does not end: its time is over")

    def _used(self) -> float:
        """Seconds of processor time of the child so far."""
        child = self._child
        try:
            text = Path(f"/proc/{child.pid if child else 0}/stat").read_text()
        except OSError:
            return 0.0
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
