"""The two-phase loop under a scripted model: what each attempt is asked, what is accepted, what never is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from scripted_lm import ScriptedModel, block

from pibroch.agents.constraints import limits
from pibroch.agents.feedback import Feedback
from pibroch.agents.intent import read_intent
from pibroch.agents.lm.base import LMError, Paused
from pibroch.agents.lm.replay import Recorder, ReplayMiss, ReplayModel
from pibroch.agents.phases import erase_phase2
from pibroch.agents.prompt_files import prompt
from pibroch.agents.schedule_writer import write_schedule
from pibroch.runtime.directives import schedule_from
from pibroch.runtime.families import build
from pibroch.runtime.lower import lower
from pibroch.runtime.model import uniform_model

MODEL = uniform_model(4, hidden_bytes=64, param_bytes=1_000_000, saved_bytes=1000)
SENTENCE = "1F1B over 2 stages, 4 microbatches"


def placement(m: int = 4, devices: tuple[int, ...] = (0, 1)) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"op": "split", "num_microbatches": m}]
    return rows + [{"op": "place", "filter": {"PP": s}, "devices": [d]} for s, d in enumerate(devices)]


def rows(*texts: str) -> list[dict[str, Any]]:
    """Order rows from "0F0 0F1 0B0"."""
    out = []
    for text in texts:
        cells = [re.fullmatch(r"(\d)(F|BI|BW|B)(\d)", one) for one in text.split()]
        out.append({"op": "order", "filters": [{"PP": int(c[1]), "MB": int(c[3]), "PASS": c[2]} for c in cells if c]})
    return out


ONE_F_ONE_B = rows("0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3", "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3")
GPIPE = rows("0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3")
PYTHON = re.findall(r"```python\n(.*?)```", prompt("schedule_phase2"), re.DOTALL)[0]


def test_first_try_in_both_phases() -> None:
    lm = ScriptedModel([block(placement()), block(placement() + ONE_F_ONE_B)])
    written = write_schedule(SENTENCE, MODEL, lm=lm)
    assert written.verified
    assert written.schedule is not None
    assert written.schedule.to_json()["directives"] == placement() + ONE_F_ONE_B
    assert [(p.phase, p.attempts, p.feedback) for p in written.phases] == [(1, 1, [[]]), (2, 1, [[]])]
    assert [(r.phase, r.attempt) for r in lm.asked] == [(1, 1), (2, 1)]
    assert (written.lm, written.unused_words) == ("scripted", ())


def test_each_request_stands_alone() -> None:
    lm = ScriptedModel([block(placement()), block(placement() + ONE_F_ONE_B)])
    write_schedule(SENTENCE, MODEL, lm=lm)
    second = ["def schedule(placement)", '"PP": 1', "bubble"]
    for i, needed in ((0, ["num_microbatches", "microbatches per replica: 4"]), (1, second)):
        text = lm.prompt(i)
        assert SENTENCE in text
        assert "exactly one fenced block" in text
        assert "4 layers" in text
        for word in needed:
            assert word in text


def test_the_prompts_own_python_example_passes() -> None:
    lm = ScriptedModel([block(placement()), block(PYTHON, "python")])
    written = write_schedule(SENTENCE, MODEL, lm=lm)
    assert written.verified
    assert written.schedule is not None
    assert written.schedule.directives == build("1f1b", devices=2, microbatches=4).directives


def test_the_prompts_own_json_example_passes() -> None:
    example = re.findall(r"^```json\n(.*?)^```", prompt("schedule_phase1"), re.DOTALL | re.MULTILINE)[0]
    lm = ScriptedModel([block(example), block(PYTHON, "python")])
    assert write_schedule("1F1B over 2 stages, 2 replicas, 4 microbatches", MODEL, lm=lm).verified


@pytest.mark.parametrize(
    ("bad", "rule", "says"),
    [
        ("no block at all", "FORMAT", "no fenced block"),
        (block(placement()) + block(placement()), "FORMAT", "2 fenced blocks"),
        ("```json\n[", "FORMAT", "never closed"),
        (block("[{"), "FORMAT", "not valid JSON"),
        (block('[{"op": "split", "num_microbatches": 4, "num_microbatches": 4}]'), "FORMAT", "appears twice"),
        (block([{"op": "split", "microbatches": 4}]), "FORMAT", "microbatches"),
        (block([{"op": "shard"}]), "FORMAT", "directive 0"),
        (block("def schedule():\n    return open('/etc/passwd').read()", "python"), "FORMAT", "PermissionError"),
        (block("def schedule():\n    return {1}", "python"), "FORMAT", "not plain JSON"),
        (block("x = 1", "python"), "FORMAT", "no function schedule()"),
        (block(placement(m=8)), "INTENT", "asked for microbatches = 4, the schedule has 8"),
        (block(placement(devices=(0, 0))), "INTENT", "asked for pipeline = 2, the schedule has 1"),
        (block(placement(devices=(0, 1, 2))), "INTENT", "asked for stages = 2, the schedule has 3"),
        (block([*placement()[:-1], {"op": "place", "filter": {"PP": 7}, "devices": [1]}]), "V9", "stages"),
        (block(placement() + ONE_F_ONE_B), "PHASE", "belong to phase 2"),
    ],
)
def test_feedback_of_phase_1(bad: str, rule: str, says: str) -> None:
    lm = ScriptedModel([bad, block(placement()), block(placement() + ONE_F_ONE_B)])
    written = write_schedule(SENTENCE, MODEL, lm=lm)
    assert written.verified
    first = written.phases[0].feedback[0]
    assert first[0].rule == rule
    assert any(says in row.message for row in first)
    assert f"[{rule}]" in lm.prompt(1)
    assert bad.strip() in lm.prompt(1)
    assert lm.asked[1].previous_hash != lm.asked[0].previous_hash


@pytest.mark.parametrize(
    ("bad", "rule", "says"),
    [
        (block(placement(m=8) + ONE_F_ONE_B), "PHASE", "must equal phase 1's result"),
        (block(placement(devices=(1, 0)) + ONE_F_ONE_B), "PHASE", "must equal phase 1's result"),
        (block(placement() + GPIPE), "INFLIGHT", "4 microbatches in flight at once, 1f1b holds 2"),
        (block(placement()), "INFLIGHT", "1f1b holds 2"),
        (block(placement() + rows("0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3")), "BUBBLE", "24 units"),
        (block(placement() + rows("0B0 0F0")), "V5", ""),
        (block(placement() + rows("0F9 0B0")), "V9", ""),
        (block(placement() + rows("0F0 1F0")), "V9", "one device set"),
    ],
)  # fmt: skip
def test_feedback_of_phase_2(bad: str, rule: str, says: str) -> None:
    lm = ScriptedModel([block(placement()), bad, block(placement() + ONE_F_ONE_B)])
    written = write_schedule(SENTENCE, MODEL, lm=lm)
    assert written.verified
    found = written.phases[1].feedback[0]
    assert rule in [row.rule for row in found]
    assert any(says in row.message for row in found if row.rule == rule)
    assert f"[{rule}]" in lm.prompt(2)
    assert written.phases[1].attempts == 2


def test_a_candidate_that_never_passes_is_never_returned() -> None:
    lm = ScriptedModel([block(placement()), *[block(placement() + GPIPE)] * 3])
    written = write_schedule(SENTENCE, MODEL, lm=lm, attempts=3)
    assert not written.verified
    assert written.schedule is None
    assert [p.attempts for p in written.phases] == [1, 3]
    lm = ScriptedModel(["nothing"] * 2)
    written = write_schedule(SENTENCE, MODEL, lm=lm, attempts=2)
    assert (written.verified, written.schedule) == (False, None)
    assert [p.attempts for p in written.phases] == [2, 0]


def test_memory_is_judged_in_phase_2_and_may_go_back_once() -> None:
    # A stage of 2 layers holds 8 MB of parameters, gradients and optimizer state, of 1 layer half of that.
    sentence = "4 microbatches, fit in 5 MB"
    four = placement(devices=(0, 1, 2, 3))
    full = build("1f1b", devices=4, microbatches=4).to_json()["directives"]
    back = block({"placement_infeasible": "two stages hold 8 MB each: use four"})
    lm = ScriptedModel([block(placement()), block(placement() + ONE_F_ONE_B), back, block(four), block(full)])
    written = write_schedule(sentence, MODEL, lm=lm)
    assert written.verified
    assert written.phases[1].feedback[0][0].rule == "V7"
    assert "placement_infeasible" in lm.prompt(3)
    assert "use four" in lm.prompt(3)
    assert [(r.phase, r.attempt) for r in lm.asked] == [(1, 1), (2, 1), (2, 2), (1, 2), (2, 3)]


def test_the_placement_goes_back_only_once() -> None:
    back = block({"placement_infeasible": "no"})
    lm = ScriptedModel([block(placement()), back, block(placement()), back, block(placement() + ONE_F_ONE_B)])
    written = write_schedule(SENTENCE, MODEL, lm=lm)
    assert written.verified
    assert "changed once already" in lm.prompt(4)


def test_the_outer_judge_has_the_last_word() -> None:
    verdicts = [[Feedback("JUDGE", "", "loss differs")], []]
    good = block(placement() + ONE_F_ONE_B)
    lm = ScriptedModel([block(placement()), good, good])
    written = write_schedule(SENTENCE, MODEL, lm=lm, judge=lambda schedule: verdicts.pop(0))
    assert written.verified
    assert written.phases[1].attempts == 2
    assert "loss differs" in lm.prompt(2)


@pytest.mark.parametrize("error", [Paused("nobody answered"), LMError("dead")])
def test_errors_of_the_model_pass_unchanged_after_one_call(error: Exception) -> None:
    lm = ScriptedModel([error])
    with pytest.raises(type(error), match=str(error)):
        write_schedule(SENTENCE, MODEL, lm=lm)
    assert len(lm.asked) == 1


def test_feedback_is_the_same_every_time() -> None:
    def texts() -> list[str]:
        lm = ScriptedModel([block(placement(m=8)), block(placement()), block(placement() + GPIPE),
                            block(placement() + ONE_F_ONE_B)])  # fmt: skip
        write_schedule(SENTENCE, MODEL, lm=lm)
        return [r.prompt_hash for r in lm.asked]

    assert texts() == texts()


@pytest.mark.parametrize("family", ["gpipe", "1f1b", "interleaved", "zb-h1"])
def test_erasing_phase_2_gives_phase_1_back(family: str) -> None:
    v = 2 if family == "interleaved" else 1
    whole = build(family, devices=2, microbatches=4, replicas=2, stages_per_device=v, bucket_size=1.0, recompute=True,
                  stream="s", reduce_stream="r", cut=[1, 2, 3] if v == 2 else [1])  # fmt: skip
    erased = erase_phase2(whole)
    text = json.dumps(erased.to_json())
    assert not any(word in text for word in ("order", "stream", "bucket"))
    assert erase_phase2(erased).directives == erased.directives
    kept = [d.op for d in whole.directives if d.op != "order"]
    assert [d.op for d in erased.directives] == kept


def test_other_families_written_by_hand_pass_and_fakes_do_not() -> None:
    zero = rows("0F0 0F1 0BI0 0BW0 0F2 0BI1 0BW1 0F3 0BI2 0BW2 0BI3 0BW3",
                "1F0 1BI0 1F1 1BI1 1BW0 1F2 1BI2 1BW1 1F3 1BI3 1BW2 1BW3")  # fmt: skip
    sentence = "zero bubble over 2 stages, 4 microbatches"
    lm = ScriptedModel([block(placement()), block(placement() + ONE_F_ONE_B), block(placement() + zero)])
    written = write_schedule(sentence, MODEL, lm=lm)
    assert written.verified
    assert "splits backwards" in written.phases[1].feedback[0][0].message
    lm = ScriptedModel([block(placement()), block(placement() + ONE_F_ONE_B), block(placement() + GPIPE)])
    written = write_schedule("GPipe over 2 stages, 4 microbatches", MODEL, lm=lm)
    assert written.verified
    assert "all forwards before" in written.phases[1].feedback[0][0].message


def test_without_a_model_the_planner_writes_both_phases() -> None:
    given = schedule_from(build("1f1b", devices=2, microbatches=8, replicas=2, bucket_size=0.67).to_json())
    written = write_schedule("1F1B over 2 stages, 2 replicas, 8 microbatches, buckets of 0.67 MB", MODEL)
    assert written.verified
    assert written.schedule is not None
    assert written.schedule.directives == given.directives
    assert (written.lm, written.matches, [p.attempts for p in written.phases]) == ("planner", True, [1, 1])


def test_a_recorded_conversation_replays_and_a_reworded_prompt_makes_it_stale(tmp_path: Path) -> None:
    answers = [block(placement(m=8)), block(placement()), block(placement() + ONE_F_ONE_B)]
    first = write_schedule(SENTENCE, MODEL, lm=Recorder(ScriptedModel(answers), tmp_path))
    again = write_schedule(SENTENCE, MODEL, lm=ReplayModel(tmp_path))
    assert again.verified
    assert again.stale == 0
    assert (again.schedule, again.phases) == (first.schedule, first.phases)
    reworded = write_schedule(SENTENCE, MODEL, lm=ReplayModel(tmp_path), prompts={"schedule_phase1": "Other words."})
    assert reworded.verified
    assert reworded.stale == 2  # both attempts of phase 1; phase 2's prompt is as it was
    with pytest.raises(ReplayMiss):
        write_schedule(SENTENCE + ", no recompute", MODEL, lm=ReplayModel(tmp_path))


def test_a_recorded_candidate_is_judged_again(tmp_path: Path) -> None:
    write_schedule(SENTENCE, MODEL, lm=Recorder(ScriptedModel([block(placement()), block(placement() + GPIPE)]),
                                                tmp_path), attempts=1)  # fmt: skip
    again = write_schedule(SENTENCE, MODEL, lm=ReplayModel(tmp_path), attempts=1)
    assert (again.verified, again.schedule) == (False, None)


ALL_BY_ONE = rows("0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3")  # device 0 finishes a microbatch before it begins the next
UNCOVERED = f"{SENTENCE}, strictly sequential"


def advice(feedback: list[Feedback]) -> list[str]:
    return [row.rule for row in feedback if row.advice]


def test_advice_is_given_once_and_then_the_schedule_stands() -> None:
    answer = block(placement() + ALL_BY_ONE)
    lm = ScriptedModel([block(placement()), answer, answer])
    written = write_schedule(UNCOVERED, MODEL, lm=lm)
    assert written.verified
    assert written.unused_words == ("strictly sequential",)
    assert written.schedule is not None
    assert written.schedule.to_json()["directives"] == placement() + ALL_BY_ONE
    first, second = written.phases[1].feedback
    assert (advice(first), second) == (["BUBBLE"], [])
    assert [row.rule for row in first] == ["BUBBLE", "NUMBERS"]
    assert "(advice: where the sentence asks for just this, send it again)" in lm.prompt(2)
    kept = [line for line in written.why if line.startswith("kept against advice: [BUBBLE] the step takes 24 units")]
    assert len(kept) == 1


def test_without_uncovered_words_nothing_is_advice() -> None:
    lm = ScriptedModel([block(placement()), *[block(placement() + ALL_BY_ONE)] * 3])
    written = write_schedule(SENTENCE, MODEL, lm=lm, attempts=3)
    assert (written.verified, written.schedule) == (False, None)
    assert [[row.rule for row in found] for found in written.phases[1].feedback] == [["BUBBLE", "NUMBERS"]] * 3
    assert not any(advice(found) for found in written.phases[1].feedback)
    assert "(advice" not in lm.prompt(3)
    assert written.why == []


def test_advice_followed_leaves_no_trace_in_the_reasons() -> None:
    lm = ScriptedModel([block(placement()), block(placement() + ALL_BY_ONE), block(placement() + ONE_F_ONE_B)])
    written = write_schedule(UNCOVERED, MODEL, lm=lm)
    assert written.verified
    assert written.why == ["written by scripted"]


def test_each_subject_of_advice_is_told_once() -> None:
    # GPipe's order holds 4 microbatches where 1F1B holds 2; one by one takes longer: another subject.
    lm = ScriptedModel([block(placement()), block(placement() + GPIPE), *[block(placement() + ALL_BY_ONE)] * 2])
    written = write_schedule(UNCOVERED, MODEL, lm=lm)
    assert written.verified
    assert [advice(found) for found in written.phases[1].feedback] == [["INFLIGHT"], ["BUBBLE"], []]


def test_what_the_sentence_says_binds_beside_advice() -> None:
    text = f"{UNCOVERED}, not GPipe"
    lm = ScriptedModel([block(placement()), *[block(placement() + GPIPE)] * 3])
    written = write_schedule(text, MODEL, lm=lm, attempts=3)
    assert not written.verified
    binding = [[row.rule for row in found if not row.advice] for found in written.phases[1].feedback]
    assert binding == [["INTENT", "NUMBERS"]] * 3
    assert [advice(found) for found in written.phases[1].feedback] == [["INFLIGHT"], [], []]


def test_proof_and_memory_are_never_advice() -> None:
    deadlock = block(placement() + rows("0B0 0F0"))
    lm = ScriptedModel([block(placement()), *[deadlock] * 2])
    written = write_schedule(UNCOVERED, MODEL, lm=lm, attempts=2)
    assert not written.verified
    lm = ScriptedModel([block(placement()), *[block(placement() + ONE_F_ONE_B)] * 2])
    written = write_schedule(f"{UNCOVERED}, fit in 5 MB", MODEL, lm=lm, attempts=2)
    assert not written.verified
    assert not any(row.advice for found in written.phases[1].feedback for row in found)


def test_order_of_a_family_and_its_whole_backwards_are_advice() -> None:
    # Each device has its finding about GPipe's order; the subject is one.
    lm = ScriptedModel([block(placement()), *[block(placement() + ONE_F_ONE_B)] * 2])
    written = write_schedule("GPipe over 2 stages, 4 microbatches, early release", MODEL, lm=lm)
    assert written.verified
    assert set(advice(written.phases[1].feedback[0])) == {"INTENT"}
    assert sum(line.startswith("kept against advice") for line in written.why) == 1
    split = rows("0F0 0F1 0BI0 0BW0 0F2 0BI1 0BW1 0F3 0BI2 0BW2 0BI3 0BW3",
                 "1F0 1BI0 1BW0 1F1 1BI1 1BW1 1F2 1BI2 1BW2 1F3 1BI3 1BW3")  # fmt: skip
    lm = ScriptedModel([block(placement()), *[block(placement() + split)] * 2])
    written = write_schedule(f"{SENTENCE}, weight gradients late", MODEL, lm=lm)
    assert written.verified
    assert any("keeps backwards whole" in line for line in written.why)


def test_what_cannot_be_followed_is_said() -> None:
    written = write_schedule("ZeRO-1 and 1F1B over 2 stages, 4 microbatches", MODEL)
    assert written.verified
    assert not written.matches
    assert written.unused_words == ("ZeRO-1",)
    assert any("ZeRO-1" in line for line in written.why)


def test_phase_2_is_told_its_stages_and_limits() -> None:
    lm = ScriptedModel([block(placement()), block(placement() + ONE_F_ONE_B)])
    write_schedule(SENTENCE, MODEL, lm=lm)
    first, second = lm.prompt(0), lm.prompt(1)
    # 4 microbatches of F + B = 3 units, and the other stage's F and B before and after them: 15.
    assert "1f1b here: step time at most 15 units; in flight per device, from device 0: at most [2, 1]" in second
    assert "is advice here" not in second
    assert "stage 1 on device 1: layers 2 to 3, trainable parameters 2 MB" in second
    assert "memory bound: no bound is set" in first
    assert "memory bound: no bound is set" in second


def test_limits_without_a_family_and_with_one_that_cannot_be_built() -> None:
    plan = lower(schedule_from(placement(devices=(0, 1, 0))), MODEL)
    assert limits(read_intent("3 stages, oddly"), plan, MODEL).splitlines() == [
        "- No family is named: only the step time is limited, not the microbatches in flight.",
        "- interleaved cannot be built on this placement: no limit is set.",
        "- All this is advice here: where words that no check covers ask for something else, the sentence wins.",
    ]
    assert limits(read_intent("1F1B"), plan, MODEL) == "- 1f1b cannot be built on this placement."
