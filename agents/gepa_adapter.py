"""The schedule writer's prompts as a system that GEPA can evolve (`gepa.optimize(adapter=ScheduleAdapter(...))`).

An instance is a sentence of intent for a model; a candidate maps names of prompts to texts. Each rollout writes one
schedule with these prompts and judges it as `pibroch generate` does. The adapter stands alone: our own loop
(`agents/evolve/prompts.py`), with an acceptance criterion that noise does not fool, is one of its users.

Every evaluation of a candidate on an instance is a fresh sample, numbered from 1, so that a score is never an old draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gepa.core.adapter import EvaluationBatch, GEPAAdapter
from pydantic import BaseModel, ConfigDict

from pibroch.agents.feedback import Feedback, as_text
from pibroch.agents.intent import read_intent
from pibroch.agents.lm.base import LanguageModel, LMError, Reply, Request, backend, digest
from pibroch.agents.planner import default_costs, plan_schedule
from pibroch.agents.prompt_files import prompt
from pibroch.agents.reading import reading
from pibroch.agents.schedule_small import PROMPT as SMALL_PROMPT
from pibroch.agents.schedule_small import SMALL_MODELS
from pibroch.agents.schedule_writer import Written, write_schedule
from pibroch.runtime.directives import Schedule
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan
from pibroch.runtime.simulate import Simulation, simulate

PHASE_PROMPTS = ("schedule_phase1", "schedule_phase2")
FEEDBACK_TOKENS = 4000
TRIES = 3
_RULES = 13  # FORMAT, PHASE, V1 to V9, INTENT, and one for the order: BUBBLE or INFLIGHT
_SHOWN = 1500

Candidate = Mapping[str, str]
Seconds = Callable[[Schedule, ModelSpec], float]


@dataclass(frozen=True, slots=True)
class Instance:
    """`reference_s` and `reference_bytes` are of the planner's schedule, by which a written one is scored: simulated
    seconds for each microbatch of all replicas, and bytes of the fullest device."""

    id: str
    intent: str
    model: ModelSpec
    memory_limit: int | None
    reference_s: float
    reference_bytes: int


def instance(intent: str, model: ModelSpec, *, ident: str = "", memory_limit: int | None = None) -> Instance:
    """Make one. Raises `InputError` where the sentence contradicts itself or nothing fits it."""
    planned = plan_schedule(read_intent(intent, known=(model.name,)), model, memory_limit=memory_limit)
    plan, simulation = _simulated(planned.schedule, model)
    seconds = simulation.makespan / _work(plan)
    return Instance(ident or digest(intent), intent, model, memory_limit, seconds, max(simulation.peak_bytes))


class Asked(BaseModel):
    """One request of a rollout: the phase, the reply, and what was found wrong with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    phase: int
    reply: str
    findings: tuple[tuple[str, str, str], ...] = ()


class Rollout(BaseModel):
    """One schedule written with one candidate: plain data, so that a journal keeps it.

    `score` is 0 to 0.5 by the rules kept where it is not verified, and 0.5 to 1 by its speed where it is: seconds of
    the planner's schedule over its own. `inputs` is what the request said. `tokens` of all its requests, in and out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    instance: str
    sample: int
    inputs: str
    verified: bool
    score: float
    objectives: dict[str, float]
    asked: tuple[Asked, ...]
    tokens: int


Remember = Callable[[str, Instance, int, Callable[[], Rollout]], Rollout]


def components(lm: LanguageModel) -> tuple[str, ...]:
    """The prompts that this model's schedules come from."""
    return (SMALL_PROMPT,) if backend(lm) in SMALL_MODELS else PHASE_PROMPTS


def seed_candidate(lm: LanguageModel, prompts: Mapping[str, str] | None = None) -> dict[str, str]:
    """The prompts as they are: the shipped ones, or those of `prompts`."""
    return {name: prompt(name, prompts) for name in components(lm)}


def candidate_hash(candidate: Candidate) -> str:
    """Of the texts, whatever their order."""
    return digest(dict(candidate))


