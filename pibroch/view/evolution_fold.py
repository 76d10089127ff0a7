"""From a journal's records, one at a time, to a `RunView`: for the page, for the terminal and for exports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pibroch.evals.evaluation import Evaluation
from pibroch.evals.finding import Finding
from pibroch.playbooks.model import Bullet, Playbook
from pibroch.runtime.directives import load_schedule
from pibroch.runtime.errors import InputError
from pibroch.view.evolution_data import (
    Candidate,
    Change,
    Confirmation,
    Failure,
    Record,
    Refusal,
    RunView,
    Spent,
)

KNOWN = ("start", "proposal", "evaluation", "skipped", "reply", "playbook", "confirm", "end", "resume")


class Fold:
    """Feed it records in order; `run` is always up to date. A record that was seen before changes nothing."""

    def __init__(self, *, path: str = "", playbook: Playbook | None = None) -> None:
        self.run = RunView(path=path)
        self._bullets: dict[str, Bullet] = {b.id: b for b in (playbook or Playbook()).bullets}
        self._seen = -1
        self._asked = Spent()  # since the last proposal
        self._first: float | None = None
        self._price: tuple[float, float] | None = None

    def add(self, record: Record) -> bool:
        """Returns whether it was new. One that cannot be read is counted among the problems."""
        number = record.get("n")
        if isinstance(number, int):
            if number <= self._seen:
                return False
            self._seen = number
        kind = str(record.get("kind"))
        self._clock(record)
        if kind not in KNOWN:
            return True
        try:
            getattr(self, f"_{kind}")(record)
        except (ValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
            name = "a field is missing or wrong" if isinstance(error, ValidationError) else type(error).__name__
            self.run.problems.append(f"record {number} ({kind}) cannot be read: {name}")
        return True

    def _clock(self, record: Record) -> None:
        spent, at = record.get("spent_s"), record.get("at")
        if isinstance(spent, int | float):
            self.run.seconds = float(spent)
        elif isinstance(at, int | float):
            self._first = at if self._first is None else self._first
            self.run.seconds = float(at - self._first)

    def _start(self, record: Record) -> None:
        run = self.run
        run.task = dict(record.get("task") or {})
        run.version, run.seed = str(record.get("version", "")), record.get("seed")
        run.scores = str(record.get("scores", run.scores))
        run.budget = dict(record.get("budget") or {})
        lm = record.get("lm")
        run.lm = str(lm.get("name", "")) if isinstance(lm, Mapping) else str(lm or "")
        price = (lm.get("price") if isinstance(lm, Mapping) else None) or record.get("price")
        if isinstance(price, Mapping):
            self._price = float(price["input_per_million"]), float(price["output_per_million"])
            run.spent.money = 0.0
        run.start = run.best = str(record["incumbent"])
        begin = Candidate(run.start, 0, speed=1.0, lower=1.0, upper=1.0)
        run.candidates[run.start] = begin
        if isinstance(record.get("result"), Mapping):
            begin.result = Evaluation.model_validate(record["result"])
            run.start_findings = run.findings = begin.result.findings
        if record.get("findings"):
            run.start_findings = run.findings = tuple(Finding.model_validate(f) for f in record["findings"])

    def _proposal(self, record: Record) -> None:
        key = str(record["schedule"])
        asked, self._asked = self._asked, Spent()
        known = self.run.candidates.get(key)
        if known is not None and (known.result or not known.number):
            return  # a schedule that is judged already keeps its place in the tree
        self.run.candidates[key] = Candidate(
            key,
            int(record["evaluation"]),
            parent=str(record["parent"]) if record.get("parent") else None,
            source=str(record.get("source", "")),
            edit=_edit(record.get("edit")),
            bullets=tuple(str(b) for b in record.get("bullets") or ()),
            why=str(record.get("why") or ""),
            asked=asked,
            seconds=self.run.seconds,
        )

    def _evaluation(self, record: Record) -> None:
        run, key = self.run, str(record["schedule"])
        result = Evaluation.model_validate(record["result"])
        number = int(record.get("evaluation", 0))
        one = run.candidates.get(key)
        if one is None:
            one = run.candidates[key] = Candidate(key, number, source="")
        one.result, one.seconds = result, run.seconds
        run.evaluations = max(run.evaluations, number)
        if not one.number:  # the start's own figures
            run.start_findings = result.findings
            run.findings = result.findings if run.best == key else run.findings
            return
        one.incumbent = str(record.get("incumbent") or run.best)
        base = run.candidates.get(one.incumbent)
        if base is not None and base.speed and result.ratio is not None:
            one.speed = base.speed * result.ratio
            one.lower = base.speed * result.lower if result.lower is not None else None
            one.upper = base.speed * result.upper if result.upper is not None else None
        run.reason = ""
        if result.accepted:
            run.best, run.findings = key, result.findings

    def _skipped(self, record: Record) -> None:
        run, key = self.run, str(record.get("schedule") or "")
        proposed = run.candidates.get(key)
        edit, source = _edit(record.get("edit")), str(record.get("source") or "")
        if proposed is not None and proposed.number and proposed.result is None:  # it was announced as a proposal
            edit, source = edit or proposed.edit, source or proposed.source
            del run.candidates[key]
        run.refusals.append(Refusal(run.evaluations, key, source, edit, str(record.get("reason", ""))))

    def _reply(self, record: Record) -> None:
        used = record.get("tokens")
        if not isinstance(used, list | tuple):
            usage = record.get("usage") or {}
            used = (usage.get("input_tokens", 0), usage.get("output_tokens", 0))
        for spent in (self.run.spent, self._asked):
            spent.calls += 1
            spent.failures += "error" in record
            spent.input_tokens += int(used[0])
            spent.output_tokens += int(used[1])
            if self._price:
                money = (int(used[0]) * self._price[0] + int(used[1]) * self._price[1]) / 1e6
                spent.money = (spent.money or 0.0) + money
        if "error" in record:
            role, text = str(record.get("role", "")), str(record.get("text", ""))
            self.run.failures.append(Failure(self.run.evaluations, role, str(record["error"]), text))

    def _playbook(self, record: Record) -> None:
        number = int(record.get("evaluation", self.run.evaluations))
        deltas, outcomes = record["deltas"], record["outcomes"]
        for delta, outcome in zip(deltas, outcomes, strict=True):
            self.run.changes.append(self._change(number, delta, outcome))

    def _change(self, number: int, delta: Mapping[str, Any], outcome: Mapping[str, Any]) -> Change:
        """Follow one delta; a bullet that nobody told us of has no text to show before it."""
        op, done = str(delta["op"]), str(outcome["done"])
        key = str(outcome.get("id") or delta.get("id") or next(iter(delta.get("ids") or ()), ""))
        old = self._bullets.get(key)
        before, new = _bullet_text(old), old
        if done == "added":
            fields = {k: delta[k] for k in ("section", "text", "applies_when", "edit", "evidence") if k in delta}
            new = Bullet(id=key, **fields)
        elif done == "updated" and old is not None:
            fields = {k: v for k, v in delta.items() if k not in ("op", "id") and v is not None}
            new = old.model_copy(update=fields)
        elif done == "tagged" and old is not None:
            names = ("shown", "cited", "tested", "helpful", "harmful")
            new = old.model_copy(update={k: getattr(old, k) + int(delta.get(k, 0)) for k in names})
        elif done == "merged":
            gone = [self._bullets.pop(i) for i in delta.get("ids", ())[1:] if i in self._bullets]
            before = "\n".join([before, *map(_bullet_text, gone)]).strip()
            if op == "ADD":  # a near twin took it in
                before, new = str(delta.get("text", "")), old
            elif old is not None and delta.get("text"):
                new = old.model_copy(update={"text": delta["text"]})
        elif done == "removed":
            new = self._bullets.pop(key, None) and None
        if new is not None:
            self._bullets[key] = new
        after = _bullet_text(new) if done != "refused" else ""
        if done == "refused":
            before = str(delta.get("text") or before)
        elif done == "tagged" and old is None:
            after = _counts(delta)
        reason = str(outcome.get("reason") or delta.get("why") or "")
        return Change(number, op, done, key, before, after, reason)

    def _confirm(self, record: Record) -> None:
        self.run.confirmations.append(
            Confirmation(
                str(record["schedule"]), str(record["incumbent"]), float(record["ratio"]), float(record["lower"]),
                float(record["upper"]), int(record.get("pairs", 0)), float(record.get("confidence", 0.0)),
            )
        )  # fmt: skip

    def _end(self, record: Record) -> None:
        self.run.reason = str(record.get("reason") or "ended")
        self.run.best = str(record.get("best") or self.run.best)
        best = self.run.candidates.get(self.run.best)
        if best is not None and best.result is not None:
            self.run.findings = best.result.findings or self.run.findings

    def _resume(self, record: Record) -> None:
        self.run.resumed += 1
        self.run.reason = ""


def read_run(run_dir: Path) -> RunView:
    """Read a run directory. Raises `InputError` where it holds no journal."""
    path = run_dir / "journal.jsonl"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{run_dir}: no run to read: {path.name}: {error.strerror}") from error
    fold = Fold(path=run_dir.name, playbook=_playbook(run_dir / "playbook.json"))
    whole, end, rest = raw.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if end else (), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and isinstance(record.get("kind"), str):
            fold.add(record)
        else:
            fold.run.problems.append(f"line {number} of the journal is not a record")
    run = fold.run
    if not run.start and not run.candidates:
        run.problems.append("the journal does not say how the run began")
    run.torn = bool(rest)
    for key in {run.start, run.best} - {""}:
        try:
            run.schedules[key] = load_schedule(run_dir / "schedules" / f"{Path(key).name}.json")
        except InputError as error:
            run.problems.append(f"schedule {key[:12]}: {str(error).removeprefix(f'{run_dir}/')}")
    return run


def _playbook(path: Path) -> Playbook:
    """The playbook that the run began with; an empty one where it cannot be read."""
    try:
        return Playbook.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ValidationError):
        return Playbook()


def _edit(data: Any) -> dict[str, Any] | None:
    return dict(data) if isinstance(data, Mapping) else None


def _bullet_text(bullet: Bullet | None) -> str:
    return f"{bullet.text} ({_counts(bullet.model_dump())})" if bullet is not None else ""


def _counts(values: Mapping[str, Any]) -> str:
    names = ("shown", "cited", "tested", "helpful", "harmful")
    return ", ".join(f"{name} {values[name]}" for name in names if values.get(name)) or "not tested"
