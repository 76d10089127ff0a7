"""The timed part of the ladder: pairs of steps on warm workers, until a sequential test has decided."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from pibroch.evals.evaluation import Rung, Verdict
from pibroch.evals.ladder_workers import Side, Workers
from pibroch.evals.roofline import implausible
from pibroch.evals.sequential import SequentialTest
from pibroch.evals.setting import Setting
from pibroch.evals.timing import clock, interval
from pibroch.runtime.costs import Costs
from pibroch.runtime.directives import Schedule
from pibroch.runtime.plan import Plan

SHORT = 2  # pairs of the short run
FAR = 1.25  # a candidate that takes that much longer in each of them is not paired any further
SPREAD_PAIRS = {"emulated": 3, "measured": 8}
SPREAD_MOST, SPREAD_SECONDS = 24, 3.0  # of measured short steps as many more as fit
SPREAD_LEAST = 0.002  # clocks and scheduling alone
SPREAD_MARGIN = 1.25  # a spread from few pairs may well be too small


@dataclass
class Pairs:
    """Seconds of both in pairs, and how it ended."""

    baseline: list[float] = field(default_factory=list)
    candidate: list[float] = field(default_factory=list)
    discarded: int = 0
    rung: Rung = "short"
    verdict: Verdict = "undecided"
    reason: str = ""

    @property
    def logs(self) -> list[float]:
        return [math.log(a / b) for a, b in zip(self.baseline, self.candidate, strict=True)]

    def facts(self, setting: Setting) -> dict[str, Any]:
        """Fields of an `Evaluation`. The interval is the nominal one of 95%."""
        facts: dict[str, Any] = {"rung": self.rung, "pairs": len(self.baseline), "simulated": False}
        if self.candidate:
            seconds = statistics.median(self.candidate)
            tokens = setting.task.samples * setting.workload.tokens
            facts |= {
                "step_s": seconds,
                "tokens_per_s": tokens / seconds,
                "ratio": math.exp(statistics.fmean(self.logs)),
            }
        if len(self.candidate) > 1:
            facts["ratio"], facts["lower"], facts["upper"] = interval(self.logs)
        return facts


def run(
    workers: Workers, base: Side, side: Side, test: SequentialTest, *, most: int, keep_noisy: bool, emulated: bool
) -> Pairs:
    """Pairs until the test has decided. Whichever went second goes first in the next pair."""
    found = Pairs()
    if not emulated:
        workers.pair(base, side, candidate_first=False)  # caches and allocators
    while True:
        pair = workers.pair(base, side, candidate_first=bool((len(found.logs) + found.discarded) % 2))
        if not (base.finite and side.finite):
            found.verdict, found.reason = "invalid", "the loss is not finite"
            return found
        if not (keep_noisy or pair.quiet):
            found.discarded += 1
            if found.discarded > 2 * most:
                found.reason = f"other processes kept the CPUs busy in {found.discarded} pairs"
                return found
            continue
        found.baseline.append(pair.baseline)
        found.candidate.append(pair.candidate)
        answer = test.add(found.logs[-1])
        if len(found.logs) == SHORT and max(found.logs) < -math.log(FAR):
            found.verdict, found.reason = "slower", f"slower by more than {FAR - 1:.0%} in {SHORT} pairs"
            return found
        if len(found.logs) > SHORT:
            found.rung = "paired"
        if answer != "go on":
            found.verdict, found.reason = answer, _reason(found, answer, most)
            return found


def spread(workers: Workers, schedule: Schedule, plan: Plan, *, emulated: bool) -> float:
    """The standard deviation of log-ratios of pairs in which a schedule meets itself, with a margin."""
    side, logs = workers.load(schedule, plan), list[float]()
    workers.pair(side, side, candidate_first=False)  # caches and allocators
    begin, least = clock(), SPREAD_PAIRS["emulated" if emulated else "measured"]
    while len(logs) < least or (not emulated and len(logs) < SPREAD_MOST and clock() - begin < SPREAD_SECONDS):
        pair = workers.pair(side, side, candidate_first=False)
        logs.append(math.log(pair.baseline / pair.candidate))
    return max(SPREAD_LEAST, SPREAD_MARGIN * statistics.stdev(logs))


def above_the_roofline(found: Pairs, plan: Plan, costs: Costs, *, emulated: bool) -> str | None:
    """Why the candidate's steps are not to be believed, or None."""
    return implausible(statistics.median(found.candidate), plan, costs, emulated=emulated)


def _reason(found: Pairs, answer: str, most: int) -> str:
    ratio, lower, upper = interval(found.logs)
    measured = f"{ratio - 1:+.1%} ({lower - 1:+.1%} to {upper - 1:+.1%}) in {len(found.logs)} pairs"
    if answer == "undecided":
        return f"{measured}: {most} pairs would not tell it from none"
    return measured
