"""`generated/lock.json`: which spec, prompts and model made each generated file, and what the judge said of it.

Nothing in it depends on the clock or the machine, so a replayed conversation writes the same lock. The runtime reads
`source_sha256` and `rely` (`runtime/generated.py`); people and `pibroch regenerate --check` read the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pibroch.agents.prompt_files import prompt_hashes
from pibroch.runtime.errors import InputError
from pibroch.runtime.files import write_atomically
from pibroch.runtime.generated import LOCK_FILE, LOCK_VERSION, Kind
from pibroch.specs.model import Spec
from pibroch.specs.store import semantic_hash

DriftKind = Literal["spec", "hand edit", "missing", "no spec", "prompt"]
Reviewed = Literal["passed", "not reviewed"]


class LockEntry(BaseModel):
    """One generated file. `attempts` counts the tries of each writer: "phase 1, sample 0" and so on; `verdicts` maps a
    clause to the judge's word; `prompts` a prompt file's name to its hash; `rely` are the modules that it imports."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spec_version: int
    spec_hash: str
    rely: list[str]
    prompts: dict[str, str]
    model: str
    who: str
    attempts: dict[str, int]
    verdicts: dict[str, str]
    review: Reviewed
    source_sha256: str


@dataclass(frozen=True, slots=True)
class Drift:
    """What no longer fits together. A `prompt` drift is a warning: the module is proved all the same."""

    module: str
    kind: DriftKind
    message: str

    @property
    def error(self) -> bool:
        return self.kind != "prompt"


def kind_of(spec: Spec) -> Kind:
    """Where a spec's code goes, by the folder of the spec: `specs/schedules/…` or else modules."""
    rooms = [part for part in spec.path.parts[:-1] if part in ("modules", "schedules")]
    return "schedules" if rooms and rooms[-1] == "schedules" else "modules"


def key_of(spec: Spec) -> str:
    """`modules/NAME` or `schedules/NAME`: its key in the lock and, with `.py`, its path in the folder."""
    return f"{kind_of(spec)}/{spec.module}"


def sha256(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


def read_lock(folder: Path) -> dict[str, LockEntry]:
    """The entries of a folder's lock by key; none where there is no lock. Raises `InputError`."""
    path = folder / LOCK_FILE
    remedy = "mend it, or remove it and run `pibroch regenerate --all`"
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}; {remedy}") from error
    if not isinstance(data, dict) or data.get("version") != LOCK_VERSION or not isinstance(data.get("entries"), dict):
        raise InputError(f"{path}: this pibroch reads locks of version {LOCK_VERSION}; {remedy}")
    entries = {}
    for key, row in data["entries"].items():
        try:
            entries[key] = LockEntry.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, (key, *first["loc"])))
            raise InputError(f"{path}: {where}: {first['msg']}; {remedy}") from error
    return entries


def write_generated(folder: Path, spec: Spec, source: str, entry: LockEntry) -> Path:
    """Put a module and its lock entry in place together, or leave what was there. Raises `InputError`."""
    assert entry.source_sha256 == sha256(source)
    path = folder / f"{key_of(spec)}.py"
    with _locked(folder):
        entries = read_lock(folder)
        entries[key_of(spec)] = entry
        old = path.read_bytes() if path.exists() else None
        write_atomically(path, source)
        try:
            _write(folder, entries)
        except BaseException:
            if old is None:
                path.unlink()
            else:
                write_atomically(path, old)
            raise
    return path


def drift(specs: Mapping[str, Spec], folder: Path) -> list[Drift]:
    """How the files of `folder`, its lock, the specs and today's prompts differ. Raises `InputError`."""
    entries = read_lock(folder)
    known = {key_of(spec): spec for spec in specs.values()}
    rows: list[Drift] = []
    for key, spec in known.items():
        rows += _drift_of(spec, entries.get(key), folder / f"{key}.py")
    for kind in ("modules", "schedules"):
        for path in sorted((folder / kind).glob("*.py")):
            key = f"{kind}/{path.stem}"
            if key not in known and path.stem != "__init__":
                why = "no spec describes it" if key in entries else "neither a spec nor the lock knows it"
                rows.append(Drift(path.stem, "no spec", f"generated/{key}.py: {why}: remove it, or write its spec"))
    return rows


def _drift_of(spec: Spec, entry: LockEntry | None, path: Path) -> Iterator[Drift]:
    name, file = spec.module, f"generated/{key_of(spec)}.py"
    remedy = f"`pibroch regenerate {name}`"
    if not path.is_file():
        yield Drift(name, "missing", f"{file} does not exist: {remedy} writes it")
        return
    if entry is None:
        yield Drift(name, "hand edit", f"{file} is unknown to {LOCK_FILE}, so nobody proved it: {remedy}")
        return
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry.source_sha256:
        yield Drift(name, "hand edit", f"{file} was edited by hand: edit {spec.path.name} instead, and {remedy}")
    if semantic_hash(spec) != entry.spec_hash:
        was = f"version {entry.spec_version}" if entry.spec_version != spec.front.version else "an earlier text"
        yield Drift(name, "spec", f"{spec.path} has changed since {file} was made from {was}: {remedy}")
    now = prompt_hashes(entry.prompts)
    changed = sorted(prompt for prompt, value in entry.prompts.items() if now.get(prompt) != value)
    if changed:
        yield Drift(name, "prompt", f"{file} was made with another wording of {', '.join(changed)}")


def _write(folder: Path, entries: Mapping[str, LockEntry]) -> None:
    rows = {key: entries[key].model_dump() for key in sorted(entries)}
    text = json.dumps({"version": LOCK_VERSION, "entries": rows}, indent=1, ensure_ascii=False)
    write_atomically(folder / LOCK_FILE, text + "\n")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two runs of `regenerate` write one lock: each reads and writes it as one step. The lock goes with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
