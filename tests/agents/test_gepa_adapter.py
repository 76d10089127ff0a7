"""Prompts as a population: the adapter alone (for GEPA and for dspy.GEPA), our acceptance under noise, and resuming."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import dspy
import gepa
import pytest
from prompt_models import MODEL, SENTENCES, Reflector, SmallWriter
from scripted_lm import ScriptedModel, block

from pibroch.agents.evolve.journal import NOTES, TIMES, Journal, read_journal
from pibroch.agents.evolve.prompts import Share, Stopped, evaluate_prompts, evolve_prompts
from pibroch.agents.evolve.prompts_accept import evidence, sign_test
from pibroch.agents.evolve.prompts_intents import Intents, load_intents
from pibroch.agents.evolve.prompts_propose import Proposer
from pibroch.agents.gepa_adapter import (
    Asked,
    Candidate,
    Instance,
    Rollout,
    ScheduleAdapter,
    components,
    instance,
    seed_candidate,
)
from pibroch.agents.gepa_dspy import examples, metric
from pibroch.agents.intent import read_intent
from pibroch.agents.lm.base import LMError
from pibroch.agents.lm.dspy_engine import PlainAdapter
from pibroch.agents.schedule_small import read_small, suits
from pibroch.agents.schedule_writer import write_schedule
from pibroch.agents.writer_module import schedule_writer
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.model import uniform_model

ONES = [instance(text, MODEL, ident=f"i{n}") for n, text in enumerate(SENTENCES)]
PARTS = Intents(ONES[:4], ONES[4:6], ONES[6:])
PLACED = [
    {"op": "split", "num_microbatches": 2},
    {"op": "place", "filter": {"PP": 0}, "devices": [0]},
    {"op": "place", "filter": {"PP": 1}, "devices": [1]},
]


def directives(family: str, p: int, m: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = build(family, devices=p, microbatches=m).to_json()["directives"]
    return rows


def small(**changes: Any) -> str:
    return block({"stages": 2, "replicas": 1, "microbatches": 2, "recompute": False, "warmup": [2, 1], **changes})


# --- the small writer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sentence", "fits"), [
    ("1F1B over 2 stages, 4 microbatches", True),
    ("4 microbatches over 2 stages, 2 replicas, with recompute, under 8 MB per device", True),
    ("ZB-H1 over 2 stages, 4 microbatches", False),
    ("interleaved with 2 stages per device, 4 stages, 4 microbatches", False),
    ("1F1B over 2 stages, 2 replicas, 4 microbatches, gradient buckets", False),
    ("1F1B over 2 stages, cut at layer 3", False),
])  # fmt: skip
def test_small_requests_are_for_what_they_can_say(sentence: str, fits: bool) -> None:
    intent = read_intent(sentence)
    assert suits(intent, SmallWriter(lambda text: 1.0)) is fits
    assert not suits(intent, ScriptedModel([]))


@pytest.mark.parametrize(("family", "warmup"), [("1f1b", [3, 2, 1]), ("gpipe", [4, 4, 4])])
def test_a_small_reply_becomes_the_family(family: str, warmup: list[int]) -> None:
    placement, schedule, wrong = read_small(small(stages=3, microbatches=4, replicas=2, warmup=warmup))
    assert not wrong
    assert placement is not None
    assert schedule is not None
    assert schedule.directives == build(family, devices=3, microbatches=4, replicas=2).directives
    assert [d.op for d in placement.directives] == ["split", *["place"] * 3, *["replicate"] * 3]


@pytest.mark.parametrize(("changes", "words"), [
    ({"warmup": [1]}, "1 numbers for 2 stages"),
    ({"warmup": [3, 1]}, "3 is not between 1 and 2"),
    ({"warmup": [2, 0]}, "0 is not between"),
    ({"warmup": [2, "one"]}, "valid integer"),
    ({"stages": 0}, "greater than or equal to 1"),
])  # fmt: skip
def test_wrong_small_replies_are_typed(changes: dict[str, Any], words: str) -> None:
    _, schedule, wrong = read_small(small(**changes))
    assert schedule is None
    assert [row.rule for row in wrong] == ["FORMAT"]
    assert words in str(wrong[0])


def test_each_small_attempt_is_a_fresh_draw() -> None:
    sentence = "1F1B over 2 stages, 2 microbatches"
    lm = ScriptedModel([small(microbatches=3), small()])
    lm.name = "local:scripted"
    written = write_schedule(sentence, MODEL, lm=lm)
    assert written.verified
    assert written.schedule is not None
    assert written.schedule.directives == build("1f1b", devices=2, microbatches=2).directives
    assert lm.asked[0].messages == lm.asked[1].messages
    assert [r.attempt for r in lm.asked] == [1, 2]


# --- the adapter alone --------------------------------------------------------------------------------------------


def test_two_phases_are_scored_and_explained_apart() -> None:
    right = block(PLACED), block(directives("1f1b", 2, 2))
    slow = directives("gpipe", 2, 2)
    wrong = block([{"op": "split", "num_microbatches": 8}, *PLACED[1:]])
    lm = ScriptedModel([*right, block(PLACED), block(slow), wrong, "nothing"])
    one = instance("1F1B over 2 stages, 2 microbatches", MODEL, ident="one")
    adapter = ScheduleAdapter(lm)
    batch = adapter.evaluate([one] * 4, seed_candidate(lm), capture_traces=True)
    verified, too_many, miscounted, unread = batch.scores
    assert 0.5 < verified <= 1.0
    assert 0.5 > too_many > miscounted > unread == 0.0
    assert batch.objective_scores is not None
    assert [row["throughput"] > 0 for row in batch.objective_scores] == [True, False, False, False]
    assert [r.sample for row in batch.outputs for r in row] == [1, 2, 3, 4]
    assert batch.num_metric_calls == adapter.spent == 4
    dataset = adapter.make_reflective_dataset(seed_candidate(lm), batch, list(components(lm)))
    first, second = dataset["schedule_phase1"], dataset["schedule_phase2"]
    assert len(first) == 4
    assert "no fenced block" in first[0]["Feedback"]
    assert "asked for microbatches = 2" in first[1]["Feedback"]
    assert len(second) == 2
    assert any("INFLIGHT" in row["Feedback"] for row in second)
    assert any(row["Feedback"].startswith("verified") for row in second)


def test_the_feedback_keeps_its_budget() -> None:
    writer = SmallWriter(lambda text: 0.0)
    full = ScheduleAdapter(writer)
    batch = full.evaluate(ONES, seed_candidate(writer), capture_traces=True)
    everything = full.make_reflective_dataset({}, batch, ["schedule_small"])["schedule_small"]
    tight = ScheduleAdapter(writer, tokens=400).make_reflective_dataset({}, batch, ["schedule_small"])["schedule_small"]
    assert len(everything) == len(ONES)
    assert 1 <= len(tight) < len(everything)
    assert sum(len(json.dumps(row)) for row in tight) < 400 * 5


def test_plain_gepa_can_use_it() -> None:
    writer = SmallWriter(lambda text: 0.95 if "good" in text else 0.05)
    adapter = ScheduleAdapter(writer, samples=2)
    result: Any = gepa.optimize(  # type: ignore[attr-defined]
        seed_candidate=seed_candidate(writer), trainset=ONES[:4], valset=ONES[4:], adapter=adapter,
        reflection_lm=lambda text: "```\na good text\n```", max_metric_calls=60, logger=_Silent(), seed=1,
    )  # fmt: skip
    assert result.best_candidate == {"schedule_small": "a good text"}


def test_dspy_gepa_can_use_the_examples_and_the_metric() -> None:
    ones = ONES[:4]
    rows = examples(ones, phase=1)
    proposer = Proposer(Reflector("good instructions"), writer="a scripted one", tests={})
    with dspy.context(lm=dspy.LM("scripted", engine=_Engine(), cache=False), adapter=PlainAdapter()):
        better = dspy.GEPA(
            metric=metric(ones, phase=1), instruction_proposer=proposer, max_metric_calls=24, num_threads=1,
        ).compile(schedule_writer(1), trainset=rows[:2], valset=rows[2:])  # fmt: skip
    assert better.ask.signature.instructions.strip() == "good instructions"


class _Engine:
    """Writes the right placement only where the instructions say `good`."""

    def complete(self, request: Any) -> Any:
        system = request.system if isinstance(request.system, str) else "".join(p.text for p in request.system)
        intent = read_intent(next(text for text in SENTENCES if text in str(request.messages[-1].text)))
        assert intent.stages is not None
        data: list[dict[str, Any]] = [
            {"op": "split", "num_microbatches": intent.microbatches if "good" in system else 9}
        ]
        data += [{"op": "place", "filter": {"PP": s}, "devices": [s]} for s in range(intent.stages)]
        message = dspy.lm15.Message.assistant([dspy.lm15.TextPart(block(data))])
        return dspy.lm15.Response(
            id=None, model="scripted", finish_reason="stop", message=message, usage=dspy.lm15.Usage()
        )

    def stream(self, request: Any) -> Any:
        return dspy.lm15.response_to_events(self.complete(request))

    def close(self) -> None: ...


def test_dspy_examples_hold_phase_2() -> None:
    one = instance("1F1B over 2 stages, 2 microbatches", MODEL, ident="one")
    (row,) = examples([one], phase=2)
    assert '"devices": [1]' in row.placement
    judge = metric([one], phase=2)
    right = judge(row, dspy.Prediction(reply=block(directives("1f1b", 2, 2))))
    held = judge(row, dspy.Prediction(reply=block(directives("gpipe", 2, 2))))
    unread = judge(row, dspy.Prediction(reply="?"))
    assert (right.score, unread.score) == (1.0, 0.0)
    assert 0 < held.score < 1
    assert "INFLIGHT" in held.feedback


# --- acceptance ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (3, 1), (10, 0), (12, 5), (2, 9)])
def test_evidence_is_the_integral(wins: int, losses: int) -> None:
    steps = 20_000
    points = (0.5 + (i + 0.5) / (2 * steps) for i in range(steps))
    mean = sum(p**wins * (1 - p) ** losses for p in points) / steps  # uniform over (1/2, 1)
    assert evidence(wins, losses) == pytest.approx(2 ** (wins + losses) * mean, rel=1e-4)


def test_the_sign_test_keeps_its_level_whenever_it_stops() -> None:
    rng = random.Random(3)
    claims = sum(
        sign_test(lambda i: (rng.gauss(1, 0.03), rng.gauss(1, 0.03)), alpha=0.05).verdict == "better"
        for _ in range(600)
    )
    assert claims / 600 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)
    found = sum(
        sign_test(lambda i: (rng.gauss(1, 0.03), rng.gauss(1.05, 0.03)), alpha=0.01).verdict == "better"
        for _ in range(100)
    )
    assert found >= 90


def test_many_small_wins_do_not_outweigh_a_few_great_losses() -> None:
    test = sign_test(lambda i: (0.5, 0.51) if i % 5 else (0.9, 0.1), alpha=0.05)
    assert test.wins > test.losses
    assert test.verdict != "better"


def run(path: Path, writer: SmallWriter, reflector: Reflector, **options: Any) -> Any:
    journal = Journal(path)
    try:
        return evolve_prompts(PARTS, writer, reflector, journal=journal, **{"budget": 150, "confirm": 20, **options})
    finally:
        journal.close()


def noisy(monkeypatch: pytest.MonkeyPatch, seed: int, gain: float = 0.0) -> None:
    """Every schedule is verified; its score has 3% noise, and `gain` where the text says `good`."""
    rng = random.Random(seed)

    def write(self: Any, candidate: Candidate, one: Instance, sample: int) -> Rollout:
        better = gain * any("good" in text for text in candidate.values())
        return Rollout(
            instance=one.id, sample=sample, inputs=one.intent, verified=True, score=0.7 * rng.gauss(1 + better, 0.03),
            objectives={"throughput": 1.0, "memory": 1.0, "model_cost": 1.0}, asked=(Asked(phase=1, reply=""),),
            tokens=1,
        )  # fmt: skip

    monkeypatch.setattr(ScheduleAdapter, "_write", write)


def test_identical_prompts_under_noise_claim_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GEPA's own criterion is the control."""
    ours = theirs = 0
    writer = SmallWriter(lambda text: 1.0)
    for seed in range(20):
        noisy(monkeypatch, seed)
        done = run(tmp_path / f"{seed}.jsonl", writer, Reflector(), seed=seed, budget=300, confirm=0)
        assert len(done.tests) >= 4
        ours += done.accepted > 0 or done.changed
        result: Any = gepa.optimize(  # type: ignore[attr-defined]
            seed_candidate=seed_candidate(writer), trainset=PARTS.train, valset=PARTS.validation,
            adapter=ScheduleAdapter(writer), reflection_lm=Reflector().plain, max_metric_calls=40, logger=_Silent(),
            seed=seed,
        )  # fmt: skip
        theirs += result.best_idx != 0
    assert ours <= 1
    assert theirs >= 8


