"""When training is said to have slowed."""

from __future__ import annotations

import pytest

from pibroch.runtime import monitor
from pibroch.runtime.errors import InputError
from pibroch.runtime.monitor import SlowdownMonitor


def told(speeds: list[int], **options: int) -> list[tuple[int, str]]:
    watch = SlowdownMonitor(**options)
    found = [(i, watch.step(speed, 1.0)) for i, speed in enumerate(speeds)]
    return [(i, text) for i, text in found if text]


def test_a_slowdown_is_told_then_once_more_and_then_is_the_usual_speed() -> None:
    rows = told([100] * 5 + [50] * 9, window=3, drop_pct=20, cooldown=2)
    assert [i for i, _ in rows] == [5, 8]  # silent for two steps after the first
    assert rows[0][1] == "50 tokens/s: 50% slower than the last 3 usual steps"
    assert rows[1][1] == f"{rows[0][1]}; taken as the usual speed from now on"


def test_two_slow_steps_far_apart_leave_the_baseline() -> None:
    speeds = [100] * 4 + [50] + [100] * 4 + [50] + [100] * 4 + [50]
    assert [i for i, text in told(speeds, window=3, drop_pct=20, cooldown=2) if "usual speed" not in text] == [4, 9, 14]


def test_runs_of_one_process_do_not_share_their_steps() -> None:
    assert told([100, 100, 100, 10], window=3)
    assert not told([10, 10, 10], window=3)


def test_the_monitor_fails_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **options: object) -> None:
        raise InputError(name)

    monkeypatch.setattr(monitor, "load_generated", missing)
    assert not told([100] * 8 + [1], window=3)
