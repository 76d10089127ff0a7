"""Timing statistics against published tables and synthetic clocks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pibroch.evals import timing
from pibroch.evals.timing import Sample, interval, measurement_lock, paired, t_quantile
from pibroch.runtime.errors import WorkerError


@pytest.mark.parametrize(
    ("p", "freedom", "table"),
    [(0.975, 1, 12.7062), (0.975, 4, 2.7764), (0.975, 9, 2.2622), (0.975, 29, 2.0452), (0.9995, 19, 3.8834)],
)
def test_t_quantile_equals_the_printed_tables(p: float, freedom: int, table: float) -> None:
    assert t_quantile(p, freedom) == pytest.approx(table, rel=2e-5)


def test_interval_of_known_logs() -> None:
    # Mean 0, standard deviation 0.1 of five: half-width 2.7764 x 0.1 / sqrt(5).
    deviation = 0.1 * math.sqrt(4 / 2)
    ratio, lower, upper = interval([deviation, -deviation, 0.0, 0.0, 0.0])
    assert ratio == pytest.approx(1.0)
    assert math.log(upper) == pytest.approx(2.7764 * 0.1 / math.sqrt(5), rel=1e-4)
    assert lower == pytest.approx(1 / upper)


class Clock:
    """A machine on which calls take given seconds; `busy` counts every process's CPU time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.busy = self.own = 0.0
        self.calls: list[str] = []
        monkeypatch.setattr(timing, "clock", lambda: self.now)
        monkeypatch.setattr(timing, "_busy_seconds", lambda: self.busy)
        monkeypatch.setattr(timing, "_own_seconds", lambda: self.own)

    def run(self, name: str, seconds: float, *, foreign: float = 0.0) -> None:
        self.calls.append(name)
        self.now += seconds
        self.busy += seconds + foreign
        self.own += seconds


def test_pairs_alternate_and_drift_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def speed() -> float:  # the machine slows down fourfold over the run
        return 1 + 3 * min(len(clock.calls) // 2, 20) / 20

    result = paired(lambda: clock.run("a", 1.2 * speed()), lambda: clock.run("b", 1.0 * speed()), pairs=10, warmup=1)
    assert clock.calls == ["a", "b"] * 11
    assert result.ratio == pytest.approx(1.2)
    assert result.lower == pytest.approx(1.2)
    assert result.pairs == 10
    assert result.discarded == 0


def test_disturbed_samples_are_discarded_with_their_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def candidate() -> None:
        disturbed = len(clock.calls) in (3, 5)
        clock.run("b", 3.0 if disturbed else 1.0, foreign=0.5 if disturbed else 0.0)

    result = paired(lambda: clock.run("a", 1.0), candidate, pairs=4, warmup=0)
    assert (result.pairs, result.discarded, result.ratio) == (4, 2, 1.0)


def test_a_machine_that_is_never_quiet_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def run() -> None:
        clock.run("x", 1.0, foreign=0.5)

    with pytest.raises(WorkerError, match="quiet machine"):
        paired(run, run, pairs=4)
    assert paired(run, run, pairs=4, keep_noisy=True).pairs == 4


def test_own_and_busy_seconds_grow_with_work() -> None:
    busy, own = timing._busy_seconds(), timing._own_seconds()
    total = 0
    while timing._own_seconds() < own + 0.1:
        total += sum(range(20_000))
    assert timing._busy_seconds() >= busy + 0.05
    assert Sample(1.0, 0.0).quiet
    assert not Sample(1.0, 0.2).quiet


def test_the_lock_excludes_and_says_which_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        measurement_lock(path=path),
        pytest.raises(WorkerError, match=str(path)),
        measurement_lock(path=path, deadline=0.0),
    ):
        pass
    with measurement_lock(path=path, deadline=0.0):
        pass
