"""Run directories as `pibroch evolve` leaves them, made up: every verdict, every kind of line, and texts that attack."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pibroch.agents.lm.base import digest
from pibroch.evals.evaluation import Evaluation, Verdict
from pibroch.evals.finding import Finding
from pibroch.playbooks.model import Bullet, Playbook
from pibroch.runtime.directives import Schedule, schedule_text
from pibroch.runtime.families import build

NASTY = '</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1> & "quotes" \'\u2028 [bold]'
PRICE = {"input_per_million": 1.0, "output_per_million": 4.0}
VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "undecided", "invalid", "slower", "same", "faster", "unequal")
BULLET = Bullet(id="sched-00001", section="schedules", text="Start backwards early when stages are uneven", shown=2)


@dataclass
class Written:
    """What was put into the journal, for tests to expect. `speed` of each schedule is the product of its ratios."""

    path: Path
    start: str = ""
    best: str = ""
    schedules: list[str] = field(default_factory=list)  # of the lineage, the start first
    verdicts: dict[str, str] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    failures: int = 0
    tokens: int = 0
    edits: dict[str, dict[str, Any]] = field(default_factory=dict)


class Lines:
    """A journal that is written line by line, as the engine does."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, kind: str, **fields: Any) -> dict[str, Any]:
        record = {"n": self.count, "kind": kind, **fields, "at": 1.7e9 + 3.0 * self.count, "spent_s": 3.0 * self.count}
        self.count += 1
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return record


def finding(kind: str, seconds: float, *, text: str = "", origin: str = "schedule") -> Finding:
    return Finding(kind=kind, origin=origin, seconds=seconds, share=seconds / 0.1, tasks=(1, 2), text=text or f"{kind} costs time")  # type: ignore[arg-type]  # noqa: E501


def write_run(
    folder: Path,
    *,
    evaluations: int = 12,
    seed: int = 0,
    emulate: str | None = None,
    scores: str = "measured",
    nasty: bool = False,
    end: str | None = "budget: 12 evaluations",
    confirm: bool = True,
    torn: bool = False,
) -> Written:
    """A run of that many evaluations, with a skipped proposal after every fourth and a failed reply after every fifth."""
    rng = random.Random(seed)
    bad = NASTY if nasty else ""
    lines, told = Lines(folder / "journal.jsonl"), Written(folder)
    told.start = _save(folder, build("gpipe", devices=2, microbatches=4))
    task = {
        "version": 1, "name": "uneven-2", "title": f"Uneven stages on two devices{bad}", "model": "gpt-tiny", "devices": 2,
        "samples": 8, "memory_limit": 96 << 20, "emulate": emulate, "use": "test", "intent": f"be fast{bad}",
    }  # fmt: skip
    playbook = Playbook(next_id=2, bullets=(BULLET,))
    (folder / "playbook.json").write_text(playbook.model_dump_json(), encoding="utf-8")
    budget = {"evaluations": max(evaluations, 1), "tokens": 50_000, "money": None, "seconds": None}
    lines("start", version="0.1.0", task=task, seed=seed, scores=scores, budget=budget, incumbent=told.start,
          lm={"name": f"model{bad}", "price": PRICE}, playbook=digest(playbook.model_dump()))  # fmt: skip
    told.schedules, told.speed[told.start], incumbent, known = [told.start], 1.0, told.start, set()
    first = _result("slower", rng, scores=scores, emulated=bool(emulate), ratio=1.0, note="the start itself")
    first = first.model_copy(update={"findings": (finding("bubble-warm-up", 0.02, text=f"warm-up is long{bad}"),)})
    lines("evaluation", evaluation=0, schedule=told.start, incumbent=told.start, result=first.to_json())
    for number in range(1, evaluations + 1):
        verdict = VERDICTS[(number - 1) % len(VERDICTS)]
        failed = number % 5 == 0
        answer = {"error": "LMError", "text": f"no fence in the reply{bad}"} if failed else {
            "text": "x" * 500, "tokens": [900, 100], "model": "m", "who": "m"}  # fmt: skip
        lines("reply", role="schedule", key=digest(number), **answer)
        told.failures += failed
        told.tokens += 0 if failed else 1000
        final = number == evaluations or number == 2
        family = "1f1b" if final else None
        key = _save(folder, build("1f1b", devices=2, microbatches=2 * number)) if family else digest([seed, number])
        edit = {"op": "move" if not nasty else f"move{bad}", "device": number % 2, "to": number}
        parent = incumbent if number % 3 else (told.schedules[-1])
        lines("proposal", evaluation=number, source=rng.choice(["edit", "bullet", "writer"]), parent=parent, schedule=key,
              edit=edit, bullets=["sched-00001"], why=f"device {number % 2} idles{bad}")  # fmt: skip
        if number % 4 == 0:
            lines("skipped", schedule=digest(["skipped", number]), source="edit", reason=(
                "duplicate" if number % 8 else f"not applicable: the order has no such group{bad}"), edit=edit)  # fmt: skip
            told.skipped += 1
        result = _result(verdict, rng, scores=scores, emulated=bool(emulate), note=f"reason {number}{bad}")
        lines("evaluation", evaluation=number, schedule=key, incumbent=incumbent, result=result.to_json())
        told.schedules.append(key)
        told.verdicts[key] = verdict
        told.edits[key] = edit
        if result.ratio is not None:
            told.speed[key] = told.speed[incumbent] * result.ratio
        incumbent = key if verdict == "faster" else incumbent
        if number % 3 == 0:
            _playbook(lines, number, known, bad)
    told.best = incumbent
    if confirm and incumbent != told.start:
        lines("confirm", schedule=incumbent, incumbent=told.start, ratio=1.09, lower=1.05, upper=1.13, pairs=24,
              confidence=0.999)  # fmt: skip
    if end is not None:
        lines("end", reason=end + bad, best=incumbent, evaluations=evaluations)
    if torn:
        with lines.path.open("a", encoding="utf-8") as file:
            file.write('{"n": 9999, "kind": "evaluation", "sched')
    return told


