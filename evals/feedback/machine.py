"""Findings about the machine: what took longer than the reference, or than its equals, in the trace itself.

What a fault costs is the larger of two differences: the replayed step with and without it, and the healthy step without
and with it. Where two faults run side by side, taking one away alone shows nothing.
"""

from __future__ import annotations

from pibroch.evals.feedback.case import Case, ms
from pibroch.evals.feedback.gaps import gap_findings
from pibroch.evals.feedback.healthy import SLOWER, device_ratios
from pibroch.evals.feedback.links import link_findings
from pibroch.evals.feedback.observed import COMPUTE, key_of
from pibroch.runtime.words import count

AT_TIMES, FEW, MANY = 1.2, 0.25, 4
"""A device is slow at times if this part of its tasks, and so many, are so much slower; fewer are jitter."""
UNEXPLAINED = 0.03
"""Part of the step; noise alone makes a step longer than its tasks' medians would."""
OUT = 1.5
"""A task this much longer than its equals is jitter."""


def machine_findings(case: Case) -> None:
    """Add all findings of origin `machine`, and `microbatch-too-small`, which the same gaps show."""
    _slower(case)
    for device, factor in case.slow.items():
        _straggler(case, device, factor)
    at_times = _slow_at_times(case)
    for device, normal in at_times.items():
        _straggler_at_times(case, device, normal)
    link_findings(case)
    _jitter(case, {i for normal in at_times.values() for i in normal})
    gap_findings(case)
    _unexplained(case)


def _slower(case: Case) -> None:
    factor = case.healthy.machine
    if case.healthy.absolute and factor > SLOWER:
        seconds = case.base.makespan * (1 - 1 / factor)
        case.add(
            "slower-than-reference",
            seconds,
            f"all devices are at least {factor:.2f} times slower than the reference costs: {ms(seconds)} of the step",
            numbers={"factor": factor, "devices": device_ratios(case.observed)},
        )


def _straggler(case: Case, device: int, factor: float) -> None:
    tasks = case.plan.tasks
    seconds = case.fault(
        lambda costs: costs.with_compute(lambda i, s: s / factor if tasks[i].device == device else s),
        lambda costs: costs.with_compute(lambda i, s: s * factor if tasks[i].device == device else s),
    )
    if seconds < case.least:
        return
    mine = [i for i in case.plan.streams[device]["compute"] if tasks[i].op in COMPUTE]
    worst = sorted(mine, key=lambda i: case.fixed.seconds[i] - case.observed.compute[i])
    stage = tasks[worst[0]].stage
    against = "the reference" if case.healthy.absolute else "its peers at equal chunks"
    case.add(
        "straggler",
        seconds,
        f"device {device} runs its chunks {factor:.2f} times slower than {against} (task {worst[0]}: "
        f"{ms(case.observed.compute[worst[0]])} instead of {ms(case.fixed.seconds[worst[0]])}): it costs {ms(seconds)}",
        device=device,
        stage=stage,
        tasks=worst,
        directive=case.place_of(stage),
        numbers={"factor": factor, "devices": device_ratios(case.observed)},
    )


def _slow_at_times(case: Case) -> dict[int, dict[int, float]]:
    """Per device that is slow in a good part of the step and not in the rest: its slow tasks and their healthy time."""
    found = {}
    for device, names in case.plan.streams.items():
        mine = [i for i in names.get("compute", []) if case.plan.tasks[i].op in COMPUTE]
        normal = {i: s for i in mine if case.observed.compute[i] > AT_TIMES * (s := case.fixed.seconds[i]) > 0}
        if device not in case.slow and len(normal) >= max(FEW * len(mine), MANY):
            found[device] = normal
    return found


def _straggler_at_times(case: Case, device: int, normal: dict[int, float]) -> None:
    seen = case.observed.compute
    seconds = _cost_of(case, normal)
    if seconds < case.least:
        return
    worst = sorted(normal, key=lambda i: normal[i] - seen[i])
    factor = sum(seen[i] for i in normal) / sum(normal.values())
    stage = case.plan.tasks[worst[0]].stage
    case.add(
        "straggler",
        seconds,
        f"device {device} is {factor:.2f} times slower than it should be in a part of the step ({len(normal)} tasks; "
        f"task {worst[0]}: {ms(seen[worst[0]])} instead of {ms(normal[worst[0]])}): it costs {ms(seconds)}",
        device=device,
        stage=stage,
        tasks=worst,
        directive=case.place_of(stage),
        numbers={"factor": factor, "tasks": len(normal), "devices": device_ratios(case.observed)},
    )


def _cost_of(case: Case, normal: dict[int, float]) -> float:
    """Seconds of the step that tasks cost by what they took beyond their normal times."""
    seen = case.observed.compute
    return case.fault(
        lambda costs: costs.with_compute(lambda i, s: s - seen[i] + normal[i] if i in normal else s),
        lambda costs: costs.with_compute(lambda i, s: s + seen[i] - normal[i] if i in normal else s),
    )


def _jitter(case: Case, known: set[int]) -> None:
    """Tasks far longer than their equals, where these are few: a device that is always slow is no jitter."""
    tasks, seen = case.plan.tasks, case.observed.compute
    normal: dict[int, float] = {}
    for device, rows in case.observed.medians().items():
        mine = [i for i in case.plan.streams[device]["compute"] if tasks[i].op in COMPUTE]
        repeats = {key: sum(key_of(tasks[i]) == key for i in mine) for key in rows}
        for i in mine:
            key = key_of(tasks[i])
            expected = case.fixed.seconds[i] * case.slow.get(device, 1.0)
            if repeats[key] > 2:
                expected = min(expected, rows[key])
            if i not in known and seen[i] > OUT * expected:
                normal[i] = expected
    if not normal:
        return
    seconds = _cost_of(case, normal)
    if seconds < case.least:
        return
    worst = sorted(normal, key=lambda i: normal[i] - seen[i])
    first = worst[0]
    case.add(
        "jitter",
        seconds,
        f"{count(len(normal), 'task')} took far longer than equal ones: task {first} ({tasks[first]}, device "
        f"{tasks[first].device}) {ms(seen[first])} instead of {ms(normal[first])}: it costs {ms(seconds)}",
        device=tasks[first].device,
        stage=tasks[first].stage,
        tasks=worst,
        numbers={"tasks": len(normal), "longest": seen[first], "normal": normal[first]},
    )


def _unexplained(case: Case) -> None:
    """What the step took beyond the healthy one and all faults that were found."""
    costs = case.replay
    for cure in case.cures:
        costs = cure(costs)
    attributed = case.replayed - case.what_if(costs)
    rest = case.step - case.base.makespan - attributed
    if rest > UNEXPLAINED * case.step:
        elsewhere = case.step - case.replayed
        case.add(
            "unexplained",
            rest,
            f"the step took {ms(case.step)}, on a healthy machine it would take {ms(case.base.makespan)}; the faults "
            f"named explain {ms(attributed)} of the difference, {ms(rest)} stay open ({ms(max(elsewhere, 0.0))} of "
            "them between tasks, the others within)",
            numbers={"step": case.step, "healthy": case.base.makespan, "attributed": attributed},
        )
