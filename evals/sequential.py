"""When to stop pairing a candidate with the incumbent: a sequential test on log-ratios of speed.

The log-ratios of pairs are taken as independent, normal and of unknown spread. After certain numbers of pairs (the
*looks*) two one-sided limits of their mean are computed with Student's t:

    faster      the lower limit is above 0 and the mean is at least log(1 + min_gain)
    slower      the upper limit is below log(1 + min_gain): not a gain that counts
    small       the upper limit is below log(1 + goal): not the gain that the pairs are there for
    hopeless    even if the mean were at the upper limit from now on, the last look would not say faster

`goal` is what `max_pairs` pairs can tell from nothing (`gain_for`), and at least `min_gain`: a smaller gain would need
more pairs than there are, so that its early refusal costs little.

Errors. `alpha` bounds the chance that a candidate which is not faster is ever called faster: the last look gets half of
it and the others share the rest equally (Bonferroni: P(any) <= sum). Over a run with C candidates `share(family, C)` =
family / C gives the same for any of them, whatever their order and however each was chosen from the results before,
since the bound holds for each given the past. The other ways to stop only ever refuse, so they cost no alpha; `MISS`
over the looks bounds the chance that they refuse a candidate that is faster by `goal`.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

from pibroch.evals.timing import t_quantile
from pibroch.runtime.errors import InputError

Answer = Literal["faster", "slower", "go on", "undecided"]
FIRST = 4  # pairs at the first look at least: fewer tell next to nothing of their spread
FIRST_SHARE = 0.1  # of all pairs, before the first look
GROWTH = 1.3  # from one look to the next
MISS = 0.1
POWER_Z = 1.6449  # the normal quantile of 95%


class SequentialTest:
    """Takes one log-ratio at a time (log of the incumbent's seconds over the candidate's).

    "undecided" means small or hopeless, or that `max_pairs` pairs do not tell: the candidate is refused.
    """

    def __init__(self, *, alpha: float, min_gain: float, goal: float, max_pairs: int) -> None:
        if not (0 < alpha < 0.5 and 0 <= min_gain <= goal and max_pairs >= FIRST):
            raise InputError(
                f"a sequential test needs 0 < alpha < 0.5, 0 <= min_gain <= goal and max_pairs >= {FIRST}: "
                f"not {alpha}, {min_gain}, {goal}, {max_pairs}"
            )
        self.logs: list[float] = []
        self._gain, self._goal = math.log1p(min_gain), math.log1p(goal)
        self._looks = looks(max_pairs)
        self._early, self._last = _levels(alpha, len(self._looks))
        self._miss = 1 - MISS / len(self._looks)

    def add(self, log_ratio: float) -> Answer:
        """One more pair. A ratio that is not finite is "slower": no such measurement can pass."""
        self.logs.append(log_ratio)
        if not math.isfinite(log_ratio):
            return "slower"
        count = len(self.logs)
        if count not in self._looks:
            return "go on"
        mean, spread = statistics.fmean(self.logs), statistics.stdev(self.logs)
        error = spread / math.sqrt(count)
        last = self._looks[-1]
        level = self._last if count == last else self._early
        if mean >= self._gain and mean - t_quantile(level, count - 1) * error > 0:
            return "faster"
        upper = mean + t_quantile(self._miss, count - 1) * error
        if upper < self._goal:
            return "slower" if upper < self._gain else "undecided"
        best = (count * mean + (last - count) * upper) / last
        needed = max(t_quantile(self._last, last - 1) * spread / math.sqrt(last), self._gain)
        return "undecided" if count == last or best < needed else "go on"


def share(family: float, candidates: int) -> float:
    """The alpha of one candidate where `family` holds for a run of `candidates` (Bonferroni)."""
    return family / max(candidates, 1)


def looks(max_pairs: int) -> tuple[int, ...]:
    """The numbers of pairs after which the test looks: from a tenth of all, or `FIRST`, in steps of about 30%."""
    found, at = [], max(FIRST, FIRST_SHARE * max_pairs)
    while round(at) < max_pairs:
        found.append(round(at))
        at = max(at * GROWTH, round(at) + 1)
    return (*found, max_pairs)


def pairs_for(spread: float, *, alpha: float, gain: float, most: int) -> int:
    """The pairs that can tell `gain` from nothing (`gain_for`); `most` where these are fewer."""
    # More pairs tell smaller gains, so a few of their quantiles are enough: each takes some 10 ms.
    return FIRST + bisect_left(range(FIRST, most), -gain, key=lambda count: -gain_for(count, spread, alpha=alpha))


def gain_for(pairs: int, spread: float, *, alpha: float) -> float:
    """The gain that is called faster with a chance of 95% at the last of so many pairs, where log-ratios have that
    standard deviation."""
    _, last = _levels(alpha, len(looks(pairs)))
    return math.expm1((t_quantile(last, pairs - 1) + POWER_Z) * spread / math.sqrt(pairs))


def _levels(alpha: float, looks: int) -> tuple[float, float]:
    """The confidence of the lower limit at each look but the last, and at the last."""
    return (1 - alpha / 2 / (looks - 1), 1 - alpha / 2) if looks > 1 else (1 - alpha, 1 - alpha)


def spread_of(logs: Sequence[float]) -> float:
    """Their standard deviation; it needs two or more."""
    return statistics.stdev(logs)
