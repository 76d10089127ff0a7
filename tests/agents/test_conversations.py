"""Recorded conversations with a capable model that saw only its requests, replayed: everything is judged anew.

The replies are data; what is asserted of their schedules comes from the sentences. Recorded through
`pibroch generate SENTENCE --model gpt-tiny --lm mailbox:DIR --record conversations`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pibroch.agents.lm import open_lm
from pibroch.agents.schedule_writer import Written, write_schedule
from pibroch.evals.judge import judge
from pibroch.evals.models import load_workload
from pibroch.runtime.capture import capture
from pibroch.runtime.errors import PibrochError
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan
from pibroch.runtime.trainer import Trainer
from pibroch.runtime.verify import verify

CONVERSATIONS = Path(__file__).parent / "conversations"


def rows(plan: Plan) -> list[list[str]]:
    """The compute order of each device, without parts and updates."""
    tasks = [[plan.tasks[i] for i in plan.streams[d]["compute"]] for d in range(plan.devices)]
    return [[f"{t.stage}{t.op}{t.mb}" for t in row if not t.part and t.mb >= 0] for row in tasks]


def layers(plan: Plan) -> list[int]:
    return [sum(c.stop - c.start for c in plan.chunks if c.stage == s) for s in range(plan.stages)]


def one_f_one_b(plan: Plan) -> bool:
    """On two devices: the first is one forward ahead of the second, which alternates."""
    m = plan.microbatches
    alternating = [f"{op}{i}" for i in range(m) for op in "FB"]
    ahead = ["F0", *(f"{op}{i + (op == 'F')}" for i in range(m - 1) for op in "FB"), f"B{m - 1}"]
    return [[name[1:] for name in row] for row in rows(plan)[:2]] == [ahead, alternating]


def backwards_reversed(plan: Plan) -> bool:
    return all([n[1:] for n in row if n[1] == "B"] == ["B3", "B2", "B1", "B0"] for row in rows(plan))


def last_two_split(plan: Plan) -> bool:
    ops = [{(t.op, t.mb) for t in plan.of(d) if t.op in ("B", "BW")} for d in range(2)]
    whole, split = {("B", mb) for mb in range(4)}, {("BW", 4), ("BW", 5)}
    return all(device in (whole | split, whole | {("B", 4), ("B", 5)}) for device in ops) and whole | split in ops


def two_waves(plan: Plan) -> bool:
    first, second = [f"F{i}" for i in range(4)], [f"F{i}" for i in range(4, 8)]
    names = [[n[1:] for n in row] for row in rows(plan)]
    return all(
        row[:4] == first and max(map(row.index, second)) < min(i for i, n in enumerate(row) if n in ("B4", "BI4"))
        for row in names
    ) and all(row.index("F4") > max(i for i, n in enumerate(row) if n in ("B0", "BI0")) for row in names)


# Sentence, devices, stages, microbatches, and what else it says. The planner knows the first block only.
CASES: list[tuple[str, int, int, int, Callable[[Plan], bool]]] = [
    ("1F1B over 2 stages, 8 microbatches", 2, 2, 8, one_f_one_b),
    (
        "GPipe on 3 stages with 5 microbatches, recompute every layer", 3, 3, 5,
        lambda p: all(c.recompute for c in p.chunks),
    ),
    (
        "zero bubble, 2 stages, 2 replicas, 6 microbatches, gradient reductions on a stream called grads", 4, 2, 6,
        lambda p: p.replicas == 2 and {b.stream for b in p.buckets} == {"grads"} and any(t.op == "BW" for t in p.tasks),
    ),
    (
        "interleaved 1F1B on 2 devices with 2 stages per device and 4 microbatches", 2, 4, 4,
        lambda p: p.placement == [[0], [1], [0], [1]],
    ),
    (
        "data parallel over 4 replicas, gradient buckets of 0.2 MB on their own stream, 2 microbatches", 4, 1, 2,
        lambda p: p.replicas == 4 and len(p.buckets) > 1,
    ),
    ("a pipeline of 3 stages that fits in 5 MB per device, 6 microbatches", 3, 3, 6, lambda p: p.replicas == 1),
    (
        "1F1B over 2 stages, 2 replicas, 4 microbatches; reduce gradients in 0.3 MB buckets on stream grads", 4, 2, 4,
        lambda p: p.replicas == 2 and {b.stream for b in p.buckets} == {"grads"},
    ),
    (
        "four stages on two devices in a V: device 0 holds the first and the last stage, device 1 the two in the "
        "middle; 4 microbatches, the backward of a microbatch as early as possible", 2, 4, 4,
        lambda p: p.placement == [[0], [1], [1], [0]],
    ),
    (
        "GPipe over 2 stages, 4 microbatches, but run the backwards in reverse order, last microbatch first", 2, 2, 4,
        backwards_reversed,
    ),
    (
        "1F1B over 2 stages, 6 microbatches; split only the last two backwards so that weight gradients fill the drain",
        2, 2, 6, last_two_split,
    ),
    (
        "2 stages, 8 microbatches: work through them in two waves of four, all forwards of a wave and then its "
        "backwards", 2, 2, 8, two_waves,
    ),
    (
        "the embedding alone on device 0, everything else on device 1, 4 microbatches in 1F1B order", 2, 2, 4,
        lambda p: layers(p) == [1, 5] and one_f_one_b(p),
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    workload = load_workload("gpt-tiny")
    return capture(workload.model(), workload.loss, workload.batch(2, 0), name="gpt-tiny").spec


def replayed(sentence: str, model: ModelSpec, folder: Path = CONVERSATIONS) -> Written:
    return write_schedule(sentence, model, lm=open_lm(f"replay:{folder}"))


@pytest.mark.parametrize(("sentence", "devices", "stages", "microbatches", "says"), CASES, ids=lambda v: str(v)[:24])
def test_a_conversation_ends_in_a_verified_schedule(
    sentence: str, devices: int, stages: int, microbatches: int, says: Callable[[Plan], bool], model: ModelSpec
) -> None:
    written = replayed(sentence, model)
    assert written.verified
    assert written.schedule is not None
    plan = lower(written.schedule, model)
    assert verify(plan, model=model) == []
    assert (plan.devices, plan.stages, plan.microbatches) == (devices, stages, microbatches)
    assert says(plan)


def test_a_corrupted_reply_is_refused(model: ModelSpec, tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    shutil.copytree(CONVERSATIONS, folder)
    for file in folder.glob("*.json"):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('\\"devices\\": [1', '\\"devices\\": [0'), encoding="utf-8")
    try:
        written = replayed(CASES[0][0], model, folder)
    except PibrochError:
        return  # the refusal asks for another attempt, of which there is no recording
    assert not written.verified


def test_what_was_written_trains_as_one_process_does() -> None:
    """Every distinct schedule that fits four ranks, on real workers: none may pass the verifier and then differ."""
    workload = load_workload("gpt-tiny")
    spec = capture(workload.model(), workload.loss, workload.batch(2, 0), name="gpt-tiny").spec
    schedules = [replayed(case[0], spec).schedule for case in CASES]
    assert schedules[0] is not None
    with Trainer(workload, schedules[0], launcher="local", ranks=4) as trainer:
        for schedule, (sentence, *_) in zip(schedules, CASES, strict=True):
            assert schedule is not None
            trainer.load(schedule)
            assert judge(trainer).ok, sentence
