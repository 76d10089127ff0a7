"""The proposing writer under a scripted model: what it is asked, what is handed on, and that nothing stops a run."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from typing import Any

import pytest
from scripted_lm import ScriptedModel, block

from pibroch.agents.evolve.catalogue import catalogue
from pibroch.agents.evolve.design import Item, decode
from pibroch.agents.evolve.edits import OPS, parse_edit
from pibroch.agents.evolve.facts import facts_of
from pibroch.agents.evolve.outline import folded, outline
from pibroch.agents.evolve.writer import Answer, Writer
from pibroch.agents.lm.accounting import Metered
from pibroch.agents.lm.base import LMError, Paused
from pibroch.evals.finding import Finding
from pibroch.evals.setting import Setting, open_setting
from pibroch.evals.task import Task
from pibroch.playbooks.model import Bullet
from pibroch.runtime.directives import Schedule, schedule_from
from pibroch.runtime.families import build, rows

LAYERS = {
    "name": "layer", "count": 16, "forward": 0.02, "backward_input": 0.02, "backward_weight": 0.02,
    "parameter_bytes": 1 << 20, "saved_bytes": 1 << 20, "weight_saved_bytes": 1 << 20, "boundary_bytes": 4096,
}  # fmt: skip
PROFILE = {
    "version": 1, "name": "equal", "source": "none", "derivation": [], "latency": 0.0, "bandwidth": 1e12,
    "collective_latency": 0.0, "collective_bandwidth": 1e12, "cut": [2, 4, 6, 8, 10, 12, 14], "layers": [LAYERS],
}  # fmt: skip


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Eight samples on up to eight equal stages: two layers of F = BI = BW = 20 ms each."""
    path = tmp_path_factory.mktemp("profile") / "equal.json"
    path.write_text(json.dumps(PROFILE))
    return open_setting(
        Task(name="eight", title="x", model="mlp-deep", devices=8, samples=8, emulate=str(path), intent="Be fast.")
    )


INCUMBENT = build("1f1b", devices=8, microbatches=8)
ZB = build("zb-h1", devices=8, microbatches=8)
GPIPE = build("gpipe", devices=8, microbatches=8)
BULLETS = [Bullet(id=f"sched-0000{i}", section="schedules", text=f"Advice {i}.") for i in (1, 2)]
FINDINGS = [
    Finding(kind="warm-up-drain", origin="schedule", seconds=0.4, share=0.4, text="filling takes long"),
    Finding(kind="jitter", origin="machine", seconds=0.004, share=0.004, text="small"),
]


def propose(
    setting: Setting,
    *replies: str | Exception,
    seen: Container[str] = (),
    tried: Sequence[str] = (),
    evaluation: int = 3,
) -> tuple[Answer, ScriptedModel]:
    lm = ScriptedModel(replies)
    writer = Writer(lm, setting)
    return writer.propose(INCUMBENT, FINDINGS, BULLETS, tried=tried, seen=seen, evaluation=evaluation), lm


def directives(schedule: Schedule) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = schedule.to_json()["directives"]
    return found


def test_a_whole_schedule(setting: Setting) -> None:
    answer, lm = propose(setting, "I split the backwards.\ncites: sched-00002, sched-00009\n\n" + block(directives(ZB)))
    assert answer == Answer(ZB, "I split the backwards. Here it is.", None, ("sched-00002",), 1)
    assert (lm.asked[0].role, lm.asked[0].phase, lm.asked[0].attempt, lm.asked[0].subject) == ("writer", 3, 1, "eight")


def test_an_edit_alone(setting: Setting) -> None:
    answer, _ = propose(setting, block({"edit": {"op": "family", "name": "zb-h1"}, "cites": ["sched-00001"]}))
    assert answer.schedule is not None
    assert setting.lower(answer.schedule).hash() == setting.lower(ZB).hash()
    assert (answer.edit, answer.cites) == ({"op": "family", "name": "zb-h1"}, ("sched-00001",))


def test_a_function_of_the_incumbent(setting: Setting) -> None:
    source = """
def schedule(incumbent):
    rows = [dict(d) for d in incumbent]
    for d in rows:
        if d["op"] == "order":
            d["filters"].sort(key=lambda f: f["PASS"] == "B")
    return rows
"""
    answer, _ = propose(setting, block(source, "python"))
    assert answer.schedule is not None
    assert setting.lower(answer.schedule).hash() == setting.lower(GPIPE).hash()
    assert answer.edit is None


