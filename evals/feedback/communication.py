"""Findings about transfers and reductions on healthy links."""

from __future__ import annotations

from pibroch.evals.feedback.case import Alternative, Case, ms
from pibroch.runtime.directives import Replicate
from pibroch.runtime.trace import bubbles

MB = 1e6


def communication_findings(case: Case) -> None:
    """Add findings about exposed communication."""
    _transfers(case)
    _reductions(case)


def _transfers(case: Case) -> None:
    seconds = case.base.makespan - case.what_if(case.fixed.with_transfers(lambda i, latency, link: (0.0, 0.0)))
    if seconds < case.least:
        return
    exposed: dict[tuple[int, int], float] = {}
    worst: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for bubble in bubbles((case.plan, case.base)):
        task = case.plan.tasks[bubble.on]
        if bubble.cause == "transfer" and bubble.on >= 0 and task.op == "RECV":
            link = task.peer, task.device
            exposed[link] = exposed.get(link, 0.0) + bubble.seconds
            worst.setdefault(link, []).append((bubble.seconds, bubble.on))
    link_time = [0.0] * case.plan.devices
    for i, (_, link_seconds) in case.fixed.transfers.items():
        link_time[case.plan.tasks[i].device] += link_seconds
    loads = {d: link_time[d] / case.base.busy[d] for d in case.plan.streams if case.base.busy[d] > 0}
    source, target = max(exposed, key=lambda k: exposed[k]) if exposed else (0, 0)
    tasks = [i for _, i in sorted(worst.get((source, target), []), reverse=True)]
    stage = case.plan.tasks[tasks[0]].peer_stage if tasks else None
    bound = loads.get(source, 0.0)
    why = (
        f"its link is busier than its chunks ({bound:.2f} times): the boundary is link-bound"
        if bound > 1 else "every microbatch waits for it on its way"
    )  # fmt: skip
    case.add(
        "exposed-transfer", seconds,
        f"transfers cost {ms(seconds)}; most exposed is device {source} to {target} "
        f"({ms(exposed.get((source, target), 0.0))} of idle time): {why}",
        device=source, stage=stage, tasks=tasks, directive=None if stage is None else case.place_of(stage),
        numbers={"from": source, "to": target, "link_per_compute": loads},
    )  # fmt: skip


def _reductions(case: Case) -> None:
    if not case.fixed.collectives:
        return
    seconds = case.base.makespan - case.what_if(case.fixed.with_collectives(lambda b, s: 0.0))
    if seconds < case.least:
        return
    bucket = _most_exposed(case)
    about = case.plan.buckets[bucket]
    stage = about.chunks[0].stage if about.chunks else None
    tasks = [t.id for t in case.plan.tasks if t.op == "REDUCE" and t.bucket == bucket]
    where = {
        "stage": stage, "tasks": tasks, "device": about.group[0],
        "directive": None if stage is None else case.replicate_of(stage),
    }  # fmt: skip
    gain, size, best = _best_bucket(case)
    if best is not None and gain >= case.least:
        now, then = len(case.plan.buckets), len(best.plan.buckets)
        numbers = {"buckets": now, "better_buckets": then, "better_bucket_size": size}
        if then > now:
            case.add(
                "bucket-too-large", gain,
                f"reductions (longest: bucket {bucket}, {about.nbytes / MB:.3g} MB, task {tasks[0]}, "
                f"{ms(case.fixed.collectives[bucket])}) start only at the end of a stage's work; buckets of "
                f"{size:.3g} MB would hide {ms(gain)}",
                numbers=numbers, **where,
            )  # fmt: skip
        else:
            case.add(
                "bucket-too-small", gain,
                f"{now} reductions of {about.nbytes / MB:.3g} MB or so (bucket {bucket}, task {tasks[0]}: "
                f"{ms(case.fixed.collectives[bucket])}) are mostly latency; "
                f"{'one bucket per stage' if size is None else f'buckets of {size:.3g} MB'} would save {ms(gain)}",
                numbers=numbers, **where,
            )  # fmt: skip
        seconds -= gain
    if seconds >= case.least:
        case.add(
            "exposed-reduction", seconds,
            f"reductions cost {ms(seconds)} that no bucket size hides; the longest that compute waits for is bucket "
            f"{bucket} of stage {stage} (task {tasks[0]}, {ms(case.fixed.collectives[bucket])})",
            numbers={"bucket": bucket, "bytes": about.nbytes}, **where,
        )  # fmt: skip


def _most_exposed(case: Case) -> int:
    exposed: dict[int, float] = {}
    for bubble in bubbles((case.plan, case.base)):
        if bubble.cause == "reduction":
            bucket = case.plan.tasks[bubble.on].bucket if bubble.on >= 0 else case.plan.buckets[-1].id
            exposed[bucket] = exposed.get(bucket, 0.0) + bubble.seconds
    table = exposed or case.fixed.collectives
    return max(table, key=lambda b: table[b])


def _best_bucket(case: Case) -> tuple[float, float | None, Alternative | None]:
    """The gain of the best other bucket size for all replicas, the size in MB (None: one per stage) and its run."""
    stage_bytes = [0] * case.plan.stages
    for bucket in case.plan.buckets:
        if bucket.params and bucket.chunks:
            stage_bytes[bucket.chunks[0].stage] += bucket.nbytes
    largest = max(stage_bytes) / MB
    counts = [sum(b.chunks[0].stage == s for b in case.plan.buckets if b.chunks) for s in range(case.plan.stages)]
    have = max(counts, default=1)
    # Twice and half as many as now, and one bucket per stage; from one per stage on, more and more.
    sizes: list[float | None] = [largest / (2 * have), largest / (4 * have)]
    sizes += [None, largest / (have // 2)] if have > 1 else [largest / 8]
    best: tuple[float, float | None, Alternative | None] = (0.0, None, None)
    for size in sizes:
        directives = [
            d.model_copy(update={"bucket_size": size}) if isinstance(d, Replicate) else d
            for d in case.schedule.directives
        ]
        other = case.alternative(directives)
        if other is not None and case.base.makespan - other.makespan > best[0] + 1e-12:
            best = case.base.makespan - other.makespan, size, other
    return best
