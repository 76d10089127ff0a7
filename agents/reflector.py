"""The reflector: from one measured edit to a lesson.

The edit was applied alone to the incumbent, so that what was measured is its effect. Rules say what it taught; a
language model may say it better and bound it otherwise, but neither edit nor effect is its to decide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pibroch.agents.answers import answer_of
from pibroch.agents.evolve.edits import Edit, describe
from pibroch.agents.evolve.lesson_rules import bounds, general, section_of
from pibroch.agents.lessons import PITFALLS, Effect, Lesson, effect_of
from pibroch.agents.lm.accounting import BudgetError
from pibroch.agents.lm.base import LanguageModel, LMError, ReplyError, Request, digest
from pibroch.agents.wording import numbers_in, wrong_way
from pibroch.evals.evaluation import Evaluation
from pibroch.evals.feedback.kinds import KINDS
from pibroch.evals.feedback.text import as_text
from pibroch.evals.finding import Finding
from pibroch.evals.ladder import Scores
from pibroch.playbooks.conditions import FINDING, normal
from pibroch.playbooks.model import Bullet
from pibroch.playbooks.retrieve import fits
from pibroch.runtime.errors import InputError

REFLECTOR_SCHEMA = 1
DEADLINE_S = 300.0
TRIES = 2
PROMPTS = ("reflect",)
SHOWN_FINDINGS = 6

Facts = Mapping[str, bool | int | float | str]


def reflect(
    edit: Edit,
    evaluation: Evaluation,
    findings: Sequence[Finding],
    facts: Facts,
    *,
    evidence: str,
    scores: Scores,
    lm: LanguageModel | None = None,
    prompts: Mapping[str, str] | None = None,
    sample: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Lesson | None:
    """The lesson of one edit that was applied alone; None where its evaluation says nothing of the speed.

    `findings` and `facts` are the incumbent's, from before the edit. The model is asked about gains and losses only;
    where it fails or keeps to no rule within two tries, the rule's lesson stands. Raises `Paused` from the model.
    """
    effect = effect_of(evaluation, scores=scores)
    if effect is None:
        return None
    lesson = _by_rule(edit, evaluation, findings, facts, effect, evidence)
    if lm is None or effect == "nothing" or lesson.edit is None:
        return lesson
    return _Model(lm, prompts, sample, say).reword(lesson, evaluation, findings, facts)


def mended(findings: Sequence[Finding], evaluation: Evaluation) -> Finding | None:
    """The finding that lost the most seconds; where nothing is known of after, the costliest one of the schedule."""
    own = [f for f in findings if f.origin == "schedule" and f.seconds > 0]
    if not evaluation.findings:
        return max(own, key=lambda f: f.seconds, default=None)
    after: dict[str, float] = {}
    for f in evaluation.findings:
        after[f.kind] = after.get(f.kind, 0.0) + f.seconds
    before: dict[str, list[Finding]] = {}
    for f in own:
        before.setdefault(f.kind, []).append(f)
    gains = {kind: sum(f.seconds for f in fs) - after.get(kind, 0.0) for kind, fs in before.items()}
    best = max(gains, key=lambda kind: gains[kind], default=None)
    return before[best][0] if best is not None and gains[best] > 0 else None


def _by_rule(
    edit: Edit, evaluation: Evaluation, findings: Sequence[Finding], facts: Facts, effect: Effect, evidence: str
) -> Lesson:
    cause = mended(findings, evaluation) if effect == "helped" else None
    conditions = bounds(edit, facts)
    if cause is not None and facts.get(f"finding:{cause.kind}") is True:
        conditions[f"finding:{cause.kind}"] = "true"
    kept = general(edit, facts)
    what = describe(kept or edit).rstrip(".")
    quoted = what[:1].lower() + what[1:]
    if effect == "hurt":
        text = f"Avoid this: {quoted}. It made steps slower."
    elif cause is not None:
        text = f"Against {_words(cause.kind)}: {quoted}."
    else:
        text = f"{what}."
    return Lesson(
        text=text[:600], section=PITFALLS if effect == "hurt" else section_of(edit), applies_when=normal(conditions),
        edit=None if kept is None else kept.to_json(), effect=effect, ratio=evaluation.ratio, lower=evaluation.lower,
        upper=evaluation.upper, evidence=evidence,
    )  # fmt: skip


def _words(kind: str) -> str:
    return kind.replace("_", " ").replace("-", " ")


class _Answer(BaseModel):
    """What a model may say. `edit` and `effect` may be repeated; they must be what they were."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str = Field(min_length=1, max_length=600)
    applies_when: dict[str, str]
    edit: dict[str, Any] | None = None
    effect: str | None = None


