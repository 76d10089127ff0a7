"""How much of a module's behaviour its clauses pin: every small change of the code must break one.

A mutant is judged by the runs that passed on the original and that reach the changed line, then by a search of its
own and, in phase 2, by the concurrency stage. Only clauses kill (with frame, raises, returns, alias, ends and the
protocol): what does not load or breaks a rule of the language is left out of the count, and so is an *equivalent*
mutant, one that gives exactly the original's results and views in every run over a widened test domain, exhaustively
where that is finite. At most 3% may be waived by hand (`specs/waivers.toml`); they stay in the count as survivors.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pibroch.evals.speceval import rules
from pibroch.evals.speceval.calls import Run, operations_of, unit_of
from pibroch.evals.speceval.contract import different, shown
from pibroch.evals.speceval.domains import OPTIONS, every
from pibroch.evals.speceval.mutants import Mutant, mutants
from pibroch.evals.speceval.search import QUICK, Budget, Search, SpecFault, Trial
from pibroch.evals.speceval.session import LoadFailed, Outcome, SessionEnded
from pibroch.evals.speceval.shrink import shrink
from pibroch.evals.speceval.walker import Walker
from pibroch.specs.errors import SpecError
from pibroch.specs.evaluate import ClauseError
from pibroch.specs.model import Spec

NEEDED, WAIVED = 0.95, 0.03
Fate = Literal["killed", "survived", "equivalent", "left out", "waived"]
_CORPUS = Budget(small=1_500, random=700, beyond=400, long=150)
_WIDE = Budget(small=3_000, random=1_200, beyond=300, long=100)
_SCRIBBLED = 40  # runs of the corpus made again, per mutant, with everything mutable overwritten after each call
_MORE = 12  # runs after the first kill, to see which other clauses would have killed too
_CPU_S = 0.6  # of the child's own time per request: a loop without end costs no more
_SEQUENCES = 4_000


@dataclass
class Judged:
    """A mutant's fate; `clauses` are those that it broke, `run` where (or, for a survivor, where it differs)."""

    mutant: Mutant
    fate: Fate
    clauses: frozenset[str] = frozenset()
    run: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


@dataclass
class Mutation:
    """The result for one module."""

    module: str
    judged: list[Judged]
    seconds: float = 0.0
    clauses: tuple[str, ...] = ()

    def of(self, fate: Fate) -> list[Judged]:
        """The mutants of one fate."""
        return [j for j in self.judged if j.fate == fate]

    @property
    def counted(self) -> int:
        """Mutants in the denominator: killed, survived and waived."""
        return sum(j.fate in ("killed", "survived", "waived") for j in self.judged)

    @property
    def score(self) -> float:
        """Killed, of those counted."""
        return len(self.of("killed")) / self.counted if self.counted else 1.0

    @property
    def passed(self) -> bool:
        """At least 95% killed, at most 3% waived."""
        return self.score >= NEEDED and len(self.of("waived")) <= WAIVED * self.counted

    @property
    def unneeded(self) -> list[str]:
        """Clauses without which every killed mutant would be killed all the same."""
        alone = {next(iter(j.clauses)) for j in self.judged if j.fate == "killed" and len(j.clauses) == 1}
        return [name for name in self.clauses if name not in alone]


def mutate(
    source: str, spec: Spec, *, phase: int, peers: Mapping[str, Spec], waivers: Sequence[Mapping[str, str]] = (),
    runs: int = 300,
) -> Mutation:  # fmt: skip
    """Judge every mutant of a module that itself passes. `runs` bounds the schedules that the concurrency stage
    explores per surviving mutant. Raises `SpecError` where the original does not pass the search itself."""
    started = time.monotonic()
    judge = _Judge(source, spec, phase, peers, runs)
    judged = [judge.judge(mutant) for mutant in mutants(source)]
    names = tuple(name for name, clause in spec.clauses.items() if clause.kind in ("ensures", "invariant", "raises"))
    result = Mutation(spec.module, [_waived(j, spec.module, waivers) for j in judged], clauses=names)
    result.seconds = time.monotonic() - started
    return result


def read_waivers(path: Path) -> list[dict[str, str]]:
    """The `[[waive]]` tables of a file: module, before, after, reason. Raises `SpecError`."""
    if not path.is_file():
        return []
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("waive", [])
    except tomllib.TOMLDecodeError as error:
        raise SpecError(path, 0, f"no TOML: {error}") from error
    for row in rows:
        texts = all(isinstance(value, str) and value for value in row.values())
        if set(row) != {"module", "before", "after", "reason"} or not texts:
            raise SpecError(path, 0, "a [[waive]] has module, before, after (the statement and its mutant) and reason")
    return list(rows)


def _waived(judged: Judged, module: str, waivers: Sequence[Mapping[str, str]]) -> Judged:
    for row in waivers:
        same = (row["before"], row["after"]) == (judged.mutant.before, judged.mutant.after)
        if judged.fate == "survived" and same and row["module"] == module:
            return replace(judged, fate="waived", reason=row["reason"])
    return judged


