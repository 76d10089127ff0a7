"""The protocol of a spec, checked against the log of each run.

Lock order (by rank, and as a graph over all runs), guarded_by, single_writer, no_call_while_holding, locks that a call
keeps, deadlocks and lost wake-ups. Whatever is found names the lines of the candidate.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pibroch.evals.speceval.linearize import Extra, conditions, named
from pibroch.evals.speceval.shared import mutation_lines
from pibroch.evals.speceval.thread_runs import Event, RunLog, Scenario, Waiting, show_call
from pibroch.evals.speceval.verdict import Finding
from pibroch.specs.model import Spec


@dataclass(frozen=True, slots=True)
class Edge:
    """A lock was taken while another was held: by which call, in which line, taken in which line, and what else was
    held."""

    who: str
    line: int
    since: int
    others: frozenset[str]
    run: int  # the number of the run that showed it


@dataclass(slots=True)
class Usage:
    """How one field was used by several threads: the locks that were held at every use, and whether it was written."""

    threads: set[int] = field(default_factory=set)
    written: bool = False
    common: frozenset[int] | None = None


class Protocol:
    """Checks runs of one candidate; keeps the lock graph of all runs."""

    def __init__(self, spec: Spec, tree: ast.Module, extra: Extra = None) -> None:
        self.spec, self.extra = spec, extra
        self.rules = spec.front.concurrency
        self.ranks = {lock.name: lock.rank for lock in self.rules.locks}
        self.guards = {
            f"{lock.partition('.')[0]}.{name}": lock for lock, names in self.rules.guarded_by.items() for name in names
        }
        self.edges: dict[tuple[str, str], Edge] = {}
        self.circle: list[Edge] = []  # of the last lock-order circle that was found
        self.number = 0  # of the run that is checked next; its caller counts
        self.mutations = mutation_lines(tree)

    def check(self, scenario: Scenario, log: RunLog) -> tuple[list[Finding], bool]:
        """What is wrong with a run, and whether it used a field without a lock that all its users hold (a race)."""
        walk = _Walk(self, scenario, log)
        walk.run()
        found = walk.found + self.declared(scenario, log) + self.cycle() + stuck(self, scenario, log)
        return found, walk.race()

    def line(self, key: str) -> int:
        return self.spec.line(f"concurrency.{key}")

    def finding(self, clause: str, key: str, message: str, lines: Sequence[int]) -> Finding:
        return Finding("concurrency", clause, message, self.line(key), code_lines=tuple(dict.fromkeys(lines)))

    def declared(self, scenario: Scenario, log: RunLog) -> list[Finding]:
        """Declared locks are there, and of their kind."""
        found = []
        there = {info.name: info for info in log.locks.values()}
        for i, lock in enumerate(self.rules.locks):
            if lock.name.partition(".")[0] != scenario.unit.name or log.end == "failed":
                continue
            info = there.get(lock.name)
            if info is None:
                message = f"{lock.name} is declared, and no attribute of that name holds a lock"
                found.append(self.finding("locks", f"locks.{i}", message, ()))
            elif info.kind != lock.kind:
                message = f"{lock.name} is a {info.kind} (line {info.line}); declared is {lock.kind}"
                found.append(self.finding("locks", f"locks.{i}", message, (info.line,)))
        return found

    def cycle(self) -> list[Finding]:
        """Locks that are taken in a circle: two threads may each have one and wait for the other's."""
        after: dict[str, list[str]] = {}
        for first, second in self.edges:
            after.setdefault(first, []).append(second)

        def walk(path: list[str]) -> list[str] | None:
            for name in after.get(path[-1], []):
                if name in path:
                    return [*path[path.index(name) :], name]
                if found := walk([*path, name]):
                    return found
            return None

        for name in sorted(after):
            circle = walk([name])
            if circle is None:
                continue
            pairs = list(pairwise(circle))
            edges = [self.edges[pair] for pair in pairs]
            if frozenset.intersection(*(e.others for e in edges)):
                continue  # an outer lock, held every time, lets only one thread into the circle
            told = "; ".join(
                f"{e.who} takes {b} in line {e.line} while it holds {a} (line {e.since})"
                for (a, b), e in zip(pairs, edges, strict=True)
            )
            self.circle = edges
            message = f"locks are taken in a circle, {' -> '.join(circle)}: {told}"
            return [self.finding("lock_order", "locks", message, [n for e in edges for n in (e.since, e.line)])]
        return []


