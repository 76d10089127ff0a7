"""When to stop pairing a candidate with the incumbent: a sequential test on log-ratios of speed.

The log-ratios of pairs are taken as independent, normal and of unknown spread. After certain numbers of pairs (the
*looks*) two one-sided limits of their mean are computed with Student's t:

    faster      the lower limit is above 0 and the mean is at least log(1 + min_gain)
    slower      the upper limit is below log(1 + min_gain): not a gain that counts
    hopeless    even if the mean were at the upper limit from now on, the last look would not say faster

Errors. `alpha` bounds the chance that a candidate which is not faster is ever called faster: each of the L looks gets
alpha / L (Bonferroni: P(any) <= sum). Over a run with C candidates `share(family, C)` = family / C gives the same for
any of them, whatever their order and however each was chosen from the results before, since the bound holds for each
given the past. The other two ways to stop only ever refuse, so they cost no alpha; `MISS` over the looks bounds the
chance that the second one refuses a candidate that is as fast as asked.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import Literal

from pibroch.evals.timing import t_quantile
from pibroch.runtime.errors import InputError

Answer = Literal["faster", "slower", "go on", "undecided"]
FIRST = 4  # pairs at the first look: fewer tell next to nothing of their spread
GROWTH = 1.3  # from one look to the next
MISS = 0.05
POWER_Z = 2.3263  # the normal quantile of 99%


class SequentialTest:
    """Takes one log-ratio at a time (log of the incumbent's seconds over the candidate's).

    "undecided" means that `max_pairs` pairs, or the prospect of them, do not tell: the candidate is refused.
    """

    def __init__(self, *, alpha: float, min_gain: float, max_pairs: int) -> None:
        if not (0 < alpha < 0.5 and min_gain >= 0 and max_pairs >= FIRST):
            raise InputError(
                f"a sequential test needs 0 < alpha < 0.5, min_gain >= 0 and max_pairs >= {FIRST}: "
                f"not {alpha}, {min_gain}, {max_pairs}"
            )
        self.logs: list[float] = []
        self._gain = math.log1p(min_gain)
        self._looks = looks(max_pairs)
        self._p, self._miss = 1 - alpha / len(self._looks), 1 - MISS / len(self._looks)

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
        if mean >= self._gain and mean - quantile(self._p, count - 1) * error > 0:
            return "faster"
        upper = mean + quantile(self._miss, count - 1) * error
        if upper < self._gain:
            return "slower"
        last = self._looks[-1]
        best = (count * mean + (last - count) * upper) / last
        needed = max(quantile(self._p, last - 1) * spread / math.sqrt(last), self._gain)
        return "undecided" if count == last or best < needed else "go on"


def share(family: float, candidates: int) -> float:
    """The alpha of one candidate where `family` holds for a run of `candidates` (Bonferroni)."""
    return family / max(candidates, 1)


def looks(max_pairs: int) -> tuple[int, ...]:
    """The numbers of pairs after which the test looks: from `FIRST` in steps of about 30%, and the last one."""
    found, at = [], float(FIRST)
    while round(at) < max_pairs:
        found.append(round(at))
        at = max(at * GROWTH, round(at) + 1)
    return (*found, max_pairs)


def pairs_for(spread: float, *, alpha: float, gain: float, most: int) -> int:
    """The pairs after which a candidate that is faster by `gain` is called so with a chance of 99%, where log-ratios
    have that standard deviation; `most` where these are fewer."""
    effect = math.log1p(gain)
    for count in range(FIRST, most):
        needed = quantile(1 - alpha / len(looks(count)), count - 1) + POWER_Z
        if needed * spread / math.sqrt(count) <= effect:
            return count
    return most


def spread_of(logs: Sequence[float]) -> float:
    """Their standard deviation; it needs two or more."""
    return statistics.stdev(logs)


@cache
def quantile(p: float, freedom: int) -> float:
    """`timing.t_quantile`, remembered."""
    return t_quantile(p, freedom)