class _All:
    """Holds every name: no failure of a mutant needs its values."""

    def __contains__(self, name: object) -> bool:
        return True


class _Search(Search):
    def __init__(self, source: str, spec: Spec, phase: int) -> None:
        super().__init__(source, spec, phase=phase, budget=QUICK, stop_at=1)
        self.oracle.told = _All()
        self.options = {"cpu_s": _CPU_S}

class _Judge:
    def __init__(self, source: str, spec: Spec, phase: int, peers: Mapping[str, Spec], runs: int) -> None:
        self.source, self.spec, self.phase, self.peers, self.runs = source, spec, phase, peers, runs
        self.threads = phase == 2 and spec.front.concurrency.model == "threads"
        self.allowed = {f.clause for f in rules.judge(source, spec, phase).findings}
        self.trials, self.reach = self._corpus(spec, _CORPUS)
        self.wide: tuple[list[Trial], list[frozenset[int]]] | None = None

    def judge(self, mutant: Mutant) -> Judged:
        """One mutant's fate."""
        broken = [f for f in rules.judge(mutant.source, self.spec, self.phase).findings if f.clause not in self.allowed]
        if broken:
            return Judged(mutant, "left out", reason=f"breaks the rule {broken[0].clause}")
        search = _Search(mutant.source, self.spec, self.phase)
        try:
            return self._sequential(mutant, search) or self._survivor(mutant, search)
        except LoadFailed as failed:
            return Judged(mutant, "left out", reason=f"does not load: {failed.error}")
        except SpecFault as fault:
            return Judged(mutant, "left out", reason=str(fault))
        finally:
            search.drop()

    def _sequential(self, mutant: Mutant, search: _Search) -> Judged | None:
        """Killed by one thread's calls, if so."""
        broken, seen, _ = self._compared(mutant, search, self.trials, self.reach)
        if not broken:
            broken, seen = self._scribbled(mutant, search)
        if not broken:
            search.search()
            for name, (run, _) in search.faults.items():
                broken, seen = {name}, run.written(self.spec)
        return Judged(mutant, "killed", frozenset(broken), seen) if broken else None

    def _compared(
        self, mutant: Mutant, search: _Search, trials: list[Trial], reach: list[frozenset[int]]
    ) -> tuple[set[str], tuple[str, ...], Judged | None]:  # fmt: skip
        """Runs that reach the change: what the clauses say where they go otherwise than on the original; and, if they
        say nothing, the first such run as a survivor."""
        broken: set[str] = set()
        seen: tuple[str, ...] = ()
        survivor: Judged | None = None
        left = _MORE
        for trial, lines in zip(trials, reach, strict=True):
            if mutant.function and mutant.line not in lines:
                continue
            try:
                outcomes = search.replay(trial.run)
            except SessionEnded:
                search.drop()
                return broken | {"ends"}, seen or trial.run.written(self.spec), None
            pairs = enumerate(zip(trial.outcomes, outcomes, strict=False))
            at = next((i for i, (was, now) in pairs if different(was, now)), None)
            if at is None:
                continue  # what the original did met the clauses, so this does too
            alone = not unit_of(self.spec, trial.run.unit).view
            run = replace(trial.run, calls=trial.run.calls[max(at - 1, 0) if alone else 0 : at])
            survivor = survivor or Judged(mutant, "survived", frozenset(), run.written(self.spec),
                                          shown(trial.outcomes[at], outcomes[at], "original", "mutant"))  # fmt: skip
            found = self._verdict(search, trial.run, outcomes)
            if found and not broken:
                seen = run.written(self.spec)
            broken |= found
            left -= bool(broken)
            if left <= 0:
                break
        return broken, seen, survivor

    def _verdict(self, search: _Search, run: Run, outcomes: list[Outcome]) -> set[str]:
        """The clauses that a run breaks, at its first call that breaks any."""
        try:
            found = search.verdict(unit_of(self.spec, run.unit), run, outcomes)
        except ClauseError:
            return set()
        return {f.clause for f in found[1]} if found else set()

    def _scribbled(self, mutant: Mutant, search: _Search) -> tuple[set[str], tuple[str, ...]]:
        """`alias`, where a run goes otherwise once the caller overwrites what it handed over and received."""
        for trial in self._reaching(mutant)[:_SCRIBBLED]:
            try:
                plain, scribbled = search.replay(trial.run), search.replay(trial.run, scribble=True)
            except SessionEnded:
                search.drop()
                return {"ends"}, trial.run.written(self.spec)
            if any(different(a, b) for a, b in zip(plain, scribbled, strict=False)):
                return {"alias"}, trial.run.written(self.spec)
        return set(), ()

    def _survivor(self, mutant: Mutant, search: _Search) -> Judged:
        """What clauses and calls did not kill: killed by interleavings, equivalent, or a survivor."""
        if self.threads:
            from pibroch.evals.speceval import concurrency

            report = concurrency.judge(mutant.source, self.spec, peers=self.peers, runs=self.runs)
            if report.findings:
                first = report.findings[0]
                return Judged(mutant, "killed", frozenset(f.clause for f in report.findings), first.calls)
        if self.wide is None:
            self.wide = self._corpus(widened(self.spec), _WIDE)
        for trials, reach in ((self.trials, self.reach), self.wide):
            broken, seen, survivor = self._compared(mutant, search, trials, reach)
            if broken:
                return Judged(mutant, "killed", frozenset(broken), seen)
            if survivor is not None:
                return survivor
        if self.threads and _synchronizes(mutant):
            reason = "the same for one thread, and no interleaving that was explored shows it"
            return Judged(mutant, "survived", reason=reason)
        return Judged(mutant, "equivalent", reason="the same in every run over a widened test domain")

    def _reaching(self, mutant: Mutant) -> list[Trial]:
        pairs = zip(self.trials, self.reach, strict=True)
        return [t for t, lines in pairs if not mutant.function or mutant.line in lines]

    def _corpus(self, spec: Spec, budget: Budget) -> tuple[list[Trial], list[frozenset[int]]]:
        """Runs that pass on the original, short ones first, and the lines that each reaches."""
        search = Search(self.source, spec, phase=self.phase, budget=budget)
        try:
            search.search()
            if budget is _WIDE:
                for unit in spec.units:
                    if unit.is_class or operations_of(spec, unit, self.phase):
                        _sequences(Walker(search, unit))
            if search.faults and budget is not _WIDE:
                run, failure = shrink(search, *next(iter(search.faults.values())))
                calls = ", ".join(run.written(spec))
                raise SpecError(spec.path, failure.line, f"the module itself breaks {failure.clause} ({calls}): "
                                                         f"{failure.message}")  # fmt: skip
            search.close()
            trials = sorted(search.trials, key=lambda t: len(t.run.calls))
            search.options = {"watch": "lines"}
            reach: list[frozenset[int]] = []
            for trial in trials:
                reach.append(frozenset[int]().union(*(o.lines for o in search.replay(trial.run))))
            return self._spread(trials, reach)
        except SpecFault as fault:
            raise SpecError(spec.path, fault.failure.line, fault.failure.message) from fault
        finally:
            search.drop()

    def _spread(self, trials: list[Trial], reach: list[frozenset[int]]) -> tuple[list[Trial], list[frozenset[int]]]:
        """The same runs so that neighbours differ: a mutant mostly falls to one of the first few."""
        count = max(len(trials), 1)
        order = sorted(range(len(trials)), key=lambda i: (len(trials[i].run.calls) > 60, i * 7919 % count))
        return [trials[i] for i in order], [reach[i] for i in order]


