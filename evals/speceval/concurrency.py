"""The concurrency stage: a module's calls in many interleavings, judged by the spec's protocol and clauses.

Each scenario is explored depth first up to two preemptions. Where every shared field has a lock that all its users
hold, threads are switched at locks and calls only, and then with one preemption at any opcode that touches shared data,
since a field's content may be used without the field; else at such opcodes from the start. What is left of the budget
goes to random schedules. A refutation counts only if the same schedule shows it again in a fresh process.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pibroch.evals.speceval import library
from pibroch.evals.speceval.explore import BOUND, Frontier, random_plans
from pibroch.evals.speceval.linearize import Extra, Linearizer, Refusal, Sequential
from pibroch.evals.speceval.protocol import Protocol
from pibroch.evals.speceval.scenarios import THREADS, broken_requires, generated_scenarios, own_scenarios
from pibroch.evals.speceval.session import Session, SessionEnded
from pibroch.evals.speceval.shared import shared_names
from pibroch.evals.speceval.story import interleaving
from pibroch.evals.speceval.stubs import Stubs
from pibroch.evals.speceval.thread_runs import Mode, Plan, RunLog, Runner, Scenario
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.specs.errors import SpecError
from pibroch.specs.explain import show
from pibroch.specs.model import Spec

BATCH, GENERATED, SHOWN = 16, 4, 4
UNCONFIRMED = 8  # refutations that did not show again, until the code is taken not to depend on its calls alone
_RESULTS = ("atomic", "raises", "returns")  # findings about what calls gave: told with the lines of the switches
_RANDOM = 32  # random schedules of a scenario whose exploration within the bound has ended


def judge(
    source: str, spec: Spec, *, peers: Mapping[str, Spec], runs: int = 1000, sequential: str | None = None
) -> StageReport:
    """Explore at most `runs` schedules of `source`. `sequential` is the phase-1 module: it proposes witnesses too.

    Raises `SpecError` where a scenario of the spec is none, or breaks a `requires` itself.
    """
    report, started = StageReport("concurrency"), time.monotonic()
    if spec.front.concurrency.model == "threads":
        stage = _Stage(source, spec, runs, sequential)
        try:
            with ExitStack() as stack:
                report.findings = stage.explore(stack)
        except _Ended as error:
            report.findings = [Finding("concurrency", "ends", str(error), error.scenario.line, error.scenario.texts())]
        except SessionEnded as error:
            report.findings = [Finding("concurrency", "ends", str(error))]
        report.evidence, report.verdicts = stage.evidence(), stage.verdicts(report.findings)
    report.seconds = time.monotonic() - started
    return report


class _Ended(SessionEnded):
    """The process ended twice under the same schedule."""

    def __init__(self, scenario: Scenario, message: str) -> None:
        self.scenario = scenario
        super().__init__(message)


@dataclass(frozen=True)
class _Shown:
    """A run that showed something: how to have it again."""

    explorer: _Explorer
    plan: Plan
    mode: Mode


class _Stage:
    """One judgement."""

    stack: ExitStack
    sessions: list[Session]  # without threads: the candidate's, and the phase-1 module's
    threaded: Session

    def __init__(self, source: str, spec: Spec, runs: int, sequential: str | None) -> None:
        self.source, self.spec, self.budget, self.sequential = source, spec, runs, sequential
        self.extra: Extra = library.functions(tuple(spec.front.library))
        self.tree = ast.parse(source)
        self.fields, self.variables = shared_names(self.tree, spec)
        self.protocol = Protocol(spec, self.tree, self.extra)
        self.stubs, self.answers = Stubs(spec, self.extra), dict[str, Any]()
        self.explorers: list[_Explorer] = []
        self.history: list[_Shown] = []
        self.unconfirmed = self.first = 0

    def answer(self, name: str, args: list[Any]) -> Any:
        """A rely's answer: the same for the same question, so that every order of calls gets the same."""
        question = f"{name} {show(args, 1000)}"
        if question not in self.answers:
            self.answers[question] = self.stubs.answer(name, args, question)
        return self.answers[question]

    def explore(self, stack: ExitStack) -> list[Finding]:
        """All scenarios in turn, a batch of schedules each time, until something is refuted or the budget is spent."""
        self.stack, self.sessions = stack, [stack.enter_context(Session(self.source, self.spec, relies=self.answer))]
        if self.sequential is not None:
            self.sessions.append(stack.enter_context(Session(self.sequential, self.spec, relies=self.answer)))
        self.threaded = stack.enter_context(self.fresh())
        own = own_scenarios(self.spec)
        for scenario in own:
            if found := self.unfit(scenario):
                return [found]
        more = generated_scenarios(self.spec, own, lambda s: Sequential(self.sessions[-1], s), self.extra)
        self.add(own)
        self.add(islice(more, GENERATED))
        self.first = len(self.explorers)
        left = self.budget
        while left > 0:
            going = [e for e in self.explorers if not e.ended]
            if not going and not self.add(islice(more, GENERATED)):
                break
            for explorer in going:
                mode, plans = explorer.next(min(BATCH, left))
                left -= len(plans)
                for log in self.execute(explorer, plans, mode):
                    if found_here := self.look(explorer, log, mode):
                        return found_here
        return []

    def fresh(self) -> Session:
        """Another process with threads."""
        return Session(self.source, self.spec, relies=self.answer, threads=THREADS)

    def unfit(self, scenario: Scenario) -> Finding | None:
        """Why a scenario of the spec cannot be used. Raises `SpecError` where that is the spec's fault."""
        start = Sequential(self.sessions[0], scenario).after(())
        if start.fault or start.error:
            message = f"{scenario.name}: before the threads: {start.fault or start.error}"
            return Finding("concurrency", "returns", message, scenario.line, scenario.texts())
        sequential = Sequential(self.sessions[-1], scenario)
        broken = broken_requires(self.spec, scenario, sequential, self.extra)
        if broken is None:
            return None
        wrong = Linearizer(self.spec, scenario, [sequential], self.extra).alone(broken[1])
        if wrong is None:
            raise SpecError(self.spec.path, scenario.line, f"scope: scenarios: {broken[0]}")
        message = f"{scenario.name}: the calls made one after another fail already: {wrong}"
        return Finding("concurrency", "atomic", message, scenario.line, scenario.texts())

    def add(self, scenarios: Iterable[Scenario]) -> int:
        """Explore these too; how many there were."""
        before = len(self.explorers)
        for scenario in scenarios:
            proposers = [Sequential(session, scenario) for session in self.sessions]
            linearizer = Linearizer(self.spec, scenario, proposers, self.extra)
            self.explorers.append(_Explorer(Runner(self.threaded, scenario, self.fields, self.variables), linearizer))
        return len(self.explorers) - before

    def execute(self, explorer: _Explorer, plans: Sequence[Plan], mode: Mode) -> list[RunLog]:
        """Run these; where the process does not survive it, once more, each in a fresh process."""
        if not plans:
            return []
        try:
            return explorer.runner.execute(plans, mode)
        except SessionEnded:
            logs: list[RunLog] = []
            for plan in plans:
                self.threaded = self.stack.enter_context(self.fresh())
                for each in self.explorers:
                    each.runner.session = self.threaded
                try:
                    logs += explorer.runner.execute([plan], mode)
                except SessionEnded as error:
                    scenario = explorer.runner.scenario
                    raise _Ended(scenario, f"{scenario.name}: {error}") from error
            return logs

    def look(self, explorer: _Explorer, log: RunLog, mode: Mode) -> list[Finding]:
        """Take note of one run; what is wrong with it, if it shows again."""
        self.protocol.number = len(self.history)
        self.history.append(_Shown(explorer, log.plan, mode))
        found, race = check(self.protocol, explorer, log)
        explorer.add(log, mode, race)
        if not found:
            return []
        if again := self.confirm(found):
            return again
        if self.unconfirmed < UNCONFIRMED:
            return []
        message = "the same calls under the same schedule end differently in a fresh process"
        return [replace(found[0], clause="schedule", message=f"{message}: {found[0].message}")]

    def confirm(self, found: list[Finding]) -> list[Finding]:
        """Run it again, with every line, in a fresh process; what shows again, with the interleaving."""
        needed = [self.history[-1]]
        if any(f.clause == "lock_order" for f in found):
            needed = [self.history[e.run] for e in self.protocol.circle] + needed
        fresh = Protocol(self.spec, self.tree, self.extra)
        again: list[Finding] = []
        with self.fresh() as session:
            for shown in needed:
                explorer = shown.explorer
                runner = Runner(session, explorer.runner.scenario, self.fields, self.variables)
                log = runner.execute([shown.plan], shown.mode, detail=True)[0]
                again, _ = check(fresh, explorer, log)
        clauses = {f.clause for f in found}
        kept = [f for f in again if f.clause in clauses][:SHOWN]
        if not kept:
            self.unconfirmed += 1
            return []
        scenario = needed[-1].explorer.runner.scenario
        story, marks = interleaving(scenario, log)
        calls = scenario.texts()
        told = []
        for f in kept:
            lines = (*f.code_lines, *marks) if f.clause in _RESULTS else f.code_lines
            values = {**f.values, "interleaving": story}
            told.append(replace(f, calls=calls, values=values, code_lines=tuple(dict.fromkeys(lines))))
        return told

    @property
    def complete(self) -> bool:
        """All schedules within the bound were run; not counting scenarios that were added to use the budget up."""
        return self.first > 0 and all(e.complete for e in self.explorers[: self.first])

    def evidence(self) -> dict[str, Any]:
        """What was explored."""
        return {
            "runs": sum(e.runs for e in self.explorers),
            "scenarios": len(self.explorers),
            "histories": sum(len(e.linearizer.judged) for e in self.explorers),
            "preemption_bound": min((e.bound for e in self.explorers[: self.first]), default=0),
            "complete": self.complete,
            "explored": [e.told() for e in self.explorers],
            "unconfirmed": self.unconfirmed,
            "diverged": sum(e.diverged for e in self.explorers),
        }

    def verdicts(self, findings: Sequence[Finding]) -> dict[str, Any]:
        """By entry of the protocol."""
        rules = self.spec.front.concurrency
        there: dict[str, Any] = {
            "lock_order": rules.locks, "locks": rules.locks, "guarded_by": rules.guarded_by, "atomic": rules.atomic,
            "single_writer": rules.single_writer, "no_call_while_holding": rules.no_call_while_holding,
            "ends": rules.roles,
        }  # fmt: skip
        ruling = "held" if self.complete else "not refuted"
        refuted = {f.clause: "refuted" for f in findings}
        return {name: ruling for name, entries in there.items() if entries and not findings} | refuted