class _Walk:
    """One pass over the events of a run."""

    def __init__(self, protocol: Protocol, scenario: Scenario, log: RunLog) -> None:
        self.protocol, self.scenario, self.log = protocol, scenario, log
        self.rules = protocol.rules
        self.found: list[Finding] = []
        self.held: dict[int, dict[int, int]] = {}  # by thread: locks and the lines where they were taken
        self.calls: dict[int, int] = {}
        self.usage: dict[str, Usage] = {}
        self.numbers = {info.name: info.lock for info in log.locks.values()}

    def who(self, thread: int) -> str:
        """`T0 put(1, 5)`."""
        if thread < 0:
            return "view()"
        return f"T{thread} {show_call(self.scenario.threads[thread][self.calls.get(thread, 0)])}"

    def say(self, clause: str, key: str, message: str, *lines: int) -> None:
        if not any(f.clause == clause and f.code_lines == lines for f in self.found):
            self.found.append(self.protocol.finding(clause, key, message, lines))

    def run(self) -> None:
        for event in self.log.events:
            held = self.held.setdefault(event.thread, {})
            if event.kind == "call":
                self.calls[event.thread] = event.what
            elif event.kind == "acquire":
                self.takes(event, held)
            elif event.kind == "release":
                for locks in self.held.values():
                    locks.pop(event.what, None)
            elif event.kind in ("read", "write"):
                self.uses(event, held)
            elif event.kind == "ask":
                self.asks(event, held)
            elif event.kind in ("return", "raise") and held:
                number, line = next(iter(held.items()))
                name = self.log.lock_name(number)
                message = f"{self.who(event.thread)} ended and still holds {name}, taken in line {line}"
                self.say("locks", "locks", message, line)

    def takes(self, event: Event, held: dict[int, int]) -> None:
        name = self.log.lock_name(event.what)
        names = {n: self.log.lock_name(n) for n in held}
        for number, since in held.items():
            other = names[number]
            rank, before = self.protocol.ranks.get(name), self.protocol.ranks.get(other)
            if rank is not None and before is not None and rank <= before:
                message = (f"{self.who(event.thread)} takes {name} (rank {rank}) in line {event.line} while it holds "
                           f"{other} (rank {before}, line {since}): ranks must rise")  # fmt: skip
                self.say("lock_order", "locks", message, since, event.line)
            others = frozenset(names.values()) - {other}
            edge = Edge(self.who(event.thread), event.line, since, others, self.protocol.number)
            known = self.protocol.edges.get((other, name))
            if other != name and (known is None or len(others) < len(known.others)):
                self.protocol.edges[other, name] = edge
        held[event.what] = event.line

    def uses(self, event: Event, held: dict[int, int]) -> None:
        label = str(event.what)
        writes = event.kind == "write" or (event.line, label.rpartition(".")[2]) in self.protocol.mutations
        if event.thread >= 0:
            usage = self.usage.setdefault(label, Usage())
            usage.threads.add(event.thread)
            usage.written |= writes
            usage.common = frozenset(held) if usage.common is None else usage.common & frozenset(held)
        guard = self.protocol.guards.get(label)
        if guard is not None and guard in self.numbers and self.numbers[guard] not in held:
            verb = "writes" if writes else "reads"
            message = f"{self.who(event.thread)} {verb} {label} in line {event.line} without {guard}"
            self.say("guarded_by", f"guarded_by.{guard}", message, event.line)
        role = self.rules.single_writer.get(label)
        if role is not None and writes and event.thread >= 0:
            operation = self.scenario.threads[event.thread][self.calls.get(event.thread, 0)][0]
            if operation not in self.rules.roles[role] or role not in self.scenario.roles[event.thread]:
                message = f"{self.who(event.thread)} writes {label} in line {event.line}; only {role} may"
                self.say("single_writer", f"single_writer.{label}", message, event.line)

    def asks(self, event: Event, held: dict[int, int]) -> None:
        for lock, names in self.rules.no_call_while_holding.items():
            number = self.numbers.get(lock)
            if event.what in names and number in held:
                message = (f"{self.who(event.thread)} calls {event.what} in line {event.line} while it holds {lock}, "
                           f"taken in line {held[number]}")  # fmt: skip
                self.say("no_call_while_holding", f"no_call_while_holding.{lock}", message, held[number], event.line)

    def race(self) -> bool:
        return any(u.written and len(u.threads) > 1 and not u.common for u in self.usage.values())


