"""Training on CUDA: equal numbers, kernel times, counted memory. Ranks share one GPU over gloo, or have one each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import cheats
import pytest
import tiny_models
import torch

from pibroch.evals.judge import judge
from pibroch.evals.models import load_workload
from pibroch.evals.timing import sample
from pibroch.runtime.families import FAMILIES, build
from pibroch.runtime.launch_local import LocalLauncher
from pibroch.runtime.trainer import Trainer

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="no CUDA device here")]
two_gpus = pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices: NCCL refuses ranks that share one")

SCHEDULES = {
    family: build(family, devices=2, microbatches=4, stages_per_device=2 if family == "interleaved" else 1)
    for family in FAMILIES
} | {
    "replicas": build("1f1b", devices=1, microbatches=3, replicas=2),
    "recompute": build("1f1b", devices=2, microbatches=3, recompute=True),
}


def sharing() -> LocalLauncher:
    """All ranks see one GPU only."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return LocalLauncher(env={"CUDA_VISIBLE_DEVICES": first})


@pytest.fixture(scope="module")
def shared() -> Iterator[Trainer]:
    with Trainer(load_workload("gpt-tiny"), SCHEDULES["1f1b"], launcher=sharing(), ranks=2, device="cuda") as trainer:
        yield trainer


@pytest.mark.parametrize("name", SCHEDULES)
def test_ranks_that_share_a_gpu_equal_a_replay_on_it(shared: Trainer, name: str) -> None:
    shared.load(SCHEDULES[name])
    assert not shared.pool.nccl
    verdict = judge(shared, steps=2)
    assert verdict.ok, verdict
    assert all(peak > 0 for peak in verdict.peak_bytes)


@pytest.mark.parametrize("trait", ["dropout", "tied", "skip", "frozen", "norm", "masked"])
def test_traits_on_a_shared_gpu(trait: str) -> None:
    with Trainer(tiny_models.workload(trait), SCHEDULES["zb-h1"], launcher=sharing(), device="cuda") as trainer:
        verdict = judge(trainer, steps=2)
    assert verdict.ok, verdict


def test_float64_equals_the_unsplit_batch() -> None:
    with Trainer(
        load_workload("gpt-tiny"), SCHEDULES["zb-h1"], launcher=sharing(), device="cuda", dtype="float64"
    ) as trainer:
        verdict = judge(trainer)
    assert verdict.reference == "unsplit"
    assert verdict.ok, verdict


def test_one_rank_alone_runs_in_launch_order() -> None:
    work = load_workload("gpt-dropout")
    with Trainer(work, build("1f1b", devices=1, microbatches=4), launcher="local", device="cuda") as trainer:
        assert trainer.pool.nccl
        verdict = judge(trainer, steps=2)
        assert verdict.ok, verdict
        batch = work.batch(trainer.batch_size, 0)
        trainer.step(batch)
        assert trainer.evaluate(batch) == trainer.evaluate(batch) > 0


@two_gpus
@pytest.mark.parametrize("name", SCHEDULES)
def test_nccl_equals_a_replay(name: str) -> None:
    with Trainer(load_workload("gpt-tiny"), SCHEDULES[name], launcher="local", device="cuda") as trainer:
        assert trainer.pool.nccl
        verdict = judge(trainer, steps=2)
        assert verdict.ok, verdict
        events = trainer.trace().events
    assert len(events) == len(trainer.plan.tasks)


def test_a_trace_holds_kernel_times_after_what_they_wait_for(shared: Trainer) -> None:
    shared.load(SCHEDULES["1f1b"])
    shared.step(shared.workload.batch(shared.batch_size, 0))
    trace = shared.trace()
    start = {e.task: e.start for e in trace.events}
    end = {e.task: e.end for e in trace.events}
    assert set(start) == {t.id for t in shared.plan.tasks}
    slack = 1e-5  # events have about half a microsecond, in single precision
    for task in shared.plan.tasks:
        assert 0.0 <= start[task.id] <= end[task.id] + slack
        assert all(end[w] <= start[task.id] + slack for w in task.waits), task


def test_a_step_without_a_trace_has_no_events(shared: Trainer) -> None:
    shared.load(SCHEDULES["gpipe"])
    _, reports = shared._run(shared.workload.batch(shared.batch_size, 0), "train")
    assert all(not report.events for report in reports)


def test_streams_overlap() -> None:
    """A copy to the host on a stream of the executor's kind runs beside kernels of the default stream."""
    a = torch.randn(8192, 8192, device="cuda")
    big, host = torch.empty(64 << 20, device="cuda"), torch.empty(64 << 20, pin_memory=True)
    side = torch.cuda.Stream()
    marks = {name: torch.cuda.Event(enable_timing=True) for name in ("kernels", "kernels end", "copy", "copy end")}
    for _ in range(2):  # the first round warms up
        torch.cuda.synchronize()
        marks["kernels"].record()
        for _ in range(20):
            a @ a
        marks["kernels end"].record()
        with torch.cuda.stream(side):
            marks["copy"].record()
            host.copy_(big, non_blocking=True)
            marks["copy end"].record()
        torch.cuda.synchronize()
    # In one queue the copy could only begin when the kernels have ended.
    assert marks["copy"].elapsed_time(marks["kernels end"]) > 0
    assert marks["kernels"].elapsed_time(marks["copy end"]) > 0


@pytest.mark.parametrize("alone", [False, True], ids=["shared", "ordered"])
def test_the_clock_waits_for_work_on_another_stream(alone: bool) -> None:
    """An optimizer that only queues its work: the step ends when the device is idle, and the numbers are there."""
    cycles = 2_000_000_000  # a third of a second on a GPU of 6 GHz, which there is not
    schedule = build("1f1b", devices=1, microbatches=2, replicas=1 if alone else 2)
    with cheats.CheatingTrainer(
        load_workload("mlp-tiny"), schedule, launcher="local" if alone else sharing(), device="cuda"
    ) as trainer:
        trainer.prepare()
        with trainer.cheating(partial(cheats.SideStream, cycles=cycles)):
            batch = trainer.workload.batch(trainer.batch_size, 0)
            trainer.step(batch)
            reported: list[float] = []
            wall = sample(lambda: reported.append(trainer.step(batch).seconds)).wall
            assert wall > 1 / 3
            assert reported[0] > 1 / 3
            assert judge(trainer, steps=1, peak=False).ok


def test_memory_follows_the_schedule() -> None:
    """GPipe's first stage keeps eight microbatches, 1F1B's two; parameters, gradients and AdamW's state in both."""
    work = load_workload("gpt-bench")
    peaks = {}
    with Trainer(
        work, build("gpipe", devices=2, microbatches=8), launcher=sharing(), ranks=2, device="cuda"
    ) as trainer:
        for family in ("gpipe", "1f1b"):
            trainer.load(build(family, devices=2, microbatches=8))
            trainer.step(work.batch(trainer.batch_size, 0))
            peaks[family] = trainer.peak_bytes()
            held = [sum(b.nbytes for b in trainer.plan.buffers if b.device == d and b.persistent) for d in (0, 1)]
            assert all(peak > least for peak, least in zip(peaks[family], held, strict=True))
    saved = max(c.saved_bytes for c in trainer.plan.chunks if c.stage == 0)
    assert peaks["gpipe"][0] - peaks["1f1b"][0] > 3 * saved
