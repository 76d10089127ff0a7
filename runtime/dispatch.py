"""The order in which one device's communication streams launch what is ready: the generated dispatcher, by stream name.

A stream announces a task when the last event that it waits for comes (whoever brings the event announces for it, before
anybody who waits goes on), and then launches it: of all that is announced sends go first, then receives, then
reductions. Nothing that may launch waits for something that may not, so a plan that verifies cannot hang here: a send
always may, a receive waits for announced sends alone, and a reduction for what may itself launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pibroch.runtime.generated import load_generated
from pibroch.runtime.program import Program
from pibroch.runtime.progress import Progress, Stopped

_KINDS = {"SEND": 0, "RECV": 1}
_REDUCTION = 2


class Dispatch:
    """The dispatcher of one step. Raises `InputError` where the generated module is missing."""

    def __init__(self, program: Program, progress: Progress) -> None:
        self._progress = progress
        names = [name for name, ids in program.streams.items() if name != "compute" and ids]
        kinds = [_KINDS.get(program.tasks[program.streams[name][0]].op, _REDUCTION) for name in names]
        self._number = {name: s for s, name in enumerate(names)}
        # One receive is waited for, and `recv_window` more may be posted ahead of it.
        self._gate: Any = load_generated("comm_dispatcher").CommDispatcher(kinds, program.recv_window + 1)

    def stream(self, name: str) -> Stream:
        """What the thread of one stream uses."""
        return Stream(self._gate, self._number[name], self._progress)


class Stream:
    """One stream's side of the dispatcher."""

    def __init__(self, gate: Any, number: int, progress: Progress) -> None:
        self._gate, self._number, self._progress = gate, number, progress
        self.announce: Callable[[], None] = partial(gate.announce, number)

    def launch(self) -> None:
        """Wait for this stream's turn. Raises `Stopped` after a failure elsewhere."""
        self._gate.launch(self._number)
        if self._progress.failure is not None:
            raise Stopped

    def land(self) -> None:
        """A receive has come."""
        self._gate.land(self._number)

    @property
    def room(self) -> bool:
        """Whether the receive window has room."""
        return bool(self._gate.room(self._number))
