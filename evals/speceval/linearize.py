"""Whether a concurrent run has a sequential explanation: the search of Wing and Gong (1993) and Lowe (2017).

The *clauses* are the oracle. Sought is an order of the calls in which no call comes before one that had ended when it
began, and along which every call's `when`, `requires`, `raises`, `ensures` and frame hold for the results seen in the
run, from the state before to the view seen at the end. States between are proposed by running a module one call after
another in that very order (the candidate itself, and the phase-1 module where there is one); a proposal proves nothing,
the clauses decide. Operations that the protocol does not call `atomic` may give any result: those that change nothing
are left out, the others only take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pibroch.evals.speceval.session import Outcome, Session
from pibroch.evals.speceval.thread_runs import Call, Invocation, RunLog, Scenario
from pibroch.specs.evaluate import ClauseError, explain, holds
from pibroch.specs.model import Clause, Operation, Spec, Unit

View = dict[str, Any] | None
Extra = Mapping[str, Callable[..., Any]] | None


class Sequential:
    """One module, its calls made one after another, in any order; each order is run once."""

    def __init__(self, session: Session, scenario: Scenario) -> None:
        self.session, self.scenario = session, scenario
        self.known: dict[str, Outcome] = {}

    def after(self, calls: Sequence[Invocation]) -> Outcome:
        """What the last of these calls gives, made after the scenario's `before`; of none, what these leave."""
        key = repr(list(calls))
        if key not in self.known:
            scenario = self.scenario
            seen = self.session.replay(scenario.unit.name, scenario.init, [*scenario.before, *calls])
            first = 1 + len(scenario.before)
            if len(seen) < first + len(calls):  # the constructor failed
                return seen[-1]
            for i in range(len(calls) + 1):
                self.known[repr(list(calls[:i]))] = seen[first + i - 1]
        return self.known[key]


@dataclass
class Refusal:
    """No order explains the run. `order` is the longest beginning that does, `clause` what fails next, after `call`."""

    order: tuple[Call, ...]
    call: Call | None
    clause: Clause | None
    reason: str
    values: dict[str, str] = field(default_factory=dict)


def conditions(
    spec: Spec, unit: Unit, clauses: Sequence[Clause], view: View, args: Mapping[str, Any], extra: Extra = None
) -> Clause | None:
    """The first of these clauses that is false in a state (for `when` and `requires`); one that raises is false."""
    for clause in clauses:
        try:
            held = holds(spec, clause, unit=unit.name, state=view, old=view, result=None, args=args, extra=extra)
        except ClauseError:
            held = False
        if not held:
            return clause
    return None


def named(operation: Operation, args: Sequence[Any]) -> dict[str, Any]:
    """Arguments by the parameters' names."""
    return {p.name: a for p, a in zip(operation.params, args, strict=False)}


class Linearizer:
    """Judges the runs of one scenario; runs with the same history are judged once."""

    def __init__(self, spec: Spec, scenario: Scenario, proposers: Sequence[Sequential], extra: Extra = None) -> None:
        self.spec, self.scenario, self.proposers, self.extra = spec, scenario, proposers, extra
        self.unit = scenario.unit
        self.atomic = set(spec.front.concurrency.atomic)
        self.judged: dict[str, Refusal | None] = {}

    def refuse(self, log: RunLog) -> Refusal | None:
        """None where the run has an explanation. Calls that did not come back are taken to have done nothing."""
        calls = [c for c in log.calls.values() if c.end is not None and not c.fault and self.takes_part(c.operation)]
        calls.sort(key=lambda c: c.start)
        if not calls and log.view is None:
            return None
        before = {c.key: frozenset(o.key for o in calls if o.end is not None and o.end < c.start) for c in calls}
        history = [(c.key, repr(c.value), str(c.error), repr(c.asked), sorted(before[c.key])) for c in calls]
        key = repr((history, log.view))
        if key not in self.judged:
            self.judged[key] = self.search(calls, before, log.view)
        return self.judged[key]

    def takes_part(self, operation: Operation) -> bool:
        return operation.name in self.atomic or bool(operation.modifies)

    def search(
        self, calls: list[Call], before: Mapping[tuple[int, int], frozenset[tuple[int, int]]], final: View
    ) -> Refusal | None:
        """Try the orders, for each proposer."""
        best: Refusal | None = None
        for proposer in self.proposers:
            refusal = _Search(self, proposer, calls, before, final).run()
            if refusal is None:
                return None
            if best is None or len(refusal.order) > len(best.order):
                best = refusal
        return best

    def alone(self, order: Sequence[Invocation]) -> str | None:
        """What is wrong with these calls made one after another (the last proposer's module); None: nothing."""
        proposer = self.proposers[-1]
        for i, (name, args) in enumerate(order):
            old, seen = proposer.after(order[:i]), proposer.after(order[: i + 1])
            operation = self.unit.operations[name]
            call = Call(0, i, operation, args, 0, 1, seen.value, seen.error, seen.fault, seen.asked)
            failure = self.fails(call, old.view, seen.view)
            if seen.fault or failure:
                return f"{call}: {seen.fault or (failure or (None, ''))[1]}"
        return None

    def fails(self, call: Call, old: View, new: View) -> tuple[Clause | None, str, dict[str, str]] | None:
        """What is wrong with a call of the run between two states; None: nothing."""
        operation, args = call.operation, named(call.operation, call.args)
        asked = _answers(call)

        def value(clause: Clause, state: View) -> bool:
            return holds(self.spec, clause, unit=self.unit.name, state=state, old=old, result=call.value, args=args,
                         relies=asked, extra=self.extra)  # fmt: skip

        def wrong(clause: Clause, reason: str) -> tuple[Clause, str, dict[str, str]]:
            values = explain(self.spec, clause, unit=self.unit.name, state=new, old=old, result=call.value, args=args,
                             relies=asked, extra=self.extra)  # fmt: skip
            return clause, reason, values

        strict = operation.name in self.atomic
        for clause in operation.of("raises") if strict else ():
            try:
                due = value(clause, old)
            except ClauseError as error:
                return wrong(clause, error.reason)
            if due and (call.error is None or call.error.type != clause.exception):
                return wrong(clause, f"it must raise {clause.exception} here")
            if not due and call.error is not None and call.error.type == clause.exception:
                return wrong(clause, f"it raised {clause.exception}, and {clause.text} does not hold")
        if old is not None and new is not None:
            frame = () if call.error is not None and strict else operation.modifies
            changed = [f for f in self.unit.view if f not in frame and old[f] != new[f]]
            if changed:
                shown = {k: v for f in changed for k, v in ((f"old.{f}", repr(old[f])), (f"self.{f}", repr(new[f])))}
                return None, f"{', '.join(changed)} changed, which {operation.name} does not modify", shown
        ensures = operation.of("ensures") if strict and call.error is None else ()
        for clause in (*ensures, *(self.unit.invariants if new is not None else ())):
            try:
                if not value(clause, new):
                    return wrong(clause, f"{clause.text} does not hold")
            except ClauseError as error:
                return wrong(clause, error.reason)
        return None


