"""The loop: propose, judge on the ladder, learn; at the end a fresh confirmation.

Everything here follows from the seed, the options and what the journal holds, so that a resumed run takes the same
steps (`journal.py`). Only the ladder and the language model touch the world, and each of their answers is a line.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pibroch.agents.evolve.budget import Budget
from pibroch.agents.evolve.design import decode
from pibroch.agents.evolve.facts import facts_of
from pibroch.agents.evolve.journal import Journal
from pibroch.agents.evolve.learning import Learner
from pibroch.agents.evolve.memo import Memo
from pibroch.agents.evolve.population import Individual, Population
from pibroch.agents.evolve.proposals import Proposal, Proposer
from pibroch.agents.evolve.rundir import RunDir
from pibroch.agents.evolve.start import starting_schedule
from pibroch.agents.evolve.writer import Writer
from pibroch.agents.lm.base import digest
from pibroch.evals.evaluation import Evaluation
from pibroch.evals.finding import Finding
from pibroch.evals.ladder import Ladder
from pibroch.playbooks.model import Bullet, Outcome, Playbook
from pibroch.playbooks.retrieve import select
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError, WorkerError

IDLE_TURNS = 60  # proposals in a row that were not worth an evaluation: the neighbourhood is used up
BULLET_TOKENS = 1500
_SAME = Evaluation(rung="verify", verdict="same", reason="its plan is the incumbent's")
PATIENCE = 3  # failures of the model in a row


@dataclass(frozen=True, slots=True)
class Options:
    """`told` is what a resumed run needs besides: kept in the journal's first line as it is."""

    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    start: Schedule | None = None
    told: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Result:
    """`confirmed` compares `best` with the start, freshly; None where nothing was run for it. `gain` is the product of
    the ratios by which incumbents were replaced: what was seen on the way, and no confirmation."""

    best: Individual
    start: Individual
    reason: str
    evaluations: int
    rejected: list[dict[str, Any]]
    outcomes: list[Outcome]
    confirmed: dict[str, Any] | None
    gain: float
    failures: list[str]


