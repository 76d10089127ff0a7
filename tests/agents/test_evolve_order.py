"""List scheduling against the closed forms of the literature, and against the simulator that it does not call."""

from __future__ import annotations

from math import ceil, inf

import pytest
from evolve_settings import UnitSetting, emulated, unit
from rows_clock import inflight

from pibroch.agents.evolve.design import Design, Rule, changed, decode, encode
from pibroch.agents.evolve.edit_base import layout_of
from pibroch.agents.evolve.figures import figures, least_bytes, most_bytes
from pibroch.agents.evolve.order import Policy, build_rows, in_flight_bounds, list_schedule
from pibroch.evals.setting import Setting
from pibroch.runtime.families import build
from pibroch.runtime.simulate import Simulation

AUTO = Rule("list", "auto", split=True)


def chain(setting: Setting, *, positions: int, stages: int, microbatches: int) -> Design:
    assert setting.profile
    layers = len(setting.profile.layers)
    return Design(
        microbatches=microbatches,
        placement=tuple((r,) for r in layout_of(stages, positions, "v")),
        rows=(),
        rule=AUTO,
        cut=tuple(layers * s // stages for s in range(1, stages)),
        bucket_size=(None,) * stages,
    )


def simulated(design: Design, setting: Setting) -> Simulation:
    plan = setting.lower(encode(design))
    simulation = setting.simulate(plan)
    assert setting.check(plan, simulation) == []
    return simulation


@pytest.mark.parametrize(
    ("p", "m", "whole", "split"), [(2, 4, 15, 13), (4, 8, 33, 27), (4, 16, 57, 51), (8, 16, 69, 55)]
)
def test_closed_forms_under_unit_costs(p: int, m: int, whole: int, split: int) -> None:
    setting = unit(devices=p, samples=m)
    design = chain(setting, positions=p, stages=p, microbatches=m)
    joined = build_rows(design, setting, Rule("list", "backward-first", split=False, depth=1.0))
    halves = build_rows(design, setting, AUTO)
    assert (joined.makespan, halves.makespan) == (whole, split)
    assert [inflight(row) for row in joined.rows] == [p - r for r in range(p)]  # that of 1F1B
    for built in (joined, halves):
        assert simulated(changed(design, rows=built.rows), setting).makespan == built.makespan


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (8, 16)])
def test_to_and_fro_with_split_backwards_idles_only_while_the_pipeline_fills(p: int, m: int) -> None:
    """Stages are halves: a position works 3m, and the last starts after p - 1 half forwards."""
    setting = unit(devices=p, samples=m, seconds=0.5)
    design = chain(setting, positions=p, stages=2 * p, microbatches=m)
    built = build_rows(design, setting, AUTO)
    assert built.makespan == 3 * m + (p - 1) / 2
    assert simulated(changed(design, rows=built.rows), setting).makespan == built.makespan


def test_bounds_are_those_of_1f1b_and_grow_with_depth() -> None:
    setting = unit(devices=4, samples=16)
    design = chain(setting, positions=4, stages=4, microbatches=16)
    known = figures(design, setting)
    assert in_flight_bounds(design, known, 1.0, split=frozenset()) == [4, 3, 2, 1]
    # The round trip of stage s is (p - s) forwards and (p - s - 1) backwards of 2; a microbatch takes 3.
    trips = [(4 - s) + 2 * (3 - s) for s in range(4)]
    assert in_flight_bounds(design, known, 1.5, split=frozenset()) == [ceil(1.5 * t / 3) for t in trips]
    assert in_flight_bounds(design, known, inf, split=frozenset()) == [16] * 4


@pytest.mark.parametrize("profile", ["equal-8", "llama3-8b-a100-25g"])
def test_the_makespan_that_it_follows_is_nearly_the_simulators(profile: str) -> None:
    setting = emulated(devices=4, samples=8, profile=profile)
    for stages in (4, 8):
        design = chain(setting, positions=4, stages=stages, microbatches=8)
        built = build_rows(design, setting, AUTO)
        assert simulated(changed(design, rows=built.rows), setting).makespan == pytest.approx(built.makespan, rel=0.02)


def test_replicas_reductions_count() -> None:
    setting = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g")
    alone = chain(setting, positions=2, stages=2, microbatches=4)
    design = changed(alone, placement=((0, 2), (1, 3)))
    known = figures(design, setting)
    assert all(seconds > 0 for row in known.reductions for _, seconds in row)
    built = list_schedule(design, known, Policy(), split=frozenset())
    assert simulated(changed(design, rows=built.rows), setting).makespan == pytest.approx(built.makespan, rel=0.02)


def test_the_memory_bound_holds_and_costs_time() -> None:
    free = emulated(devices=4, samples=16)
    design = chain(free, positions=4, stages=8, microbatches=16)
    loose = build_rows(design, free, AUTO)
    peak = max(simulated(changed(design, rows=loose.rows), free).peak_bytes)
    fixed = max(figures(design, free).fixed)
    bound = fixed + int(0.5 * (peak - fixed))
    tight = emulated(devices=4, samples=16, limit=bound)
    built = build_rows(design, tight, AUTO)
    simulation = simulated(changed(design, rows=built.rows), tight)  # checks the bound
    assert max(simulation.peak_bytes) <= bound < peak
    assert built.makespan >= loose.makespan


@pytest.mark.parametrize("family", ["gpipe", "1f1b", "interleaved", "zb-h1"])
@pytest.mark.parametrize("recompute", [False, True])
def test_bytes_counted_along_rows_bracket_the_simulated_peak(family: str, recompute: bool) -> None:
    setting = emulated(devices=4, samples=8, profile="llama3-8b-a100-25g")
    each = 2 if family == "interleaved" else 1
    schedule = build(
        family, devices=2, microbatches=4, replicas=2, stages_per_device=each, recompute=recompute, bucket_size=500.0
    )
    design = decode(schedule, setting)
    known = figures(design, setting)
    peaks = setting.simulate(setting.lower(schedule)).peak_bytes[:2]
    for least, peak, most in zip(least_bytes(design, known), peaks, most_bytes(design, known), strict=True):
        assert least <= peak <= most * 1.01
        assert most <= 1.1 * least


def test_rows_hold_every_chunk_once_whatever_the_policy() -> None:
    setting: UnitSetting = unit(devices=4, samples=8)
    design = chain(setting, positions=4, stages=8, microbatches=8)
    known = figures(design, setting)
    for forward in (False, True):
        for deep, oldest in ((True, True), (False, False)):
            policy = Policy(depth=1.5, forward=forward, deep=deep, oldest=oldest, patience=0.5, lag=1)
            built = list_schedule(design, known, policy, split=frozenset(range(8)))
            chunks = [item for row in built.rows for item in row]
            assert len(chunks) == len(set(chunks)) == 3 * 8 * 8
            simulated(changed(design, rows=built.rows), setting)
