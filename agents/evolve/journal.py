"""The journal of a run: append-only, one JSON object a line, and the truth.

A run is a deterministic program around a few effects (measurements, replies of a model). Every step it takes goes
through `Journal.once`: in a new run it is carried out and appended; in a resumed one the program starts again from its
seed, and what the journal holds is handed out instead of being done again. Lines of `NOTES` are for readers alone.

A line is written with one `write` and synced before the program goes on, so that a kill leaves at most one torn line,
which the next opening cuts off.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pibroch.runtime.errors import InputError
from pibroch.runtime.files import explain

NOTES = ("end", "resume", "confirm", "learned", "applied")
TIMES = ("n", "at", "spent_s")  # differ from session to session

Record = dict[str, Any]


class Journal:
    """One run's journal, held by one process at a time. `listener` sees every line, those handed out again too; `told`
    is what a resumed run is told anew, for its note."""

    def __init__(
        self, path: Path, *, listener: Callable[[Record], None] = lambda record: None, told: Record | None = None
    ) -> None:
        self.path, self.listener, self._told = path, listener, told or {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise InputError(f"{path}: {explain(error)}") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            raise InputError(f"{path.parent}: another process is at work on this run") from None
        try:
            records = read_journal(path)
            os.ftruncate(self._handle, _whole_bytes(path))
        except BaseException:
            os.close(self._handle)
            raise
        self._count = len(records)
        self._left = [r for r in records if r["kind"] not in NOTES][::-1]
        self._resumed = bool(records)
        self._spent = max((float(r.get("spent_s", 0.0)) for r in records), default=0.0)
        self._begun = time.monotonic()

    @property
    def replaying(self) -> bool:
        """Whether there is still something to hand out."""
        return bool(self._left)

    @property
    def spent_s(self) -> float:
        """Seconds that this run has taken in all its sessions."""
        return self._spent + time.monotonic() - self._begun

    def once(self, kind: str, key: Record, make: Callable[[], Record] = dict) -> Record:
        """The next step of the run: `key` says what it is, `make` does it and returns what came of it.

        Raises `InputError` where the journal says that another step was taken here.
        """
        assert kind not in NOTES, kind
        assert not set(TIMES) & key.keys(), key
        if self._left:
            record = self._left.pop()
            wanted = json.loads(json.dumps({"kind": kind, **key}))
            found = {name: record.get(name) for name in wanted}
            if found != wanted:
                raise InputError(
                    f"{self.path}, line {record['n'] + 1}: the run cannot be resumed, since its program or its options "
                    f"have changed: the journal has {_short(found)} where there would now be {_short(wanted)}"
                )
            self.listener(record)
            return record
        made = make()
        if self._resumed:  # noted with the first step that is new: a run that cannot go on is left as it was
            self._resumed = False
            self.note("resume", self._told)
        return self._append({"kind": kind, **key, **made})

    def note(self, kind: str, fields: Record) -> None:
        """A line for readers."""
        assert kind in NOTES, kind
        self._append({"kind": kind, **fields})

    def close(self) -> None:
        """Give the run up to others. Safe to call twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _append(self, fields: Record) -> Record:
        count = self._count
        record = {"n": count, **fields, "at": round(time.time(), 3), "spent_s": round(self.spent_s, 3)}
        line = json.dumps(record, allow_nan=False) + "\n"
        size = os.fstat(self._handle).st_size
        try:
            left = memoryview(line.encode())
            while left:
                left = left[os.write(self._handle, left) :]
            self._count = count + 1
            os.fsync(self._handle)
        except BaseException as error:  # Ctrl-C as well: a line that its writer does not know of would come twice
            self._count = count
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, size)
            if isinstance(error, OSError):
                raise InputError(f"{self.path}: {explain(error)}") from error
            raise
        again: Record = json.loads(line)  # what a resumed run would see: tuples as lists
        self.listener(again)
        return again


def read_journal(path: Path) -> list[Record]:
    """All whole lines. A torn last line is left out. Raises `InputError` for anything else that is no journal."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read the journal: {error.strerror}") from error
    lines = raw[: raw.rfind(b"\n") + 1].splitlines()
    records = []
    for number, line in enumerate(lines):
        try:
            record = json.loads(line)
            if record["n"] != number or not isinstance(record["kind"], str):
                raise ValueError("its number or kind is wrong")
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number + 1}: not a line of a journal: {error}") from error
        records.append(record)
    return records


def _whole_bytes(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1


def _short(data: Record) -> str:
    text = json.dumps(data, sort_keys=True)
    return text if len(text) <= 300 else text[:300] + "…"
