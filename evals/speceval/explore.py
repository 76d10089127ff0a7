"""Which schedules to run: depth first by number of preemptions, then at random (probabilistic concurrency testing).

A preemption is a switch away from a thread that could have gone on. Musuvathi and Qadeer (CHESS, PLDI 2007): most
faults need two at most, and there are few such schedules. Burckhardt et al. (PCT, ASPLOS 2010): random priorities with
d - 1 changes find a fault of depth d with a known probability. Nothing here knows what a fault is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pibroch.evals.speceval.thread_runs import Plan, RunLog

BOUND = 2
DEPTHS = (2, 3)  # of random schedules, in turn


class Frontier:
    """The schedules of one scenario that are still to be run; each is run once, those of a larger bound later."""

    def __init__(self, *, bound: int = BOUND) -> None:
        self.levels: list[list[tuple[int, ...]]] = [[()], *([] for _ in range(bound))]
        self.runs = 0

    @property
    def level(self) -> int | None:
        """The number of preemptions of the next schedules; None where all are done."""
        return next((i for i, waiting in enumerate(self.levels) if waiting), None)

    def take(self, count: int) -> list[Plan]:
        """The next schedules, all with the same number of preemptions."""
        level = self.level
        if level is None:
            return []
        stack = self.levels[level]
        taken = [stack.pop() for _ in range(min(count, len(stack)))]
        return [Plan(choices) for choices in taken]

    def add(self, log: RunLog) -> None:
        """What a run has shown: at each of its free choices another thread could have gone on."""
        self.runs += 1
        if log.end in ("diverged", "failed"):
            return
        cost, prefix = 0, len(log.plan.choices)
        chosen = tuple(choice.chosen for choice in log.choices)
        found: list[tuple[int, tuple[int, ...]]] = []
        for i, choice in enumerate(log.choices):
            if i >= prefix:
                for other in choice.able:
                    if other != choice.chosen:
                        more = int(choice.running >= 0 and other != choice.running)
                        found.append((cost + more, (*chosen[:i], other)))
            cost += int(choice.running >= 0 and choice.chosen != choice.running)
        for level, choices in reversed(found):  # the first choices end on top
            if level < len(self.levels):
                self.levels[level].append(choices)


def random_plans(seed: str, threads: int, choices: int, count: int) -> list[Plan]:
    """`count` schedules for a scenario whose runs have about so many choices; the same ones for the same seed."""
    source = random.Random(seed)
    plans = []
    for i in range(count):
        changes = DEPTHS[i % len(DEPTHS)] - 1
        priorities = list(range(changes + 1, changes + 1 + threads))
        source.shuffle(priorities)
        at = sorted(source.randrange(max(choices, 1)) for _ in range(changes))
        plans.append(Plan((), tuple(priorities), tuple((step, -low) for low, step in enumerate(at))))
    return plans


def longest(logs: Sequence[RunLog]) -> int:
    """The most choices that one of these runs had."""
    return max((len(log.choices) for log in logs), default=0)