class _Model:
    def __init__(
        self, lm: LanguageModel, prompts: Mapping[str, str] | None, sample: int, say: Callable[[str], None]
    ) -> None:
        self.lm, self.prompts, self.sample, self.say = lm, prompts, sample, say

    def reword(self, lesson: Lesson, evaluation: Evaluation, findings: Sequence[Finding], facts: Facts) -> Lesson:
        """The lesson in the model's words and bounds, or as it was."""
        reason = ""
        for attempt in range(1, TRIES + 1):
            try:
                text = self._ask(lesson, evaluation, findings, facts, attempt, reason)
                return checked(text, lesson, facts)
            except ReplyError as error:
                reason = str(error)[:600]
                self.say(f"reflector, attempt {attempt}: {reason}")
            except (LMError, BudgetError) as error:
                self.say(f"reflector: {str(error)[:300]}")
                break
        return lesson

    def _ask(
        self, lesson: Lesson, evaluation: Evaluation, findings: Sequence[Finding], facts: Facts, attempt: int,
        reason: str,
    ) -> str:  # fmt: skip
        # Imported here: DSPy takes seconds, and without a language model nothing of it is needed.
        from pibroch.agents.evolve_dspy import Reflect
        from pibroch.agents.instructed import Instructed
        from pibroch.agents.lm.dspy_engine import call

        request = Request(
            role="reflector", subject=str((lesson.edit or {}).get("op", "edit")), phase=1, attempt=attempt, messages=(),
            deadline_s=DEADLINE_S, semantic_key=digest([lesson.evidence, lesson.edit, lesson.effect]),
            previous_hash=digest(reason), sample=self.sample, schema_version=REFLECTOR_SCHEMA, max_tokens=2048,
            blocks=("json",),
        )  # fmt: skip
        draft = {"text": lesson.text, "applies_when": lesson.applies_when}
        _, reply, _ = call(
            Instructed(Reflect, PROMPTS, self.prompts), self.lm, request, edit=json.dumps(lesson.edit),
            effect=_measured(lesson), before=as_text(findings, limit=SHOWN_FINDINGS),
            after=as_text(evaluation.findings, limit=SHOWN_FINDINGS) if evaluation.findings else "",
            facts=json.dumps(dict(facts)), draft=json.dumps(draft), feedback=reason,
        )  # fmt: skip
        return reply.text


def _measured(lesson: Lesson) -> str:
    interval = "" if lesson.lower is None or lesson.upper is None else f" ({lesson.lower:.3f} to {lesson.upper:.3f})"
    return f"{lesson.effect}: speed x {lesson.ratio:.3f}{interval}" if lesson.ratio is not None else lesson.effect


def checked(text: str, lesson: Lesson, facts: Facts) -> Lesson:
    """The lesson in a reply's words and conditions. Raises `ReplyError` that says what is wrong with them."""
    answer = answer_of(text, _Answer)
    if answer.edit is not None and answer.edit != lesson.edit:
        raise ReplyError(f"edit: it is {json.dumps(lesson.edit)}; only text and applies_when are yours")
    if answer.effect is not None and answer.effect != lesson.effect:
        raise ReplyError(f"effect: it was measured to be {lesson.effect}")
    words = " ".join(answer.text.split())
    if "```" in words or not words:
        raise ReplyError("text: one or two sentences, no block")
    if new := numbers_in(words) - numbers_in(lesson.text + json.dumps(lesson.edit)):
        raise ReplyError(f"text: it has figures that are not the edit's: {', '.join(sorted(new))}")
    if why := wrong_way(words, was=lesson.text, pitfall=lesson.section == PITFALLS):
        raise ReplyError(f"text: {why}")
    if lesson.applies_when and not answer.applies_when:
        raise ReplyError("applies_when: one measurement does not hold everywhere: give at least one condition")
    if unknown := sorted(answer.applies_when.keys() - facts.keys() - {FINDING + kind for kind in KINDS}):
        raise ReplyError(f"applies_when: {', '.join(unknown)[:200]}: no such fact; there are {', '.join(facts)}")
    try:
        conditions = normal(answer.applies_when)
    except InputError as error:
        raise ReplyError(f"applies_when: {error}") from error
    if not fits(Bullet(id="probe-00000", section=lesson.section, text=words, applies_when=conditions), facts):
        raise ReplyError("applies_when: the conditions do not hold on the task where this was measured")
    return lesson.model_copy(update={"text": words, "applies_when": conditions})
