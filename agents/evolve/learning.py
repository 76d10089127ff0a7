"""What a run teaches its playbook: counters at once, by rule; new bullets at once, or with a model chapter by chapter.

A model is slow and costs money, so it is not asked about every candidate: what would be a new bullet waits until ten
evaluations are done, and then the lessons with the largest effects go through the reflector and the curator. What still
waits when a run ends is added by rule, as a note: a run that goes on later asks the model about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pibroch.agents.curator import curate
from pibroch.agents.evolve.edits import parse_edit
from pibroch.agents.evolve.facts import facts_of
from pibroch.agents.evolve.journal import Journal
from pibroch.agents.evolve.population import Individual
from pibroch.agents.evolve.proposals import Proposal
from pibroch.agents.lessons import Lesson
from pibroch.agents.lm.base import LanguageModel
from pibroch.agents.reflector import reflect
from pibroch.evals.evaluation import Evaluation
from pibroch.evals.finding import Finding
from pibroch.evals.ladder import Scores
from pibroch.evals.setting import Setting
from pibroch.playbooks.deltas import apply
from pibroch.playbooks.model import Delta, Outcome, Playbook

CHAPTER = 10  # evaluations
WORDED = 3  # lessons of a chapter that the reflector is asked about

Facts = dict[str, bool | int | float | str]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A lesson by rule, and what it was drawn from."""

    lesson: Lesson
    evaluation: Evaluation
    findings: Sequence[Finding]
    facts: Facts


@dataclass(slots=True)
class Learner:
    """`playbook` is what the run has made of it so far; `outcomes` of all deltas."""

    setting: Setting
    journal: Journal
    playbook: Playbook
    run: str
    scores: Scores
    say: Callable[[str], None] = lambda line: None
    outcomes: list[Outcome] = field(default_factory=list)
    _waiting: list[_Waiting] = field(default_factory=list)

    def measured(
        self, proposal: Proposal, incumbent: Individual, number: int, evaluation: Evaluation, lm: LanguageModel | None
    ) -> None:
        """One candidate was judged. Raises `Paused` from the model."""
        facts = facts_of(self.setting, incumbent.schedule, incumbent.findings(self.setting))
        lesson = None
        if proposal.alone and proposal.edit is not None:
            lesson = reflect(
                parse_edit(proposal.edit), evaluation, incumbent.findings(self.setting), facts,
                evidence=f"run:{self.run}#{number}", scores=self.scores,
            )  # fmt: skip
        deltas = curate(
            [lesson] if lesson else [], self.playbook, facts=facts, shown=proposal.shown,
            tested=proposal.bullets if proposal.source == "bullet" else (),
            cited=proposal.bullets if proposal.source == "writer" else (),
        )  # fmt: skip
        if lesson is not None and lesson.effect == "hurt" and incumbent.number:
            deltas = [delta for delta in deltas if delta.op != "ADD"]  # most edits hurt what is good already
        if lm is not None:
            if lesson is not None and any(delta.op == "ADD" for delta in deltas):
                self._waiting.append(_Waiting(lesson, evaluation, incumbent.findings(self.setting), facts))
            deltas = [delta for delta in deltas if delta.op != "ADD"]
        self._commit(number, deltas)
        if lm is None or number % CHAPTER == 0:
            self._chapter(number, lm)

    def close(self) -> None:
        """What still waits becomes bullets by rule, in the playbook that the run leaves behind."""
        deltas = self._news(None)
        if deltas:
            self.playbook, outcomes = apply(self.playbook, deltas, check_edit=parse_edit)
            self.outcomes += outcomes
            self.journal.note("learned", _row(deltas, outcomes))

    def _chapter(self, number: int, lm: LanguageModel | None) -> None:
        if self._waiting:
            self._commit(number, self._news(lm))
            self._waiting.clear()

    def _news(self, lm: LanguageModel | None) -> list[Delta]:
        if not self._waiting:
            return []
        ranked = sorted(self._waiting, key=lambda w: -abs(math.log(w.lesson.ratio or 1.0)))
        lessons: list[Lesson] = []
        for place, one in enumerate(ranked):
            lesson: Lesson | None = one.lesson
            if lm is not None and place < WORDED and one.lesson.edit is not None:
                lesson = reflect(
                    parse_edit(one.lesson.edit), one.evaluation, one.findings, one.facts,
                    evidence=one.lesson.evidence, scores=self.scores, lm=lm, say=self.say,
                )  # fmt: skip
            lessons.append(lesson or one.lesson)
        return curate(lessons, self.playbook, facts=ranked[0].facts, lm=lm, say=self.say)

    def _commit(self, number: int, deltas: Sequence[Delta]) -> None:
        if deltas:
            after, outcomes = apply(self.playbook, deltas, check_edit=parse_edit)
            self.journal.once("playbook", {"evaluation": number, **_row(deltas, outcomes)})
            self.playbook = after
            self.outcomes += outcomes


def _row(deltas: Sequence[Delta], outcomes: Sequence[Outcome]) -> dict[str, list[object]]:
    return {
        "deltas": [delta.model_dump(mode="json") for delta in deltas],
        "outcomes": [outcome.model_dump(mode="json") for outcome in outcomes],
    }
