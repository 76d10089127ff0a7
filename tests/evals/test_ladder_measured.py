"""The ladder on real workers: what it measures, keeps, refuses and leaves behind. Where speed counts it is emulated."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import ladder_workloads
import pytest

from pibroch.evals import ladder, ladder_workers
from pibroch.evals.bench_false_wins import disguise
from pibroch.evals.ladder import Ladder
from pibroch.evals.models import load_workload
from pibroch.evals.setting import Setting
from pibroch.evals.task import Task
from pibroch.evals.timing import LockHeld, measurement_lock
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.profile import ProfileLayer, load_profile
from pibroch.runtime.trainer import Trainer

LAYER = ProfileLayer("layer", 0.05, 0.05, 0.05, 4000, 0, 0, 4)
PROFILE = replace(load_profile("equal-8"), layers=(LAYER,) * 4, cut=(2,))
PIPELINE = build("1f1b", devices=2, microbatches=4)


def task(**fields: Any) -> Task:
    known = {"name": "t", "title": "t", "model": "mlp:4", "devices": 2, "samples": 4, "intent": "t"}
    return Task.model_validate({**known, **fields})


def pids(ladder: Ladder) -> list[int]:
    assert ladder._workers is not None
    launcher: Any = ladder._workers.sides[0].pool.launcher
    return list(launcher.pids)


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.fixture(scope="module")
def emulated() -> Iterator[Ladder]:
    setting = Setting(task(emulate="custom", samples=2), load_workload("mlp:4"), PROFILE)
    with Ladder(setting) as ladder:
        yield ladder


@pytest.fixture(scope="module")
def measured() -> Iterator[Ladder]:
    with Ladder(Setting(task(), load_workload("mlp:4")), keep_noisy=True, candidates=3) as ladder:
        yield ladder


def test_the_faster_schedule_wins_and_stays_at_hand(emulated: Ladder) -> None:
    # Two stages, two microbatches: (m + p - 1)(F + B) = 3 x 0.3 s, against 3 x 0.4 s with every forward run twice.
    slow = build("1f1b", devices=2, microbatches=2, recompute=True)
    fast = build("1f1b", devices=2, microbatches=2)
    found = emulated.evaluate(fast, slow)
    assert (found.verdict, found.rung) == ("faster", "paired")
    assert found.emulated
    assert not found.simulated
    assert found.pairs >= 4
    assert found.ratio is not None
    assert found.lower is not None
    assert found.lower > 1
    assert found.step_s is not None
    assert found.tokens_per_s == pytest.approx(2 / found.step_s)
    assert found.steps_s < found.total_s
    # As the incumbent it is not loaded again: what was the candidate's side is compared with.
    assert emulated._workers is not None
    (side,) = [s for s in emulated._workers.sides if s.key == found.plan]
    assert emulated.evaluate(build("gpipe", devices=2, microbatches=2, recompute=True), fast).verdict == "slower"
    assert [s for s in emulated._workers.sides if s.key == found.plan] == [side]
    kinds = {finding.kind for finding in emulated.findings(fast)}
    assert kinds


def test_under_emulation_buckets_are_cut_as_the_profile_says(emulated: Ladder) -> None:
    assert emulated._workers is not None
    one_layer = build("gpipe", devices=1, replicas=2, microbatches=1, bucket_size=0.004)
    plan = emulated.setting.lower(one_layer)
    assert len(plan.buckets) == 4
    side = emulated._workers.load(one_layer, plan)
    assert [str(t) for t in side.plan.tasks] == [str(t) for t in plan.tasks]
    assert side.plan.streams == plan.streams


def test_costs_are_measured_once(measured: Ladder) -> None:
    same_work = measured.evaluate(disguise(PIPELINE, 1), PIPELINE)
    assert same_work.verdict in ("slower", "undecided", "faster")  # timing of tiny steps on a busy machine
    assert not same_work.emulated
    known = measured.known()
    assert len(known["costs"]["layers"]) == 4
    assert known["spread"] > 0
    again = Ladder(Setting(task(), load_workload("mlp:4")), known=known)
    assert again.known() == known
    assert again.setting.measured == measured.setting.measured


def test_another_size_of_microbatch_runs_on_the_same_workers(measured: Ladder) -> None:
    measured.evaluate(disguise(PIPELINE, 2), PIPELINE)
    before = pids(measured)
    found = measured.evaluate(build("gpipe", devices=2, microbatches=2), PIPELINE)
    assert found.verdict not in ("invalid", "unequal")
    assert found.rung in ("simulate", "short", "paired")
    assert pids(measured) == before


def test_the_incumbents_plan_is_not_measured(measured: Ladder) -> None:
    found = measured.evaluate(PIPELINE, PIPELINE)
    assert (found.verdict, found.pairs, found.step_s) == ("same", 0, None)


def test_dead_workers_make_the_evaluation_invalid_and_new_ones_take_over(measured: Ladder) -> None:
    measured.evaluate(disguise(PIPELINE, 3), PIPELINE)
    victims = pids(measured)
    os.kill(victims[1], signal.SIGKILL)
    found = measured.evaluate(disguise(PIPELINE, 4), PIPELINE)
    assert found.verdict == "invalid"
    assert "rank 1" in found.reason
    assert measured._workers is None
    assert not any(alive(pid) for pid in victims)
    after = measured.evaluate(disguise(PIPELINE, 4), PIPELINE)
    assert after.verdict != "invalid"
    fresh = pids(measured)
    measured.close()
    assert not any(alive(pid) for pid in fresh)


def test_a_confirmation_pairs_on_workers_of_its_own(measured: Ladder) -> None:
    result = measured.confirm(disguise(PIPELINE, 5), PIPELINE, pairs=3)
    assert result.pairs == 3
    assert result.lower <= result.ratio <= result.upper
    assert measured._workers is None


def test_ctrl_c_in_the_judge_of_an_emulated_candidate_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(task(emulate="custom", samples=2), load_workload("mlp:4"), PROFILE)

    def interrupted(side: Trainer, **options: Any) -> None:
        side.pool.close()  # as a launcher does
        raise KeyboardInterrupt

    monkeypatch.setattr(ladder_workers, "judge", interrupted)
    start = build("1f1b", devices=2, microbatches=2)
    with Ladder(setting) as emulation, pytest.raises(KeyboardInterrupt):
        emulation.evaluate(disguise(start, 1), start)


def test_a_lock_that_is_held_condemns_no_candidate(measured: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    measured.evaluate(disguise(PIPELINE, 6), PIPELINE)
    before = pids(measured)
    monkeypatch.setattr(ladder, "measurement_lock", partial(measurement_lock, deadline=0.0))
    with measurement_lock(), pytest.raises(LockHeld, match="another measurement held"):
        measured.evaluate(disguise(PIPELINE, 7), PIPELINE)
    assert pids(measured) == before


def test_an_incumbent_that_ran_away_begins_again_with_each_candidate(measured: Ladder) -> None:
    measured.evaluate(disguise(PIPELINE, 8), PIPELINE)
    assert measured._workers is not None
    for side in measured._workers.sides:
        side.finite = False
    found = measured.evaluate(disguise(PIPELINE, 9), PIPELINE)
    assert "not finite" not in found.reason
    assert found.pairs > 0


def test_nan_is_not_equal_to_nan() -> None:
    setting = Setting(task(), ladder_workloads.without_a_number())
    with Ladder(setting, keep_noisy=True) as ladder:
        found = ladder.evaluate(disguise(PIPELINE, 1), PIPELINE)
    assert (found.verdict, found.rung) == ("unequal", "short")
    assert found.pairs == 0


def test_fixed_stages_are_judged_without_measured_costs() -> None:
    """Layers cannot be stages of their own then: measured scores do without, calibrated ones say so."""
    setting = Setting(task(), ladder_workloads.with_fixed_stages())
    with Ladder(setting, keep_noisy=True, candidates=1) as one:
        found = one.evaluate(build("gpipe", devices=2, microbatches=4), PIPELINE)
        assert found.verdict in ("slower", "undecided", "faster")
        assert one.known()["costs"] is None
    with (
        Ladder(setting, scores="calibrated") as other,
        pytest.raises(InputError, match="annotations fix its stages: use --scores measured"),
    ):
        other.prepare(PIPELINE)