def test_a_gain_of_5_percent_is_found_in_3_percent_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = 0
    for seed in range(20):
        noisy(monkeypatch, seed, gain=0.05)
        reflector = Reflector("text A", "text B", "good text")
        done = run(
            tmp_path / f"{seed}.jsonl", SmallWriter(lambda text: 1.0), reflector, seed=seed, budget=300, confirm=0
        )
        found += done.accepted > 0
    assert found >= 18


def test_a_real_improvement_is_found_and_confirmed(tmp_path: Path) -> None:
    writer, reflector = SmallWriter(lambda text: 0.9 if "good" in text else 0.2), Reflector("bad text", "good text")
    done = run(tmp_path / "journal.jsonl", writer, reflector, budget=200, confirm=30)
    assert done.changed
    assert done.prompts == {"schedule_small": "good text\n"}
    assert done.confirmation is not None
    assert done.confirmation.gain
    assert done.confirmation.evolved.verified > done.confirmation.seed.verified
    first, second = (r.messages[1].content for r in reflector.asked[:2])
    assert "asked for microbatches" in first
    assert "tried and were no better" not in first
    assert "bad text" in second


def test_rejected_unchanged_and_long_texts_are_never_evaluated(tmp_path: Path) -> None:
    writer = SmallWriter(lambda text: 0.5)
    same = seed_candidate(writer)["schedule_small"].strip()
    reflector = Reflector("text A", "text A", same, "long " * 4000)
    done = run(tmp_path / "journal.jsonl", writer, reflector, budget=140, confirm=0)
    assert done.refused == 3
    reasons = [r["reason"] for r in read_journal(tmp_path / "journal.jsonl") if r["kind"] == "refused"]
    assert reasons[:2] == ["this very text was tried before", "the text is unchanged"]
    assert "2500 are allowed" in reasons[2]
    assert "was not tried" in reflector.asked[4].messages[1].content
    assert not any("long long" in r.messages[0].content for r in writer.asked)


