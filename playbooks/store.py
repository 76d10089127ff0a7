"""The store: a playbook file, and beside it the history of every change.

    playbook.json     the present playbook, always whole (replaced atomically)
    history.jsonl     one line per commit or undo, written and synced before the playbook is replaced

A line of the history holds what changed, so it is both the log that a killed writer's commit is completed from and the
inverse that `undo` applies. Writers take turns under a lock of the operating system, which dies with its holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from pibroch.playbooks.deltas import CheckEdit, apply
from pibroch.playbooks.model import Bullet, Delta, Outcome, Playbook
from pibroch.playbooks.similar import Judge
from pibroch.runtime.errors import InputError
from pibroch.runtime.files import check_writable, explain, write_atomically

SHIPPED = Path(__file__).resolve().parent / "shipped.json"
NAME = "playbook.json"
_DELTA: TypeAdapter[Delta] = TypeAdapter(Delta)


class Change(BaseModel):
    """One bullet before and after (None: it was not there). `at`: its place among the bullets where it is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    before: Bullet | None = None
    after: Bullet | None = None
    at: int


class Entry(BaseModel):
    """A line of the history. `undoes` names the entry that an undo took back; `before` and `after` are digests."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    seq: int
    why: str
    undoes: int | None = None
    deltas: tuple[dict[str, Any], ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    before: str
    after: str
    next_id: int
    changes: tuple[Change, ...] = ()
    at: float


@dataclass(frozen=True, slots=True)
class Store:
    """A playbook on disk. `base` is what is read until the first commit, which then writes it whole to `path`."""

    path: Path
    base: Path | None = None

    @property
    def log(self) -> Path:
        """The history's file."""
        name = "history.jsonl" if self.path.name == NAME else f"{self.path.stem}.history.jsonl"
        return self.path.with_name(name)

    def load(self) -> Playbook:
        """The present playbook; an empty one where there is none yet. Raises `InputError`."""
        for path in (self.path, self.base):
            if path is not None and path.is_file():
                return read(path)
        return Playbook()

    def commit(
        self,
        deltas: Sequence[Delta | Mapping[str, Any]],
        *,
        why: str,
        check_edit: CheckEdit | None = None,
        judge: Judge | None = None,
    ) -> list[Outcome]:
        """Apply deltas (`deltas.apply`) and write the result. What was refused is in the outcomes and the history."""
        with self._locked() as entries:
            old = self.load()
            new, outcomes = apply(old, deltas, check_edit=check_edit, judge=judge)
            rows = tuple(_plain(delta) for delta in deltas)
            self._write(old, new, entries, why=why, deltas=rows, outcomes=tuple(outcomes))
        return outcomes

    def undo(self) -> Entry:
        """Take back the latest commit that stands; again, the one before. Returns it.

        Ids that it gave stay used. Raises `InputError` where nothing is left, or the file was changed by hand since.
        """
        with self._locked() as entries:
            entry = standing(entries)[-1:]
            if not entry:
                raise InputError(f"{self.log}: nothing is left to undo")
            old = self.load()
            if digest(old) != entry[0].after:
                raise InputError(f"{self.path} was changed by hand since commit {entry[0].seq}: undo would lose that")
            new = Playbook(next_id=old.next_id, bullets=_reverted(old.bullets, entry[0].changes))
            assert digest(new) == entry[0].before
            self._write(old, new, entries, why=f"undo of {entry[0].seq}", undoes=entry[0].seq)
        return entry[0]

    def history(self) -> list[Entry]:
        """Every commit and undo, the oldest first. A line that a killed writer left unfinished is none."""
        return self._read_log()[0]

    def _write(self, old: Playbook, new: Playbook, entries: list[Entry], *, why: str, **more: Any) -> None:
        changes = tuple(_changes(old.bullets, new.bullets))
        entry = Entry(
            seq=entries[-1].seq + 1 if entries else 1,
            why=why,
            before=digest(old),
            after=digest(new),
            next_id=new.next_id,
            changes=changes,
            at=round(time.time(), 3),
            **more,
        )
        text = dumps(new)
        with _file_errors(self.log), open(self.log, "ab") as log:
            start = log.tell()
            try:
                log.write((entry.model_dump_json() + "\n").encode())
                log.flush()
                os.fsync(log.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # a full disk: no half line stays
                    os.truncate(self.log, start)
                raise
        try:
            write_atomically(self.path, text)
        except InputError:
            os.truncate(self.log, start)
            raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[list[Entry]]:
        """The history, while no other writer is at work and what a killed one left is completed."""
        check_writable(self.path)
        with _file_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            entries, good = self._read_log()
            if self.log.exists() and self.log.stat().st_size > good:
                os.truncate(self.log, good)
            if entries:
                self._complete(entries[-1])
            yield entries
        finally:
            os.close(handle)  # gives the lock back

    def _complete(self, entry: Entry) -> None:
        """A writer was killed between its line in the history and the playbook: write the playbook."""
        old = self.load()
        if digest(old) == entry.before != entry.after:
            new = Playbook(next_id=max(entry.next_id, old.next_id), bullets=_applied(old.bullets, entry.changes))
            assert digest(new) == entry.after
            write_atomically(self.path, dumps(new))

    def _read_log(self) -> tuple[list[Entry], int]:
        """The entries, and the length of the part of the file that is whole."""
        try:
            raw = self.log.read_bytes()
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise InputError(f"{self.log}: cannot be read: {error.strerror}") from error
        good = raw.rfind(b"\n") + 1
        entries = []
        for number, line in enumerate(raw[:good].splitlines(), 1):
            try:
                entries.append(Entry.model_validate_json(line))
            except ValidationError as error:
                raise InputError(f"{self.log}, line {number}: not an entry of a history: move the file away") from error
        return entries, good


def of_project(root: Path) -> Store:
    """The store of a project: its `playbooks/playbook.json`, over the shipped one until the first commit."""
    return Store(root / "playbooks" / NAME, base=SHIPPED)


def open_store(layers: Sequence[Path]) -> Store:
    """What a project's layers of playbooks hold: the first folder's `playbook.json`, or the shipped one. To read."""
    return Store(layers[0] / NAME, base=SHIPPED) if layers else Store(SHIPPED)


def standing(entries: Sequence[Entry]) -> list[Entry]:
    """The commits that no undo took back and that changed something, the oldest first."""
    undone = {entry.undoes for entry in entries}
    return [e for e in entries if e.undoes is None and e.seq not in undone and e.changes]


def read(path: Path) -> Playbook:
    """A playbook file. Raises `InputError` that names the file and the field."""
    try:
        return Playbook.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        row = error.errors()[0]
        place = ".".join(map(str, row["loc"]))
        raise InputError(f"{path}: not a playbook: {f'{place}: ' if place else ''}{row['msg']}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a playbook: it is not UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def dumps(playbook: Playbook) -> str:
    """The text of a playbook file."""
    return json.dumps(playbook.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def digest(playbook: Playbook) -> str:
    """Names the bullets with all that they hold; not `next_id`, which an undo leaves."""
    rows = [bullet.model_dump(mode="json") for bullet in playbook.bullets]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def _changes(old: Sequence[Bullet], new: Sequence[Bullet]) -> Iterator[Change]:
    """Deltas keep the order of what stays and add at the end, so a removed bullet's old place is enough."""
    after = {b.id: b for b in new}
    before = {b.id for b in old}
    for at, bullet in enumerate(old):
        if after.get(bullet.id) != bullet:
            yield Change(before=bullet, after=after.get(bullet.id), at=at)
    for at, bullet in enumerate(new):
        if bullet.id not in before:
            yield Change(after=bullet, at=at)


def _reverted(bullets: Sequence[Bullet], changes: Sequence[Change]) -> tuple[Bullet, ...]:
    return _swapped(bullets, [(c.after, c.before, c.at) for c in changes])


def _applied(bullets: Sequence[Bullet], changes: Sequence[Change]) -> tuple[Bullet, ...]:
    return _swapped(bullets, [(c.before, c.after, c.at) for c in changes])


def _swapped(bullets: Sequence[Bullet], rows: Sequence[tuple[Bullet | None, Bullet | None, int]]) -> tuple[Bullet, ...]:
    gone = {old.id for old, new, _ in rows if old and not new}
    other = {new.id: new for old, new, _ in rows if old and new}
    result = [other.get(b.id, b) for b in bullets if b.id not in gone]
    for at, new in sorted(((at, new) for old, new, at in rows if new and not old), key=lambda row: row[0]):
        result.insert(at, new)
    return tuple(result)


def _plain(delta: Delta | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(delta, BaseModel):
        return delta.model_dump(mode="json", exclude_defaults=False)
    data = json.loads(json.dumps(dict(delta), default=str))
    assert isinstance(data, dict)
    return data


@contextlib.contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {explain(error)}") from error
