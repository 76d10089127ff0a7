"""Where the next candidate comes from.

bullet   the edit that a bullet of the playbook names, applied alone to the incumbent: the only way in which a bullet
         is tested
writer   a language model's, every second time where there is one
family   one of the classic families that promise most (`families.py`): the first FAMILIES of every second proposal
merge    the incumbent with one part of another member of the Pareto front
edit     an operator, guided by the parent's findings and by what has worked
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pibroch.agents.evolve.design import Design, encode
from pibroch.agents.evolve.edits import NotApplicable, apply_edit, edit_key, parse_edit
from pibroch.agents.evolve.families import promising
from pibroch.agents.evolve.figures import design_key
from pibroch.agents.evolve.operators import propose
from pibroch.agents.evolve.population import Individual, Population
from pibroch.agents.lessons import PITFALLS
from pibroch.evals.setting import Setting
from pibroch.playbooks.model import Bullet
from pibroch.runtime.directives import Schedule

MERGE_EVERY = 7  # proposals: a merge seldom beats its better parent
FAMILIES = 4
PRIOR = 2.0  # tests' worth of belief in an operator that nobody has tried


@dataclass(frozen=True, slots=True)
class Proposal:
    """`schedule` is None where nothing came of it, and `why` says the reason. `alone`: it is the incumbent with this
    edit and nothing else, so that its measurement is a test of the edit. `bullets` are those that it tests or cites, of
    those that were `shown`. `design` is the form in which it was made, with the rule of its rows; None for a
    schedule that came as one."""

    source: str
    parent: Individual
    schedule: Schedule | None
    why: str
    edit: dict[str, Any] | None = None
    bullets: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    design: Design | None = None
    alone: bool = False


@dataclass(slots=True)
class Success:
    """How often an operator's candidates were tried, and how often they took the incumbent's place."""

    tried: int = 0
    won: int = 0


@dataclass(slots=True)
class Proposer:
    """`bullets` gives those that fit the incumbent, the best first; each is tested once in a run. `write` asks the
    model, None where there is none (left). `families` are still to try; `last` is what came last, "family" or not.
    `made` are the keys of designs that were proposed."""

    setting: Setting
    population: Population
    bullets: Callable[[], Sequence[Bullet]]
    write: Callable[[Individual], Proposal] | None = None
    success: dict[str, Success] = field(default_factory=dict)
    priors: Mapping[str, float] = field(default_factory=dict)
    tested: set[str] = field(default_factory=set)
    families: list[tuple[Design, str]] | None = None
    last: str = ""
    made: set[Hashable] = field(default_factory=set)

    def next(self, turn: int, rng: random.Random) -> Proposal:
        """The proposal of one turn, the same for the same history and generator."""
        if self.write is not None and turn % 2 == 1:
            return self.write(self.population.incumbent)
        if (bullet := self._untested()) is not None:
            return self._bullet(bullet)
        family = self._family() if self.last != "family" else None
        self.last = "edit" if family is None else "family"
        if family is not None:
            return family
        if turn % MERGE_EVERY == MERGE_EVERY - 1 and (merged := self._merge(rng)) is not None:
            return merged
        return self._edit(rng)

    def learn(self, edit: dict[str, Any] | None, *, won: bool) -> None:
        """What came of an operator's candidate."""
        if edit is not None:
            row = self.success.setdefault(edit["op"], Success())
            row.tried += 1
            row.won += won

    def weights(self) -> dict[str, float]:
        """Per operator the expected share of wins, as a Beta posterior's mean over the same prior for all."""
        ops = {*self.success, *self.priors}
        return {op: self._weight(op) for op in sorted(ops)}

    def _weight(self, op: str) -> float:
        row = self.success.get(op, Success())
        return (row.won + PRIOR * self.priors.get(op, 0.5)) / (row.tried + PRIOR)

    def _untested(self) -> Bullet | None:
        fitting = (
            b for b in self.bullets() if b.edit is not None and b.section != PITFALLS
        )  # what not to do is no try
        return next((b for b in fitting if b.id not in self.tested), None)

    def _bullet(self, bullet: Bullet) -> Proposal:
        self.tested.add(bullet.id)
        parent = self.population.incumbent
        assert bullet.edit is not None
        try:
            edit = parse_edit(bullet.edit)
            design = apply_edit(edit, parent.design, self.setting)
        except (NotApplicable, ValueError) as error:
            return Proposal("bullet", parent, None, f"not applicable: {error}", bullet.edit, (bullet.id,))
        self.population.tried.setdefault(parent.plan, set()).add(edit_key(edit))
        return Proposal(
            "bullet", parent, encode(design), bullet.text, edit.to_json(), (bullet.id,), design=design, alone=True
        )

    def _family(self) -> Proposal | None:
        if self.families is None:
            self.families = promising(self.setting, count=FAMILIES)
        if not self.families:
            return None
        design, name = self.families.pop(0)
        self.made.add(design_key(design))
        return Proposal("family", self.population.incumbent, encode(design), name, design=design)

    def _edit(self, rng: random.Random) -> Proposal:
        parent = self.population.parent(rng)
        tabu = self.population.tried.get(parent.plan, set())
        try:
            edit, why = propose(
                parent.design, self.setting, parent.findings(self.setting), rng=rng, weights=self.weights(), tabu=tabu,
                seen=self.made,
            )  # fmt: skip
            self.population.tried.setdefault(parent.plan, set()).add(edit_key(edit))
            design = apply_edit(edit, parent.design, self.setting)
            self.made.add(design_key(design))
        except NotApplicable as error:
            return Proposal("edit", parent, None, f"not applicable: {error}")
        alone = parent is self.population.incumbent
        return Proposal("edit", parent, encode(design), why, edit.to_json(), design=design, alone=alone)

    def _merge(self, rng: random.Random) -> Proposal | None:
        parent = self.population.incumbent
        others = [m for m in self.population.members if m.key != parent.key]
        if not others:
            return None
        other = rng.choice(others)
        rows = merged(parent.design, other.design)
        if not rows:
            return None
        name, design = rng.choice(rows)
        return Proposal("merge", parent, encode(design), f"{name} of {other.key}", design=design)


def merged(one: Design, other: Design) -> list[tuple[str, Design]]:
    """`one` with a part of `other`, for each part in which they differ and that does not depend on the rest."""
    parts: Sequence[str] = ("recompute", "bucket_size", "stream", "reduce_stream")
    if len(one.placement) != len(other.placement):
        parts = ("stream",)  # the others are per stage
    return [
        (part.replace("_", " "), replace(one, **{part: getattr(other, part)}))
        for part in parts
        if getattr(one, part) != getattr(other, part)
    ]