@pytest.mark.parametrize("dies_after", [3, 37, 120])
def test_a_resumed_run_is_the_run(tmp_path: Path, dies_after: int) -> None:
    def skill(text: str) -> float:
        return 0.9 if "good" in text else 0.2

    texts = ("bad text", "good text")
    whole = run(tmp_path / "whole.jsonl", SmallWriter(skill), Reflector(*texts))
    with pytest.raises(LMError):
        run(tmp_path / "cut.jsonl", SmallWriter(skill, fail_at=dies_after), Reflector(*texts))
    before = read_journal(tmp_path / "cut.jsonl")
    asked = sum(r["kind"] == "reply" for r in before)
    writer, reflector = SmallWriter(skill), Reflector(*[*texts, *(f"text {i}" for i in range(1, 9))][asked:])
    again = run(tmp_path / "cut.jsonl", writer, reflector)
    assert again == whole
    assert len(writer.asked) == whole.rollouts - dies_after

    def steps(name: str) -> list[dict[str, Any]]:
        rows = [r for r in read_journal(tmp_path / name) if r["kind"] not in NOTES]
        return [{k: v for k, v in r.items() if k not in TIMES} for r in rows]

    assert steps("cut.jsonl") == steps("whole.jsonl")


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    left = iter([False] * 20 + [True])
    with pytest.raises(Stopped):
        run(tmp_path / "j.jsonl", SmallWriter(lambda text: 0.5), Reflector(), stopped=lambda: next(left))
    writer = SmallWriter(lambda text: 0.5)
    done = run(tmp_path / "j.jsonl", writer, Reflector(), confirm=0)
    assert done.rollouts - len(writer.asked) == 20
    with pytest.raises(InputError, match="cannot be resumed"):
        run(tmp_path / "j.jsonl", SmallWriter(lambda text: 0.5), Reflector(), seed=8, confirm=0)