def test_the_prompt_holds_all_that_it_needs_and_is_short(setting: Setting) -> None:
    _, lm = propose(setting, block(directives(ZB)), tried=["gpipe: 0.9 times the speed"])
    text = lm.prompt(0)
    for needed in (
        "Be fast.", "8 devices, 8 samples", "1 x 8; 2 x 4; 4 x 2; 8 x 1", "16 layers", "the rows of the family 1f1b",
        "40% (400 ms) warm-up-drain", "[machine, not the schedule]", "[sched-00002] Advice 2.", "- warm_up: position?",
        "gpipe: 0.9 times the speed", "def schedule(incumbent)", '`{"op": "cut"', "simulated: step 1800 ms",
    ):  # fmt: skip
        assert needed in text, needed
    assert len(text) < 10_000


def test_feedback_until_it_is_legal(setting: Setting) -> None:
    late = [d for d in directives(ZB) if d["op"] != "place" or d["filter"] != {"PP": 7}]
    stuck = directives(INCUMBENT)
    stuck[-1]["filters"].reverse()
    answer, lm = propose(setting, block(late), block(stuck), block(directives(ZB)))
    assert (answer.schedule, answer.attempts) == (ZB, 3)
    for i, rule in ((1, "V9"), (2, "V5")):
        feedback = lm.prompt(i).split("## What was wrong")[1]
        assert rule in feedback
    assert lm.prompt(1).count("```json") > lm.prompt(0).count("```json")  # its own reply is shown again
    assert [r.attempt for r in lm.asked] == [1, 2, 3]
    assert len({json.dumps(r.key, sort_keys=True) for r in lm.asked}) == 3


def test_the_memory_bound_is_kept(setting: Setting) -> None:
    plan = setting.lower(INCUMBENT)
    task = setting.task.model_copy(update={"memory_limit": max(setting.simulate(plan).peak_bytes)})
    answer, lm = propose(
        Setting(task, setting.workload, setting.profile), *[block(directives(GPIPE)) + " " * i for i in range(3)]
    )
    assert answer.schedule is None
    assert "V7" in answer.why
    assert "memory bound" in lm.prompt(0)


GARBAGE: list[tuple[str, str]] = [
    ("", "no fenced block"),
    ("z" * 10_000_000, "longer than"),
    ("```a\n" * 200_000, "never closed"),
    (block("[" * 100_000), "not valid JSON"),
    (block("{]"), "not valid JSON"),
    (block("[]"), "microbatches"),
    (block("[]") + block("[]"), "2 fenced blocks"),
    (block({"edit": {"op": "faster"}}), "unknown op 'faster'"),
    (block({"edit": {"op": "family", "name": "zb-h1"}, "speed": 2}), "speed"),
    (block({"edit": {"op": "family", "name": "zb-h1"}, "cites": "all"}), "cites"),
    (block({"edit": {"op": "bucket_size", "factor": 0.5}}), "does not apply"),
    (block([{"op": "split", "num_microbatches": 10**9}]), "do not divide"),
    (block([{"op": "split", "num_microbatches": 8}] * 3000), "V9"),
    (block([{"op": "place", "filter": {"PP": s}, "devices": [s]} for s in range(5000)]), "microbatches"),
    (block("def schedule(incumbent):\n    return open('/etc/hostname').read()", "python"), "Permission denied"),
    (block("def schedule(incumbent):\n    return ['x' * 5_000_000]", "python"), "the code wrote more than"),
    (block("def schedule(incumbent):\n    return 7", "python"), "schedule()"),
    (block("def plan():\n    return []", "python"), "schedule"),
    (block("import os\ndef schedule(incumbent):\n    os._exit(0)", "python"), "left the process"),
]


@pytest.mark.parametrize(("reply", "reason"), GARBAGE)
def test_garbage_is_told_and_then_given_up(setting: Setting, reply: str, reason: str) -> None:
    answer, lm = propose(setting, reply, reply + "\n", reply + "\n\n")
    assert answer.schedule is None
    assert (len(lm.asked), answer.attempts) == (3, 3)
    assert reason in lm.prompt(1).split("## What was wrong")[1]
    assert answer.why.startswith("nothing valid in 3 attempts")
    assert len(answer.why) < 400
    assert len(lm.prompt(2)) < 30_000


def test_the_same_reply_word_for_word_ends_it(setting: Setting) -> None:
    answer, lm = propose(setting, "no", "no")
    assert (answer.schedule, len(lm.asked)) == (None, 2)
    assert "word for word" in answer.why


def test_what_was_tried_is_told_once_and_then_given_up(setting: Setting) -> None:
    seen = {setting.lower(ZB).hash()}
    first, second = block(directives(ZB)), block({"edit": {"op": "family", "name": "zb-h1"}})
    answer, lm = propose(setting, first, second, seen=seen)
    assert (answer.schedule, answer.attempts) == (None, 2)
    assert "again" in answer.why
    assert "tried before" in lm.prompt(1).split("## What was wrong")[1]
    answer, _ = propose(setting, first, block(directives(GPIPE)), seen=seen)
    assert answer.schedule == GPIPE


