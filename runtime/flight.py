"""What each stream of a device began last, for the message of a step that failed or passed its deadline.

A monitor: it fails open. Where the generated flight recorder is missing or faulty, nothing is recorded and steps run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from pibroch.runtime.generated import load_generated
from pibroch.runtime.program import Program
from pibroch.runtime.progress import Progress

KEPT = 8  # operations that a stream's recorder keeps
SHOWN = 3
LATE = 0.9  # of the deadline: a report is then written to this process's log, before the driver loses its patience


class FlightLog:
    """One recorder per stream of a program, for one step. As a context it watches the step: when it is late, and when
    it has failed, it says where each stream is."""

    def __init__(self, program: Program, progress: Progress, *, deadline: float) -> None:
        self._program, self._progress = program, progress
        self._timer = threading.Timer(LATE * deadline, self._late)
        self._timer.daemon = True
        self._recorders: dict[str, Any] = {}
        try:
            make = load_generated("flight_recorder").FlightRecorder
            self._recorders = {name: make(KEPT) for name in program.streams}
        except Exception:
            self._recorders = {}

    def recorder(self, stream: str) -> Callable[[int], object]:
        """What the stream's own thread calls with each task that it begins."""
        if stream not in self._recorders:
            return _nothing
        record: Callable[[int], object] = self._recorders[stream].record

        def note(task: int) -> None:
            try:
                record(task)
            except Exception:
                self._recorders = {}

        return note

    def report(self) -> str:
        """The last tasks that each stream began, those that have not ended marked, and what follows."""
        rows = [f"tasks begun last on device {self._program.device}:"]
        for name, recorder in self._recorders.items():
            begun: list[tuple[int, int]] = recorder.last(SHOWN)
            ids = self._program.streams[name]
            past = begun[-1][0] + 1 if begun else 0
            texts = [
                f"{self._program.tasks[task]}{'' if self._progress.ready([task]) else ' (not ended)'}"
                for _, task in begun
            ]
            following = f"next {self._program.tasks[ids[past]]}" if past < len(ids) else "no more"
            rows.append(f"  {name}: {', '.join(texts) or 'none'}; {following} ({past} of {len(ids)} begun)")
        return "\n".join(rows)

    def _late(self) -> None:
        with contextlib.suppress(Exception):
            print(self.report(), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if self._recorders:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._progress.failure is not None and self._recorders:
            with contextlib.suppress(Exception):
                self._progress.failure.add_note(self.report())


def named(error: BaseException) -> BaseException:
    """The error itself; where it comes out of a generated module, one that names the module."""
    trace = error.__traceback__
    while trace is not None:
        name: str = trace.tb_frame.f_globals.get("__name__", "")
        if name.startswith("pibroch.generated."):
            found = RuntimeError(f"generated module {name.rpartition('.')[2]}: {type(error).__name__}: {error}")
            found.__cause__ = error
            return found
        trace = trace.tb_next
    return error


def _nothing(_: int) -> None:
    """The recorder of a process that has none."""
