"""From a journal's records, one at a time, to a `RunView`: for the page, for the terminal and for exports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pibroch.evals.evaluation import Evaluation
from pibroch.evals.finding import Finding
from pibroch.playbooks.deltas import LAST, apply
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

KNOWN = (
    "start", "known", "findings", "proposal", "evaluation", "skipped", "reply", "playbook", "learned", "confirm", "end",
    "resume",
)  # fmt: skip


class Fold:
    """Feed it records in order; `run` is always up to date. A record that was seen before changes nothing."""

    def __init__(self, *, path: str = "", playbook: Playbook | None = None) -> None:
        self.run = RunView(path=path)
        # Ids that the run gives are its own affair: the largest next one fits all of them.
        self._book = (playbook or Playbook()).model_copy(update={"next_id": LAST + 1})
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
        told = record.get("told") or {}
        run.task, run.budget = dict(record.get("task") or {}), dict(told.get("budget") or record.get("budget") or {})
        run.version, run.seed = str(record.get("version", "")), record.get("seed")
        run.scores, run.lm = str(record.get("scores", run.scores)), str(record.get("lm") or "")
        if told.get("price"):
            one, two = told["price"]
            self._price, run.spent.money = (float(one), float(two)), 0.0
        run.start = run.best = str(record["incumbent"])
        run.candidates[run.start] = Candidate(run.start, 0, speed=1.0, lower=1.0, upper=1.0)

    def _known(self, record: Record) -> None:
        known = record.get("known")
        costs = known.get("costs") if isinstance(known, Mapping) else None
        self.run.costs = dict(costs) if isinstance(costs, Mapping) else None

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
        if result.findings:
            run.findings[key] = result.findings
        if not one.number:  # the start's own figures
            return
        one.incumbent = str(record.get("incumbent") or run.best)
        base = run.candidates.get(one.incumbent)
        if base is not None and base.speed and result.ratio is not None:
            one.speed = base.speed * result.ratio
            one.lower = base.speed * result.lower if result.lower is not None else None
            one.upper = base.speed * result.upper if result.upper is not None else None
        run.reason = ""
        if result.accepted:
            run.best = key

    def _skipped(self, record: Record) -> None:
        run, key = self.run, str(record.get("schedule") or "")
        proposed = run.candidates.get(key)
        edit, source = _edit(record.get("edit")), str(record.get("source") or "")
        if proposed is not None and proposed.number and proposed.result is None:  # it was announced as a proposal
            edit, source = edit or proposed.edit, source or proposed.source
            del run.candidates[key]
        run.refusals.append(Refusal(run.evaluations, key, source, edit, str(record.get("reason", ""))))

    def _reply(self, record: Record) -> None:
        inward, outward = map(int, record.get("tokens") or (0, 0))
        for spent in (self.run.spent, self._asked):
            spent.calls += 1
            spent.failures += "error" in record
            spent.input_tokens += inward
            spent.output_tokens += outward
            if self._price:
                spent.money = (spent.money or 0.0) + (inward * self._price[0] + outward * self._price[1]) / 1e6
        if "error" in record:
            role, text = str(record.get("role", "")), str(record.get("text", ""))
            self.run.failures.append(Failure(self.run.evaluations, role, str(record["error"]), text))

    def _learned(self, record: Record) -> None:
        self._playbook(record)

    def _playbook(self, record: Record) -> None:
        number = int(record.get("evaluation", self.run.evaluations))
        deltas, outcomes = record["deltas"], record["outcomes"]
        for delta, outcome in zip(deltas, outcomes, strict=True):
            self.run.changes.append(self._change(number, delta, outcome))

    def _change(self, number: int, delta: Mapping[str, Any], outcome: Mapping[str, Any]) -> Change:
        """Follow one delta. Where the playbook before it is not known, its own words are all there is to show."""
        op, done, key = str(delta["op"]), str(outcome["done"]), str(outcome.get("id") or delta.get("id") or "")
        reason = str(outcome.get("reason") or delta.get("why") or "")
        words = str(delta.get("text") or "")
        if done == "refused":
            return Change(number, op, done, key, words, "", reason)
        if op == "ADD":  # whether it says something new was judged in the run, and costs too much to be judged again
            before = words if done == "merged" else ""
            if done == "added":
                fields = {name: delta[name] for name in ("section", "text", "applies_when", "edit") if name in delta}
                self._book = self._book.model_copy(update={"bullets": (*self._book.bullets, Bullet(id=key, **fields))})
            return Change(number, op, done, key, before, _bullet_text(self._book.get(key)) or words, reason)
        after, (now,) = apply(self._book, [delta])
        if now.done != done:
            return Change(number, op, done, key, "", words or _counts(delta), reason)
        ids = [key, *(i for i in delta.get("ids") or () if i != key)]
        before = "\n".join(filter(None, (_bullet_text(self._book.get(i)) for i in ids)))
        self._book = after
        return Change(number, op, done, key, before, _bullet_text(after.get(key)), reason)

    def _findings(self, record: Record) -> None:
        self.run.findings[str(record["schedule"])] = tuple(Finding.model_validate(f) for f in record["findings"])

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