class _Explorer:
    """One scenario: which schedules come next, and how far they got."""

    def __init__(self, runner: Runner, linearizer: Linearizer) -> None:
        self.runner, self.linearizer = runner, linearizer
        self.frontiers: dict[Mode, Frontier] = {"sync": Frontier(), "opcodes": Frontier()}
        self.race = False
        self.runs = self.longest = self.random = 0
        self.diverged = 0

    def next(self, count: int) -> tuple[Mode, list[Plan]]:
        """The next schedules, none where all is done."""
        sync, opcodes = self.frontiers["sync"], self.frontiers["opcodes"]
        if self.runs == 0:
            return "sync", sync.take(min(count, 1))  # shows whether there is a race
        if not self.race and sync.level is not None:
            return "sync", sync.take(count)
        if opcodes.level is not None and (self.race or opcodes.level <= 1):
            return "opcodes", opcodes.take(count)
        seed = f"{self.runner.scenario.texts()} {self.random}"
        count = max(0, min(count, _RANDOM - self.random))
        self.random += count
        return "opcodes", random_plans(seed, len(self.runner.scenario.threads), self.longest, count)

    def add(self, log: RunLog, mode: Mode, race: bool) -> None:
        self.runs += 1
        self.race |= race
        self.diverged += log.end == "diverged"
        if mode == "opcodes":
            self.longest = max(self.longest, len(log.choices))
        if not log.plan.priorities:
            self.frontiers[mode].add(log)

    @property
    def complete(self) -> bool:
        """All schedules within the bound were run."""
        return self.runs > 0 and self.frontiers["opcodes" if self.race else "sync"].level is None

    @property
    def ended(self) -> bool:
        """Nothing is left to do."""
        level = self.frontiers["opcodes"].level
        return self.complete and (level is None or level > 1) and self.random >= _RANDOM

    @property
    def bound(self) -> int:
        """Up to how many preemptions every schedule was run; -1: not even all without one."""
        level = self.frontiers["opcodes" if self.race else "sync"].level
        return BOUND if level is None else level - 1

    def told(self) -> str:
        scenario = self.runner.scenario
        where = "opcodes" if self.race else "locks and calls"
        how = f"all with {self.bound} preemptions at {where}" if self.bound >= 0 else "not all without preemption"
        return f"{scenario.name}: {self.runs} runs, {how}"


