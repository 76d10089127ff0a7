"""Walks over one unit of a candidate: which call comes next, and with which arguments.

Phases, each a number of calls
    small    every operation with every argument of its domain in every state that comes up, least-tried first
    random   drawn runs; here the acceptance of each operation's precondition is measured
    beyond   arguments that `requires` allows outside of the domains: just past their ends, and the code's own literals
    long     one run of 2,000 calls, one with ever new values, so that what is kept grows, and one per operation as long
             as each literal of the code that could be a count
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pibroch.evals.speceval.calls import Call, Drawer, Run, leaves, operations_of, put
from pibroch.evals.speceval.domains import Domain, Ints, Lists, RandomPicker, Tuples, longest
from pibroch.evals.speceval.oracle import Failure, View
from pibroch.evals.speceval.session import Outcome, SessionEnded
from pibroch.specs.evaluate import ClauseError
from pibroch.specs.model import Operation, Unit

if TYPE_CHECKING:
    from pibroch.evals.speceval.search import Search


LONGEST = 5_000  # a literal beyond this is taken for no count of calls
_ALL = 200  # of an operation's arguments that are enumerated in one state
_BEYOND = (7, 16, 33, 100)
_LARGE = (1 << 53) + 1  # no float is equal to it
_LENGTHS = (8, 16, 33)  # of lists longer than the domains make them
_WEIGHT = 400  # characters of a result and a view that count as one more call


class SpecFault(Exception):
    """A clause of the spec raises by itself: no candidate can be judged."""

    def __init__(self, failure: Failure, run: Run) -> None:
        self.failure, self.run = failure, run
        super().__init__(failure.message)


@dataclass
class Trial:
    """A run as it went."""

    run: Run
    outcomes: list[Outcome]
    failures: list[Failure]


class Walker:
    """Runs over one unit."""

    def __init__(self, search: Search, unit: Unit) -> None:
        self.search, self.unit, self.spec = search, unit, search.spec
        self.operations = operations_of(search.spec, unit, search.phase)
        self.drawers = {n: Drawer(search.spec, unit, o, search.extra) for n, o in self.operations.items()}
        self.init = Drawer(search.spec, unit, unit.init, search.extra) if unit.init else None
        self.source = random.Random(f"{search.spec.module}.{unit.name}")
        self.picker = RandomPicker(f"{search.spec.module}.{unit.name} drawn")
        self.pending: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
        self.view: View = None
        self.made: tuple[Any, ...] = ()
        self.seed = 0
        self.past: list[Call] = []
        self.outcomes: list[Outcome] = []
        self.turn = 0
        self.spent = 0.0
        self.alive = False
        self.strange = False  # whether values beyond the domains are in play
        self.nth, self.near = 0, frozenset[int]()  # calls of a long run's operation; those that are special
        self.tried: set[tuple[int, str]] = set()
        self.decks: dict[tuple[str, Any], list[int]] = {}
        self.favour: dict[str, int] = {}  # how often an operation is drawn, against the others

    # Phases

    def small(self, calls: int) -> None:
        inits = self._arguments(self.init, None) if self.init else [()]
        self.spent = 0.0
        while self.spent < calls and not self.search.done and inits:
            start = inits[self.turn % len(inits)]
            self.turn += 1
            if self.begin(start):
                for _ in range(longest(self.spec) if self.unit.view else 40):
                    if not self._least_tried():
                        break
                self.end()
            elif self.spent == 0.0 and self.turn > len(inits) + 4:
                return  # no instance can be made

    def draws(self, calls: int, *, beyond: bool) -> None:
        self.spent, tries = 0.0, 0
        while self.spent < calls and tries < 4 * calls and not self.search.done:
            tries += 1
            self.strange = False
            init = self._draw_init()
            if init is None:
                continue
            if beyond and self.source.random() < 0.5:
                init = self._beyond(self.init, init)
            self._favour()
            if self.begin(init):
                for _ in range(self.source.randint(1, longest(self.spec)) if self.unit.view else 40):
                    if not self._drawn(beyond=beyond, count=not beyond):
                        break
                self.end()
            if not self.operations and self.init is None:
                return
        self.strange, self.favour = False, {}

    def _favour(self) -> None:
        """Half of the runs make some operations often and others rarely (swarm testing, Groce et al., ISSTA 2012): what
        an operation remembers shows when much happens before it is called again."""
        shares = (1, 4, 16) if self.source.random() < 0.5 else (1,)
        self.favour = {name: self.source.choice(shares) for name in self.operations}

    def long(self, calls: int) -> None:
        if not self.unit.view:
            return  # without a state, no call can know how many came before
        self._long(calls, None)
        if not self.search.done:
            self._long(calls, None, growing=True)
            self.strange = False
        counts = sorted({k for k in self.search.literals.ints if longest(self.spec) < k <= LONGEST}, reverse=True)
        for name in self.operations if counts else ():
            # What happens at one call only is not seen with every argument: other ones there in each run.
            self.near, self.tried = frozenset(k + d for k in counts for d in (-1, 0, 1)), set()
            for _ in range(4):
                if not self.search.done:
                    self._long(counts[0] * 11 // 10 + 5, name)  # of which some 97% are calls of `name`

    def _long(self, calls: int, mostly: str | None, *, growing: bool = False) -> None:
        for _ in range(3):  # a run may come to a state in which nothing is enabled
            self.strange = growing
            init = self._draw_init()
            if init is not None and growing:
                init = _placed_all(init, (self.init.domains if self.init else []), self.source)
            if init is None or not self.begin(init):
                continue
            self.spent, self.nth = 0.0, 0
            while len(self.past) < calls and self.spent < 4 * calls:
                often = mostly if mostly and self.source.random() < 0.97 else None
                if not self._drawn(only=often, growing=growing) and not (self.alive and often and self._drawn()):
                    break
            enough = len(self.past) > calls // 2
            self.end()
            if enough or self.search.done:
                return

    # One run

    def begin(self, init: tuple[Any, ...]) -> bool:
        """Make an instance; False where that is not possible, or wrong."""
        search = self.search
        self.made, self.past, self.outcomes, self.seed, self.alive = init, [], [], search.calls, False
        if self.unit.init is not None and self.admits(self.unit.init, init, None) != "ok":
            self.spent += 0.05
            return False
        self.spent += 0.3
        search.stubs.begin(self.seed)
        try:
            seen = search.open().fresh(self.unit.name, init)
        except SessionEnded as ended:
            self._ended(ended, self.unit.init)
            return False
        self.outcomes = [seen]
        failures = search.made(self.unit, init, seen)
        if failures:
            self._fault(failures)
        self.view, self.alive = seen.view, not failures and seen.error is None
        return self.alive

    def end(self) -> None:
        """Keep a run that went well."""
        if self.alive:
            self.search.trials.append(Trial(self._run(), self.outcomes, []))

    def _run(self) -> Run:
        return Run(self.unit.name, self.made, tuple(self.past), self.seed)

    def _fault(self, failures: list[Failure]) -> None:
        if self.strange:  # beyond the domains a clause may need more than an evaluation may take
            failures = [f for f in failures if "takes too much" not in f.message]
        self.search.fault(self._run(), failures)

    def _ended(self, ended: SessionEnded, operation: Operation | None) -> None:
        self.search.drop()
        if self.strange:  # far beyond the domains, honest work may take too long
            self.search.skipped += 1
            self.spent += 100
            return
        self.search.fault(self._run(), [Failure("ends", str(ended), operation.line if operation else self.unit.line)])

    def admits(self, operation: Operation, args: tuple[Any, ...], view: View) -> str:
        try:
            return self.search.oracle.admits(self.unit, operation, view, args)
        except ClauseError as error:
            self._spec_fault(error, operation, args)
            return "rejected"

    def _spec_fault(self, error: ClauseError, operation: Operation, args: tuple[Any, ...]) -> None:
        """A clause raises by itself: of no use within the domains, and to be expected beyond them."""
        if self.strange:
            return
        assert error.clause is not None
        message = f"{error.clause.id} itself raises at {operation.name}: {error.reason}; the spec is at fault"
        made = operation is self.unit.init
        calls = () if made else (*self.past, (operation.name, args))
        run = Run(self.unit.name, args if made else self.made, calls, self.seed)
        raise SpecFault(Failure(error.clause.id, message, error.clause.line), run) from error

    def call(self, name: str, args: tuple[Any, ...]) -> bool:
        """Make an admitted call and judge it; False ends the run."""
        search, operation = self.search, self.operations[name]
        self.past.append((name, args))
        search.calls += 1
        try:
            seen = search.open().call(name, args)
        except SessionEnded as ended:
            self._ended(ended, operation)
            self.alive = False
            return False
        if self.strange and seen.error is not None and seen.error.type == "MemoryError":
            self.past.pop()
            search.skipped += 1
            self.alive = False
            return False
        self.spent += 1 + len(repr(seen.value)) / _WEIGHT + len(repr(seen.view)) / _WEIGHT
        try:
            failures = search.oracle.check(self.unit, operation, args, self.view, seen)
        except ClauseError as error:
            self.alive = False
            self._spec_fault(error, operation, args)
            return False
        if failures:
            self._fault(failures)
            self.alive = False
            return False
        self.outcomes.append(seen)
        self.view = seen.view
        return True

    # Choosing

    def _arguments(self, drawer: Drawer, view: View) -> list[tuple[Any, ...]]:
        """All arguments in this state, or many where there are too many; shuffled, so that none is always late."""
        limit = _ALL if self.unit.view and drawer is not self.init else 10 * _ALL
        found = list(drawer.all(view, limit))
        if len(found) >= limit * 0.9:
            found = [*found[: limit // 5], *self._some(drawer, view, limit // 2)]
        self.source.shuffle(found)
        return found

    def _some(self, drawer: Drawer, view: View, count: int) -> Iterator[tuple[Any, ...]]:
        for _ in range(count):
            try:
                yield drawer.draw(self.picker, view)
            except IndexError:
                continue

    def _least_tried(self) -> bool:
        key = repr(self.view)
        names = list(self.operations)
        for i in range(len(names)):
            name = names[(self.turn + len(self.past) + i) % len(names)]
            if (key, name) not in self.pending:
                self.pending[key, name] = self._arguments(self.drawers[name], self.view)
            waiting = self.pending[key, name]
            while waiting:
                args = waiting.pop()
                if self.admits(self.operations[name], args, self.view) == "ok":
                    return self.call(name, args)
        return self._drawn()

    def _drawn(
        self, *, beyond: bool = False, count: bool = False, only: str | None = None, growing: bool = False
    ) -> bool:
        names = [only] if only else list(self.operations)
        if not names:
            return False
        for attempt in range(6):
            name = self.source.choices(names, [self.favour.get(n, 1) for n in names])[0]
            drawer, operation = self.drawers[name], self.operations[name]
            try:
                args = drawer.draw(self.picker, self.view)
            except IndexError:
                self.search.empty[name] += count
                continue
            if beyond and self.source.random() < 0.5:
                args = self._beyond(drawer, args)
            if growing and attempt < 3 and self.source.random() < 0.5:
                args = self._new(args)
            here = (self.nth + 1, str(args))
            if only and here in self.tried and attempt < 4:
                continue
            ruling = self._counted(operation, args, self.view, count)
            if ruling == "ok":
                if only:
                    self.nth += 1
                    self.tried.update([here] if here[0] in self.near else [])
                return self.call(name, args)
        self.spent += 0.2
        return False

    def _counted(self, operation: Operation, args: tuple[Any, ...], view: View, count: bool) -> str:
        search, name = self.search, self._name(operation)
        before = search.oracle.refused.copy() if count else search.oracle.refused
        ruling = self.admits(operation, args, view)
        if count:
            search.drawn[name] += 1
            search.accepted[name] += ruling == "ok"
            search.disabled[name] += ruling == "disabled"
            if ruling == "rejected":
                search.refused.setdefault(name, Counter()).update(search.oracle.refused - before)
        return ruling

    def _name(self, operation: Operation) -> str:
        return self.unit.name if operation is self.unit.init else operation.name

    def _draw_init(self) -> tuple[Any, ...] | None:
        if self.init is None:
            return ()
        try:
            args = self.init.draw(self.picker, None)
        except IndexError:
            self.search.empty[self.unit.name] += 1
            self.spent += 0.2
            return None
        if self._counted(self.init.operation, args, None, True) == "ok":
            return args
        self.spent += 0.05
        return None

    def _beyond(self, drawer: Drawer | None, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """One leaf of the arguments replaced by a value that no domain gives."""
        places = list(leaves(args))
        if drawer is None or not places:
            return args
        path, value = self.source.choice(places)
        literals = self.search.literals
        lists = [i for i, a in enumerate(args) if type(a) is list and a]
        if lists and self.source.random() < 0.25:
            self.strange, at = True, self.source.choice(lists)
            length = self.source.choice([*_LENGTHS, *(k for k in literals.ints if 2 < k <= 64)])
            return _placed(args, (at,), (args[at] * length)[:length])
        if isinstance(value, str):
            return _placed(args, path, self.source.choice([*literals.texts, "", value + "x"]))
        ends = _ends(drawer.domains[path[0]])
        past = [*(e + d for e in ends for d in (-1, 1)), *(max(ends, default=0) + b for b in _BEYOND)]
        deck = self.decks.setdefault((drawer.operation.name, path[0]), [])
        if not deck:  # each value has its turn
            deck += self.source.sample(both := [*literals.ints, *past], len(both))
        chosen = deck.pop()
        self.strange = True
        if type(value) is int and drawer is not self.init and self.unit.view:
            if self.source.random() < 0.05:
                chosen = _LARGE
            if self.source.random() < 0.15:  # equal arguments
                for other, leaf in places:
                    args = _placed(args, other, chosen) if type(leaf) is int else args
        return _placed(args, path, float(chosen) if isinstance(value, float) else chosen)

    def _new(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """One int of the arguments replaced by one that has not been there yet."""
        places = [path for path, leaf in leaves(args) if type(leaf) is int]
        if not places:
            return args
        return _placed(args, self.source.choice(places), len(self.past) + 3)


def _placed(args: tuple[Any, ...], path: tuple[Any, ...], leaf: Any) -> tuple[Any, ...]:
    made: tuple[Any, ...] = put(args, path, leaf)
    return made


def _placed_all(args: tuple[Any, ...], domains: Sequence[Domain], source: random.Random) -> tuple[Any, ...]:
    """About half of the ints of a constructor's arguments far beyond their domains."""
    for path, leaf in list(leaves(args)):
        if type(leaf) is int and isinstance(domains[path[0]], Ints) and source.random() < 0.5:
            args = _placed(args, path, max(_ends(domains[path[0]])) + source.choice(_BEYOND[1:]))
    return args


def _ends(domain: Domain) -> list[int]:
    if isinstance(domain, Ints):
        return [domain.low, domain.high]
    if isinstance(domain, Lists):
        return _ends(domain.item)
    if isinstance(domain, Tuples):
        return [e for item in domain.items for e in _ends(item)]
    values = getattr(domain, "values", ())
    return [v for v in values if type(v) is int]
