"""Findings about memory: what is spent to save it, and how near the bound is."""

from __future__ import annotations

from pibroch.evals.feedback.case import Alternative, Case, ms
from pibroch.runtime.directives import Split

TIGHT, LOOSE = 0.9, 0.5
"""Parts of the bound above which a device's memory is tight, and below which the fullest one's is not used."""


def memory_findings(case: Case) -> None:
    """Add findings about recomputing and about the bound."""
    _recompute(case)
    if case.memory_limit is None:
        return
    peaks = list(case.peaks())
    device = max(range(len(peaks)), key=lambda d: peaks[d])
    part = peaks[device] / case.memory_limit
    stage = next((s for s, row in enumerate(case.plan.placement) if device in row), None)
    numbers = {"peak_bytes": peaks, "limit": case.memory_limit, "part": part}
    if part > TIGHT:
        case.add(
            "memory-tight", 0.0,
            f"device {device} needs {peaks[device]} of {case.memory_limit} bytes ({part:.0%}): "
            + ("it does not fit" if part > 1 else "nothing that needs more memory fits"),
            device=device, stage=stage, directive=None if stage is None else case.row_of(stage), numbers=numbers,
        )  # fmt: skip
    elif part < LOOSE:
        case.add(
            "memory-headroom", 0.0,
            f"the fullest device ({device}) needs {peaks[device]} of {case.memory_limit} bytes ({part:.0%}): more "
            "microbatches in flight, larger ones, or less recomputing would fit",
            device=device, stage=stage, directive=case.first(Split), numbers=numbers,
        )  # fmt: skip


def _recompute(case: Case) -> None:
    """Leave all recomputing out, or else one directive of it, whichever gains most and fits."""
    where = case.recomputes()
    if not where:
        return
    choices = [tuple(where)] + ([(i,) for i in where] if len(where) > 1 else [])
    best: tuple[float, tuple[int, ...], Alternative] | None = None
    for choice in choices:
        other = case.alternative([d for i, d in enumerate(case.schedule.directives) if i not in choice])
        if other is None or (case.memory_limit is not None and max(other.simulation.peak_bytes) > case.memory_limit):
            continue
        gain = case.base.makespan - other.makespan
        if best is None or gain > best[0]:
            best = gain, choice, other
        if choice == tuple(where):
            break
    if best is None or best[0] < case.least:
        return
    seconds, choice, other = best
    peak = max(other.simulation.peak_bytes)
    bound = f"the bound is {case.memory_limit}" if case.memory_limit is not None else "no bound is given"
    again = [t.id for t in case.plan.tasks if t.op in ("B", "BI") and t.replica == 0 and _recomputed(case, t.chunk)]
    longest = sorted(again, key=lambda i: -case.fixed.seconds[i])
    case.add(
        "needless-recompute", seconds,
        f"recomputing costs {ms(seconds)}, and without directive {', '.join(map(str, choice))} the fullest device "
        f"would need {peak} bytes: {bound}",
        directive=choice[0], tasks=longest, numbers={"peak_bytes": peak, "directives": list(choice)},
        device=case.plan.tasks[longest[0]].device if longest else None,
        stage=case.plan.tasks[longest[0]].stage if longest else None,
    )  # fmt: skip


def _recomputed(case: Case, key: tuple[int, int]) -> bool:
    return any(c.recompute and c.key == key for c in case.plan.chunks)
