"""Regenerating modules: which ones, in which order, and what is written where."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pibroch.agents.lm.base import LanguageModel
from pibroch.agents.lock import Drift, drift, key_of, read_lock, sha256, write_generated
from pibroch.agents.module_writer import (
    Compare,
    Judge,
    Written,
    default_compare,
    default_judge,
    file_text,
    write_module,
)
from pibroch.evals.speceval.verdict import Finding
from pibroch.runtime.errors import InputError
from pibroch.specs.model import Spec
from pibroch.specs.store import closure, order


@dataclass(frozen=True, slots=True)
class Shelf:
    """The folders of generated files: `own` is written to, and `layers` (the own one first) are read."""

    own: Path
    layers: Sequence[Path]

    def source(self, spec: Spec) -> str | None:
        """The accepted code of a module: a file that its lock vouches for."""
        for folder in self.layers:
            path = folder / f"{key_of(spec)}.py"
            if path.is_file():
                entry = read_lock(folder).get(key_of(spec))
                text = path.read_text(encoding="utf-8")
                return text if entry is not None and entry.source_sha256 == sha256(text) else None
        return None

    def drift(self, specs: Mapping[str, Spec]) -> list[Drift]:
        """Each module's, in the first folder that has its file."""
        rows: list[Drift] = []
        left = dict(specs)
        for i, folder in enumerate(self.layers):
            last = i == len(self.layers) - 1
            here = {n: s for n, s in left.items() if last or (folder / f"{key_of(s)}.py").is_file()}
            rows += [row for row in drift(here, folder) if row.kind != "no spec" or row.module not in specs]
            left = {name: spec for name, spec in left.items() if name not in here}
        return rows if self.layers else drift(specs, self.own)


@dataclass(slots=True)
class Regenerated:
    """What became of one module. `file` is None where nothing was written, `diff` is against the old file."""

    written: Written
    file: Path | None = None
    diff: str = ""
    seconds: float = 0.0
    lock: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.file is not None

    def to_json(self) -> dict[str, Any]:
        """The object of `pibroch regenerate --json`."""
        w = self.written
        return {
            "ok": self.ok,
            "module": w.spec.module,
            "phases": [
                {
                    "phase": t.phase,
                    "sample": t.sample,
                    "attempts": t.attempts,
                    "passed": t.passed,
                    "feedback": [finding_json(f, n) for n, rows in enumerate(t.feedback, 1) for f in rows],
                    "seconds": _seconds(t.reports),
                    "evidence": _evidence(t.reports),
                }
                for t in w.tracks
            ],
            "difference": finding_json(w.difference) if w.difference else None,
            "verdicts": dict(w.verdicts),
            "review": w.review,
            "lock": self.lock or None,
            "file": self.file,
            "diff": self.diff,
            "problem": w.problem,
            "stale": w.stale,
            "seconds": self.seconds,
        }


def finding_json(finding: Finding, attempt: int | None = None) -> dict[str, Any]:
    """A finding as plain data; `line` is the spec's."""
    row: dict[str, Any] = {
        "stage": finding.stage, "clause": finding.clause, "line": finding.line, "calls": list(finding.calls),
        "values": dict(finding.values), "message": finding.message, "code_lines": list(finding.code_lines),
    }  # fmt: skip
    return row if attempt is None else {"attempt": attempt, **row}


def choose(specs: Mapping[str, Spec], shelf: Shelf, names: Iterable[str], *, every: bool, force: bool) -> list[str]:
    """Which modules to write, each after what it relies on: those named, or with `every` those that drifted (all of
    them with `force`). Raises `InputError` for an unknown name."""
    if every:
        wanted = set(specs) if force else {row.module for row in shelf.drift(specs) if row.error} & set(specs)
    else:
        wanted = set(names)
    for name in sorted(wanted - set(specs)):
        known = ", ".join(sorted(specs)) or "none"
        raise InputError(f"{name}: no spec of that name (known: {known})")
    return [name for name in order(specs) if name in wanted]


def broken_relies(spec: Spec, specs: Mapping[str, Spec]) -> list[Finding]:
    """What other modules rely on and this spec no longer promises: their relies are to be edited first."""
    from pibroch.evals.speceval import rely

    users = [other for other in specs.values() if any(r.module == spec.module for r in other.relies)]
    found = [(other, row) for other in users for row in rely.judge(other, specs).findings]
    return [
        replace(row, message=f"{other.path.name}:{row.line}: {row.message}")
        for other, row in found
        if row.clause.startswith(f"rely.{spec.module}.")
    ]


def regenerate(
    spec: Spec,
    lm: LanguageModel,
    *,
    specs: Mapping[str, Spec],
    shelf: Shelf,
    attempts: int = 4,
    review: bool = True,
    judge: Judge = default_judge,
    compare: Compare = default_compare,
    compose: Callable[[Spec, Mapping[str, Spec]], list[Finding]] = broken_relies,
    say: Callable[[str], None] = lambda line: None,
) -> Regenerated:
    """Write one module, and put it in place with its lock entry if everything passed. The old one stays until then."""
    started = time.monotonic()
    broken = compose(spec, specs)
    if broken:
        rows = "\n".join(f"  {row.message}" for row in broken)
        problem = f"its spec breaks what others rely on; edit these relies, or promise it again:\n{rows}"
        return Regenerated(Written(spec, problem=problem), seconds=time.monotonic() - started)
    sources = {}
    for name in closure(specs, [rely.module for rely in spec.relies]):
        text = shelf.source(specs[name])
        if text is not None:
            sources[name] = text
    written = write_module(
        spec, lm, peers=specs, sources=sources, attempts=attempts, review=review, judge=judge, compare=compare, say=say
    )
    done = Regenerated(written)
    if written.source is not None:
        assert written.entry is not None
        text = file_text(spec, written.source)
        done.diff = _diff(shelf, spec, text)
        done.file = write_generated(shelf.own, spec, text, written.entry)
        done.lock = written.entry.model_dump()
    done.seconds = time.monotonic() - started
    return done


def _diff(shelf: Shelf, spec: Spec, text: str) -> str:
    key = f"{key_of(spec)}.py"
    old = next((path.read_text(encoding="utf-8") for f in shelf.layers if (path := f / key).is_file()), "")
    rows = difflib.unified_diff(old.splitlines(), text.splitlines(), f"old/{key}", f"new/{key}", lineterm="")
    return "\n".join(rows)


def _seconds(reports: Sequence[Any]) -> dict[str, float]:
    total: dict[str, float] = {}
    for report in reports:
        for stage in report.stages:
            total[stage.stage] = round(total.get(stage.stage, 0.0) + stage.seconds, 3)
    return total


def _evidence(reports: Sequence[Any]) -> dict[str, Any]:
    """Of the last judgement: cases, acceptance rates, runs."""
    return {stage.stage: dict(stage.evidence) for stage in reports[-1].stages} if reports else {}
