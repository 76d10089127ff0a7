"""The reflector: the effect is what was measured, the edit is what was applied, and a model changes neither."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_lm import ScriptedModel, block

from pibroch.agents.evolve.edits import parse_edit
from pibroch.agents.evolve.lesson_rules import bounds, general, same
from pibroch.agents.lessons import Lesson, effect_of
from pibroch.agents.lm.accounting import Metered
from pibroch.agents.lm.base import LMError, Paused
from pibroch.agents.reflector import mended, reflect
from pibroch.evals.evaluation import Evaluation
from pibroch.evals.finding import Finding
from pibroch.evals.ladder import Scores
from pibroch.playbooks.model import Bullet
from pibroch.playbooks.retrieve import fits

FACTS: dict[str, bool | int | float | str] = {
    "devices": 8, "samples": 16, "memory_bound": True, "emulated": True, "layers": 16, "replicas": 2, "microbatches": 8,
    "stages": 4, "imbalance": 1.4, "link_share": 0.1, "finding:order": True, "finding:exposed-reduction": True,
}  # fmt: skip


def finding(kind: str, seconds: float, *, origin: Any = "schedule") -> Finding:
    return Finding(kind=kind, origin=origin, seconds=seconds, share=seconds, text=f"{kind} costs time")


BEFORE = [finding("order", 0.3), finding("exposed-reduction", 0.2), finding("slow-link", 0.9, origin="machine")]


def measured(lower: float, upper: float, **given: Any) -> Evaluation:
    verdict = "faster" if lower > 1 else "slower" if upper < 1 else "undecided"
    fields: dict[str, Any] = {"rung": "paired", "verdict": verdict, "reason": "", **given}
    return Evaluation(ratio=round((lower + upper) / 2, 6), lower=lower, upper=upper, pairs=9, **fields)


def simulated(ratio: float) -> Evaluation:
    verdict: Any = "faster" if ratio > 1 else "slower"
    return Evaluation(rung="simulate", verdict=verdict, reason="", simulated=True, ratio=ratio)


def lesson(edit: dict[str, Any], evaluation: Evaluation, *, scores: Scores = "measured", **given: Any) -> Lesson | None:
    return reflect(parse_edit(edit), evaluation, BEFORE, FACTS, evidence="run:r#3", scores=scores, **given)


def taught(edit: dict[str, Any], evaluation: Evaluation, **given: Any) -> Lesson:
    found = lesson(edit, evaluation, **given)
    assert found is not None
    return found


BUCKETS = {"op": "bucket_size", "factor": 0.5}
REORDER = {"op": "reorder"}


@pytest.mark.parametrize(
    ("evaluation", "scores", "effect"),
    [
        (measured(1.01, 1.05), "measured", "helped"),
        (measured(0.90, 0.99), "measured", "hurt"),
        (measured(0.98, 1.04), "measured", "nothing"),
        (measured(0.98, 1.04, verdict="slower"), "measured", "nothing"),  # given up, not shown to be slower
        (simulated(0.7), "measured", None),  # the simulator's word is no measurement
        (measured(0.9, 0.95, simulated=True), "measured", None),
        (simulated(1.004), "simulated", "nothing"),
        (simulated(1.011), "simulated", "helped"),
        (simulated(0.989), "simulated", "hurt"),
        (Evaluation(rung="verify", verdict="same", reason=""), "measured", "nothing"),
        (Evaluation(rung="verify", verdict="invalid", reason="V7"), "measured", None),
        (measured(1.5, 1.6, verdict="unequal"), "measured", None),  # fast and wrong
        (Evaluation(rung="short", verdict="slower", reason="", ratio=0.5), "measured", None),  # no interval
    ],
)
def test_the_effect_is_what_was_measured(evaluation: Evaluation, scores: Scores, effect: str | None) -> None:
    assert effect_of(evaluation, scores=scores) == effect


def test_a_gain_becomes_advice_with_its_cause_and_bounds() -> None:
    after = (finding("order", 0.28), finding("slow-link", 0.9, origin="machine"))
    assert taught(BUCKETS, measured(1.05, 1.09, findings=after)) == Lesson(
        text="Against exposed reduction: make the gradient buckets of all stages 0.5 times as large.",
        section="communication", applies_when={"finding:exposed-reduction": "true", "replicas": ">=2"},
        edit={"op": "bucket_size", "stage": "all", "factor": 0.5}, effect="helped", ratio=1.07, lower=1.05, upper=1.09,
        evidence="run:r#3",
    )  # fmt: skip


def test_a_loss_becomes_a_warning() -> None:
    found = taught({"op": "recompute", "on": True}, measured(0.8, 0.85))
    assert (found.section, found.effect) == ("pitfalls", "hurt")
    assert found.text == "Avoid this: recompute the activations of all stages. It made steps slower."
    assert found.applies_when == {"memory_bound": "true"}


def test_nothing_known_teaches_nothing() -> None:
    assert lesson(REORDER, Evaluation(rung="verify", verdict="invalid", reason="V5")) is None
    assert taught(REORDER, measured(0.99, 1.02)).effect == "nothing"


def test_the_cause_is_the_one_that_lost_the_most() -> None:
    assert mended(BEFORE, measured(1.1, 1.2)) == BEFORE[0]  # nothing known of after: the schedule's costliest
    after = (finding("order", 0.29), finding("exposed-reduction", 0.01))
    assert mended(BEFORE, measured(1.1, 1.2, findings=after)) == BEFORE[1]
    worse = (finding("order", 0.4), finding("exposed-reduction", 0.2))
    assert mended(BEFORE, measured(1.1, 1.2, findings=worse)) is None
    assert mended([], measured(1.1, 1.2)) is None


@pytest.mark.parametrize(
    ("edit", "kept"),
    [
        ({"op": "warm_up", "position": 0, "by": 1}, {"op": "warm_up", "position": "first", "by": 1}),
        ({"op": "warm_up", "position": 2, "by": 1}, None),
        ({"op": "recompute", "stage": 3, "on": True}, {"op": "recompute", "stage": "last", "on": True}),
        ({"op": "recompute", "stage": "slowest", "on": True}, {"op": "recompute", "stage": "slowest", "on": True}),
        ({"op": "move_chunk", "chunk": "F", "stage": 0, "microbatch": 1, "by": 1}, None),
        ({"op": "swap_stages", "first": 0, "second": -1}, {"op": "swap_stages", "first": 0, "second": -1}),
        ({"op": "swap_stages", "first": 0, "second": 2}, None),
        ({"op": "shift_layers", "stage": 0, "to": "next"},
         {"op": "shift_layers", "stage": "first", "to": "next", "layers": 1}),
    ],
)  # fmt: skip
def test_an_edit_is_kept_in_words_that_other_schedules_understand(edit: dict[str, Any], kept: Any) -> None:
    found = general(parse_edit(edit), FACTS)
    assert (found.to_json() if found else None) == kept


@pytest.mark.parametrize("edit", [
    BUCKETS, REORDER, {"op": "recompute", "on": False}, {"op": "microbatches", "by": 1}, {"op": "replicas", "by": -1},
    {"op": "balance_cut"}, {"op": "stages_per_device", "by": 1}, {"op": "stream", "name": "x"},
    {"op": "pipeline", "by": 1},
])  # fmt: skip
def test_bounds_hold_where_they_were_measured(edit: dict[str, Any]) -> None:
    conditions = bounds(parse_edit(edit), FACTS)
    assert conditions
    assert fits(Bullet(id="sched-00001", section="schedules", text="x", applies_when=conditions), FACTS)


def test_equal_edits_are_recognised_whatever_is_left_to_defaults() -> None:
    assert same({"op": "reorder"}, {"op": "reorder", "split": True})
    assert not same({"op": "reorder"}, {"op": "reorder", "split": False})
    assert same({"op": "of another time"}, {"op": "of another time"})
    assert not same(None, None)


# With a model

GAIN = measured(1.05, 1.09)
GOOD = {"text": "Smaller buckets start to reduce while backwards still run.", "applies_when": {"replicas": ">= 2"}}


def test_a_model_rewords_and_bounds() -> None:
    lm = ScriptedModel([block(GOOD)])
    found = taught(BUCKETS, GAIN, lm=lm)
    rule = taught(BUCKETS, GAIN)
    assert found == rule.model_copy(update={"text": GOOD["text"], "applies_when": {"replicas": ">=2"}})
    prompt = lm.prompt(0)
    for needed in ("helped: speed x 1.070 (1.050 to 1.090)", "bucket_size", "exposed-reduction costs time", rule.text,
                   '"link_share": 0.1'):  # fmt: skip
        assert needed in prompt
    assert (lm.asked[0].role, lm.asked[0].attempt) == ("reflector", 1)


BAD: list[tuple[Any, str]] = [
    ({**GOOD, "effect": "hurt"}, "measured to be helped"),
    ({**GOOD, "edit": {"op": "reorder"}}, "only text and applies_when"),
    ({**GOOD, "helpful": 3}, "Extra inputs"),
    ({**GOOD, "text": "Avoid smaller buckets."}, "must not warn"),
    ({**GOOD, "text": "Smaller buckets gain 7 per cent."}, "figures"),
    ({**GOOD, "text": "x" * 601}, "600"),
    ({**GOOD, "text": " "}, "text"),
    ({**GOOD, "applies_when": {}}, "at least one"),
    ({**GOOD, "applies_when": {"weather": "fine"}}, "no such fact"),
    ({**GOOD, "applies_when": {"replicas": ">=3"}}, "do not hold"),
    ({**GOOD, "applies_when": {"replicas": ">=2|3"}}, "condition"),
    ({**GOOD, "applies_when": {"finding:stage-imbalance": "true"}}, "do not hold"),
    ({"text": "no conditions"}, "applies_when"),
    ([], "valid"),
]


@pytest.mark.parametrize(("answer", "reason"), BAD)
def test_a_reply_against_the_rules_is_told_once_and_then_the_rule_stands(answer: Any, reason: str) -> None:
    lm = ScriptedModel([block(answer), block(answer)])
    assert taught(BUCKETS, GAIN, lm=lm) == taught(BUCKETS, GAIN)
    assert len(lm.asked) == 2
    assert reason in lm.prompt(1)


def test_a_second_try_that_is_right_counts() -> None:
    lm = ScriptedModel(["no block", block(GOOD)])
    assert taught(BUCKETS, GAIN, lm=lm).text == GOOD["text"]


def test_a_warning_must_stay_one() -> None:
    loss, edit = measured(0.8, 0.9), {"op": "recompute", "on": True}
    conditions = {"memory_bound": "true"}
    praise = block({"text": "Recompute everything.", "applies_when": conditions})
    warning = block({"text": "Do not recompute while memory allows. Forwards run again.", "applies_when": conditions})
    found = taught(edit, loss, lm=ScriptedModel([praise, warning]))
    assert (found.text.split()[0], found.section) == ("Do", "pitfalls")


@pytest.mark.parametrize("reply", [LMError("late"), "y" * 10_000_000, block("[" * 60_000)])
def test_failures_and_floods_leave_the_rule(reply: str | Exception) -> None:
    lm = ScriptedModel([reply, reply])
    assert taught(BUCKETS, GAIN, lm=lm) == taught(BUCKETS, GAIN)
    assert len(lm.asked) == (1 if isinstance(reply, LMError) else 2)


def test_a_spent_budget_leaves_the_rule_and_a_pause_passes() -> None:
    inner = ScriptedModel([])
    assert taught(BUCKETS, GAIN, lm=Metered(inner, max_tokens=10)) == taught(BUCKETS, GAIN)
    assert not inner.asked
    with pytest.raises(Paused):
        lesson(BUCKETS, GAIN, lm=ScriptedModel([Paused("nobody yet")]))


def test_a_model_is_not_asked_about_nothing() -> None:
    lm = ScriptedModel([])
    assert taught(BUCKETS, measured(0.99, 1.02), lm=lm).effect == "nothing"
    assert taught({"op": "move_chunk", "chunk": "F", "stage": 0, "microbatch": 1, "by": 1}, GAIN, lm=lm).edit is None
    assert not lm.asked
