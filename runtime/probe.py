"""Measured costs: chunk times from traced steps, and the link between ranks 0 and 1."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from pibroch.runtime.costs import ProfileCosts
from pibroch.runtime.plan import Plan
from pibroch.runtime.pool import Pool
from pibroch.runtime.trace import Event

LINK_BYTES = 1 << 22  # size of the message that measures bandwidth
LINK_ROUNDS = 10


def measured_link(pool: Pool) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes/s; 0 and infinity for a single rank."""
    if pool.ranks == 1:
        return 0.0, float("inf")
    latency = max(pool.call("ping_pong", [(1, 4, LINK_ROUNDS)] * pool.ranks))
    long = max(pool.call("ping_pong", [(1, LINK_BYTES, LINK_ROUNDS)] * pool.ranks))
    return latency, LINK_BYTES / max(long - latency, 1e-9)


def chunk_times(plan: Plan, events: Iterable[Event]) -> dict[tuple[int, int, str], list[float]]:
    """Seconds per (stage, part, op) of the compute tasks among these events."""
    times: dict[tuple[int, int, str], list[float]] = {}
    for event in events:
        task = plan.tasks[event.task]
        if task.stream == "compute":
            times.setdefault((task.stage, task.part, task.op), []).append(event.end - event.start)
    return times


def profile_costs(plan: Plan, events: Iterable[Event], pool: Pool) -> ProfileCosts:
    """The mean time of each chunk and op of a plan, and the pool's link."""
    latency, bandwidth = measured_link(pool)
    return ProfileCosts(
        measured={key: statistics.fmean(found) for key, found in chunk_times(plan, events).items()},
        latency=latency,
        bandwidth=bandwidth,
        collective_latency=latency,
        collective_bandwidth=bandwidth,
        recomputed=tuple((c.stage, c.part) for c in plan.chunks if c.recompute),
    )
