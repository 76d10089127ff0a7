"""What a run's journal says, as typed data: the same for a finished run, one under way, and one that was killed.

Terms
    candidate   one schedule of the lineage: the start, or a proposal; with its evaluation once there is one.
    speed       over the start's speed: the product of the paired ratios along the line of incumbents. The interval is
                that of the candidate's own comparison, scaled by its incumbent's speed.
    refusal     a proposal that was not evaluated, with its reason.

A reader changes nothing and judges nothing: lines that it does not understand are counted in `problems` and left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pibroch.evals.evaluation import Evaluation
from pibroch.evals.finding import Finding
from pibroch.runtime.directives import Schedule

START, WAITING = "start", "waiting"
Record = Mapping[str, Any]


@dataclass(slots=True)
class Spent:
    """What language models were asked for and what it cost; `money` is None where no price is known."""

    calls: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    money: float | None = None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def copy(self) -> Spent:
        return Spent(self.calls, self.failures, self.input_tokens, self.output_tokens, self.money)


@dataclass(slots=True)
class Candidate:
    """`number` is the evaluation's index, 0 for the start. `speed`, `lower`, `upper` are against the start."""

    schedule: str
    number: int
    parent: str | None = None
    source: str = START
    edit: dict[str, Any] | None = None
    bullets: tuple[str, ...] = ()
    why: str = ""
    incumbent: str | None = None
    result: Evaluation | None = None
    speed: float | None = None
    lower: float | None = None
    upper: float | None = None
    asked: Spent = field(default_factory=Spent)  # for this proposal alone
    seconds: float = 0.0  # from the first record to this one's last, wall time

    @property
    def state(self) -> str:
        """`start`, a verdict, or `waiting`."""
        return START if not self.number else self.result.verdict if self.result else WAITING


@dataclass(frozen=True, slots=True)
class Refusal:
    """`after` is the number of the evaluation that came before it."""

    after: int
    schedule: str
    source: str
    edit: dict[str, Any] | None
    reason: str


@dataclass(frozen=True, slots=True)
class Change:
    """One delta and what became of it. `before` and `after` are the bullet's text and counters, "" where there is
    none or the journal does not say."""

    evaluation: int
    op: str
    done: str
    id: str
    before: str
    after: str
    reason: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Speed of `schedule` over `incumbent` from a fresh run of `pairs` alternating pairs."""

    schedule: str
    incumbent: str
    ratio: float
    lower: float
    upper: float
    pairs: int
    confidence: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A language model's call that gave nothing: `kind` is the error's name."""

    after: int
    role: str
    kind: str
    text: str


@dataclass(slots=True)
class RunView:
    """One run. `reason` of the end is "" while there is none; `torn` says that the last line was cut off."""

    path: str = ""
    task: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    seed: int | None = None
    scores: str = "measured"
    budget: dict[str, Any] = field(default_factory=dict)
    lm: str = ""
    start: str = ""
    best: str = ""
    reason: str = ""
    candidates: dict[str, Candidate] = field(default_factory=dict)  # by schedule hash, in the order of the journal
    refusals: list[Refusal] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    confirmations: list[Confirmation] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)  # by schedule hash
    spent: Spent = field(default_factory=Spent)
    seconds: float = 0.0
    evaluations: int = 0
    resumed: int = 0
    torn: bool = False
    problems: list[str] = field(default_factory=list)
    costs: dict[str, Any] | None = None  # of the task's layers, as the run measured them (`evals/layer_costs.py`)
    schedules: dict[str, Schedule] = field(default_factory=dict)  # the start's and the best's, where they are kept

    @property
    def kind(self) -> str:
        """`measured`, `emulated` or `simulated`: what this run's figures are."""
        return self.confirmed_kind if self.scores == "measured" else "simulated"

    @property
    def confirmed_kind(self) -> str:
        """The same of its confirmation, which simulated scores alone do not run on workers."""
        if self.scores == "simulated":
            return "simulated"
        return "emulated" if self.task.get("emulate") else "measured"

    @property
    def evaluated(self) -> list[Candidate]:
        """In the order of the evaluations."""
        return sorted((c for c in self.candidates.values() if c.result and c.number), key=lambda c: c.number)

    @property
    def confirmed(self) -> Confirmation | None:
        """The last confirmation of the best."""
        return next((c for c in reversed(self.confirmations) if c.schedule == self.best), None)

    def of(self, candidate: Candidate) -> str:
        """What this candidate's figures are."""
        if candidate.result is None:
            return self.kind
        return "simulated" if candidate.result.simulated else "emulated" if candidate.result.emulated else self.kind
