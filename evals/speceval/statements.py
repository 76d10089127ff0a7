"""Clauses of one or two specs in one place: what is assumed, what is asked, over which values.

A rely is judged over the values of the callee's operation: its parameters, what it returns, and its view before and
after. The same clause can be asked for a case (plain values) or as a formula (z3 terms).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pibroch.evals.speceval.terms import Opaque, Outside, Record, variable
from pibroch.evals.speceval.translate import Formula, translate
from pibroch.runtime.errors import MissingError
from pibroch.specs.evaluate import holds
from pibroch.specs.explain import show
from pibroch.specs.model import Clause, Operation, Spec, Unit


@dataclass(frozen=True, slots=True)
class Case:
    """Plain values of one call. `old` is None before a constructor, both views where the unit has none."""

    args: Mapping[str, Any]
    result: Any = None
    state: Mapping[str, Any] | None = None
    old: Mapping[str, Any] | None = None

    def shown(self, words: set[str]) -> dict[str, str]:
        """The values that clauses with these words speak of."""
        found = {name: show(value) for name, value in self.args.items() if name in words}
        if "result" in words:
            found["result"] = show(self.result)
        for name, view in (("old", self.old), ("self", self.state)):
            for part, value in (view or {}).items():
                if f"{name}.{part}" in words or (name in words and not any(w.startswith(f"{name}.") for w in words)):
                    found[f"{name}.{part}"] = show(value)
        return found


@dataclass(frozen=True, slots=True)
class Statement:
    """A clause of `spec`, said of a call. `early`: an invariant of the view before; `negated`: it must not hold."""

    spec: Spec
    unit: str
    clause: Clause
    early: bool = False
    negated: bool = False

    def holds(self, case: Case) -> bool:
        """Raises `ClauseError` where the clause raises."""
        early = self.early or self.clause.kind in ("requires", "when", "raises")
        state = case.old if early else case.state
        value = holds(
            self.spec, self.clause, unit=self.unit, state=state, old=case.old, result=case.result, args=case.args,
            extra=library(self.spec),
        )  # fmt: skip
        return value is not self.negated

    def formula(self, terms: Mapping[str, Any]) -> Formula | None:
        """None outside the translation's subset."""
        import z3

        names = dict(terms)
        if self.early or self.clause.kind in ("requires", "when", "raises"):
            names["self"] = names.get("old")
        found = translate(self.spec, self.clause.tree, names)
        if found is not None and self.negated:
            return Formula(z3.Not(found.value), found.defined, z3.BoolVal(True), found.facts, found.exact)
        return found

    @property
    def words(self) -> set[str]:
        """Names and `self.field`s of the clause."""
        found: set[str] = set()
        for node in ast.walk(self.clause.tree):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found.add(f"{node.value.id}.{node.attr}")
        return found


@dataclass(frozen=True, slots=True)
class Place:
    """An operation and its unit: the types of the values. A constructor may change all fields, others `modifies`."""

    spec: Spec
    unit: Unit
    operation: Operation
    modifies: frozenset[str] = field(default=frozenset())

    @property
    def first(self) -> bool:
        """A constructor: there is no view before."""
        return self.operation.name == "__init__"

    @property
    def fields(self) -> dict[str, str]:
        """The view's fields and their types."""
        return {name: self.unit.fields[name] for name in self.unit.view}

    def terms(self) -> tuple[dict[str, Any], list[Any]]:
        """A term for every name, and what holds of all of them."""
        facts: list[Any] = []

        def make(kind: str, name: str) -> Any:
            try:
                return variable(kind, name, facts)
            except Outside:
                return Opaque(name)

        names: dict[str, Any] = {p.name: make(p.type, p.name) for p in self.operation.params}
        names["result"] = make(self.operation.returns, "result")
        if self.unit.view:
            old = {name: make(kind, f"old.{name}") for name, kind in self.fields.items()}
            new = {
                name: make(kind, f"self.{name}") if self.first or name in self.modifies else old[name]
                for name, kind in self.fields.items()
            }
            names["self"] = Record(new)
            names["old"] = None if self.first else Record(old)
        return names, facts


def place(spec: Spec, unit: Unit, operation: Operation) -> Place:
    """The place of an operation in its own spec."""
    return Place(spec, unit, operation, frozenset(operation.modifies))


def promises(where: Place, listed: Sequence[str] | None = None) -> list[Statement]:
    """What holds of a call that was made rightly and returned: what it requires, the invariants before and after, and
    what it ensures; of the latter two only the `listed` clauses, if given. Raising is excluded."""
    unit, operation, spec = where.unit, where.operation, where.spec

    def wanted(clause: Clause) -> bool:
        return listed is None or clause.id in listed

    def said(clause: Clause, *, early: bool = False, negated: bool = False) -> Statement:
        return Statement(spec, unit.name, clause, early, negated)

    found = [said(c) for c in operation.of("requires")]
    found += [said(c) for c in operation.of("when")]
    found += [said(c, negated=True) for c in operation.of("raises")]
    if not where.first:
        found += [said(c, early=True) for c in unit.invariants if wanted(c)]
    found += [said(c) for c in unit.invariants if wanted(c)]
    return found + [said(c) for c in operation.of("ensures") if wanted(c)]


@cache
def _library(names: tuple[str, ...]) -> Mapping[str, Callable[..., Any]] | None:
    from pibroch.evals.speceval.library import functions

    return functions(names)


def library(spec: Spec) -> Mapping[str, Callable[..., Any]] | None:
    """The functions that `library:` adds to the words of a spec's clauses; the same object for the same names."""
    return _library(tuple(spec.front.library))


def need(module: str) -> None:
    """Raises `MissingError` where a tool of the extra `spec` is not installed."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise MissingError(f"judging specs needs {module}: pip install 'pibroch[spec]'")
