"""The watch of a training loop, on a clock of its own."""

from __future__ import annotations

import pytest

from pibroch.runtime import watch
from pibroch.runtime.watch import REPEATS, WINDOW, Watch


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def loop(seen: Watch, clock: Clock, seconds: float, times: int = 1) -> list[str]:
    """Iterations of two calls; the first takes `seconds`."""
    said = []
    for _ in range(times):
        seen.record("step")
        clock.now += seconds
        said.append(seen.record("gradients"))
    return said


def test_an_iteration_longer_than_the_others_is_slow() -> None:
    clock = Clock()
    seen = Watch(clock)
    assert loop(seen, clock, 1.0, REPEATS)[-1] == "found"
    assert loop(seen, clock, 1.0, WINDOW) == ["normal"] * WINDOW
    assert loop(seen, clock, 1.04) == ["normal"]
    assert loop(seen, clock, 1.2) == ["slow"]
    assert seen.slow == 1
    clock.now += 4.9
    assert not seen.blocked()
    clock.now += 0.2
    assert seen.blocked()


def test_a_detector_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError(name)

    monkeypatch.setattr(watch, "load_generated", broken)
    seen = Watch()
    assert [seen.record("step"), seen.record("step")] == ["", ""]
    assert not seen.blocked()
