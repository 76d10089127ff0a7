"""From a sentence to a proven schedule, in two phases that loop write, judge, feedback.

Without a language model the planner writes both phases. With one, each attempt is one request; a candidate that never
passes is never returned. Feedback is deterministic, so that a recorded conversation replays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pibroch.agents.answer_schema import schedule_schema
from pibroch.agents.candidate_reply import Infeasible, read_reply, shown
from pibroch.agents.candidates import check_model
from pibroch.agents.constraints import limits
from pibroch.agents.feedback import Feedback, as_text
from pibroch.agents.intent import Intent, read_intent
from pibroch.agents.lm.base import LanguageModel, Request, digest, finish
from pibroch.agents.model_facts import facts
from pibroch.agents.phases import erase_phase2, judge_concurrency, judge_placement, numbers
from pibroch.agents.planner import default_costs, plan_schedule
from pibroch.agents.reading import reading, stages
from pibroch.agents.schedule_small import MOST_TOKENS, SCHEMA, read_small, suits
from pibroch.runtime.costs import Costs
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.simulate import simulate

WRITER_SCHEMA = 1
DEADLINE_S = 300.0

Judge = Callable[[Schedule], Sequence[Feedback]]


@dataclass(slots=True)
class Phase:
    """How one phase went: feedback per attempt, an empty list for the attempt that passed."""

    phase: int
    attempts: int = 0
    feedback: list[list[Feedback]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether the last attempt was accepted."""
        return bool(self.feedback) and not self.feedback[-1]


@dataclass(slots=True)
class Written:
    """`schedule` is None unless `verified`. `matches` is False where the sentence asks for what no directive can do;
    `lm` names the model, or "planner". `stale` counts replayed replies whose prompt has changed since."""

    intent: Intent
    unused_words: tuple[str, ...]
    schedule: Schedule | None
    verified: bool
    phases: list[Phase]
    lm: str
    why: list[str] = field(default_factory=list)
    matches: bool = True
    stale: int = 0
    prompt_hash: str = ""


