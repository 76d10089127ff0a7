"""Findings about the machine: what took longer than the reference, or than its equals, in the trace itself.

What a fault costs is the larger of two differences: the replayed step with and without it, and the healthy step without
and with it. Where two faults run side by side, taking one away alone shows nothing.
"""

from __future__ import annotations

from statistics import median

from pibroch.evals.feedback.case import Case, ms
from pibroch.evals.feedback.healthy import device_ratios
from pibroch.evals.feedback.links import link_findings
from pibroch.evals.feedback.observed import COMPUTE, key_of
from pibroch.runtime.directives import Split

SLOWER = 1.1
"""A device this much slower than it should be is a straggler."""
OUT = 1.5
"""A task this much longer than its equals is jitter."""
DISPATCH = 1e-3
"""Seconds that the runtime may need to start a task on a machine without faults."""


def machine_findings(case: Case) -> None:
    """Add all findings of origin `machine`, and `microbatch-too-small`, which the same gaps show."""
    _slower(case)
    for device, factor in slow_devices(case).items():
        if factor > SLOWER:
            _straggler(case, device, factor)
    link_findings(case)
    _jitter(case)
    _gaps(case)
    rest = case.step - case.replayed
    if rest > 2 * case.least:
        case.add(
            "unexplained",
            rest,
            f"the step took {ms(case.step)}; its tasks at their measured durations, in this order, explain "
            f"{ms(case.replayed)} of it: {ms(rest)} went elsewhere",
            numbers={"step": case.step, "explained": case.replayed},
        )


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


def slow_devices(case: Case) -> dict[int, float]:
    """How much slower than healthy each device runs all of its chunks, forwards and backwards both."""
    found = {}
    for device, rows in case.observed.medians().items():
        have: dict[str, float] = {}
        want: dict[str, float] = {}
        for i in case.plan.streams[device].get("compute", []):
            task = case.plan.tasks[i]
            if task.op in COMPUTE and key_of(task) in rows:
                name = "F" if task.op == "F" else "B"
                have[name] = have.get(name, 0.0) + rows[key_of(task)]
                want[name] = want.get(name, 0.0) + case.fixed.seconds[i]
        ratios = [have[name] / want[name] for name in have if want[name] > 0]
        if ratios and min(ratios) > 1 + (SLOWER - 1) / 2:
            found[device] = sum(have.values()) / sum(want.values())
    return found


def _straggler(case: Case, device: int, factor: float) -> None:
    tasks = case.plan.tasks
    cured = case.replay.with_compute(lambda i, s: s / factor if tasks[i].device == device else s)
    ill = case.fixed.with_compute(lambda i, s: s * factor if tasks[i].device == device else s)
    seconds = case.cost_of(cured, ill)
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


def _jitter(case: Case) -> None:
    """Tasks far longer than their equals, where these are few: a device that is always slow is no jitter."""
    tasks, factors, seen = case.plan.tasks, slow_devices(case), case.observed.compute
    normal: dict[int, float] = {}
    for device, rows in case.observed.medians().items():
        mine = [i for i in case.plan.streams[device]["compute"] if tasks[i].op in COMPUTE]
        repeats = {key: sum(key_of(tasks[i]) == key for i in mine) for key in rows}
        for i in mine:
            key = key_of(tasks[i])
            expected = rows[key] if repeats[key] > 2 else case.fixed.seconds[i] * factors.get(device, 1.0)
            if seen[i] > OUT * expected:
                normal[i] = expected
    if not normal or len(normal) > max(0.2 * len(seen), 1):
        return
    cured = case.replay.with_compute(lambda i, s: s - seen[i] + normal[i] if i in normal else s)
    ill = case.fixed.with_compute(lambda i, s: s + seen[i] - normal[i] if i in normal else s)
    seconds = case.cost_of(cured, ill)
    if seconds < case.least:
        return
    worst = sorted(normal, key=lambda i: normal[i] - seen[i])
    first = worst[0]
    case.add(
        "jitter",
        seconds,
        f"{len(normal)} task(s) took far longer than their equals: task {first} ({tasks[first]}, device "
        f"{tasks[first].device}) {ms(seen[first])} instead of {ms(normal[first])}: it costs {ms(seconds)}",
        device=tasks[first].device,
        stage=tasks[first].stage,
        tasks=worst,
        numbers={"tasks": len(normal), "longest": seen[first], "normal": normal[first]},
    )


def _gaps(case: Case) -> None:
    """Dispatch gaps: short, even and beside short chunks they are the price of small microbatches, else a host's."""
    gaps, tasks = case.observed.gap, case.plan.tasks
    if not gaps:
        return
    seen = case.fixed.with_compute(lambda i, s: s + gaps.get(i, 0.0))
    seconds = case.cost_of(case.observed.replay(gaps=False), seen)
    if seconds < case.least:
        return
    per_device: dict[int, list[float]] = {}
    for i in case.observed.compute:
        if tasks[i].op in COMPUTE:
            per_device.setdefault(tasks[i].device, []).append(gaps.get(i, 0.0))
    typical = {d: median(rows) for d, rows in per_device.items()}
    chunk = median(s for i, s in case.observed.compute.items() if tasks[i].op in COMPUTE)
    whole, most = median(typical.values()), max(typical.values())
    worst = sorted(gaps, key=lambda i: -gaps[i])
    numbers = {"gap": whole, "chunk": chunk, "devices": typical}
    if most <= DISPATCH and min(typical.values()) > 0.3 * most and whole > 0.1 * chunk:
        case.add(
            "microbatch-too-small",
            seconds,
            f"a chunk takes {ms(chunk)} and starting it {ms(whole)}, on all devices alike: {ms(seconds)} of the step "
            f"go to starting {len(case.observed.compute)} tasks; larger microbatches have fewer",
            tasks=worst,
            directive=case.first(Split),
            numbers=numbers,
        )
        return
    total = {d: sum(gaps.get(i, 0.0) for i in names.get("compute", [])) for d, names in case.plan.streams.items()}
    device = max(total, key=lambda d: total[d])
    mine = [i for i in worst if tasks[i].device == device]
    case.add(
        "host-overhead",
        seconds,
        f"device {device} leaves {ms(total[device])} between the end of what a task waits for and its start (longest: "
        f"{ms(gaps[mine[0]])} before task {mine[0]}): such gaps cost {ms(seconds)}",
        device=device,
        tasks=mine,
        numbers={**numbers, "longest": gaps[mine[0]]},
    )