class ScheduleAdapter(GEPAAdapter[Instance, tuple[Rollout, ...], tuple[Rollout, ...]]):
    """`samples` rollouts of each instance and evaluation; scores are their means. `attempts` are per phase.

    `seconds` measures a verified schedule (seconds for each microbatch of all replicas); without it the simulator does.
    `remember(candidate, instance, sample, make)` may answer from a journal instead of calling `make`. `tokens` bounds
    the feedback of one reflection. `spent` counts rollouts.
    """

    propose_new_texts = None

    def __init__(
        self,
        lm: LanguageModel,
        *,
        samples: int = 1,
        attempts: int = 1,
        prompts: Mapping[str, str] | None = None,
        seconds: Seconds | None = None,
        remember: Remember = lambda candidate, one, sample, make: make(),
        tokens: int = FEEDBACK_TOKENS,
    ) -> None:
        self.lm, self.samples, self.attempts, self.prompts = lm, samples, attempts, dict(prompts or {})
        self.seconds, self.remember, self.tokens = seconds, remember, tokens
        self.spent = 0
        self._drawn: Counter[tuple[str, str]] = Counter()

    def rollout(self, candidate: Candidate, one: Instance) -> Rollout:
        """The next sample of this candidate on this instance."""
        key = candidate_hash(candidate)
        self._drawn[key, one.id] += 1
        self.spent += 1
        sample = self._drawn[key, one.id]
        return self.remember(key, one, sample, lambda: self._write(candidate, one, sample))

    def evaluate(
        self, batch: list[Instance], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[tuple[Rollout, ...], tuple[Rollout, ...]]:
        """GEPA's call. A reply that cannot be read scores 0; a model that does not answer raises `LMError`."""
        rows = [tuple(self.rollout(candidate, one) for _ in range(self.samples)) for one in batch]
        names = ("throughput", "memory", "model_cost")
        return EvaluationBatch(
            outputs=rows,
            scores=[_mean(r.score for r in row) for row in rows],
            trajectories=rows if capture_traces else None,
            objective_scores=[{name: _mean(r.objectives[name] for r in row) for name in names} for row in rows],
            num_metric_calls=len(batch) * self.samples,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[tuple[Rollout, ...], tuple[Rollout, ...]],
        components_to_update: list[str],
    ) -> dict[str, list[dict[str, Any]]]:
        """Typed feedback per component, the worst rollouts first and one that went well, within the token budget."""
        rollouts = sorted((r for row in eval_batch.trajectories or () for r in row), key=lambda r: r.score)
        if len(rollouts) > 2 and rollouts[-1].verified:
            rollouts.insert(2, rollouts.pop())
        dataset: dict[str, list[dict[str, Any]]] = {}
        for name in components_to_update:
            left = self.tokens
            dataset[name] = []
            for record in (record for r in rollouts if (record := self._record(name, r)) is not None):
                left -= sum(len(str(value).encode()) for value in record.values()) // 3
                if left < 0 and dataset[name]:
                    break
                dataset[name].append(record)
        return dataset

    def _record(self, component: str, rollout: Rollout) -> dict[str, Any] | None:
        phase = PHASE_PROMPTS.index(component) + 1 if component in PHASE_PROMPTS else None
        asked = [a for a in rollout.asked if phase in (None, a.phase)]
        if not asked:
            return None  # phase 2 was never reached
        last = asked[-1]
        rows = [Feedback(*row) for row in last.findings]
        good = f"verified; speed {rollout.objectives['throughput']:.2f} of the planner's schedule"
        return {
            "Inputs": rollout.inputs,
            "Generated Outputs": last.reply[:_SHOWN],
            "Feedback": as_text(rows) if rows else (good if rollout.verified else "this phase passed"),
            "Score": round(rollout.score, 3),
        }

    def _write(self, candidate: Candidate, one: Instance, sample: int) -> Rollout:
        for tried in range(TRIES):
            watched = _Watched(self.lm)
            try:
                written = write_schedule(
                    one.intent, one.model, lm=watched, attempts=self.attempts, memory_limit=one.memory_limit,
                    prompts={**self.prompts, **candidate}, sample=sample,
                )  # fmt: skip
                return self._scored(one, sample, written, watched)
            except LMError:  # a machine that is being measured on keeps a local model waiting
                if tried == TRIES - 1:
                    raise
        raise AssertionError

    def _scored(self, one: Instance, sample: int, written: Written, watched: _Watched) -> Rollout:
        findings = {phase.phase: iter(phase.feedback) for phase in written.phases}
        small = SMALL_PROMPT in components(self.lm) and {r.phase for r, _ in watched.calls} == {1}
        asked = []
        for request, reply in watched.calls:
            rows = list(next(findings[request.phase], []))
            if small and not rows:  # one reply holds both phases
                rows = list(next(findings[2], []))
            triples = tuple((f.rule, f.where, f.message) for f in rows)
            asked.append(Asked(phase=request.phase, reply=reply.text, findings=triples))
        limits = [n for n in (written.intent.memory_limit, one.memory_limit) if n is not None]
        inputs = f"{one.intent}\n\nHow it was read:\n{reading(written.intent, min(limits, default=None), None)}"
        tokens = sum(reply.usage.input_tokens + reply.usage.output_tokens for _, reply in watched.calls)
        speed = memory = 0.0
        score = _share_kept(written) / 2
        if written.schedule is not None:
            plan, simulation = _simulated(written.schedule, one.model)
            own = self.seconds(written.schedule, one.model) if self.seconds else simulation.makespan / _work(plan)
            speed = one.reference_s / own
            memory = one.reference_bytes / max(simulation.peak_bytes)
            score = 0.5 + min(1.0, speed) / 2
        objectives = {"throughput": speed, "memory": memory, "model_cost": 1 / (1 + tokens / 1000)}
        return Rollout(
            instance=one.id, sample=sample, inputs=inputs, verified=written.verified, score=score,
            objectives=objectives, asked=tuple(asked), tokens=tokens,
        )  # fmt: skip


class _Watched:
    """Keeps the calls of one rollout."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm, self.name = lm, lm.name
        self.calls: list[tuple[Request, Reply]] = []

    def complete(self, request: Request) -> Reply:
        reply = self.lm.complete(request)
        self.calls.append((replace(request, messages=()), reply))
        return reply


def _share_kept(written: Written) -> float:
    """The share of rules that the last candidate of each phase kept; a phase that was not reached kept none.

    Findings count one by one: three numbers of the sentence missed are worse than one.
    """
    total = 0.0
    for phase in written.phases:
        rules = [row.rule for row in phase.feedback[-1] if row.rule != "NUMBERS"] if phase.feedback else ["FORMAT"]
        total += 0.0 if "FORMAT" in rules else 1 - min(_RULES, len(rules)) / _RULES
    return total / len(written.phases)


def _simulated(schedule: Schedule, model: ModelSpec) -> tuple[Plan, Simulation]:
    plan = lower(schedule, model)
    return plan, simulate(plan, default_costs(model))


def _work(plan: Plan) -> int:
    return plan.microbatches * plan.replicas


def _mean(values: Iterable[float]) -> float:
    rows = list(values)
    return sum(rows) / len(rows)
