"""The outer population: prompts of the schedule writer, evolved with GEPA and chosen on held-out sentences.

GEPA proposes (reflection on judged samples) and keeps the Pareto front over validation instances; acceptance and the
final choice are ours (`prompts_accept.py`). GEPA stores no random generator, so it is never resumed from its own state:
a resumed run starts again from its seed, and the journal hands out rollouts and reflections.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from pibroch.agents.evolve.journal import Journal
from pibroch.agents.evolve.memo import Memo
from pibroch.agents.evolve.prompts_accept import (
    ALPHA,
    PAIRS,
    PairedAcceptance,
    PairedPolicy,
    SignTest,
    evidence,
)
from pibroch.agents.evolve.prompts_intents import Intents
from pibroch.agents.evolve.prompts_propose import MOST_TOKENS, Proposer
from pibroch.agents.gepa_adapter import (
    Candidate,
    Instance,
    Remember,
    Rollout,
    ScheduleAdapter,
    Seconds,
    candidate_hash,
    seed_candidate,
)
from pibroch.agents.lm.accounting import BudgetError, Metered
from pibroch.agents.lm.base import LanguageModel, LMError, finish
from pibroch.runtime.errors import PibrochError

MINIBATCH = 6
_Z = 1.959964  # two-sided 95%


class Stopped(PibrochError):
    """The user asked for it, before the next rollout."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Share:
    """How many of `samples` were verified, with Wilson's 95% interval."""

    verified: int
    samples: int

    @property
    def share(self) -> float:
        """0 without samples."""
        return self.verified / self.samples if self.samples else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson, 1927: never outside of 0 to 1, and sensible near both."""
        n, p = self.samples, self.share
        if not n:
            return 0.0, 1.0
        middle = p + _Z**2 / (2 * n)
        half = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
        return (max(0.0, (middle - half) / (1 + _Z**2 / n)), min(1.0, (middle + half) / (1 + _Z**2 / n)))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        lower, upper = self.interval
        return {**asdict(self), "share": self.share, "lower": lower, "upper": upper}

    def __str__(self) -> str:
        lower, upper = self.interval
        return f"{self.verified} of {self.samples} verified ({self.share:.1%}, {lower:.1%} to {upper:.1%})"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Seed and evolved prompts on the same held-out sentences, sample by sample in turn. `wins` and `losses` are pairs
    in which only one was verified; `gain` says that they speak for the evolved prompts at level `ALPHA`."""

    seed: Share
    evolved: Share
    wins: int
    losses: int

    @property
    def gain(self) -> bool:
        """Whether the evolved prompts are claimed to be better."""
        return evidence(self.wins, self.losses) >= 1 / ALPHA


@dataclass(frozen=True, slots=True)
class Evolved:
    """`prompts` are the chosen ones: the seed's where `confirmation` shows no gain. `reason` is why the run ended."""

    prompts: dict[str, str]
    seed: dict[str, str]
    confirmation: Confirmation | None
    tests: list[SignTest] = field(default_factory=list)
    accepted: int = 0
    refused: int = 0
    rollouts: int = 0
    reason: str = "budget"

    @property
    def changed(self) -> bool:
        """Whether other prompts than the seed's were chosen."""
        return self.prompts != self.seed


def evaluate_prompts(
    prompts: Candidate, instances: Sequence[Instance], lm: LanguageModel, *, samples: int, attempts: int = 1
) -> Share:
    """The share of verified schedules over `samples` rollouts, the instances in turn."""
    adapter = ScheduleAdapter(lm, attempts=attempts)
    done = [adapter.rollout(prompts, instances[i % len(instances)]) for i in range(samples)]
    return Share(sum(r.verified for r in done), samples)


def compare_prompts(
    seed: Candidate,
    evolved: Candidate,
    instances: Sequence[Instance],
    adapter: ScheduleAdapter,
    *,
    samples: int,
    say: Callable[[str], None] = lambda line: None,
) -> Confirmation:
    """`samples` of each, in turn on the same instances, so that a busy machine is the same to both."""
    both: list[tuple[bool, bool]] = []
    for i in range(samples):
        one = instances[i % len(instances)]
        both.append((adapter.rollout(seed, one).verified, adapter.rollout(evolved, one).verified))
        if (i + 1) % 10 == 0:
            ours, theirs = sum(b for _, b in both), sum(a for a, _ in both)
            say(f"held out, sample {i + 1} of {samples}: verified {ours}, with the seed's prompts {theirs}")
    return Confirmation(
        Share(sum(a for a, _ in both), samples), Share(sum(b for _, b in both), samples),
        sum(b and not a for a, b in both), sum(a and not b for a, b in both),
    )  # fmt: skip