def stuck(protocol: Protocol, scenario: Scenario, log: RunLog) -> list[Finding]:
    """Deadlocks, lost wake-ups, and runs without end."""
    spec, unit = protocol.spec, scenario.unit
    held = _held_at_end(log)

    def told(w: Waiting) -> str:
        text = f"T{w.thread} {show_call(scenario.threads[w.thread][w.call])} waits in line {w.line}"
        if w.kind == "lock":
            owner = held.get(w.owner, {})
            text += f" for {log.lock_name(w.what)}"
            text += f", which T{w.owner} holds since line {owner.get(w.what, 0)}" if w.owner >= 0 else ""
        else:
            text += f" for {'a notify of ' if w.kind == 'wait' else ''}{log.lock_name(w.what)}"
        mine = [f"{log.lock_name(n)} (line {line})" for n, line in held.get(w.thread, {}).items()]
        return text + (f", and holds {', '.join(mine)}" if mine else "")

    if log.end == "endless":
        last = next((e for e in reversed(log.events) if e.line), None)
        line = last.line if last else 0
        call = next((c for c in log.calls.values() if c.end is None and last and c.thread == last.thread), None)
        who = f"T{call.thread} {show_call((call.operation.name, call.args))}" if call else "a call"
        message = f"{who} does not end: thousands of steps without an end, last in line {line}"
        return [Finding("concurrency", "ends", message, call.operation.line if call else 0, code_lines=(line,))]
    if log.end != "stuck":
        return []
    lines = [line for w in log.waiting for line in (*held.get(w.thread, {}).values(), w.line)]
    story = "; ".join(map(told, log.waiting))
    on_locks = [w for w in log.waiting if w.kind == "lock"]
    if on_locks or (log.unseen and any(held.get(w.thread) for w in log.waiting)):
        operation = unit.operations[scenario.threads[log.waiting[0].thread][log.waiting[0].call][0]]
        return [Finding("concurrency", "ends", f"deadlock: {story}", operation.line, code_lines=_unique(lines))]
    found = []
    for w in log.waiting:
        name, args = scenario.threads[w.thread][w.call]
        operation = unit.operations[name]
        guards = operation.of("when")
        if not guards:
            message = f"{told(w)} for ever; {name} has no `when`, so it may not"
            found.append(Finding("concurrency", "ends", message, operation.line, code_lines=(w.line,)))
            continue
        values = named(operation, args)
        closed = conditions(spec, unit, guards, log.view, values, protocol.extra) if log.view is not None else guards[0]
        if closed is None:
            shown = ", ".join(f"{k}={v!r}" for k, v in (log.view or {}).items())
            message = (f"lost wake-up: {told(w)} for ever, though {guards[0].text} holds in the state at the end "
                       f"({shown}); whoever makes it true must notify all that wait for it")  # fmt: skip
            notifies = [e.line for e in log.events if e.kind == "notify"]
            values_shown = {"notify in lines": ", ".join(map(str, dict.fromkeys(notifies))) or "none"}
            found.append(Finding("concurrency", guards[0].id, message, guards[0].line, values=values_shown,
                                 code_lines=_unique([w.line, *notifies])))  # fmt: skip
    return found


def _held_at_end(log: RunLog) -> dict[int, dict[int, int]]:
    held: dict[int, dict[int, int]] = {}
    for event in log.events:
        if event.kind == "acquire":
            held.setdefault(event.thread, {})[event.what] = event.line
        elif event.kind == "release":
            for locks in held.values():
                locks.pop(event.what, None)
    return held


def _unique(lines: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(n for n in lines if n))
