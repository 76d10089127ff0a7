"""Findings about slow links and slow groups: their traffic against what healthy ones take."""

from __future__ import annotations

from statistics import median

from pibroch.evals.feedback.case import Case, ms

SLOWER = 1.25
"""A link or a group this much slower than it should be."""
WAKE = 5e-4
"""Seconds that threads at both ends may add to a transfer on a link without faults."""

Link = tuple[int, int]
"""(sender, receiver)"""


def link_findings(case: Case) -> None:
    """Add `slow-link` per link, one for all links where all are slow, and per group of reductions."""
    links: dict[Link, list[int]] = {}
    for i in case.observed.service:
        task = case.plan.tasks[i]
        links.setdefault((task.device, task.peer), []).append(i)
    factors = {link: _factor(case, ids) for link, ids in links.items()}
    slow = [link for link in links if factors[link] > SLOWER]
    if len(slow) == len(links) > 2:
        _links(case, slow, links, factors)
    else:
        for link in slow:
            _links(case, [link], links, factors)
    groups: dict[tuple[int, ...], list[int]] = {}
    for bucket in case.observed.collective:
        groups.setdefault(case.plan.buckets[bucket].group, []).append(bucket)
    for group, buckets in groups.items():
        _group(case, group, buckets)


def _factor(case: Case, ids: list[int]) -> float:
    """Time over healthy time; the median over transfers, for one late message is no slow link."""
    healthy = sum(sum(case.fixed.transfers[i]) for i in ids)
    extra = median(case.observed.service[i] - sum(case.fixed.transfers[i]) for i in ids)
    return 1 + len(ids) * extra / healthy if healthy > 0 and extra > WAKE else 1.0


def _links(case: Case, slow: list[Link], links: dict[Link, list[int]], factors: dict[Link, float]) -> None:
    healthy = case.fixed.transfers
    extra = {i: (factors[link] - 1) * sum(healthy[i]) for link in slow for i in links[link]}
    seconds = case.fault(lambda costs: costs.on_link(extra, sign=-1), lambda costs: costs.on_link(extra))
    if seconds < case.least:
        return
    source, target = max(slow, key=lambda link: factors[link])
    factor = factors[source, target]
    worst = sorted(links[source, target], key=lambda i: sum(healthy[i]) - case.observed.service[i])
    first = worst[0]
    stage = case.plan.tasks[first].stage
    name = f"the link from device {source} to {target}" if len(slow) == 1 else f"all {len(slow)} links"
    case.add(
        "slow-link",
        seconds,
        f"{name} took {factor:.2f} times the reference (task {first}: {ms(case.observed.service[first])} instead of "
        f"{ms(sum(healthy[first]))}): it costs {ms(seconds)}",
        device=source if len(slow) == 1 else None,
        stage=stage,
        tasks=worst,
        directive=case.place_of(stage),
        numbers={"factor": factor, "from": source, "to": target, "links": len(slow)},
    )


def _group(case: Case, group: tuple[int, ...], buckets: list[int]) -> None:
    healthy, seen = case.fixed.collectives, case.observed.collective
    want, have = sum(healthy[b] for b in buckets), sum(seen[b] for b in buckets)
    if want <= 0 or have / want <= SLOWER:
        return
    seconds = case.fault(
        lambda costs: costs.with_collectives(lambda b, s: healthy[b] if b in buckets else s),
        lambda costs: costs.with_collectives(lambda b, s: seen[b] if b in buckets else s),
    )
    if seconds < case.least:
        return
    stage = next((chunk.stage for b in buckets for chunk in case.plan.buckets[b].chunks), None)
    case.add(
        "slow-link",
        seconds,
        f"reductions between devices {', '.join(map(str, group))} took {have / want:.2f} times the reference "
        f"({ms(have)} instead of {ms(want)} in all): it costs {ms(seconds)}",
        stage=stage,
        tasks=[t.id for t in case.plan.tasks if t.op == "REDUCE" and t.bucket in buckets],
        directive=None if stage is None else case.replicate_of(stage),
        numbers={"factor": have / want, "group": list(group)},
    )
