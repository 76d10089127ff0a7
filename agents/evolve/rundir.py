"""The folder of a run.

journal.jsonl       what happened, in order: the truth (`journal.py`)
schedules/H.json    every schedule that was proposed, by its hash
traces/H.json       a step of schedule H as it ran, where one was traced
playbook.json       the playbook as the run began with it
learned.json        the playbook as it ended
best.json           the schedule that the run found, once it has ended
result.json         what `--json` printed at the end
report.html         the run to look at
STOP                makes the run end after the present evaluation; a user creates it
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pibroch.agents.evolve.design import schedule_hash
from pibroch.agents.evolve.journal import read_journal
from pibroch.agents.lm.base import digest
from pibroch.runtime.directives import Schedule, load_schedule, schedule_text
from pibroch.runtime.errors import InputError
from pibroch.runtime.files import check_writable, write_atomically
from pibroch.runtime.plan import Plan
from pibroch.runtime.trace import Event, Trace


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of one run."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def playbook(self) -> Path:
        return self.path / "playbook.json"

    @property
    def learned(self) -> Path:
        return self.path / "learned.json"

    @property
    def best(self) -> Path:
        return self.path / "best.json"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def stopped(self) -> bool:
        """Whether a user has asked the run to end."""
        return (self.path / "STOP").exists()

    def begin(self) -> None:
        """Raises `InputError` where the folder holds a run already, or cannot be written to."""
        if self.journal.exists() and read_journal(self.journal):  # a torn first line is no run
            raise InputError(
                f"{self.path} holds a run already: go on with --resume {self.path}, or name another folder"
            )
        check_writable(self.journal)

    def go_on(self) -> None:
        """Forget how the run had ended: it goes on now."""
        for path in (self.path / "STOP", self.result):
            path.unlink(missing_ok=True)

    def check_resumable(self) -> None:
        """Raises `InputError` where there is no run to go on with."""
        if not self.journal.exists():
            raise InputError(f"{self.path} holds no run: there is no {self.journal.name} in it")

    def save(self, schedule: Schedule) -> str:
        """Keep a schedule; returns its hash."""
        key = schedule_hash(schedule)
        path = self.path / "schedules" / f"{key}.json"
        if not path.exists():
            write_atomically(path, schedule_text(schedule))
        return key

    def load(self, key: str) -> Schedule:
        """A kept schedule. Raises `InputError` where the file is not what was kept."""
        path = self.path / "schedules" / f"{key}.json"
        schedule = load_schedule(path)
        if schedule_hash(schedule) != key:
            raise InputError(f"{path}: its content has another hash: it was changed after the run")
        return schedule

    def save_trace(self, key: str, trace: Trace) -> None:
        """Keep a step of a kept schedule as it ran."""
        row = {"tasks": _order(trace.plan), "emulated": trace.emulated, "events": trace.events}
        write_atomically(self.path / "traces" / f"{key}.json", json.dumps(row, separators=(",", ":")) + "\n")

    def load_trace(self, key: str, plan: Plan) -> Trace | None:
        """What was kept of that schedule; None where there is nothing, or where its tasks are others."""
        try:
            row = json.loads((self.path / "traces" / f"{key}.json").read_text(encoding="utf-8"))
            if row["tasks"] != _order(plan):
                return None
            return Trace(plan, [Event(*event) for event in row["events"]], bool(row["emulated"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _order(plan: Plan) -> str:
    """Equal where tasks and their order are: an emulated plan and the one that workers run differ in bytes alone."""
    tasks = [[t.op, t.device, t.stream, t.stage, t.part, t.mb, t.replica, t.bucket, t.waits] for t in plan.tasks]
    return digest([tasks, {str(device): streams for device, streams in plan.streams.items()}])
