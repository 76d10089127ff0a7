"""Findings about the pipeline itself: how the work lies on the devices, and in which order it runs.

All of it on healthy costs. What another order gives is the smaller of two gains, with communication and without: an
order that only hides slow transfers better is a remedy of `exposed-transfer`, not a mistake in the order.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from pibroch.evals.feedback.case import Alternative, Case, ms
from pibroch.evals.feedback.observed import COMPUTE, Fixed
from pibroch.evals.feedback.rows import (
    Piece,
    Rows,
    as_directives,
    family,
    greedy,
    moved,
    pieces_of,
    present_rows,
    run_rows,
)
from pibroch.runtime.directives import Cut, Split
from pibroch.runtime.passes.stages import balanced_bounds
from pibroch.runtime.trace import bubbles, matches

MOVES = 3
"""How many late chunks are tried in an earlier place."""
ALONE = 0.6
"""One chunk whose move gives this part of what another order gives is the cause alone."""


def pipeline_findings(case: Case) -> None:
    """Add findings about balance, order, fill and drain."""
    if len({row[0] for row in case.plan.placement}) < 2:
        return
    better = _order(case)
    _imbalance(case)
    _fill(case, better)
    _unsplit(case, better)


def _imbalance(case: Case) -> None:
    loads = device_loads(case)
    mean = sum(loads.values()) / len(loads)
    if mean <= 0 or max(loads.values()) < 1.02 * mean:
        return
    seconds = case.base.makespan - case.what_if(_level(case))
    if seconds < case.least:
        return
    device = max(loads, key=lambda d: loads[d])
    stages = stage_times(case)
    stage = max((s for s, row in enumerate(case.plan.placement) if row[0] == device), key=lambda s: stages[s])
    best, bounds = _best_cut(case, stages)
    if case.model.fixed_stages:
        remedy = "the model fixes its stages itself"
    elif best < 0.98 * max(loads.values()):
        remedy = f"a cut at {bounds[1:-1]} would bring the largest to {best / mean:.2f} times the mean"
    else:
        remedy = "no cut between these layers does better: give it fewer or smaller layers, or another device count"
    if not case.healthy.absolute and case.plan.replicas == 1:
        remedy += " (without reference durations or a replica, a slow device would look the same)"
    tasks = [t.id for t in case.plan.tasks if t.stage == stage and t.op in COMPUTE and t.replica == 0]
    directive = case.first(Cut)
    case.add(
        "stage-imbalance", seconds,
        f"device {device} (stage {stage}) has {max(loads.values()) / mean:.2f} times the mean work of a microbatch "
        f"({ms(max(loads.values()))} against {ms(mean)}): it costs {ms(seconds)}; {remedy}",
        device=device, stage=stage, tasks=tasks,
        directive=directive if directive is not None else case.place_of(stage),
        numbers={
            "imbalance": max(loads.values()) / mean, "best_imbalance": best / mean, "best_cut": bounds[1:-1],
            "stages": stages,
        },
    )  # fmt: skip


def stage_times(case: Case) -> list[float]:
    """Seconds of one microbatch, forward and backward, per stage."""
    times = [0.0] * case.plan.stages
    for i, seconds in case.fixed.seconds.items():
        task = case.plan.tasks[i]
        if task.op in COMPUTE and task.replica == 0 and task.mb == 0:
            times[task.stage] += seconds
    return times


def device_loads(case: Case) -> dict[int, float]:
    """Seconds of one microbatch per device of replica 0."""
    loads: dict[int, float] = {}
    for stage, seconds in enumerate(stage_times(case)):
        device = case.plan.placement[stage][0]
        loads[device] = loads.get(device, 0.0) + seconds
    return loads


def _level(case: Case) -> Fixed:
    """The healthy costs with the work of each op spread evenly over the devices, and there over their stages."""
    plan = case.plan
    total: dict[str, float] = {}
    own: dict[tuple[int, str], float] = {}
    name = {i: "B" if plan.tasks[i].op in ("B", "BI", "BW") else plan.tasks[i].op for i in case.fixed.seconds}
    for i, s in case.fixed.seconds.items():
        task = plan.tasks[i]
        if task.op in COMPUTE and task.mb == 0 and task.replica == 0:
            total[name[i]] = total.get(name[i], 0.0) + s
            own[task.stage, name[i]] = own.get((task.stage, name[i]), 0.0) + s
    devices = {row[0] for row in plan.placement}
    per_device = {d: sum(row[0] == d for row in plan.placement) for d in devices}
    parts = {s: sum(c.stage == s for c in plan.chunks) for s in range(plan.stages)}

    def change(i: int, s: float) -> float:
        task = plan.tasks[i]
        if task.op not in COMPUTE:
            return s
        mean = total[name[i]] / len(devices) / per_device[plan.placement[task.stage][0]]
        have = own[task.stage, name[i]]
        return s * mean / have if have > 0 else mean / parts[task.stage] / (2 if task.op in ("BI", "BW") else 1)

    return case.fixed.with_compute(change)


def _best_cut(case: Case, stages: list[float]) -> tuple[float, list[int]]:
    """The largest device load under the best cut between layers, and its bounds; a stage's time is shared by flops.

    With several stages per device this is the best of the stages, times how many a device has.
    """
    layers = case.model.layers
    bounds = [min(c.start for c in case.plan.chunks if c.stage == s) for s in range(case.plan.stages)] + [len(layers)]
    costs: list[float] = []
    for seconds, (start, stop) in zip(stages, pairwise(bounds), strict=True):
        flops = [layers[i].flops for i in range(start, stop)]
        whole = sum(flops)
        costs += [seconds * f / whole if whole > 0 else seconds / len(flops) for f in flops]
    best = balanced_bounds(costs, case.plan.stages)
    sums = [0.0, *accumulate(costs)]
    loads: dict[int, float] = {}
    for stage, (start, stop) in enumerate(pairwise(best)):
        device = case.plan.placement[stage][0]
        loads[device] = loads.get(device, 0.0) + sums[stop] - sums[start]
    return max(loads.values()), best


def _order(case: Case) -> Alternative | None:
    """Report `order` and `late-receive`; the best other order that was found, if it is better at all."""
    gain, better = _best_order(case)
    late, evidence = _late(case)
    if late >= case.least and late >= ALONE * gain:
        (op, stage, mb), task, receive, wait = evidence
        device = case.plan.placement[stage][0]
        peer = case.plan.tasks[receive].device
        case.add(
            "late-receive", late,
            f"device {peer} waits {ms(wait)} for what {stage}{op}{mb} sends (task {task}, device {device}), which "
            f"could have run earlier but stands late in its row: it costs {ms(late)}",
            device=device, stage=stage, tasks=[task, receive], directive=case.row_of(stage),
            numbers={"wait": wait, "receiver": peer},
        )  # fmt: skip
        gain -= late
    if better is not None and gain >= case.least:
        then, now = max(better.simulation.peak_bytes), max(case.base.peak_bytes)
        task, wait = _most_late(case)
        one = case.plan.tasks[task]
        case.add(
            "order", gain,
            f"another order of the same chunks takes {ms(gain)} less (peak memory {then} bytes, now {now}); most "
            f"delayed: {one} (task {task}, device {one.device}), ready {ms(wait)} before it ran",
            device=one.device, stage=one.stage, tasks=[task], directive=case.row_of(one.stage),
            numbers={"peak_bytes": then},
        )  # fmt: skip
    return better


def _best_order(case: Case) -> tuple[float, Alternative | None]:
    """Another order with as much in flight as now, or as 1F1B (interleaved 1F1B) has, and within the memory bound."""
    pieces = pieces_of(case)
    positions = list(dict.fromkeys(pieces.device))
    p, v = len(positions), -(-case.plan.stages // len(positions))
    peaks = {d: max(case.base.peak_inflight[d], 1) for d in positions}
    usual = {d: p - r if v == 1 else 2 * (p - 1 - r) + (v - 1) * p + 1 for r, d in enumerate(positions)}
    most = {d: max(peaks[d], usual[d]) for d in positions}
    tried: list[Rows] = []
    for caps in (peaks, {d: min(peaks[d], usual[d]) for d in positions}, most):
        found = greedy(pieces, caps)
        if found is not None and found[1] < case.free - case.least:
            tried.append(found[0])
    halves = any(op == "BW" for op, _, _ in pieces.seconds)
    if not halves and v > 1 and (rows := family(case, "interleaved")) is not None:
        tried.append(rows)
    gain, best = 0.0, None
    seen = [present_rows(case.plan)]
    for rows in tried:
        if rows in seen:
            continue
        seen.append(rows)
        other = case.alternative(as_directives(case, rows))
        if other is None or any(other.simulation.peak_inflight[d] > most[d] for d in most):
            continue
        less = min(case.base.makespan - other.makespan, case.free - case.without_communication(other.plan))
        if less > gain:
            gain, best = less, other
    return gain, best


def _ready(case: Case) -> dict[int, float]:
    """When the data of each compute task of replica 0 was there, in the healthy run."""
    plan, end = case.plan, case.base.end
    done: dict[Piece, float] = {}
    for i in case.fixed.seconds:
        task = plan.tasks[i]
        if task.replica == 0:
            piece = task.op, task.stage, task.mb
            done[piece] = max(done.get(piece, 0.0), end[i])
    arrived: dict[Piece, float] = {}
    for task in plan.tasks:
        if task.op == "RECV" and task.replica == 0:
            for op in ("F",) if task.payload == "F" else ("B", "BI"):
                piece = op, task.stage, task.mb
                arrived[piece] = max(arrived.get(piece, 0.0), end[task.id])
    pieces = pieces_of(case)
    ready = {}
    for i in case.fixed.seconds:
        task = plan.tasks[i]
        piece = task.op, task.stage, task.mb
        if task.replica == 0 and task.op != "UPDATE":
            mine = [done[n] for n in pieces.needs(piece) if pieces.device[n[1]] == task.device]
            ready[i] = max([*mine, arrived.get(piece, 0.0)], default=0.0)
    return ready


def _most_late(case: Case) -> tuple[int, float]:
    """The task whose delay some other device waited for longest."""
    late = _waits(case)
    if late:
        return late[0][1], late[0][3]
    ready = _ready(case)
    most = max(ready, key=lambda i: case.base.start[i] - ready[i])
    return most, case.base.start[most] - ready[most]


def _waits(case: Case) -> list[tuple[Piece, int, int, float]]:
    """(piece, its task, the receive, seconds) of chunks that were ready, ran later, and were waited for meanwhile in
    mid-step; the longest first."""
    plan, base, ready = case.plan, case.base, _ready(case)
    sender = {receive: send for send, receive in matches(plan)}
    by_piece: dict[tuple[str, int, int, int], int] = {}
    for i in ready:
        task = plan.tasks[i]
        by_piece[task.op, task.stage, task.part, task.mb] = i
    found: dict[int, tuple[Piece, int, int, float]] = {}
    for bubble in bubbles((plan, base)):
        if bubble.cause not in ("receive", "warm-up") or bubble.on not in sender:
            continue
        send = plan.tasks[sender[bubble.on]]
        ops = ("F",) if send.payload == "F" else ("B", "BI")
        keys = [key for op in ops if (key := (op, send.stage, send.part, send.mb)) in by_piece]
        if not keys or send.replica:
            continue
        op, stage, _, mb = keys[0]
        i = by_piece[keys[0]]
        wait = min(bubble.seconds, base.start[i] - ready[i])
        if wait > 1e-9 and (i not in found or wait > found[i][3]):
            found[i] = (op, stage, mb), i, bubble.on, wait
    return sorted(found.values(), key=lambda row: -row[3])


def _late(case: Case) -> tuple[float, tuple[Piece, int, int, float]]:
    """The best gain of one chunk in an earlier place of its row, with the chunk."""
    best, evidence = 0.0, (("F", 0, 0), 0, 0, 0.0)
    rows, pieces = present_rows(case.plan), pieces_of(case)
    for row in [row for row in _waits(case) if row[3] >= case.least][:MOVES]:
        piece = row[0]
        device = case.plan.placement[piece[1]][0]
        times: dict[int, float] = {}
        for index in range(rows[device].index(piece)):
            seconds = run_rows(pieces, {**rows, device: moved(rows[device], piece, index)})
            if seconds is not None:
                times[index] = seconds
        if not times:
            continue
        index = max(times, key=lambda i: (-times[i], i))
        if times[index] > case.free - case.least:
            continue
        other = case.alternative(as_directives(case, {**rows, device: moved(rows[device], piece, index)}))
        if other is None:
            continue
        less = min(case.base.makespan - other.makespan, case.free - case.without_communication(other.plan))
        if less > best:
            best, evidence = less, row
    return best, evidence


def _fill(case: Case, better: Alternative | None) -> None:
    """What is left idle with even stages, free communication and the best order found: fill and drain."""
    level = _level(case).silent()
    whole = case.what_if(level)
    busy = sum(level.seconds.values()) / len(case.plan.streams)
    if better is not None:
        whole = min(whole, whole * case.without_communication(better.plan) / case.free)
    seconds = whole - busy
    if seconds < case.least:
        return
    idle = {d: t / case.base.makespan for d, t in enumerate(case.base.idle)}
    positions = len({row[0] for row in case.plan.placement})
    starts = {d: min((case.base.start[i] for i in n["compute"]), default=0.0) for d, n in case.plan.streams.items()}
    device = max(starts, key=lambda d: starts[d])
    tasks = case.plan.streams[device]["compute"][:1]
    case.add(
        "warm-up-drain", seconds,
        f"filling and draining {positions} positions with {case.plan.microbatches} microbatches leaves {ms(seconds)} "
        f"idle per device (device {device} starts at {ms(starts[device])}); more microbatches make it a smaller part",
        tasks=tasks, device=device, directive=case.first(Split),
        numbers={"idle": idle, "microbatches": case.plan.microbatches, "positions": positions},
    )  # fmt: skip


def _unsplit(case: Case, better: Alternative | None) -> None:
    """What splitting the backwards gives on top of the best order found."""
    if not any(task.op == "B" for task in case.plan.tasks):
        return
    present = min(case.base.makespan, better.makespan if better is not None else case.base.makespan)
    if present - max(case.base.busy) < case.least:
        return
    pieces = pieces_of(case, split=True)
    positions = set(pieces.device)
    now = {d: max(case.base.peak_inflight[d], 1) for d in positions}
    tried = [family(case, "zb-h1")]
    for caps in (
        {d: max(n, len(positions)) for d, n in now.items()},
        now,
    ):  # the last takes little more memory than now
        made = greedy(pieces, caps)
        tried.append(made[0] if made is not None else None)
    runs = (case.alternative(as_directives(case, rows)) for rows in tried if rows is not None)
    best = next((run for run in runs if run is not None), None)
    if best is None:
        return
    seconds = present - best.makespan
    if seconds < case.least:
        return
    idle = max((b for b in bubbles((case.plan, case.base)) if b.task >= 0), key=lambda b: b.seconds, default=None)
    peak = max(best.simulation.peak_bytes)
    case.add(
        "unsplit-backward", seconds,
        f"weight gradients could fill {ms(seconds)} of idle time, were the backwards split into BI and BW"
        + (f" (longest gap: {ms(idle.seconds)} on device {idle.device} before task {idle.task})" if idle else "")
        + f"; peak memory would be {peak} instead of {max(case.base.peak_bytes)} bytes",
        device=idle.device if idle else None, tasks=[idle.task] if idle else [],
        directive=case.row_of(case.plan.tasks[idle.task].stage) if idle else None,
        numbers={"peak_bytes": peak},
    )  # fmt: skip