class _Search:
    """One search, with one proposer."""

    def __init__(
        self, judge: Linearizer, proposer: Sequential, calls: list[Call],
        before: Mapping[tuple[int, int], frozenset[tuple[int, int]]], final: View,
    ) -> None:  # fmt: skip
        self.judge, self.proposer, self.calls, self.before, self.final = judge, proposer, calls, before, final
        self.dead: set[tuple[frozenset[tuple[int, int]], str]] = set()
        self.best: Refusal | None = None

    def run(self) -> Refusal | None:
        start = self.proposer.after(()).view
        if not self.calls:
            if start == self.final:
                return None
            changed = [f for f, v in (self.final or {}).items() if (start or {}).get(f) != v]
            what = f"the state changed ({', '.join(changed)}), and no call that ended changes it"
            return Refusal((), None, None, what)
        return None if self.extend((), start) else self.best

    def extend(self, order: tuple[Call, ...], view: View) -> bool:
        done = frozenset(c.key for c in order)
        state = (done, repr(view))
        if state in self.dead:
            return False
        for call in self.calls:
            if call.key not in done and self.before[call.key] <= done and self.step(order, view, call):
                return True
        self.dead.add(state)
        return False

    def step(self, order: tuple[Call, ...], view: View, call: Call) -> bool:
        judge, operation = self.judge, call.operation
        args = named(operation, call.args)
        closed = [c for c in operation.clauses if c.kind in ("when", "requires")]
        false = conditions(judge.spec, judge.unit, closed, view, args, judge.extra)
        if false is not None:
            self.note(order, call, false, f"{false.text} does not hold before it", {})
            return False
        last = len(order) + 1 == len(self.calls)
        if last and self.final is not None:
            new: View = self.final
        else:
            proposed = self.proposer.after([(c.operation.name, c.args) for c in (*order, call)])
            new = proposed.view
            if proposed.fault or (new is None and judge.unit.view):
                self.note(order, call, None, f"the calls made one by one fail: {proposed.fault or proposed.error}", {})
                return False
        failure = judge.fails(call, view, new)
        if failure is not None:
            self.note(order, call, *failure)
            return False
        return last or self.extend((*order, call), new)

    def note(
        self, order: tuple[Call, ...], call: Call, clause: Clause | None, reason: str, values: dict[str, str]
    ) -> None:
        """Keep the longest beginning; of equally long ones the first that fails by more than a guard."""
        guard = clause is not None and clause.kind in ("when", "requires")
        if self.best is None or len(order) > len(self.best.order) or (
            len(order) == len(self.best.order) and not guard and self.best.clause is not None
            and self.best.clause.kind in ("when", "requires")
        ):  # fmt: skip
            self.best = Refusal(order, call, clause, reason, values)


def _answers(call: Call) -> Callable[[str, tuple[Any, ...]], Any]:
    def answer(name: str, args: tuple[Any, ...]) -> Any:
        for asked, given, value in reversed(call.asked):
            if asked == name and tuple(given) == tuple(args):
                return value
        raise LookupError(name)

    return answer