def write_schedule(
    intent_text: str,
    model: ModelSpec,
    *,
    lm: LanguageModel | None = None,
    judge: Judge | None = None,
    attempts: int = 4,
    memory_limit: int | None = None,
    devices_available: int | None = None,
    costs: Costs | None = None,
    prompts: Mapping[str, str] | None = None,
    sample: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Written:
    """Write a schedule for `model` from a sentence.

    `judge` sees a schedule that passed both phases and may still send feedback. `memory_limit` is bytes per device and
    joins the sentence's own. `attempts` is per phase and visit. Raises `InputError` for a contradictory sentence or,
    without a model, where nothing fits; `Paused` and `LMError` from the model.
    """
    intent = read_intent(intent_text, known=(model.name,))
    check_model(intent, model)
    costs = costs or default_costs(model)
    limits = [n for n in (intent.memory_limit, memory_limit) if n is not None]
    limit = min(limits) if limits else None
    if lm is None:
        return _planned(intent, model, costs, limit, devices_available, judge)
    if attempts < 1:
        raise InputError(f"attempts is at least 1, not {attempts}")
    loop = _Loop(intent, model, lm, judge, attempts, limit, devices_available, costs, prompts, sample, say)
    written = loop.run_small() if suits(intent, lm) else loop.run()
    finish(lm)
    return written


def _planned(
    intent: Intent, model: ModelSpec, costs: Costs, limit: int | None, devices: int | None, judge: Judge | None
) -> Written:
    planned = plan_schedule(intent, model, devices_available=devices, costs=costs, memory_limit=limit)
    placement = erase_phase2(planned.schedule)
    _, first = judge_placement(placement, intent, model)
    _, second = judge_concurrency(planned.schedule, placement, intent, model, costs, limit)
    if not second and judge is not None:
        second = list(judge(planned.schedule))
    verified = not first and not second
    return Written(
        intent, intent.unused, planned.schedule if verified else None, verified,
        [Phase(1, 1, [first]), Phase(2, 1, [second])], "planner", planned.why, planned.matches,
    )  # fmt: skip


@dataclass(slots=True)
class _Loop:
    intent: Intent
    model: ModelSpec
    lm: LanguageModel
    judge: Judge | None
    attempts: int
    limit: int | None
    devices: int | None
    costs: Costs
    prompts: Mapping[str, str] | None
    sample: int
    say: Callable[[str], None]
    stale: int = 0
    prompt_hash: str = ""
    kept: list[Feedback] = field(default_factory=list)

    def run(self) -> Written:
        first, second = Phase(1), Phase(2)
        schedule: Schedule | None = None
        told: list[Feedback] = []
        previous = ""
        for visit in range(2):
            placement, previous = self._placement(first, told, previous)
            if placement is None:
                break
            try:
                schedule = self._concurrency(second, placement, final=visit == 1)
                break
            except Infeasible as error:
                self.say("phase 2 sends the placement back")
                told = [Feedback("PHASE", "placement_infeasible", str(error))]
        return self._written(schedule, first, second)

    def run_small(self) -> Written:
        """Both phases in one request, and every attempt a fresh draw."""
        from pibroch.agents.lm.dspy_engine import call
        from pibroch.agents.writer_module import small_writer

        first, second = Phase(1), Phase(2)
        schedule: Schedule | None = None
        while schedule is None and first.attempts < self.attempts:
            first.attempts += 1
            request = Request(
                role="writer", subject=self.model.name, phase=1, attempt=first.attempts, messages=(),
                deadline_s=DEADLINE_S, semantic_key=self._semantic_key(), sample=self.sample,
                schema_version=WRITER_SCHEMA, max_tokens=MOST_TOKENS, blocks=("json",), json_schema=SCHEMA,
            )  # fmt: skip
            self.say(f"attempt {first.attempts}: asking {self.lm.name}")
            _, reply, sent = call(
                small_writer(self.prompts), self.lm, request, intent=self.intent.text,
                reading=reading(self.intent, self.limit, self.devices),
            )  # fmt: skip
            self.stale += reply.stale
            self.prompt_hash = sent.prompt_hash
            placement, found, rows = read_small(reply.text)
            if placement is not None:
                _, wrong = judge_placement(placement, self.intent, self.model)
                wrong += self._device_findings(placement)
                self._note(first, wrong)
                if wrong:
                    continue
                second.attempts += 1
            if placement is not None and found is not None:
                _, rows = judge_concurrency(found, placement, self.intent, self.model, self.costs, self.limit)
                if not rows and self.judge is not None:
                    rows = list(self.judge(found))
            self._note(first if placement is None else second, rows)
            schedule = None if rows else found
        return self._written(schedule, first, second)

    def _written(self, schedule: Schedule | None, first: Phase, second: Phase) -> Written:
        return Written(
            self.intent, self.intent.unused, schedule, schedule is not None, [first, second], self.lm.name,
            [] if schedule is None else [f"written by {self.lm.name}", *self._kept()],
            not self.intent.unsupported, self.stale, self.prompt_hash,
        )  # fmt: skip

    def _placement(self, phase: Phase, told: list[Feedback], previous: str) -> tuple[Schedule | None, str]:
        rows = told
        for _ in range(self.attempts):
            previous = self._ask(phase, previous, rows)
            schedule, rows = read_reply(previous, phase=1, placement=None)
            if schedule is not None:
                _, rows = judge_placement(schedule, self.intent, self.model)
                rows += self._device_findings(schedule)
            self._note(phase, rows)
            if schedule is not None and not rows:
                return schedule, previous
        return None, previous

    def _concurrency(self, phase: Phase, placement: Schedule, *, final: bool) -> Schedule | None:
        lines = ",\n".join("  " + json.dumps(row) for row in placement.to_json()["directives"])
        text = f"[\n{lines}\n]"
        plan = lower(placement, self.model)
        given = {
            "placement": f"```json\n{text}\n```",
            "stages": stages(plan, self.model),
            "limits": limits(self.intent, plan, self.model),
            "numbers": numbers(simulate(plan, self.costs)),
        }
        rows: list[Feedback] = []
        advised: set[str] = set()
        previous = ""
        for _ in range(self.attempts):
            previous = self._ask(phase, previous, rows, placement, given)
            try:
                schedule, rows = read_reply(previous, phase=2, placement=placement)
            except Infeasible as error:
                rows = [Feedback("PHASE", "placement_infeasible", str(error))]
                self._note(phase, rows)
                if final:
                    rows = [Feedback("PHASE", "", "the placement was changed once already: find an order for this one")]
                    continue
                raise
            if schedule is not None:
                simulation, rows = judge_concurrency(
                    schedule, placement, self.intent, self.model, self.costs, self.limit
                )
                # Advice is given once. A writer who then keeps to it has read the sentence otherwise, and stands.
                self.kept = [row for row in rows if row.advice and row.subject in advised]
                rows = [row for row in rows if row not in self.kept]
                advised |= {row.subject for row in rows if row.advice}
                if rows and simulation is not None:
                    rows = [*rows, Feedback("NUMBERS", "your schedule in the simulator", numbers(simulation))]
                if not rows and self.judge is not None:
                    rows = list(self.judge(schedule))
            self._note(phase, rows)
            if schedule is not None and not rows:
                return schedule
        return None

    def _kept(self) -> list[str]:
        """What the accepted schedule does against advice, one line for each subject."""
        first = {row.subject: row for row in reversed(self.kept)}
        return [f"kept against advice: [{row.rule}] {row.message}" for row in reversed(first.values())]

    def _device_findings(self, schedule: Schedule) -> list[Feedback]:
        if self.devices is None:
            return []
        used = {d for row in schedule.directives if row.op == "place" for d in row.devices}
        if max(used, default=0) < self.devices:
            return []
        return [Feedback("INTENT", "", f"{self.devices} devices are available: use 0 to {self.devices - 1} only")]

    def _ask(
        self,
        phase: Phase,
        previous: str,
        rows: list[Feedback],
        placement: Schedule | None = None,
        given: Mapping[str, str] | None = None,
    ) -> str:
        # Imported here: DSPy takes seconds, and without a language model nothing of it is needed.
        from pibroch.agents.lm.dspy_engine import call
        from pibroch.agents.writer_module import schedule_writer

        phase.attempts += 1
        request = Request(
            role="writer", subject=self.model.name, phase=phase.phase, attempt=phase.attempts, messages=(),
            deadline_s=DEADLINE_S, semantic_key=self._semantic_key(),
            previous_hash=digest([previous, placement.to_json() if placement else None]),
            sample=self.sample, schema_version=WRITER_SCHEMA, max_tokens=8192,
            json_schema=schedule_schema(phase.phase),
        )  # fmt: skip
        self.say(f"phase {phase.phase}, attempt {phase.attempts}: asking {self.lm.name}")
        _, reply, sent = call(
            schedule_writer(phase.phase, self.prompts), self.lm, request, intent=self.intent.text,
            reading=reading(self.intent, self.limit, self.devices), model=facts(self.model), **(given or {}),
            previous=shown(previous) if rows else "", feedback=as_text(rows),
        )  # fmt: skip
        self.stale += reply.stale
        self.prompt_hash = sent.prompt_hash
        return reply.text

    def _note(self, phase: Phase, rows: list[Feedback]) -> None:
        phase.feedback.append(rows)
        outcome = str(rows[0]).splitlines()[0] if rows else "passed"
        self.say(f"phase {phase.phase}, attempt {phase.attempts}: {outcome}")

    def _semantic_key(self) -> str:
        # Of the task, not of its wording: a reworded prompt or a measured byte count leaves recordings findable.
        return digest([self.intent.text, self.model.name, len(self.model.layers), self.limit, self.devices])
