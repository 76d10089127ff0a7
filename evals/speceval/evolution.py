"""From one version of the specs to the next: which promises became weaker or stronger, whom that may break, and what is
judged and regenerated.

A weaker promise blocks at every rely that it may break, until that rely is edited. A stronger one concerns only the
module itself. Where an implication is neither proved nor refuted, the module that relies on it is judged again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pibroch.evals.speceval import rely as composition
from pibroch.evals.speceval.implication import Answer
from pibroch.evals.speceval.statements import Place, Statement
from pibroch.specs.errors import SpecError
from pibroch.specs.model import Clause, Operation, Rely, Spec, Unit
from pibroch.specs.store import order, plain_tree, semantic_hash

Direction = Literal["equal", "weaker", "stronger", "changed", "not decided"]
_TURNED: dict[Direction, Direction] = {"weaker": "stronger", "stronger": "weaker"}


@dataclass(frozen=True, slots=True)
class ClauseChange:
    """One clause (or `frame of f`, `signature of f`) in two versions. `direction` is of the condition itself, `promise`
    of what the module gives others: a weaker `requires` is a stronger promise. Lines are 0 where there is none."""

    module: str
    name: str
    kind: str
    owner: str
    direction: Direction
    promise: Direction
    guaranteed: bool
    old_text: str
    new_text: str
    old_line: int
    new_line: int

    def __str__(self) -> str:
        of = f" of {self.owner}" if self.owner else ""
        promise = "" if self.promise == self.direction else f", the promise {self.promise}"
        head = f"{self.module} line {self.new_line or self.old_line}: {self.kind} {self.name}{of}: {self.direction}"
        return "\n".join([head + promise, *(f"    - {t}" for t in [self.old_text] if t),
                          *(f"    + {t}" for t in [self.new_text] if t)])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Breach:
    """A rely that a weakened promise breaks: a composition error until that rely is edited."""

    module: str
    clause: str
    path: Path
    line: int
    message: str
    weakened: tuple[str, ...]
    values: Mapping[str, str]

    @property
    def error(self) -> SpecError:
        """The breach as the one error of specs."""
        because = f"; weakened: {', '.join(self.weakened)}" if self.weakened else ""
        seen = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        return SpecError(self.path, self.line, f"{self.message}{because}" + (f" (when {seen})" if seen else ""))

    def __str__(self) -> str:
        return str(self.error)


@dataclass(frozen=True, slots=True)
class Evolution:
    """What follows from a change. `judge_again`: in rely order, whose code must pass again (of `regenerate` it may
    instead be written anew)."""

    changes: tuple[ClauseChange, ...]
    breaches: tuple[Breach, ...]
    judge_again: tuple[str, ...]
    regenerate: tuple[str, ...]

    @property
    def blocked(self) -> bool:
        """Whether a rely must be edited first."""
        return bool(self.breaches)


def to_regenerate(old_specs: Mapping[str, Spec], new_specs: Mapping[str, Spec]) -> list[str]:
    """Exactly the modules whose own spec changed (its relies are part of it), each after what it relies on."""
    return [
        name for name in order(new_specs)
        if name not in old_specs or semantic_hash(old_specs[name]) != semantic_hash(new_specs[name])
    ]  # fmt: skip


def evolve(old_specs: Mapping[str, Spec], new_specs: Mapping[str, Spec], *, crosshair: bool = True) -> Evolution:
    """Compare two versions of all specs. Raises `MissingError` where z3, CrossHair or mypy are missing."""
    changed = to_regenerate(old_specs, new_specs)
    changes = [c for name in changed if name in old_specs
               for c in compare(old_specs[name], new_specs[name], crosshair=crosshair)]  # fmt: skip
    breaches: list[Breach] = []
    again = set(changed)
    for name in order(new_specs):
        spec = new_specs[name]
        for rely in spec.relies:
            lost = tuple(c.name for c in changes if c.module == rely.module and _may_break(c, rely.function.name))
            old = old_specs.get(name)
            edited = old is None or all(_key(r) != _key(rely) for r in old.relies)
            if not lost and not edited and rely.module in old_specs:
                continue
            fault = composition.misfit(rely, new_specs)
            if fault:
                breaches.append(Breach(name, f"rely.{rely.name}", spec.path, rely.line, fault, lost, {}))
                continue
            for verdict in composition.verdicts(spec, rely, new_specs[rely.module], crosshair=crosshair):
                if verdict.ruling == "refuted":
                    values = dict(verdict.values)
                    breaches.append(Breach(name, verdict.key, spec.path, verdict.line, verdict.message, lost, values))
                elif verdict.ruling == "not refuted":
                    again.add(name)
    return Evolution(
        tuple(changes), tuple(breaches), tuple(n for n in order(new_specs) if n in again), tuple(changed)
    )  # fmt: skip


def _key(rely: Rely) -> object:
    return rely.module, rely.function.signature, [(c.kind, ast.unparse(c.tree)) for c in rely.function.clauses]


def _may_break(change: ClauseChange, function: str) -> bool:
    """Whether relies on this function may suffer: its own clauses, and invariants and signatures of the module."""
    own = change.owner == function or change.kind == "invariant"
    public = change.guaranteed or change.kind not in ("ensures", "invariant")
    return own and public and change.promise not in ("equal", "stronger")


# One spec, clause by clause


def compare(old: Spec, new: Spec, *, crosshair: bool = True) -> list[ClauseChange]:
    """Every clause, frame and signature of two versions that is not the same, with its direction."""
    found: list[ClauseChange] = []
    before, after = dict(_operations(old)), dict(_operations(new))
    for key in dict.fromkeys([*before, *after]):
        a, b = before.get(key), after.get(key)
        found += _shape(new.module, key[1], a and a[1], b and b[1])
    mine, theirs = _clauses(old), _clauses(new)
    for name in dict.fromkeys([*mine, *theirs]):
        change = _clause(old, new, mine.get(name), theirs.get(name), crosshair)
        if change is not None:
            found.append(change)
    return found


Owned = tuple[Unit, Operation | None, Clause]


def _operations(spec: Spec) -> Iterator[tuple[tuple[str, str], tuple[Unit, Operation]]]:
    for unit in spec.units:
        for operation in unit.operations.values():
            yield (unit.name, operation.name), (unit, operation)


def _clauses(spec: Spec) -> dict[str, Owned]:
    found: dict[str, Owned] = {c.id: (u, None, c) for u in spec.units for c in u.invariants}
    for unit, operation in dict(_operations(spec)).values():
        found |= {c.id: (unit, operation, c) for c in operation.clauses}
    return found


def _shape(module: str, name: str, old: Operation | None, new: Operation | None) -> Iterator[ClauseChange]:
    def change(kind: str, direction: Direction, texts: tuple[str, str]) -> ClauseChange:
        lines = (old.line if old else 0, new.line if new else 0)
        return ClauseChange(module, f"{kind} of {name}", kind, name, direction, direction, True, *texts, *lines)

    if old is None or new is None:
        direction: Direction = "stronger" if old is None else "weaker"
        yield change("operation", direction, (old.signature if old else "", new.signature if new else ""))
        return
    if old.signature != new.signature:
        yield change("signature", "changed", (old.signature, new.signature))
    if set(old.modifies) != set(new.modifies):
        less, more = set(new.modifies) < set(old.modifies), set(new.modifies) > set(old.modifies)
        texts = tuple(f"modifies({', '.join(o.modifies)})" for o in (old, new))
        yield change("frame", "stronger" if less else "weaker" if more else "changed", (texts[0], texts[1]))


def _clause(old: Spec, new: Spec, a: Owned | None, b: Owned | None, crosshair: bool) -> ClauseChange | None:
    one = b or a
    assert one is not None
    _, operation, clause = one
    listed = tuple(bool(c) and clause.id in s.front.guarantee.clauses for c, s in ((a, old), (b, new)))
    direction: Direction
    if a is None or b is None:
        direction = "stronger" if a is None else "weaker"
    elif _same(old, new, a, b):
        if listed[0] == listed[1] or clause.kind not in ("ensures", "invariant"):
            return None
        direction = "stronger" if listed[1] else "weaker"  # the same words, but guaranteed no more (or from now on)
    else:
        direction = _direction(old, new, a, b, crosshair)
    promise = direction
    if clause.kind in ("requires", "when"):
        promise = _TURNED.get(direction, direction)
    elif clause.kind == "raises" and direction != "equal":
        promise = "changed"
    elif listed[0] and not listed[1]:
        promise = "weaker" if direction in ("equal", "weaker") else "changed"
    elif a is not None and listed == (False, True):
        promise = "stronger"  # nobody could rely on it before
    return ClauseChange(
        new.module, clause.id, clause.kind, operation.name if operation else "", direction, promise, any(listed),
        a[2].text if a else "", b[2].text if b else "", a[2].line if a else 0, b[2].line if b else 0,
    )  # fmt: skip


def _same(old: Spec, new: Spec, a: Owned, b: Owned) -> bool:
    first, second = a[2], b[2]
    owners = [(o[0].name, o[1].name if o[1] else "") for o in (a, b)]
    if owners[0] != owners[1] or (first.kind, first.exception) != (second.kind, second.exception):
        return False
    return plain_tree(first.tree) == plain_tree(second.tree) and _reached(old, first.tree) == _reached(new, second.tree)


def _reached(spec: Spec, tree: ast.AST) -> dict[str, object]:
    """The helpers that a tree calls, and those that these call."""
    found: dict[str, object] = {}
    todo = [tree]
    while todo:
        for node in ast.walk(todo.pop()):
            if isinstance(node, ast.Name) and node.id in spec.helpers and node.id not in found:
                found[node.id] = plain_tree(spec.helpers[node.id].tree)
                todo.append(spec.helpers[node.id].tree)
    return found


def _direction(old: Spec, new: Spec, a: Owned, b: Owned, crosshair: bool) -> Direction:
    """By implication both ways, where all that both versions say of the call holds besides."""
    (unit, operation, first), (other_unit, other, second) = a, b
    operation, other = operation or _any(unit), other or _any(other_unit)
    same_place = unit.name == other_unit.name and operation.name == other.name
    same_types = operation.params == other.params and operation.returns == other.returns and (
        {n: unit.fields[n] for n in unit.view} == {n: other_unit.fields[n] for n in other_unit.view}
    )  # fmt: skip
    if not same_place or not same_types or (first.kind, first.exception) != (second.kind, second.exception):
        return "changed"
    where = Place(new, other_unit, other, frozenset(operation.modifies) | frozenset(other.modifies))
    mine, theirs = _clauses(old), _clauses(new)
    context: list[Statement] = []
    for clause in (*other.of("requires"), *other_unit.invariants) if first.kind != "invariant" else ():
        if clause.id in mine and _same(old, new, mine[clause.id], theirs[clause.id]):
            early = clause.kind == "invariant"
            if not (early and where.first):
                context.append(Statement(new, other_unit.name, clause, early))
            if early:
                context.append(Statement(new, other_unit.name, clause))
    was, now = Statement(old, unit.name, first), Statement(new, other_unit.name, second)
    onward = composition.ask(where, [*context, was], now, crosshair=crosshair)
    back = composition.ask(where, [*context, now], was, crosshair=crosshair)
    return _combined(onward, back)


def _combined(onward: Answer, back: Answer) -> Direction:
    """`onward`: the old clause implies the new one. An undecided way back counts as the worse of both."""
    if onward.ruling == "proved":
        return "equal" if back.ruling == "proved" else "weaker"
    if back.ruling == "proved":
        return "stronger"
    return "changed" if onward.ruling == back.ruling == "refuted" else "not decided"


def _any(unit: Unit) -> Operation:
    """An invariant speaks of no call."""
    return Operation("", (), "None", tuple(unit.view), (), unit.line)