def evolve_prompts(
    intents: Intents,
    lm: LanguageModel,
    reflection: LanguageModel,
    *,
    journal: Journal,
    budget: int,
    confirm: int,
    seed: int = 0,
    prompts: Mapping[str, str] | None = None,
    attempts: int = 1,
    samples: int = 1,
    pairs: int = PAIRS,
    seconds: Seconds | None = None,
    max_tokens: int | None = None,
    most_tokens: int = MOST_TOKENS,
    stopped: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
) -> Evolved:
    """Evolve for `budget` rollouts, then compare the best with the seed on `confirm` held-out samples each.

    `seconds` measures a verified schedule, as for the adapter. `max_tokens` bounds the reflection model in all,
    `most_tokens` one prompt. Raises `Paused` and `LMError` from the models, and `Stopped`; the run can then be resumed
    with the same journal and options.
    """
    from gepa.api import optimize

    start = seed_candidate(lm, prompts)
    options = {
        "lm": lm.name, "reflection": reflection.name, "seed": seed, "attempts": attempts,
        "samples": samples, "pairs": pairs, "max_tokens": max_tokens, "most_tokens": most_tokens,
        "prompts": candidate_hash(start),
        "instances": [one.id for part in (intents.train, intents.validation, intents.test) for one in part],
    }  # fmt: skip
    journal.once("start", options, lambda: {"budget": budget, "texts": start})  # a larger budget goes on
    adapter = ScheduleAdapter(
        lm, samples=samples, attempts=attempts, prompts=prompts, seconds=seconds,
        remember=_remember(journal, stopped),
    )  # fmt: skip
    refused: list[str] = []

    def spent() -> bool:
        return adapter.spent >= budget

    def tested(candidate: Candidate, test: SignTest) -> None:
        say(f"rollout {adapter.spent}: {test}")
        journal.once(
            "test", {"candidate": candidate_hash(candidate), "verdict": test.verdict},
            lambda: {"test": asdict(test), "texts": dict(candidate)},
        )  # fmt: skip

    def refuse(candidate: str, reason: str) -> None:
        refused.append(candidate)
        say(f"proposal not tried: {reason}")
        journal.once("refused", {"candidate": candidate, "reason": reason})

    acceptance = PairedAcceptance(adapter, intents.train, seed=seed, pairs=pairs, stop=spent, listener=tested)
    proposer = Proposer(
        Memo(Metered(reflection, max_tokens=max_tokens), journal), writer=lm.name, tests=acceptance.rejected,
        most_tokens=most_tokens, note=refuse,
    )  # fmt: skip
    watch = _Watch(proposer)
    optimize(
        seed_candidate=start, trainset=intents.train, valset=intents.validation, adapter=adapter,
        custom_candidate_proposer=proposer, acceptance_criterion=acceptance, val_evaluation_policy=PairedPolicy(),
        reflection_minibatch_size=min(MINIBATCH, len(intents.train)), skip_perfect_score=False,
        stop_callbacks=[lambda state: proposer.failed is not None or spent()],
        callbacks=[cast(Any, watch)], logger=_Quiet(), seed=seed, raise_on_exception=True,
    )  # fmt: skip
    reason = "budget"
    if proposer.failed is not None:
        if not isinstance(proposer.failed, LMError | BudgetError):
            raise proposer.failed
        reason = str(proposer.failed)
    best = watch.best or start
    journal.once("best", {"candidate": candidate_hash(best)}, lambda: {"texts": best})
    say(f"{len(acceptance.tests)} proposals tested, {watch.accepted} accepted; {reason}")
    confirmation = None
    if best != start and confirm:
        confirmation = compare_prompts(start, best, intents.test, adapter, samples=confirm, say=say)
    chosen = best if confirmation is not None and confirmation.gain else start
    finish(reflection)
    finish(lm)
    return Evolved(
        dict(chosen), start, confirmation, acceptance.tests, watch.accepted, len(refused), adapter.spent, reason
    )


def _remember(journal: Journal, stopped: Callable[[], bool]) -> Remember:
    def remember(candidate: str, one: Instance, sample: int, make: Callable[[], Rollout]) -> Rollout:
        def new() -> dict[str, Any]:
            if stopped():
                raise Stopped("stopped as asked; the same command goes on from here")
            return {"rollout": make().model_dump(mode="json")}

        record = journal.once("rollout", {"candidate": candidate, "instance": one.id, "sample": sample}, new)
        return Rollout.model_validate_json(json.dumps(record["rollout"]))

    return remember


class _Watch:
    """GEPA's callbacks: who is in the pool, and whom the policy calls best."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer, self.accepted = proposer, 0
        self.best: dict[str, str] | None = None

    def on_valset_evaluated(self, event: Any) -> None:
        self.proposer.pool.add(candidate_hash(event["candidate"]))

    def on_candidate_accepted(self, event: Any) -> None:
        self.accepted += 1

    def on_optimization_end(self, event: Any) -> None:
        self.best = dict(event["final_state"].program_candidates[event["best_candidate_idx"]])


class _Quiet:
    """GEPA's log, which repeats every prompt: the journal has what is in it."""

    def log(self, message: str) -> None: ...
