"""Findings about gaps: a task has all that it waits for, its stream is free, and it has not started."""

from __future__ import annotations

from statistics import median

from pibroch.evals.feedback.case import Case, ms
from pibroch.evals.feedback.observed import COMPUTE
from pibroch.runtime.directives import Split

DISPATCH = 1e-3
"""Seconds that the runtime may need to start a chunk, and again its transfer, on a machine without faults."""
EVEN, NOTABLE = 0.3, 0.1
"""Gaps are even where the least device's is this part of the largest's; below a tenth of a chunk they are nothing."""


def gap_findings(case: Case) -> None:
    """Short and even gaps beside short chunks are the price of small microbatches; others are a host's doing."""
    gaps, buckets, tasks = case.observed.gap, case.observed.gap_collective, case.plan.tasks
    if not gaps:
        return
    seconds = case.fault(
        lambda costs: costs.longer(gaps, buckets, sign=-1), lambda costs: costs.longer(gaps, buckets)
    )  # fmt: skip
    if seconds < case.least:
        return
    worst = sorted(gaps, key=lambda i: -gaps[i])
    typical = _typical(case)
    chunk = median(s for i, s in case.observed.compute.items() if tasks[i].op in COMPUTE)
    whole, most = median(typical.values()), max(typical.values())
    numbers = {"gap": whole, "chunk": chunk, "devices": typical}
    if most <= 2 * DISPATCH and min(typical.values()) > EVEN * most and whole > NOTABLE * chunk:
        case.add(
            "microbatch-too-small",
            seconds,
            f"a chunk takes {ms(chunk)} and starting it {ms(whole)}, on all devices alike: {ms(seconds)} of the step "
            f"go to starting {len(gaps)} tasks; larger microbatches have fewer",
            tasks=worst,
            directive=case.first(Split),
            numbers=numbers,
        )
        return
    total: dict[int, float] = {}
    for i, gap in gaps.items():
        device = case.observed.late[i]
        total[device] = total.get(device, 0.0) + gap
    device = max(total, key=lambda d: total[d])
    mine = [i for i in worst if case.observed.late[i] == device]
    case.add(
        "host-overhead",
        seconds,
        f"device {device} leaves {ms(total[device])} between the end of what tasks wait for and their start (longest: "
        f"{ms(gaps[mine[0]])} before task {mine[0]}, {tasks[mine[0]]}): such gaps cost {ms(seconds)}",
        device=device,
        tasks=mine,
        numbers={**numbers, "longest": gaps[mine[0]]},
    )


def _typical(case: Case) -> dict[int, float]:
    """Per device the median gap before a compute task, and that before a transfer which it holds up."""
    found: dict[int, float] = {}
    for compute in (True, False):
        rows: dict[int, list[float]] = {}
        for i, gap in case.observed.gap.items():
            if (case.plan.tasks[i].op != "SEND") == compute:
                rows.setdefault(case.observed.late[i], []).append(gap)
        if compute:  # tasks without a gap count
            for i in case.observed.compute:
                if i not in case.observed.gap:
                    rows.setdefault(case.observed.late[i], []).append(0.0)
        for device, gaps in rows.items():
            found[device] = found.get(device, 0.0) + median(gaps)
    return found