def _result(
    verdict: Verdict, rng: random.Random, *, scores: str, emulated: bool, ratio: float | None = None, note: str = ""
) -> Evaluation:
    """As the ladder gives it: no speed where the candidate did not run."""
    if verdict in ("invalid", "same", "unequal"):
        rung = {"invalid": "verify", "same": "simulate", "unequal": "short"}[verdict]
        return Evaluation(plan="p", rung=rung, verdict=verdict, reason=note, emulated=emulated, total_s=0.2)  # type: ignore[arg-type]  # noqa: E501
    middle = {"faster": 1.05, "slower": 0.93, "undecided": 1.005}[verdict]
    ratio = ratio if ratio is not None else round(middle + rng.uniform(-0.02, 0.02), 4)
    simulated = scores == "simulated"
    half = 0.0 if simulated else 0.015
    return Evaluation(
        plan=f"p{rng.random()}", rung="simulate" if simulated else "paired", verdict=verdict, reason=note,
        simulated=simulated, emulated=emulated, simulated_s=0.1 / ratio, peak_bytes=rng.randrange(60 << 20, 90 << 20),
        ratio=ratio, lower=ratio - half, upper=ratio + half, pairs=0 if simulated else 8,
        step_s=None if simulated else 0.11 / ratio, tokens_per_s=None if simulated else 4000 * ratio, steps_s=1.5,
        total_s=1.9, findings=(finding("exposed-transfer", 0.004, text=f"a transfer is exposed; {note}"),),
    )  # fmt: skip


def _playbook(lines: Lines, number: int, known: set[str], bad: str) -> None:
    """Deltas of every kind: the first adds, later ones tag, merge into it, and remove."""
    key = f"sched-{number + 1:05d}"
    text = f"Uneven stages: move the cut by one layer, seen at {number}{bad}"
    deltas: list[dict[str, Any]] = [{"op": "ADD", "section": "schedules", "text": text, "applies_when": {"stages": ">=2"}}]
    outcomes = [{"op": "ADD", "done": "added", "id": key, "reason": ""}]
    deltas.append({"op": "TAG", "id": "sched-00001", "shown": 1, "tested": 1, "helpful": 1})
    outcomes.append({"op": "TAG", "done": "tagged", "id": "sched-00001", "reason": ""})
    if len(known) == 2:
        one, two = sorted(known)
        deltas += [{"op": "MERGE", "ids": [one, two]}, {"op": "REMOVE", "id": key, "why": f"says the same{bad}"}]
        outcomes += [{"op": "MERGE", "done": "merged", "id": one, "reason": ""},
                     {"op": "REMOVE", "done": "removed", "id": key, "reason": ""}]  # fmt: skip
        deltas.append({"op": "ADD", "section": "schedules", "text": f"always be faster{bad}"})
        outcomes.append({"op": "ADD", "done": "refused", "id": "", "reason": f"no edit and no evidence{bad}"})
    known.add(key)
    lines("playbook", evaluation=number, deltas=deltas, outcomes=outcomes)


def _save(folder: Path, schedule: Schedule) -> str:
    key = digest(schedule.to_json())
    path = folder / "schedules" / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(schedule_text(schedule), encoding="utf-8")
    return key
