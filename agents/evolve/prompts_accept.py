"""When a reworded prompt counts as better: fresh paired samples and a sequential sign test.

GEPA's own criterion compares two sums of a few scores, so that noise alone wins: identical candidates under 3% noise
claimed a gain in 16 of 20 runs. Here parent and child are drawn anew on the same instances, one pair after the other.
Under "no better" a difference is as often negative as positive, so the number of wins is a fair coin's; the evidence is
the likelihood ratio of all coins with p > 1/2 (uniform) against the fair one. It exceeds 1/alpha with probability
alpha at most, whenever one stops (Ville's inequality). The k-th test of a run has alpha / (k (k + 1)), which sums to
alpha.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gepa.core.data_loader import DataLoader
from gepa.core.state import GEPAState
from gepa.proposer.base import CandidateProposal
from gepa.strategies.acceptance import AcceptanceCriterion
from gepa.strategies.eval_policy import EvaluationPolicy

from pibroch.agents.gepa_adapter import Candidate, Instance, ScheduleAdapter, candidate_hash

ALPHA = 0.05
PAIRS = 40
_SAME = 1e-9
_HOPELESS = 5.0  # evidence for the parent at which a child is given up

Draw = Callable[[int], tuple[float, float]]


def evidence(wins: int, losses: int) -> float:
    """The likelihood ratio of a coin with p uniform on (1/2, 1) against the fair coin.

    2^n * 2 * integral of p^wins (1 - p)^losses over (1/2, 1); the integral is the Beta function's upper tail, which
    for whole numbers is a binomial sum.
    """
    n = wins + losses
    # P(Beta(wins + 1, losses + 1) > 1/2) = P(Binomial(n + 1, 1/2) <= wins)
    upper: float = sum(math.comb(n + 1, i) for i in range(wins + 1)) / 2 ** (n + 1)
    return float(2**n * 2 * upper / ((n + 1) * math.comb(n, wins)))


@dataclass(frozen=True, slots=True)
class SignTest:
    """What became of one test. `mean` is of child minus parent over all pairs; ties are pairs without a winner."""

    verdict: Literal["better", "not better", "undecided"]
    wins: int
    losses: int
    pairs: int
    mean: float
    evidence: float

    def __str__(self) -> str:
        return (
            f"{self.verdict}: {self.wins} wins and {self.losses} losses in {self.pairs} pairs, mean difference "
            f"{self.mean:+.3f}, evidence {self.evidence:.3g}"
        )


def sign_test(draw: Draw, *, alpha: float, pairs: int = PAIRS, stop: Callable[[], bool] = lambda: False) -> SignTest:
    """Draw pairs (parent, child) until the child is better at level `alpha`, hopeless, or `pairs` are spent.

    `better` needs a positive mean as well: a child that wins often and little and loses seldom and much is none.
    """
    wins = losses = drawn = 0
    total = 0.0
    verdict: Literal["better", "not better", "undecided"] = "undecided"
    while drawn < pairs and not stop():
        parent, child = draw(drawn)
        drawn += 1
        total += child - parent
        wins += child - parent > _SAME
        losses += parent - child > _SAME
        if evidence(wins, losses) >= 1 / alpha and total > 0:
            verdict = "better"
            break
        if evidence(losses, wins) >= _HOPELESS or evidence(wins + pairs - drawn, losses) < 1 / alpha:
            verdict = "not better"
            break
    return SignTest(verdict, wins, losses, drawn, total / drawn if drawn else 0.0, evidence(wins, losses))


class PairedAcceptance(AcceptanceCriterion):
    """GEPA's acceptance criterion by `sign_test` on training instances, in a shuffled order per test.

    `rejected` holds the hashes of candidates that failed (a proposer does not bring them again); `tests` all results.
    `stop` says that the budget is spent: a test then ends undecided, which is no acceptance.
    """

    def __init__(
        self,
        adapter: ScheduleAdapter,
        instances: Sequence[Instance],
        *,
        seed: int,
        alpha: float = ALPHA,
        pairs: int = PAIRS,
        stop: Callable[[], bool] = lambda: False,
        listener: Callable[[Candidate, SignTest], None] = lambda candidate, test: None,
    ) -> None:
        self.adapter, self.instances, self.seed = adapter, list(instances), seed
        self.alpha, self.pairs, self.stop, self.listener = alpha, pairs, stop, listener
        self.tests: list[SignTest] = []
        self.rejected: dict[str, SignTest] = {}

    def should_accept(self, proposal: CandidateProposal[Any], state: GEPAState[Any, Any]) -> bool:
        """Fresh samples only: those of the minibatch have shaped the proposal."""
        parent, child = state.program_candidates[proposal.parent_program_ids[0]], proposal.candidate
        k = len(self.tests) + 1
        order = list(self.instances)
        random.Random(f"{self.seed} {k}").shuffle(order)

        def draw(i: int) -> tuple[float, float]:
            one = order[i % len(order)]
            return self.adapter.rollout(parent, one).score, self.adapter.rollout(child, one).score

        test = sign_test(draw, alpha=self.alpha / (k * (k + 1)), pairs=self.pairs, stop=self.stop)
        self.tests.append(test)
        if test.verdict != "better":
            self.rejected[candidate_hash(child)] = test
        self.listener(child, test)
        return test.verdict == "better"

    def reject_reason(self, proposal: CandidateProposal[Any], state: GEPAState[Any, Any]) -> str:
        """GEPA's log."""
        return str(self.tests[-1])


class PairedPolicy(EvaluationPolicy[Any, Any]):
    """All validation instances; the best is not the one with the highest mean, which mostly is the luckiest.

    A descendant of the best, which was accepted by its test, takes its place unless it is behind here; any other only
    if it is ahead by more than its standard error. Differences are taken instance by instance.
    """

    def get_eval_batch(
        self, loader: DataLoader[Any, Any], state: GEPAState[Any, Any], target_program_idx: int | None = None
    ) -> list[Any]:
        """Every id."""
        return list(loader.all_ids())

    def get_best_program(self, state: GEPAState[Any, Any]) -> int:
        """In order of discovery."""
        best, *later = range(len(state.prog_candidate_val_subscores))
        for i in later:
            ours, theirs = state.prog_candidate_val_subscores[i], state.prog_candidate_val_subscores[best]
            gains = [ours[key] - theirs[key] for key in ours if key in theirs]
            mean = sum(gains) / len(gains) if gains else 0.0
            spread = math.sqrt(sum((g - mean) ** 2 for g in gains) / max(1, len(gains) - 1) / max(1, len(gains)))
            if mean >= (0.0 if best in _ancestors(state, i) else max(spread, _SAME)):
                best = i
        return best

    def get_valset_score(self, program_idx: int, state: GEPAState[Any, Any]) -> float:
        """The mean over the validation instances."""
        scores = state.prog_candidate_val_subscores[program_idx].values()
        return sum(scores) / len(scores)


def _ancestors(state: GEPAState[Any, Any], i: int) -> set[int]:
    found: set[int] = set()
    ahead = [i]
    while ahead:
        parents = {p for p in state.parent_program_for_candidate[ahead.pop()] if p is not None}
        ahead += parents - found
        found |= parents
    return found
