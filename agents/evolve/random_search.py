"""The baseline that evolution must beat: hill climbing by random edits, from the same set and with the same scores."""

from __future__ import annotations

import random
from collections.abc import Callable

from pibroch.agents.evolve.design import decode, encode, schedule_hash
from pibroch.agents.evolve.edits import NotApplicable, apply_edit
from pibroch.agents.evolve.operators import random_edit
from pibroch.evals.setting import Setting
from pibroch.runtime.directives import Schedule

CHAIN = 2
"""Edits in a row from the start where it begins anew."""

_STALE = 12
"""Evaluations without a gain after which it may begin anew, once in two times."""


def random_search(
    setting: Setting,
    start: Schedule,
    *,
    budget: int,
    seed: int,
    score: Callable[[Schedule], float | None],
) -> list[float | None]:
    """The best score (lower is better) after each of `budget` evaluations.

    `score` gives None for a schedule that breaks a rule or the memory bound. Schedules that were scored already cost
    nothing and count for nothing. Each candidate is one random edit of the best so far; after `_STALE` of them without
    a gain also a short chain of edits of the start. The start itself is not evaluated: it is what is known.
    """
    rng = random.Random(seed)
    origin = best = decode(start, setting)
    seen = {schedule_hash(start)}
    record = score(start)
    curve: list[float | None] = []
    since, misses = 0, 0
    while len(curve) < budget and misses < 20 * budget:
        again = since >= _STALE and rng.random() < 0.5
        design = origin if again else best
        try:
            for _ in range(CHAIN if again else 1):
                design = apply_edit(random_edit(design, setting, rng), design, setting)
        except NotApplicable:
            misses += 1
            continue
        schedule = encode(design)
        if schedule_hash(schedule) in seen:
            misses += 1
            continue
        seen.add(schedule_hash(schedule))
        seconds = score(schedule)
        since += 1
        if seconds is not None and (record is None or seconds < record):
            record, best, since = seconds, design, 0
        curve.append(record)
    return curve
