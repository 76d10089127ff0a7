"""The schedules that a run has seen: the incumbent, those worth building on, and what was tried on each.

Parents are drawn by speed in the simulator, which every legal candidate has, and not by paired ratios, which only
those have that reached the last rung; the incumbent changes only by the ladder's verdict.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from pibroch.agents.evolve.design import Design
from pibroch.evals.evaluation import Evaluation
from pibroch.evals.feedback.simulated import simulated_findings
from pibroch.evals.finding import Finding
from pibroch.evals.setting import Setting
from pibroch.runtime.directives import Schedule
from pibroch.runtime.generated import load_generated

KEPT = 12  # parents at most
SHARPNESS = 40.0  # a parent that is 5% slower is drawn e^-2 times as often


@dataclass(slots=True)
class Individual:
    """`key` is the schedule's hash, `plan` its plan's; `number` of the evaluation, 0 for the start."""

    schedule: Schedule
    key: str
    plan: str
    number: int
    design: Design
    evaluation: Evaluation
    parent: str = ""
    known: list[Finding] | None = None

    def findings(self, setting: Setting) -> list[Finding]:
        """Why its step takes as long: as it ran where it was an incumbent, else as simulated, once somebody asks."""
        if self.known is None:
            self.known = simulated_findings(setting, self.schedule)
        return self.known

    @property
    def seconds(self) -> float:
        assert self.evaluation.simulated_s is not None
        return self.evaluation.simulated_s

    @property
    def peak(self) -> int:
        return self.evaluation.peak_bytes or 0


@dataclass(slots=True)
class Population:
    """`tried` holds, per plan, the keys (`edit_key`) of edits that were applied to it; `plans` all that were judged."""

    incumbent: Individual
    members: list[Individual] = field(default_factory=list)
    tried: dict[str, set[str]] = field(default_factory=dict)
    plans: dict[str, Evaluation] = field(default_factory=dict)

    def add(self, one: Individual) -> None:
        """A legal candidate joins; the slowest that nothing speaks for goes."""
        self.members.append(one)
        if len(self.members) > KEPT:
            front = {m.key for m in self.front()} | {self.incumbent.key}
            spare = [m for m in self.members if m.key not in front] or self.members
            self.members.remove(max(spare, key=lambda m: (m.seconds, m.number)))

    def front(self) -> list[Individual]:
        """Those that no other beats in step time and peak memory at once."""
        rows = [[round(m.seconds * 1e12), m.peak] for m in self.members]
        return [self.members[i] for i in load_generated("pareto").front(rows)]

    def parent(self, rng: random.Random) -> Individual:
        """Mostly the incumbent; else one of the others by its simulated speed."""
        if rng.random() < 0.6 or not self.members:
            return self.incumbent
        best = min(m.seconds for m in self.members)
        weights = [math.exp(-SHARPNESS * (m.seconds / best - 1)) for m in self.members]
        return rng.choices(self.members, weights)[0]