def check(protocol: Protocol, explorer: _Explorer, log: RunLog) -> tuple[list[Finding], bool]:
    """What is wrong with one run, and whether a field was used without a common lock."""
    scenario, spec = explorer.runner.scenario, protocol.spec
    if log.end == "diverged":
        return [], False
    if log.end == "failed":
        assert log.error is not None
        message = f"{scenario.name}: the constructor or a call before the threads raises {log.error}"
        return [Finding("concurrency", "raises", message, scenario.line, code_lines=(log.error.line,))], False
    found, race = protocol.check(scenario, log)
    for call in log.calls.values():
        allowed = {c.exception for c in call.operation.of("raises")}
        if call.fault:
            found.append(Finding("concurrency", "returns", f"{call}: {call.fault}", call.operation.line))
        elif call.error is not None and call.error.type not in allowed:
            message = f"{call} in line {call.error.line}"
            found.append(Finding("concurrency", "raises", message, call.operation.line, code_lines=(call.error.line,)))
    if log.unseen and log.end == "done" and not found:
        found.append(Finding("concurrency", "returns", f"view() at the end: {log.unseen}", scenario.unit.line))
    if not any(f.clause in ("returns", "raises", "ends", "locks") for f in found):
        refusal = explorer.linearizer.refuse(log)
        if refusal is not None:
            found.append(unexplained(spec, log, refusal))
    return found, race


def unexplained(spec: Spec, log: RunLog, refusal: Refusal) -> Finding:
    """The finding for a run that no order of its calls explains."""
    results = "; ".join(str(c) for c in sorted(log.calls.values(), key=lambda c: c.key))
    order = ", ".join(str(c) for c in refusal.order)
    message = f"no order of the calls explains what they gave: {results}"
    if refusal.call is not None:
        where = f"{refusal.clause.id}, spec line {refusal.clause.line}, fails: " if refusal.clause else ""
        best = f"after {order}" if order else "as the first call"
        message += f". Nearest: {best}, {refusal.call}: {where}{refusal.reason}"
    else:
        message += f". {refusal.reason}"
    values = dict(refusal.values)
    if log.view is not None:
        values["state at the end"] = ", ".join(f"{k}={v!r}" for k, v in log.view.items())
    return Finding("concurrency", "atomic", message, spec.line("concurrency.atomic"), values=values)
