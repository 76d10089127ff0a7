"""The schedule writer for users of `dspy.GEPA`: examples and a metric with feedback, per phase.

    writer = schedule_writer(1)                    # agents/writer_module.py, a dspy.Module
    rows = examples(instances, phase=1)
    better = dspy.GEPA(metric=metric(instances, phase=1), reflection_lm=lm, max_metric_calls=60).compile(
        writer, trainset=rows[:8], valset=rows[8:])

Its acceptance is GEPA's own, which noise fools: `pibroch evolve-prompts` does better, and these are for those who
tune the writer as a part of a DSPy program of theirs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import dspy

from pibroch.agents.candidate_reply import Infeasible, read_reply
from pibroch.agents.constraints import limits
from pibroch.agents.feedback import Feedback, as_text
from pibroch.agents.gepa_adapter import Instance
from pibroch.agents.intent import Intent, read_intent
from pibroch.agents.model_facts import facts
from pibroch.agents.phases import erase_phase2, judge_concurrency, judge_placement, numbers
from pibroch.agents.planner import default_costs, plan_schedule
from pibroch.agents.reading import reading, stages
from pibroch.runtime.directives import Schedule
from pibroch.runtime.lower import lower
from pibroch.runtime.simulate import simulate

_ID = "instance"


def examples(instances: Sequence[Instance], *, phase: int) -> list[dspy.Example]:
    """One per instance, with the inputs of the writer's signature. Phase 2 gets the planner's placement."""
    rows = []
    for one in instances:
        intent, limit = _intent(one)
        inputs = {
            "intent": intent.text, "reading": reading(intent, limit, None), "model": facts(one.model),
            "previous": "", "feedback": "",
        }  # fmt: skip
        if phase == 2:
            placement = _placement(one, intent, limit)
            plan = lower(placement, one.model)
            directives = json.dumps(placement.to_json()["directives"])
            inputs |= {
                "placement": f"```json\n{directives}\n```", "stages": stages(plan, one.model),
                "limits": limits(intent, plan, one.model),
                "numbers": numbers(simulate(plan, default_costs(one.model))),
            }  # fmt: skip
        rows.append(dspy.Example(**inputs, **{_ID: one.id}).with_inputs(*inputs))
    return rows


def metric(instances: Sequence[Instance], *, phase: int) -> Callable[..., Any]:
    """A metric for `dspy.GEPA`: score 1 for a reply that passes the phase, else the share of findings not made."""
    known = {one.id: one for one in instances}

    def judge(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        one = known[gold[_ID]]
        rows = findings(one, str(pred.reply), phase=phase)
        score = 1.0 if not rows else 0.0 if rows[0].rule == "FORMAT" else 1 / (1 + len(rows))
        return dspy.Prediction(score=score, feedback=as_text(rows) or "passed: every rule is kept")

    return judge


def findings(one: Instance, reply: str, *, phase: int) -> list[Feedback]:
    """What is wrong with a reply to that phase; nothing where it passes."""
    intent, limit = _intent(one)
    placement = _placement(one, intent, limit) if phase == 2 else None
    try:
        schedule, rows = read_reply(reply, phase=phase, placement=placement)
    except Infeasible as error:
        return [Feedback("PHASE", "placement_infeasible", f"the planner's order fits this placement, yet: {error}")]
    if schedule is None:
        return rows
    if placement is None:
        return judge_placement(schedule, intent, one.model)[1]
    return judge_concurrency(schedule, placement, intent, one.model, default_costs(one.model), limit)[1]


def _intent(one: Instance) -> tuple[Intent, int | None]:
    intent = read_intent(one.intent, known=(one.model.name,))
    return intent, min((n for n in (intent.memory_limit, one.memory_limit) if n is not None), default=None)


def _placement(one: Instance, intent: Intent, limit: int | None) -> Schedule:
    return erase_phase2(plan_schedule(intent, one.model, memory_limit=limit).schedule)