class Evolution:
    """One run over one task. `playbook` is what it begins with; `learner` holds what the run makes of it."""

    def __init__(
        self,
        *,
        run: RunDir,
        journal: Journal,
        ladder: Ladder,
        playbook: Playbook,
        options: Options,
        lm: Memo | None = None,
        prompts: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.run_dir, self.journal, self.ladder, self.options, self.lm, self.say = (
            run, journal, ladder, options, lm, say,
        )  # fmt: skip
        self.setting = ladder.setting
        self.learner = Learner(self.setting, journal, playbook, run.path.name, ladder.scores, say)
        self.evaluations = 0
        self.rejected: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.failed_in_a_row = 0
        self.tried: list[str] = []
        self.gain = 1.0
        self.writer = Writer(lm, self.setting, prompts, say=say) if lm else None

    def run(self) -> Result:
        """Raises `InputError` where nothing can start, `Paused` where a mailbox has no answer yet."""
        start = self._begin()
        reason = "interrupted"
        confirmed = None
        try:
            reason = self._loop()
            confirmed = self._confirm(start)
        except KeyboardInterrupt:
            reason = "interrupted"
        except (InputError, WorkerError) as error:  # what the run has found stands, unconfirmed
            if reason == "interrupted":
                raise
            self.failures.append(f"the best could not be confirmed: {error}")
            self.say(self.failures[-1])
        self.learner.close()
        result = Result(
            self.population.incumbent, start, reason, self.evaluations, self.rejected, self.learner.outcomes, confirmed,
            self.gain, self.failures,
        )  # fmt: skip
        self.journal.note("end", {"reason": reason, "best": result.best.key, "evaluations": self.evaluations})
        return result

    # The start

    def _begin(self) -> Individual:
        task, begun = self.setting.task, self.learner.playbook
        schedule = self.options.start or starting_schedule(self.setting)
        key = self.run_dir.save(schedule)
        first = self.journal.once("start", {
            "version": 1, "task": task.model_dump(mode="json"), "seed": self.options.seed, "scores": self.ladder.scores,
            "lm": self.lm.name if self.lm else None, "incumbent": key,
            "playbook": digest(begun.model_dump(mode="json")),
        }, lambda: {"run": self.run_dir.path.name, "told": self.options.told})  # fmt: skip
        self.learner.run = first["run"]  # a folder may be renamed; evidence keeps the run's first name
        known = self.journal.once("known", {}, lambda: {"known": self.ladder.prepare(schedule)})
        self.ladder.recall(known["known"])
        evaluation = self._first(schedule)
        self.journal.once("evaluation", {
            "evaluation": 0, "schedule": key, "incumbent": key, "result": evaluation.to_json(),
        })  # fmt: skip
        start = Individual(schedule, key, evaluation.plan, 0, decode(schedule, self.setting), evaluation)
        self.population = Population(start)
        self.population.add(start)
        self.population.plans[start.plan] = evaluation
        start.known = self._findings(start)
        self.proposer = Proposer(
            self.setting, self.population, lambda: self._fitting(begun), self._write if self.lm is not None else None,
            priors=_priors(begun),
        )  # fmt: skip
        return start

    def _fitting(self, playbook: Playbook) -> list[Bullet]:
        """The bullets for the present incumbent, the best first."""
        one = self.population.incumbent
        return select(playbook, facts_of(self.setting, one.schedule, one.findings(self.setting)), tokens=BULLET_TOKENS)

    # The loop

    def _loop(self) -> str:
        turn = idle = 0
        while True:
            if (reason := self._over(idle)) is not None:
                return reason
            proposal = self.proposer.next(turn, random.Random(f"{self.options.seed}/{turn}"))
            turn += 1
            idle = 0 if self._try(proposal) else idle + 1

    def _over(self, idle: int) -> str | None:
        """Time and a user's wish end a run only where it goes on by itself: never in the middle of what it repeats."""
        seconds = 0.0 if self.journal.replaying else self.journal.spent_s
        if reason := self.options.budget.spent(evaluations=self.evaluations, seconds=seconds):
            return reason
        if idle >= IDLE_TURNS:
            return f"no more proposals: the last {IDLE_TURNS} were tried before or do not apply"
        return "stopped" if not self.journal.replaying and self.run_dir.stopped else None

    def _try(self, proposal: Proposal) -> bool:
        """Whether the proposal was evaluated."""
        schedule = proposal.schedule
        if schedule is None:
            return self._skip(proposal, "", proposal.why)
        key = self.run_dir.save(schedule)
        try:
            plan = self.setting.name(self.setting.lower(schedule))
        except InputError as error:
            return self._skip(proposal, key, f"refused: {error}")
        number, incumbent = self.evaluations + 1, self.population.incumbent
        if plan in self.population.plans:
            self._skip(proposal, key, "duplicate")
            if proposal.source == "bullet" and plan == incumbent.plan:  # a test that needs no measurement
                self.learner.measured(proposal, incumbent, self.evaluations, _SAME, self.lm)
            return False
        self.journal.once("proposal", {
            "evaluation": number, "source": proposal.source, "parent": proposal.parent.key, "schedule": key,
            "edit": proposal.edit, "bullets": list(proposal.bullets), "why": proposal.why,
        })  # fmt: skip
        evaluation = self._measured(number, schedule, key, incumbent)
        self.evaluations = number
        self.tried.append(f"{number}. {proposal.why[:160]}: {evaluation.verdict}, {evaluation.reason[:160]}")
        self.population.plans[plan] = evaluation
        self._take(proposal, schedule, key, number, evaluation)
        self.learner.measured(proposal, incumbent, number, evaluation, self.lm)
        return True

    def _skip(self, proposal: Proposal, key: str, reason: str) -> bool:
        self.journal.once("skipped", {
            "source": proposal.source, "parent": proposal.parent.key, "schedule": key, "reason": reason[:400],
            "edit": proposal.edit, "bullets": list(proposal.bullets),
        })  # fmt: skip
        return False

    def _take(self, proposal: Proposal, schedule: Schedule, key: str, number: int, evaluation: Evaluation) -> None:
        """A legal candidate joins the population; a faster one becomes the incumbent."""
        if proposal.source in ("edit", "bullet"):
            self.proposer.learn(proposal.edit, won=evaluation.accepted)
        if evaluation.verdict in ("invalid", "unequal", "same") or evaluation.simulated_s is None:
            self.rejected.append(_rejection(number, key, evaluation))
            return
        design = proposal.design or decode(schedule, self.setting)
        one = Individual(schedule, key, evaluation.plan, number, design, evaluation, proposal.parent.key)
        if evaluation.accepted:
            self.population.incumbent = one
            self.gain *= evaluation.ratio or 1.0
            one.known = self._findings(one)
        else:
            self.rejected.append(_rejection(number, key, evaluation))
        self.population.add(one)

    def _write(self, incumbent: Individual) -> Proposal:
        """The model's proposal; it is left alone once it has failed too often."""
        assert self.writer is not None
        bullets = self._fitting(self.learner.playbook)
        shown = tuple(b.id for b in bullets)
        answer = self.writer.propose(
            incumbent.schedule, incumbent.findings(self.setting), bullets, tried=self.tried, seen=self.population.plans,
            evaluation=self.evaluations + 1,
        )  # fmt: skip
        if answer.schedule is None:
            self.failures.append(answer.why)
            self.failed_in_a_row += 1
            if self.failed_in_a_row >= PATIENCE:
                self.failures.append(f"after {PATIENCE} failures in a row the run goes on without the model")
                self.say(self.failures[-1])
                self.proposer.write = self.lm = None
            return Proposal("writer", incumbent, None, answer.why, shown=shown)
        self.failed_in_a_row = 0
        return Proposal(
            "writer", incumbent, answer.schedule, answer.why, answer.edit, answer.cites, shown,
            alone=answer.edit is not None,
        )  # fmt: skip

    # Effects, each a line of the journal

    def _measured(self, number: int, schedule: Schedule, key: str, incumbent: Individual) -> Evaluation:
        record = self.journal.once(
            "evaluation", {"evaluation": number, "schedule": key, "incumbent": incumbent.key},
            lambda: {"result": self.ladder.evaluate(schedule, incumbent.schedule).to_json()},
        )  # fmt: skip
        return Evaluation.model_validate(record["result"])

    def _first(self, schedule: Schedule) -> Evaluation:
        """The start, in the simulator. Raises `InputError` where it is not legal."""
        plan = self.setting.lower(schedule)
        simulation = self.setting.simulate(plan)
        for violation in self.setting.check(plan, simulation):
            raise InputError(f"the schedule to start from is refused: {violation.rule} {violation.message}")
        return Evaluation(
            plan=plan.hash(), rung="simulate", verdict="same", reason="the start", simulated=True,
            emulated=self.setting.profile is not None, simulated_s=simulation.makespan,
            peak_bytes=max(simulation.peak_bytes), ratio=1.0, lower=1.0, upper=1.0,
        )  # fmt: skip

    def _findings(self, one: Individual) -> list[Finding]:
        def find() -> dict[str, Any]:
            found = self.ladder.findings(one.schedule)
            if self.ladder.traced is not None:
                self.run_dir.save_trace(one.key, self.ladder.traced)
            return {"findings": [f.model_dump(mode="json") for f in found]}

        record = self.journal.once("findings", {"schedule": one.key}, find)
        return [Finding.model_validate(row) for row in record["findings"]]

    def _confirm(self, start: Individual) -> dict[str, Any] | None:
        best = self.population.incumbent
        if best.key == start.key or self.ladder.scores == "simulated":
            return None
        self.say("confirming the best against the start, in a fresh run")
        paired = self.ladder.confirm(best.schedule, start.schedule)
        row = {
            "schedule": best.key, "incumbent": start.key, "ratio": paired.ratio, "lower": paired.lower,
            "upper": paired.upper, "pairs": paired.pairs, "confidence": paired.confidence,
        }  # fmt: skip
        self.journal.note("confirm", row)
        return row


def _rejection(number: int, key: str, evaluation: Evaluation) -> dict[str, Any]:
    return {"evaluation": number, "schedule": key, "verdict": evaluation.verdict, "reason": evaluation.reason}


def _priors(playbook: Playbook) -> dict[str, float]:
    """What the playbook's tests say of each operator: the mean of a Beta(1, 1) posterior over its bullets."""
    tests: dict[str, tuple[int, int]] = {}
    for bullet in playbook.bullets:
        if bullet.edit is not None and bullet.tested:
            helpful, tested = tests.get(bullet.edit["op"], (0, 0))
            tests[bullet.edit["op"]] = helpful + bullet.helpful, tested + bullet.tested
    return {op: (helpful + 1) / (tested + 2) for op, (helpful, tested) in tests.items()}
