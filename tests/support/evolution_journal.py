"""Run directories as `pibroch evolve` leaves them, made up: every verdict, every kind of line, hostile texts."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pibroch.agents.lm.base import digest
from pibroch.evals.evaluation import Evaluation, Rung, Verdict
from pibroch.evals.finding import Finding
from pibroch.playbooks.deltas import apply
from pibroch.playbooks.model import Bullet, Playbook
from pibroch.runtime.directives import Schedule, schedule_text
from pibroch.runtime.families import build

NASTY = '</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1> & "quotes" \'\u2028 [bold] \x1b[31m'
CYCLE: tuple[Verdict, ...] = ("slower", "faster", "undecided", "invalid", "slower", "same", "faster", "unequal")
LATER: tuple[Verdict, ...] = ("slower", "slower", "undecided", "invalid", "undecided")
RUNGS: dict[Verdict, Rung] = {"invalid": "verify", "same": "simulate", "unequal": "short"}
PRICE = (1.0, 4.0)  # per million tokens in and out
TOKENS = (900, 100)
MOVE = {"op": "move", "device": 0, "to": 1}
CONFIRMED = (1.09, 1.05, 1.13)
KNOWN = Bullet(id="sched-00001", section="schedules", text="Start backwards early when stages are uneven", edit=MOVE)


@dataclass
class Written:
    """What was put into the journal, for tests to expect. `speed` is the product of the ratios along the incumbents."""

    path: Path
    start: str = ""
    best: str = ""
    schedules: list[str] = field(default_factory=list)  # of the lineage, the start first
    verdicts: dict[str, str] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)
    edits: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: int = 0
    failures: int = 0
    calls: int = 0
    outcomes: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, **fields: Any) -> None:
        """One line, as the engine writes it."""
        n = len(self.records)
        self.records.append({"n": n, "kind": kind, **fields, "at": 1.7e9 + 3.0 * n, "spent_s": 3.0 * n})
        with (self.path / "journal.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.records[-1]) + "\n")


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
    """A run of that many evaluations; every fourth proposal is followed by a skipped one, every fifth reply fails."""
    rng, bad, told = random.Random(seed), NASTY if nasty else "", Written(folder)
    folder.mkdir(parents=True, exist_ok=True)
    book = Playbook(next_id=2, bullets=(KNOWN,))
    (folder / "playbook.json").write_text(book.model_dump_json(), encoding="utf-8")
    incumbent = told.start = told.best = _save(folder, build("gpipe", devices=2, microbatches=4))
    task = {
        "version": 1, "name": "uneven-2", "title": f"Uneven stages on two devices{bad}", "model": "gpt-tiny",
        "devices": 2, "samples": 8, "memory_limit": 96 << 20, "emulate": emulate, "use": "test", "intent": f"go{bad}",
    }  # fmt: skip
    budget = {"evaluations": max(evaluations, 1), "tokens": 50_000, "money": None, "seconds": None}
    told.add(
        "start", version=1, task=task, seed=seed, scores=scores, lm=f"model{bad}", incumbent=told.start,
        playbook=digest(book.model_dump(mode="json")), told={"budget": budget, "price": PRICE},
    )  # fmt: skip
    told.add("known", known={"costs": None, "spread": 0.01})
    told.schedules, told.speed[told.start] = [told.start], 1.0
    first = evaluation("slower", rng, scores=scores, emulated=bool(emulate), reason="the start itself", ratio=1.0)
    told.add("evaluation", evaluation=0, schedule=told.start, incumbent=told.start, result=first.to_json())
    told.add("findings", schedule=told.start, findings=[finding("warm-up", 0.02, f"warm-up is long{bad}")])
    for number in range(1, evaluations + 1):
        verdict = CYCLE[(number - 1) % len(CYCLE)] if number <= 16 else LATER[number % len(LATER)]
        _reply(told, number, bad)
        faster = build("1f1b", devices=2, microbatches=2 * number) if verdict == "faster" else None
        key = _save(folder, faster) if faster else digest([seed, number])
        edit = {"op": f"move{bad}", "device": number % 2, "to": number}
        told.add(
            "proposal", evaluation=number, source=("edit", "bullet", "writer", "merge")[number % 4],
            parent=incumbent if number % 3 else told.schedules[-1], schedule=key,
            edit=edit if number % 4 != 3 else None, bullets=["sched-00001"], why=f"device {number % 2} idles{bad}",
        )  # fmt: skip
        result = evaluation(verdict, rng, scores=scores, emulated=bool(emulate), reason=f"reason {number}{bad}")
        told.add("evaluation", evaluation=number, schedule=key, incumbent=incumbent, result=result.to_json())
        told.schedules.append(key)
        told.verdicts[key], told.edits[key] = verdict, edit
        if result.ratio is not None:
            told.speed[key] = told.speed[incumbent] * result.ratio
        if verdict == "faster":
            incumbent = key
            told.add("findings", schedule=key, findings=[finding("transfer", 0.004, f"a transfer is exposed{bad}")])
        if number % 4 == 0:
            why = "duplicate" if number % 8 else f"not applicable: the order has no such group{bad}"
            skipped = digest(["skipped", number]) if number % 8 else ""
            told.add("skipped", source="edit", parent=incumbent, schedule=skipped, reason=why, edit=edit, bullets=[])
            told.skipped += 1
        if number % 3 == 0 and number <= 30:
            book = _learn(told, book, number, bad)
    told.best = incumbent
    if confirm and incumbent != told.start:
        ratio, lower, upper = CONFIRMED if scores != "simulated" else (CONFIRMED[0],) * 3
        told.add("confirm", schedule=incumbent, incumbent=told.start, ratio=ratio, lower=lower, upper=upper,
                 pairs=24 if scores != "simulated" else 0,
                 confidence=0.999)  # fmt: skip
    if end is not None:
        told.add("end", reason=end + bad, best=incumbent, evaluations=evaluations)
    if torn:
        with (folder / "journal.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"n": 9999, "kind": "evaluation", "sched')
    return told


def evaluation(
    verdict: Verdict, rng: random.Random, *, scores: str, emulated: bool, reason: str, ratio: float | None = None
) -> Evaluation:
    """As the ladder gives it: no speed where the candidate did not run."""
    simulated = scores != "measured"
    if verdict in RUNGS:
        return Evaluation(
            plan="p", rung=RUNGS[verdict], verdict=verdict, reason=reason, emulated=emulated, total_s=0.2
        )  # fmt: skip
    middle = {"faster": 1.05, "slower": 0.93, "undecided": 1.005}[verdict]
    ratio = ratio or round(middle + rng.uniform(-0.02, 0.02), 4)
    half = 0.0 if simulated else 0.015
    return Evaluation(
        plan=f"p{rng.random()}", rung="simulate" if simulated else "paired", verdict=verdict, reason=reason,
        simulated=simulated, emulated=emulated, simulated_s=0.1 / ratio, peak_bytes=rng.randrange(60 << 20, 90 << 20),
        ratio=ratio, lower=ratio - half, upper=ratio + half, pairs=0 if simulated else 8,
        step_s=None if simulated else 0.11 / ratio, tokens_per_s=None if simulated else 4000 * ratio, steps_s=1.5,
        total_s=1.9,
    )  # fmt: skip


def finding(kind: str, seconds: float, text: str) -> dict[str, Any]:
    """A finding as the journal holds it."""
    one = Finding(kind=kind, origin="schedule", seconds=seconds, share=seconds / 0.1, text=text)
    return one.model_dump(mode="json")


def _reply(told: Written, number: int, bad: str) -> None:
    told.calls += 1
    if number % 5 == 0:
        told.failures += 1
        answer: dict[str, Any] = {"error": "LMError", "text": f"no fence in the reply{bad}"}
    else:
        answer = {"text": "x" * 500, "tokens": list(TOKENS), "model": "m", "who": "m"}
    told.add("reply", role="schedule", key=digest(number), **answer)


def _learn(told: Written, book: Playbook, number: int, bad: str) -> Playbook:
    """A bullet is added and one tagged; every ninth evaluation the last one goes, and nonsense is refused."""
    name = f"sched-{book.next_id:05d}"
    text = f"Uneven stages: move the cut by {number} layers{''.join(c for c in bad if c.isprintable())}"
    deltas: list[dict[str, Any]] = [
        {"op": "ADD", "section": "schedules", "text": text, "applies_when": {"stages": ">=2"}},
        {"op": "TAG", "id": "sched-00001", "shown": 1, "tested": 1, "helpful": 1},
    ]
    if number % 9 == 0:
        again = {"op": "ADD", "section": "schedules", "text": text, "applies_when": {"stages": ">=2"}}
        deltas += [again, {"op": "REMOVE", "id": name, "why": f"one seed{bad}"}, {"op": "REMOVE", "id": f"no{bad}"}]
    after, outcomes = apply(book, deltas)
    told.outcomes += [one.done for one in outcomes]
    told.add("playbook", evaluation=number, deltas=deltas, outcomes=[one.model_dump(mode="json") for one in outcomes])
    return after


def _save(folder: Path, schedule: Schedule) -> str:
    key = digest(schedule.to_json())
    path = folder / "schedules" / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(schedule_text(schedule), encoding="utf-8")
    return key