def _sequences(walker: Walker) -> None:
    """Every call of a stateless function, and every sequence of up to three calls, as far as their number allows."""
    search, unit = walker.search, walker.unit

    def make(picker: Any) -> None:
        init = walker.init.draw(picker, None) if walker.init else ()
        if not walker.begin(init):
            return
        for _ in range(3 if unit.view else 1):
            names = list(walker.operations)
            if not names:
                break
            name = names[picker(0, len(names) - 1)]
            args = walker.drawers[name].draw(picker, walker.view)
            if walker.admits(walker.operations[name], args, walker.view) != "ok" or not walker.call(name, args):
                break
        walker.end()

    for _ in every(make, _SEQUENCES):
        if search.failed > 50:
            return


_RANGE = re.compile(r"(-?\d+)\s*\.\.\s*(-?\d+)")


def widened(spec: Spec) -> Spec:
    """The same spec with a larger test domain: ranges by two on both ends, lists by one, two calls more.

    `requires` still turns down what no caller may do.
    """

    def wide(raw: Any) -> Any:
        if isinstance(raw, str) and (match := _RANGE.fullmatch(raw.strip())):
            return f"{int(match[1]) - 2}..{int(match[2]) + 2}"
        if isinstance(raw, dict) and "draw" not in raw:
            inner = {k: [wide(v) for v in raw[k]] if isinstance(raw[k], list) else wide(raw[k]) for k in raw}
            return inner | ({"max": raw.get("max", 6) + 1} if "tuple" not in raw else {})
        return raw

    scope = {k: v if k in OPTIONS else wide(v) for k, v in spec.front.scope.items()}
    scope["calls"] = scope.get("calls", 8) + 2
    return replace(spec, front=spec.front.model_copy(update={"scope": scope}))


def _synchronizes(mutant: Mutant) -> bool:
    text = f"{mutant.before} {mutant.after}"
    return mutant.locks or any(word in text for word in ("notify", "wait", "acquire", "release", "with "))
