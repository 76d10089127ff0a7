"""One call of `pibroch evolve`: a new run or a resumed one, from its folder to its summary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pibroch.agents.evolve.budget import Budget
from pibroch.agents.evolve.engine import Evolution, Options, Result
from pibroch.agents.evolve.journal import Journal, Record, read_journal
from pibroch.agents.evolve.memo import Memo
from pibroch.agents.evolve.rundir import RunDir
from pibroch.agents.lm import open_lm
from pibroch.agents.lm.accounting import Metered, Price
from pibroch.agents.lm.base import Paused, finish
from pibroch.evals.ladder import Ladder, Scores
from pibroch.evals.setting import open_setting
from pibroch.evals.task import Task
from pibroch.playbooks.model import Playbook
from pibroch.runtime.directives import Schedule, schedule_text
from pibroch.runtime.errors import InputError
from pibroch.runtime.files import write_atomically


@dataclass(frozen=True, slots=True)
class Launch:
    """How candidates are run: with `scores` "measured" all of them, "calibrated" the best alone, "simulated" none."""

    scores: Scores = "measured"
    launcher: str = "ray"
    address: str | None = None
    device: str = "auto"
    deadline: float = 60.0


@dataclass(frozen=True, slots=True)
class Ask:
    """Which language model, as `--lm` names it, and its price per million input and output tokens."""

    lm: str | None = None
    price: tuple[float, float] | None = None
    record: Path | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that a run is told. A resumed run finds all of it in its journal, but for a larger budget and the
    `prompts` that replace ours. `known` is what another ladder has measured of the task (`Ladder.known`)."""

    task: Task
    playbook: Playbook = field(default_factory=Playbook)
    start: Schedule | None = None
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    launch: Launch = field(default_factory=Launch)
    ask: Ask = field(default_factory=Ask)
    prompts: Mapping[str, str] | None = None
    known: Mapping[str, Any] | None = None


def new_run_dir(parent: Path, task: Task) -> Path:
    """The next free folder for a run of that task."""
    taken = [0]
    for path in parent.glob(f"{task.name}-*"):
        if found := re.fullmatch(rf"{re.escape(task.name)}-(\d+)", path.name):
            taken.append(int(found[1]))
    return parent / f"{task.name}-{max(taken) + 1}"


def resumed(path: Path, **budget: float | int | None) -> Session:
    """The session of a run's folder; `budget` replaces those of its limits that are given. Raises `InputError`."""
    run = RunDir(path)
    run.check_resumable()
    records = read_journal(run.journal)
    if not records:
        raise InputError(f"{run.journal} is empty: the run never began; start it anew")
    first = records[0]
    try:
        text = run.playbook.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{run.playbook}: cannot be read: {error.strerror}") from error
    told = first["told"]
    price = told["price"]
    before = next((r["budget"] for r in records[::-1] if r["kind"] == "resume" and "budget" in r), told["budget"])
    limits = {**before, **{name: value for name, value in budget.items() if value is not None}}
    return Session(
        task=Task.model_validate(first["task"]),
        playbook=Playbook.model_validate_json(text),
        start=run.load(first["incumbent"]),
        seed=first["seed"],
        budget=Budget(**limits),
        launch=Launch(**told["launch"]),
        ask=Ask(told["lm"], tuple(price) if price else None),
    )


def evaluated(records: list[Record]) -> int:
    """How many candidates a journal holds the evaluation of."""
    return sum(r["kind"] == "evaluation" and r["evaluation"] > 0 for r in records)


def finished(path: Path, session: Session) -> dict[str, Any] | None:
    """The result of a run that has used up its evaluations; None where there is something left to do.

    Raises `InputError` for a budget that the run has exceeded already.
    """
    run = RunDir(path)
    done = evaluated(read_journal(run.journal))
    if session.budget.evaluations < done:
        raise InputError(f"--budget {session.budget.evaluations}: the run in {path} has {done} evaluations already")
    if not run.result.exists():
        return None
    told: dict[str, Any] = json.loads(run.result.read_text(encoding="utf-8"))
    result = {"scores": session.launch.scores, **told}  # older files do not say it
    best, ended = result["best"], result["ended"]
    over = ended.startswith("no more") or session.budget.evaluations == done
    whole = result["evaluations"] == done and ended not in ("interrupted", "stopped")
    sure = result["scores"] == "simulated" or best["evaluation"] == 0 or best["interval"] is not None
    return {**result, "run_dir": path, "best": {**best, "file": run.best}} if over and whole and sure else None


