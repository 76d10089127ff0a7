"""Findings of single steps: what they say, where they point, and real traces of two processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pibroch.evals.feedback import INHERENT, as_text, diagnose
from pibroch.evals.finding import Finding
from pibroch.evals.models import load_workload
from pibroch.runtime.costs import AnalyticCosts, Costs, UnitCosts
from pibroch.runtime.directives import Order, Place, Schedule
from pibroch.runtime.families import build
from pibroch.runtime.lower import lower
from pibroch.runtime.model import uniform_model
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.profile import Profile, ProfileLayer
from pibroch.runtime.simulate import simulate
from pibroch.runtime.trace import Event, Trace, events_of
from pibroch.runtime.trainer import Trainer


@dataclass
class SlowStages:
    """Stages, or devices, whose chunks take `factor` times as long."""

    costs: Costs
    factor: float
    devices: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()

    def compute(self, plan: Plan, task: Task) -> float:
        slow = task.device in self.devices or task.stage in self.stages
        return self.costs.compute(plan, task) * (self.factor if slow else 1.0)

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        return self.costs.transfer(plan, task)

    def collective(self, plan: Plan, task: Task) -> float:
        return self.costs.collective(plan, task)


def profile(layers: int, *, milliseconds: float = 5.0, stages: int = 2) -> Profile:
    """Equal layers over links that take next to nothing."""
    each = milliseconds * 1e-3
    one = ProfileLayer("layer", each, each, each, 4096, 4096, 4096, 4096)
    cut = tuple(layers // stages * s for s in range(1, stages))
    return Profile("equal", "none", (), (one,) * layers, cut, 1e-5, 1e9, 1e-5, 1e9)


def run(schedule: Schedule, true: Costs, about: Profile, *, seen: Costs | None = None, **more: int) -> list[Finding]:
    """Diagnose a simulated step under `true` costs; the diagnosis sees `seen`, or the profile's."""
    model = about.model()
    plan = lower(schedule, model)
    trace = Trace(plan, events_of(plan, simulate(plan, true)))
    return diagnose(schedule, trace, costs=seen or about.costs(), model=model, memory_limit=more.get("memory_limit"))


def kinds(findings: list[Finding]) -> list[str]:
    return [finding.kind for finding in findings if finding.kind not in INHERENT]


def test_fill_and_drain_cost_what_the_closed_form_says() -> None:
    """1F1B over p positions leaves (p - 1)(F + B) idle on each: 3 x 3 units of 4 ms."""
    about = profile(4, milliseconds=4.0, stages=4)
    first = run(build("1f1b", devices=4, microbatches=8), about.costs(), about)[0]
    assert first.kind == "warm-up-drain"
    assert first.seconds == pytest.approx(9 * 0.004, rel=0.02)
    assert first.share == pytest.approx(9 / 33, rel=0.02)
    assert first.directive == 0


def test_splitting_the_backwards_is_worth_what_zb_h1_saves() -> None:
    """27 instead of 33 units at p = 4, m = 8; and it is no finding where they are split already."""
    about = profile(4, milliseconds=4.0, stages=4)
    found = {f.kind: f for f in run(build("1f1b", devices=4, microbatches=8), about.costs(), about)}
    assert found["unsplit-backward"].seconds == pytest.approx(6 * 0.004, rel=0.02)
    split = run(build("zb-h1", devices=4, microbatches=8), about.costs(), about)
    assert "unsplit-backward" not in {f.kind for f in split}


def test_a_slow_device_points_at_its_stage_with_milliseconds_and_tasks() -> None:
    about = profile(6, stages=3)
    schedule = build("1f1b", devices=3, microbatches=6)
    findings = run(schedule, SlowStages(about.costs(), 1.5, devices=(1,)), about)
    first = findings[0]
    assert (first.kind, first.origin, first.device, first.stage) == ("straggler", "machine", 1, 1)
    assert first.numbers["factor"] == pytest.approx(1.5)
    directive = schedule.directives[first.directive or 0]
    assert isinstance(directive, Place)
    assert directive.devices == [1]
    assert "30 ms instead of 20 ms" in first.text
    assert "stage-imbalance" not in kinds(findings)