def test_the_incumbent_itself_is_no_proposal(setting: Setting) -> None:
    _, lm = propose(setting, block(directives(INCUMBENT)), block(directives(ZB)))
    assert "the incumbent itself" in lm.prompt(1)


def test_a_model_that_hangs_costs_one_request(setting: Setting) -> None:
    answer, lm = propose(setting, LMError("no answer within 300 s"))
    assert (answer.schedule, len(lm.asked)) == (None, 1)
    assert answer.why == "the model did not answer: no answer within 300 s"
    assert lm.asked[0].deadline_s == 300


def test_a_spent_budget_is_a_reason_and_a_pause_passes(setting: Setting) -> None:
    inner = ScriptedModel([])
    answer = Writer(Metered(inner, max_tokens=100), setting).propose(INCUMBENT, [], [], evaluation=1)
    assert (answer.schedule, answer.attempts, inner.asked) == (None, 0, [])
    assert "budget" in answer.why
    with pytest.raises(Paused):
        propose(setting, Paused("nobody yet"))


def test_the_same_question_is_found_again_and_another_is_another(setting: Setting) -> None:
    keys = [propose(setting, "x", "x", evaluation=n)[1].asked[0].key for n in (3, 3, 4)]
    assert keys[0] == keys[1] != keys[2]


# The parts of the prompt


def unfolded(text: str) -> list[Item]:
    """The row that a folded text stands for, read on its own terms."""
    found: list[Item] = []
    for part in re.findall(r"\([^)]*\)\.\.\([^)]*\)|\S+", text):
        ends = [re.findall(r"(\d*)(F|BI|BW|B)(\d+)", end) for end in part.split("..")]
        for step in range(int(ends[-1][0][2]) - int(ends[0][0][2]) + 1):
            found += [(op, int(stage or 0), int(mb) + step) for stage, op, mb in ends[0]]
    return found


@pytest.mark.parametrize(("family", "each"), [("gpipe", 1), ("1f1b", 1), ("zb-h1", 1), ("interleaved", 2)])
def test_folded_rows_lose_nothing(family: str, each: int) -> None:
    for row in rows(family, devices=4, microbatches=12, stages_per_device=each):
        text = folded(row, stages=each > 1)
        assert unfolded(text) == [(op, stage if each > 1 else 0, mb) for op, stage, mb in row]
        assert len(text) < 9 * len(row) * (1 if each > 1 else 0.5)


def test_the_outline_says_what_is_not_default(setting: Setting) -> None:
    moved = directives(
        build("1f1b", devices=4, replicas=2, microbatches=4, bucket_size=0.5, recompute=True, stream="send")
    )
    row = next(d for d in moved if d["op"] == "order")
    row["filters"][0], row["filters"][1] = row["filters"][1], row["filters"][0]
    text = outline(decode(schedule_from(moved), setting))
    for needed in ("2 replicas x 4 microbatches", "[[0, 4], [1, 5], [2, 6], [3, 7]]", "recompute: all stages",
                   "bucket_size (MB) of each stage: 0.5", "stream: send", "0: F1 F0 F2"):  # fmt: skip
        assert needed in text, needed


def test_the_catalogue_lists_edits_that_can_be_parsed() -> None:
    lines = catalogue().splitlines()[1:]
    ops = [re.split(r"[:.]", line[2:])[0] for line in lines]
    assert set(ops) == set(OPS) - {"stream", "overlap"}  # which cannot win time
    samples = {"int": 1, "bool": True, "number|null": 0.5, "WHICH": "all"}
    for op, line in zip(ops, lines, strict=True):
        fields = dict(re.findall(r"(\w+\??)=([\w|-]+)", line))
        given = {name: samples.get(kind, kind.split("|")[0]) for name, kind in fields.items() if not name.endswith("?")}
        assert parse_edit({"op": op, **given}).op == op


def test_facts_of_a_task(setting: Setting) -> None:
    schedule = build("1f1b", devices=4, replicas=2, microbatches=4, cut=[8, 12, 14])
    found = facts_of(setting, schedule, FINDINGS)
    assert found == {
        "devices": 8, "samples": 8, "memory_bound": False, "emulated": True, "layers": 16, "replicas": 2,
        "microbatches": 4, "stages": 4,
        "imbalance": 2.0,  # 8 of 16 layers on one of 4 stages: twice the mean
        "link_share": pytest.approx(4096 / 1e12 / 0.08, rel=0.01),  # a boundary over the mean of 4 layers of 20 ms
        "finding:warm-up-drain": True,
    }  # fmt: skip