def test_a_reflector_that_fails_ends_the_run_cleanly(tmp_path: Path) -> None:
    class Broken(Reflector):
        def complete(self, request: Any) -> Any:
            raise LMError("no answer")

    done = run(tmp_path / "j.jsonl", SmallWriter(lambda text: 0.5), Broken())
    assert not done.changed
    assert "3 reflections in a row failed" in done.reason
    assert done.tests == []


# --- shares -------------------------------------------------------------------------------------------------------


def test_shares_have_wilsons_interval() -> None:
    lower, upper = Share(15, 100).interval  # worked by hand from Wilson's formula
    assert [lower, upper] == pytest.approx([0.0931, 0.2328], abs=5e-4)
    assert Share(0, 50).interval[0] == 0.0
    assert 0 < Share(0, 50).interval[1] < 0.1
    writer = SmallWriter(lambda text: 1.0)
    assert evaluate_prompts(seed_candidate(writer), ONES, writer, samples=10) == Share(10, 10)


def test_shipped_intents_are_disjoint_and_feasible() -> None:
    parts = load_intents(None, lambda name: MODEL_OF_SIX)
    assert len(parts.train) >= 12
    assert len(parts.validation) >= 12
    assert len(parts.test) >= 25
    cells = []
    for part in (parts.train, parts.validation, parts.test):
        read = [read_intent(one.intent) for one in part]
        assert all(intent.understood for intent in read)
        cells.append({(i.family, i.stages, i.microbatches, i.replicas) for i in read})
    assert not cells[0] & cells[1]
    assert not cells[0] & cells[2]
    assert not cells[1] & cells[2]


MODEL_OF_SIX = uniform_model(6, hidden_bytes=16_384, param_bytes=200_000, saved_bytes=400_000)


class _Silent:
    def log(self, message: str) -> None: ...