def evolve(
    path: Path,
    session: Session,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    listeners: Sequence[Callable[[Record], None]] = (),
) -> dict[str, Any]:
    """Run, and write `best.json` into the folder. Returns the summary that `--json` prints.

    Raises `InputError` for what cannot start, `Paused` where a mailbox has no answer yet: resume then.
    """
    run = RunDir(path)
    if not resume:
        run.begin()
    setting = open_setting(session.task)
    lm = open_lm(session.ask.lm, record=session.ask.record)
    metered = None
    if lm is not None:
        prices = {lm.name: Price(*session.ask.price)} if session.ask.price else None
        metered = Metered(lm, max_tokens=session.budget.tokens, max_money=session.budget.money, prices=prices)
    if not resume:
        write_atomically(run.playbook, session.playbook.model_dump_json(indent=1) + "\n")

    def hear(record: Record) -> None:
        for tell in listeners:
            tell(record)

    def seconds_left() -> float | None:
        limit = session.budget.seconds
        return None if limit is None or journal.replaying else limit - journal.spent_s

    journal = Journal(run.journal, listener=hear, told={"budget": session.budget.to_json()})
    try:
        if resume:
            run.go_on()
        launch = session.launch
        with Ladder(
            setting, scores=launch.scores, launcher=launch.launcher, address=launch.address, device=launch.device,
            deadline=launch.deadline, seed=session.seed, candidates=session.budget.evaluations,
            known=session.known,
        ) as ladder:  # fmt: skip
            told = {
                "budget": session.budget.to_json(), "launch": asdict(launch), "lm": session.ask.lm,
                "price": session.ask.price,
            }  # fmt: skip
            evolution = Evolution(
                run=run, journal=journal, ladder=ladder, playbook=session.playbook,
                options=Options(session.seed, session.budget, session.start, told),
                lm=Memo(metered, journal, seconds_left=seconds_left) if metered else None, prompts=session.prompts,
                say=say,
            )  # fmt: skip
            try:
                result = evolution.run()
            except Paused as error:
                raise Paused(f"{error}; then go on with `pibroch evolve --resume {path}`") from error
        write_atomically(run.best, schedule_text(result.best.schedule))
        write_atomically(run.learned, evolution.learner.playbook.model_dump_json(indent=1) + "\n")
        costs = "profile" if setting.profile else "measured" if setting.measured else "assumed"
        found = summary(run, session, result, metered, costs=costs, seconds=journal.spent_s)
        write_atomically(run.result, json.dumps(found, default=str, indent=1) + "\n")
        if metered is not None and result.reason != "interrupted":
            finish(metered)
        return found
    finally:
        journal.close()


def summary(
    run: RunDir, session: Session, result: Result, metered: Metered | None, *, costs: str, seconds: float
) -> dict[str, Any]:
    """The run as plain data. A best without a confirmed gain says so: its ratio may be noise, or a simulator's word."""
    scores, confirmed = session.launch.scores, result.confirmed
    kind = session.task.kind if scores == "measured" or confirmed else "simulated"
    seen = result.gain if scores == "measured" else result.start.seconds / result.best.seconds
    done = [outcome.done for outcome in result.outcomes]
    spent = metered.spent if metered else None
    return {
        "ok": True,
        "task": session.task.name,
        "scores": scores,
        "kind": kind,
        "costs": costs,
        "best": {
            "schedule": result.best.schedule.to_json(),
            "hash": result.best.key,
            "file": run.best,
            "evaluation": result.best.number,
            "ratio": confirmed["ratio"] if confirmed else seen,
            "interval": [confirmed["lower"], confirmed["upper"]] if confirmed else None,
            "pairs": confirmed["pairs"] if confirmed else 0,
            "confirmed": bool(confirmed and confirmed["lower"] > 1),
            "incumbent": result.start.key,
        },
        "evaluations": result.evaluations,
        "rejected": result.rejected,
        "playbook": {name: done.count(name) for name in ("added", "merged", "tagged", "removed", "updated", "refused")},
        "cost": {
            "calls": spent.calls if spent else 0,
            "input_tokens": spent.input_tokens if spent else 0,
            "output_tokens": spent.output_tokens if spent else 0,
            "money": spent.money if spent else 0.0,
            "seconds": seconds,
        },
        "failures": result.failures,
        "ended": result.reason,
        "run_dir": run.path,
    }