def test_the_same_times_are_an_imbalance_where_the_reference_knows_of_them() -> None:
    about = profile(6, stages=3)
    true = SlowStages(about.costs(), 1.5, stages=(1,))
    findings = run(build("1f1b", devices=3, microbatches=6), true, about, seen=true)
    assert kinds(findings)[0] == "stage-imbalance"
    assert {f.origin for f in findings} == {"schedule"}
    assert next(f.device for f in findings if f.kind == "stage-imbalance") == 1


def test_a_stage_that_is_slower_on_every_replica_is_the_reference_that_errs() -> None:
    about = profile(4)
    schedule = build("1f1b", devices=2, microbatches=6, replicas=2)
    findings = run(schedule, SlowStages(about.costs(), 1.5, stages=(1,)), about)
    assert "straggler" not in kinds(findings)
    assert kinds(findings)[0] == "stage-imbalance"


def test_without_durations_a_replica_tells_and_a_lone_device_does_not() -> None:
    about = profile(4)
    guess = AnalyticCosts(flops_per_s=40.0, bandwidth=1e9, latency=1e-5)
    slow = SlowStages(about.costs(), 1.6, devices=(1,))
    alone = run(build("1f1b", devices=2, microbatches=6), slow, about, seen=guess)
    assert kinds(alone)[0] == "stage-imbalance"
    assert "a slow device would look the same" in next(f.text for f in alone if f.kind == "stage-imbalance")
    paired = run(build("1f1b", devices=2, microbatches=6, replicas=2), slow, about, seen=guess)
    assert (kinds(paired)[0], next(f.device for f in paired if f.kind == "straggler")) == ("straggler", 1)


def test_a_late_chunk_points_at_its_row() -> None:
    about = profile(4)
    schedule = build("gpipe", devices=2, microbatches=4)
    where = next(i for i, d in enumerate(schedule.directives) if isinstance(d, Order))
    row = schedule.directives[where]
    assert isinstance(row, Order)
    groups = [*row.filters[1:3], row.filters[0], *row.filters[3:]]  # 0F0 after 0F2
    directives = [*schedule.directives]
    directives[where] = Order(filters=groups)
    found = run(Schedule(directives=directives), about.costs(), about)
    late = next(f for f in found if f.kind == "late-receive")
    assert (late.origin, late.device, late.directive) == ("schedule", 0, where)
    assert late.seconds == pytest.approx(0.020, rel=0.05)  # two forwards of 10 ms


def test_recomputing_is_needless_only_where_the_bound_allows_the_rest() -> None:
    about = profile(4)
    plain, again = (build("1f1b", devices=2, microbatches=8, recompute=r) for r in (False, True))
    model = about.model()
    most = max(simulate(lower(plain, model), about.costs()).peak_bytes)
    ample = run(again, about.costs(), about, memory_limit=most)
    assert kinds(ample)[0] == "needless-recompute"
    tight = run(again, about.costs(), about, memory_limit=most - 1)
    assert "needless-recompute" not in kinds(tight)


def test_measured_peaks_count_before_simulated_ones() -> None:
    about = profile(4)
    schedule, model = build("1f1b", devices=2, microbatches=8), about.model()
    plan = lower(schedule, model)
    trace = Trace(plan, events_of(plan, simulate(plan, about.costs())))
    given = {"costs": about.costs(), "model": model, "memory_limit": 1_000_000}
    measured = diagnose(schedule, trace, **given, peak_bytes=[10, 950_000])  # type: ignore[arg-type]
    assert (measured[-1].kind, measured[-1].device, measured[-1].seconds) == ("memory-tight", 1, 0.0)
    assert diagnose(schedule, trace, **given)[-1].kind == "memory-headroom"  # type: ignore[arg-type]


