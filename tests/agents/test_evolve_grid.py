"""The baselines: every grid cell is legal within its budget, and random search only ever gets better."""

from __future__ import annotations

from collections import Counter

from evolve_settings import emulated

from pibroch.agents.evolve.bench_search import lasting, race, reached
from pibroch.agents.evolve.design import decode, schedule_hash
from pibroch.agents.evolve.grid import grid
from pibroch.agents.evolve.random_search import random_search
from pibroch.evals.setting import Setting
from pibroch.runtime.directives import Schedule
from pibroch.runtime.families import build


def scored(setting: Setting, schedule: Schedule) -> float | None:
    plan = setting.lower(schedule)
    simulation = setting.simulate(plan)
    return None if setting.check(plan, simulation) else simulation.makespan


def test_cells_are_different_legal_family_schedules() -> None:
    setting = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g")
    cells = grid(setting, budget=30)
    assert len(cells) == len({schedule_hash(cell) for cell in cells}) == 30
    designs = [decode(cell, setting) for cell in cells]
    assert all(d.rule.kind == "family" for d in designs)
    assert all(scored(setting, cell) is not None for cell in cells)
    assert {d.replicas for d in designs} == {1, 2, 4}
    assert {d.rule.name for d in designs} == {"gpipe", "1f1b", "interleaved", "zb-h1"}
    assert {d.stages_per_device for d in designs} >= {1, 2, 3}


def test_a_small_budget_is_spread_over_divisions_and_families() -> None:
    setting = emulated(devices=8, samples=8, profile="llama3-8b-a100-25g")
    designs = [decode(cell, setting) for cell in grid(setting, budget=10)]
    assert len({d.replicas for d in designs}) >= 3
    assert max(Counter(d.rule.name for d in designs).values()) <= 5
    assert grid(setting, budget=10) == grid(setting, budget=10)
    assert grid(setting, budget=10) != grid(setting, budget=10, seed=1)


def test_a_small_grid_is_searched_whole() -> None:
    setting = emulated(devices=1, samples=2)
    cells = grid(setting, budget=50)
    assert {bool(decode(cell, setting).recompute) for cell in cells} == {False, True}
    assert len(cells) == 2


def test_what_surely_breaks_the_memory_bound_costs_no_evaluation() -> None:
    free = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g")
    peaks = sorted(max(free.simulate(free.lower(cell)).peak_bytes) for cell in grid(free, budget=24))
    limit = peaks[len(peaks) // 2]
    tight = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g", limit=limit)
    cells = grid(tight, budget=24)
    legal = [cell for cell in cells if scored(tight, cell) is not None]
    assert len(legal) >= 0.8 * len(cells) > 0


def test_random_search_never_gets_worse_and_repeats() -> None:
    setting = emulated(devices=2, samples=4)
    start = build("gpipe", devices=2, microbatches=4)
    asked: list[str] = []

    def score(schedule: Schedule) -> float | None:
        asked.append(schedule_hash(schedule))
        return scored(setting, schedule)

    curve = random_search(setting, start, budget=25, seed=3, score=score)
    assert len(curve) == 25
    assert len(asked) == len(set(asked)) == 26  # the start, and every candidate once
    values = [x for x in curve if x is not None]
    assert values == sorted(values, reverse=True)
    first = scored(setting, start)
    assert first is not None
    assert values[-1] < first
    assert curve == random_search(setting, start, budget=25, seed=3, score=lambda s: scored(setting, s))


def test_reached_counts_evaluations_from_one() -> None:
    assert [reached((1.0, 1.2, 1.2, 1.4), target) for target in (1.0, 1.1, 1.3, 1.5)] == [1, 2, 4, 5]


def test_a_lucky_ratio_on_the_way_is_no_gain() -> None:
    assert lasting([1.0, 1.06, 1.02, 1.02, 1.1]) == [1.0, 1.02, 1.02, 1.02, 1.1]


def test_the_race_is_to_their_median_by_those_that_got_there() -> None:
    """Theirs end at 1.1, 1.2 and 1.3: the target is 1.2, which two reach after 3 and 1, and we after 2 and 4."""
    theirs = [(1.0, 1.1, 1.1), (1.0, 1.0, 1.2), (1.3, 1.3, 1.3)]
    ours = [(1.0, 1.2, 1.2), (1.0, 1.1, 1.1)]
    assert race(ours, theirs, counts=1.0) == (1.2, 3, 2)
