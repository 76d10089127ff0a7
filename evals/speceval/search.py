"""The search for a run that breaks a clause: calls made one by one on a candidate in its sandbox, judged outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pibroch.evals.speceval import library
from pibroch.evals.speceval.bounded import BoundedSession
from pibroch.evals.speceval.calls import Literals, Run, operations_of
from pibroch.evals.speceval.oracle import Failure, Oracle
from pibroch.evals.speceval.session import Outcome, Session, SessionEnded
from pibroch.evals.speceval.stubs import Stubs
from pibroch.evals.speceval.walker import SpecFault, Trial, Walker
from pibroch.specs.model import Spec, Unit

ENOUGH = 6  # different faults; more tell a writer nothing
FAILED = 1_000  # runs that failed
AFTERWARDS = 800  # calls after the first fault, to find others as well
_CHUNK, _BYTES = 50, 400_000  # calls and, about, characters of a reply


@dataclass(frozen=True)
class Budget:
    """Calls per phase and unit."""

    small: int
    random: int
    beyond: int
    long: int


QUICK = Budget(small=900, random=400, beyond=150, long=0)
FULL = Budget(small=2_500, random=4_000, beyond=800, long=2_000)


Judge = Callable[[Run], tuple[int, list[Failure]] | None]


class Answers(Protocol):
    """What relied-upon functions answer: stubs, or the real modules."""

    def begin(self, seed: int) -> None:
        """A new run."""
        ...

    def __call__(self, name: str, args: list[Any]) -> Any:
        """Answer one question."""
        ...


class Search:
    """Looks for faults of one candidate. `faults` maps a clause to the first run that breaks it."""

    def __init__(self, source: str, spec: Spec, *, phase: int, budget: Budget, stop_at: int = ENOUGH) -> None:
        self.source, self.spec, self.phase, self.budget, self.stop_at = source, spec, phase, budget, stop_at
        self.extra = library.functions(tuple(spec.front.library))
        self.oracle = Oracle(spec, self.extra)
        self.stubs: Answers = Stubs(spec, self.extra)
        self.literals = Literals.of(f"{source}\n{spec.block}")  # a module without the spec's bound must meet it too
        self.faults: dict[str, tuple[Run, Failure]] = {}
        self.trials: list[Trial] = []  # what went well, for replays
        self.drawn: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.disabled: Counter[str] = Counter()
        self.empty: Counter[str] = Counter()
        self.refused: dict[str, Counter[str]] = {}
        self.oracle.told = self.faults
        self.calls = 0
        self.failed = 0
        self.first = 0  # calls before the first fault
        self.skipped = 0
        self.session: Session | None = None
        self.options: dict[str, Any] = {}  # of the sessions to come
        self.judges: dict[str, Judge] = {}  # by clause, where a fault shows otherwise than by `judge`

    # Running

    def open(self) -> Session:
        """The session, started anew where the last one ended."""
        if self.session is None:
            self.session = self.make_session()
            self.session.__enter__()
        return self.session

    def make_session(self) -> Session:
        """A session that is not yet started."""
        return BoundedSession(self.source, self.spec, relies=self.stubs, static=True, **self.options)

    def close(self) -> None:
        """End the session; a reply forged at the end is a fault."""
        session, self.session = self.session, None
        if session is not None:
            session.__exit__(None, None, None)

    def drop(self) -> None:
        """Forget a session that has ended by itself."""
        if self.session is not None:
            self.session.kill()
            self.session = None

    @property
    def done(self) -> bool:
        """Whether enough faults have been found."""
        enough = len(self.faults) >= self.stop_at or self.failed >= FAILED
        return enough or (bool(self.faults) and self.calls - self.first > AFTERWARDS)

    def search(self) -> None:
        """All phases over all units. Raises `SpecFault`."""
        for unit in self.spec.units:
            if unit.is_class or operations_of(self.spec, unit, self.phase):
                walker = Walker(self, unit)
                walker.small(self.budget.small)
                for beyond, calls in ((False, self.budget.random), (True, self.budget.beyond)):
                    if not self.done:
                        walker.draws(calls, beyond=beyond)
                if self.budget.long and not self.done:
                    walker.long(self.budget.long)

    def fault(self, run: Run, failures: list[Failure]) -> None:
        """Keep the first run per clause."""
        self.failed += 1
        if not self.faults:
            self.first = self.calls
        for failure in failures:
            self.faults.setdefault(failure.clause, (run, failure))

    def replay(self, run: Run, *, scribble: bool = False, look: bool = True) -> list[Outcome]:
        """A run made again, with few round trips."""
        self.stubs.begin(run.seed)
        session, done = self.open(), min(len(run.calls), _CHUNK)
        outcomes = session.replay(run.unit, run.init, run.calls[:done], look=look, scribble=scribble)
        while done < len(run.calls) and len(outcomes) > done:  # what a long run sees may be long as well
            size = len(repr(outcomes[-1].view)) + len(repr(outcomes[-1].value))
            calls = run.calls[done : done + max(1, min(_CHUNK, _BYTES // (size + 1)))]
            outcomes += session.replay(run.unit, None, calls, look=look, scribble=scribble)
            done += len(calls)
        return outcomes

    def judge(self, run: Run) -> tuple[int, list[Failure]] | None:
        """The index of the first call of a run that fails (0: the constructor) and how; None where all is well; no
        failures where that call is one that its precondition forbids."""
        unit = next(u for u in self.spec.units if u.name == run.unit)
        if unit.init is not None and self.oracle.admits(unit, unit.init, None, run.init) != "ok":
            return 0, []
        try:
            outcomes = self.replay(run)
        except SessionEnded:
            self.drop()
            return self._ending(unit, run)
        return self.verdict(unit, run, outcomes)

    def verdict(self, unit: Unit, run: Run, outcomes: list[Outcome]) -> tuple[int, list[Failure]] | None:
        """As `judge`, for outcomes that are there already."""
        failures = self.made(unit, run.init, outcomes[0])
        if failures or len(outcomes) == 1:
            return (0, failures) if failures else None
        before = outcomes[0].view
        for i, ((name, args), seen) in enumerate(zip(run.calls, outcomes[1:], strict=True), 1):
            operation = unit.operations[name]
            if self.oracle.admits(unit, operation, before, args) != "ok":
                return i, []
            if failures := self.oracle.check(unit, operation, args, before, seen):
                return i, failures
            before = seen.view
        return None

    def made(self, unit: Unit, init: tuple[Any, ...], seen: Outcome) -> list[Failure]:
        """What is wrong with a fresh instance."""
        if unit.init is not None:
            return self.oracle.check(unit, unit.init, init, None, seen)
        if seen.fault:
            return [Failure("returns", seen.fault, unit.line)]
        return self.oracle.invariants(unit, "loading", seen) if unit.view else []

    def _ending(self, unit: Unit, run: Run) -> tuple[int, list[Failure]] | None:
        """Find by single calls which one ended the session."""
        self.stubs.begin(run.seed)
        line = unit.init.line if unit.init else unit.line
        at = 0
        try:
            session = self.open()
            session.fresh(unit.name, run.init)
            for name, args in run.calls:
                at += 1
                line = unit.operations[name].line
                session.call(name, args)
        except SessionEnded as ended:
            self.drop()
            return at, [Failure("ends", str(ended), line)]
        return None


__all__ = ["FULL", "QUICK", "Budget", "Judge", "Search", "SpecFault", "Trial"]