def test_what_no_fault_explains_stays_open() -> None:
    """Everything a little slower than the reference, too little for any fault of its own."""
    about = profile(4)
    findings = run(build("1f1b", devices=2, microbatches=6), SlowStages(about.costs(), 1.08, stages=(0, 1)), about)
    assert kinds(findings) == ["unexplained"]
    assert next(f for f in findings if f.kind == "unexplained").share == pytest.approx(0.08 / 1.08, rel=0.02)


def test_tasks_that_start_late_are_the_hosts() -> None:
    """All that starts after some time starts 50 ms later, on both devices."""
    about = profile(4)
    schedule, model = build("1f1b", devices=2, microbatches=6), about.model()
    plan = lower(schedule, model)
    events = events_of(plan, simulate(plan, about.costs()))
    from_then = next(e.start for e in events if e.task == plan.streams[1]["compute"][-2])
    late = [_later(e, 0.05, of=plan, since=from_then) for e in events]
    found = diagnose(schedule, Trace(plan, late), costs=about.costs(), model=model)
    assert kinds(found)[0] == "host-overhead"
    one = next(f for f in found if f.kind == "host-overhead")
    assert one.origin == "machine"
    assert one.seconds == pytest.approx(0.05, rel=0.05)


def _later(event: Event, seconds: float, *, of: Plan, since: float) -> Event:
    """A receive that is posted already ends later with its send."""
    if event.start >= since:
        return event._replace(start=event.start + seconds, end=event.end + seconds)
    return event._replace(end=event.end + seconds) if of.tasks[event.task].op == "RECV" and event.end > since else event


def test_text_has_a_line_per_finding_and_says_which_are_the_machines() -> None:
    about = profile(6, stages=3)
    findings = run(
        build("1f1b", devices=3, microbatches=6), SlowStages(about.costs(), 1.5, devices=(1,)), about
    )  # fmt: skip
    lines = as_text(findings, limit=2).splitlines()
    assert len(lines) == 2 + (len(findings) > 2)
    assert "straggler [machine, not the schedule]" in lines[0]
    assert " ms" in lines[0]
    assert f"tasks {findings[0].tasks[0]}" in lines[0]
    assert f"directive {findings[0].directive}" in lines[0]
    assert len(as_text(findings)) < 2500
    assert "1%" in as_text([])


def test_a_single_device_and_unit_costs_are_no_trouble() -> None:
    model = uniform_model(2)
    schedule = Schedule(directives=[Place(devices=[0])])
    plan = lower(schedule, model)
    trace = Trace(plan, events_of(plan, simulate(plan, UnitCosts())))
    assert diagnose(schedule, trace, costs=UnitCosts(), model=model) == []


# Two real processes, emulated durations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "shape", "slow"),
    [
        ("1f1b", {"devices": 2, "microbatches": 4}, 1),
        ("gpipe", {"devices": 2, "microbatches": 4}, 0),
        ("1f1b", {"devices": 1, "microbatches": 2, "replicas": 2}, 1),
        ("1f1b", {"devices": 2, "microbatches": 4}, None),
    ],
)
def test_a_real_trace_names_the_slow_device_and_no_other(family: str, shape: dict[str, Any], slow: int | None) -> None:
    about = profile(8, milliseconds=10.0)
    devices = () if slow is None else (slow,)
    schedule, workload = build(family, **shape), load_workload("mlp-tiny")
    true = SlowStages(about.costs(), 1.7, devices=devices)
    with Trainer(workload, schedule, launcher="local", emulate=true) as trainer:
        trainer.step(workload.batch(trainer.batch_size, 0))
        trace, model = trainer.trace(), trainer.captured.spec
    findings = diagnose(schedule, trace, costs=about.costs(), model=model)
    slowed = [f for f in findings if f.kind == "straggler"]
    assert [f.device for f in slowed] == list(devices)
    if slowed:
        assert kinds(findings)[0] == "straggler"
        assert slowed[0].numbers["factor"] == pytest.approx(1.7, rel=0.15)
