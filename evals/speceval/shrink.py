"""The shortest run that still breaks the same clause: fewer calls first, then smaller arguments. Deterministic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pibroch.evals.speceval.calls import Drawer, Run, leaves, put, unit_of
from pibroch.evals.speceval.oracle import Failure
from pibroch.evals.speceval.search import Search
from pibroch.specs.evaluate import ClauseError

_TRIES = {"ends": 4}
_USUAL = 160
_CALLS = 10_000  # made in all tries together


def shrink(search: Search, run: Run, failure: Failure) -> tuple[Run, Failure]:
    """A run as short as can be found in a bounded number of tries, and what it shows."""
    return _Shrinker(search, run, failure).result()


class _Shrinker:
    def __init__(self, search: Search, run: Run, failure: Failure) -> None:
        self.search, self.run, self.failure = search, run, failure
        self.judge = search.judges.get(failure.clause, search.judge)
        self.left = _TRIES.get(failure.clause, _USUAL)
        self.calls = _CALLS
        unit = unit_of(search.spec, run.unit)
        self.drawers = {n: Drawer(search.spec, unit, o, search.extra) for n, o in unit.operations.items()}
        self.alone = not unit.view

    def result(self) -> tuple[Run, Failure]:
        oracle = self.search.oracle
        oracle.told = {self.failure.clause}
        found = self.shorten()
        oracle.told, self.left, self.calls = (), 1, _CALLS
        return (self.run, self.failure) if self.attempt(self.run) else found

    def shorten(self) -> tuple[Run, Failure]:
        if not self.attempt(self.run):
            return self.run, self.failure  # not to be seen again: told as it was
        if self.alone and len(self.run.calls) > 1:
            self.attempt(replace(self.run, calls=self.run.calls[-1:]))
        size = len(self.run.calls) // 2
        while size >= 1:
            self.remove(size)
            size //= 2
        self.remove(1)
        changed = True
        while changed and self.left > 0:
            changed = any(self.attempt(run) for run in self.smaller())
        return self.run, self.failure

    def attempt(self, run: Run) -> bool:
        """Whether this run breaks the same clause too; it is then the new one, cut behind the call that does."""
        self.calls -= len(run.calls)
        if self.left <= 0 or self.calls < 0:
            return False
        self.left -= 1
        try:
            found = self.judge(run)
        except ClauseError:
            return False
        for failure in found[1] if found else ():
            if found is not None and failure.clause == self.failure.clause:
                self.run, self.failure = replace(run, calls=run.calls[: found[0]]), failure
                return True
        return False

    def remove(self, size: int) -> None:
        """Leave out groups of calls, the later ones first; the last call is the one that fails."""
        at = len(self.run.calls) - 1 - size
        while at >= 0 and self.left > 0:
            calls = self.run.calls
            if at + size < len(calls):
                self.attempt(replace(self.run, calls=calls[:at] + calls[at + size :]))
            at -= size

    def smaller(self) -> Iterator[Run]:
        """Runs with one argument made simpler."""
        run = self.run
        for args in self.simpler("__init__", run.init):
            yield replace(run, init=args)
        for i, (name, args) in enumerate(run.calls):
            for other in self.simpler(name, args):
                yield replace(run, calls=(*run.calls[:i], (name, other), *run.calls[i + 1 :]))

    def simpler(self, name: str, args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        drawer = self.drawers.get(name)
        within = drawer is not None and drawer.contains(args)
        for other in _simpler(args):
            if len(other) == len(args) and drawer is not None and (not within or drawer.contains(other)):
                yield other


def _simpler(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for path, value in _sequences(args):
        for i in range(len(value)):
            yield put(args, path, value[:i] + value[i + 1 :])
    for path, leaf in leaves(args):
        if type(leaf) is int:
            options = [0, 1, leaf // 2, leaf - 1 if leaf > 0 else leaf + 1]
            for option in dict.fromkeys(o for o in options if (abs(o), o < 0) < (abs(leaf), leaf < 0)):
                yield put(args, path, option)


def _sequences(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    if isinstance(value, list):
        yield path, value
    if isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _sequences(item, (*path, i))
