"""Names inside one spec that must fit together: exports, view, frames, guarantees, protocol, scope, cost."""

from __future__ import annotations

from collections.abc import Iterable

from pibroch.specs.errors import SpecError
from pibroch.specs.model import Spec


def check_links(spec: Spec) -> None:
    """Raises `SpecError` at the first name that leads nowhere."""
    _exports(spec)
    _clauses(spec)
    _protocol(spec)


def _exports(spec: Spec) -> None:
    defined = {u.name for u in spec.units if u.is_class} | {
        name for u in spec.units if not u.is_class for name in u.operations
    }
    for name in spec.front.guarantee.exports:
        if name not in defined:
            raise SpecError(spec.path, spec.line("guarantee.exports"), f"{name} is exported and never specified")
    for unit in spec.units:
        if unit.is_class and unit.name not in spec.front.guarantee.exports:
            raise SpecError(spec.path, unit.line, f"class {unit.name} is not among guarantee.exports")
        if unit.is_class and unit.init is None:
            raise SpecError(spec.path, unit.line, f"class {unit.name} has no __init__")
        for name in unit.operations:
            if name == "view" or (name.startswith("_") and name != "__init__"):
                line = unit.operations[name].line
                raise SpecError(spec.path, line, f"{name} cannot be specified: choose another name")
    twice = [name for name in spec.front.guarantee.exports if spec.front.guarantee.exports.count(name) > 1]
    if twice:
        raise SpecError(spec.path, spec.line("guarantee.exports"), f"{twice[0]} is exported twice")
    for name in spec.helpers:
        if name in defined or name in {rely.module for rely in spec.relies}:
            raise SpecError(spec.path, spec.helpers[name].line, f"helper {name}: the name is taken")
    names = [rely.name for rely in spec.relies]
    for rely in spec.relies:
        if names.count(rely.name) > 1:
            raise SpecError(spec.path, rely.line, f"relies on {rely.name} twice: write its clauses in one entry")
        if rely.module == spec.module:
            at = spec.line(f"rely.{names.index(rely.name)}.module")
            raise SpecError(spec.path, at, f"relies in a circle: {rely.module} -> {rely.module}")
        if rely.module not in spec.front.imports:
            raise SpecError(spec.path, rely.line, f"rely {rely.module} is missing under imports")


def _clauses(spec: Spec) -> None:
    seen: dict[str, int] = {}
    for unit in spec.units:
        every = [*unit.invariants, *(c for o in unit.operations.values() for c in o.clauses)]
        for clause in every:
            if clause.id in seen:
                first = seen[clause.id]
                raise SpecError(spec.path, clause.line, f"clause id {clause.id} is used in line {first} already")
            seen[clause.id] = clause.line
        for operation in unit.operations.values():
            for name in operation.modifies:
                if name not in unit.view:
                    raise SpecError(spec.path, operation.line, f"{operation.name} modifies {name!r}, not in the view")
    for i, name in enumerate(spec.front.guarantee.clauses):
        if name not in seen:
            raise SpecError(spec.path, spec.line(f"guarantee.clauses.{i}"), f"guarantee names clause {name}: unknown")


def _protocol(spec: Spec) -> None:
    protocol = spec.front.concurrency
    operations = {name for u in spec.units for name in u.calls}
    fields = {f"{u.name}.{name}" for u in spec.units for name in u.fields}
    locks = {lock.name for lock in protocol.locks}
    relies = {rely.name for rely in spec.relies}

    def known(key: str, names: Iterable[str], among: set[str], what: str) -> None:
        for name in names:
            if name not in among:
                known_ones = ", ".join(sorted(among)) or "none"
                raise SpecError(spec.path, spec.line(key), f"{key}: {name} is no {what} (known: {known_ones})")

    for role, names in protocol.roles.items():
        known(f"concurrency.roles.{role}", names, operations, "operation")
    for i, entry in enumerate(protocol.locks):
        owner, _, attribute = entry.name.partition(".")
        if owner not in {u.name for u in spec.units} or not attribute.isidentifier():
            message = f"lock {entry.name}: write Class.attribute, with a class of this spec"
            raise SpecError(spec.path, spec.line(f"concurrency.locks.{i}"), message)
    if len(locks) < len(protocol.locks):
        raise SpecError(spec.path, spec.line("concurrency.locks"), "concurrency.locks: a lock stands twice")
    known("concurrency.atomic", protocol.atomic, operations, "operation")
    known("concurrency.order", protocol.order, operations, "operation")
    known("concurrency.guarded_by", protocol.guarded_by, locks, "declared lock")
    for lock, names in protocol.guarded_by.items():
        known(f"concurrency.guarded_by.{lock}", [f"{lock.partition('.')[0]}.{n}" for n in names], fields, "field")
    known("concurrency.single_writer", protocol.single_writer, fields, "field")
    known("concurrency.single_writer", protocol.single_writer.values(), set(protocol.roles), "role")
    known("concurrency.no_call_while_holding", protocol.no_call_while_holding, locks, "declared lock")
    for lock, names in protocol.no_call_while_holding.items():
        known(f"concurrency.no_call_while_holding.{lock}", names, relies, "relied-upon function")
    known("cost", spec.front.cost, operations, "operation")
    if protocol.model == "threads" and not protocol.roles:
        raise SpecError(spec.path, spec.line("concurrency"), "concurrency: threads need roles (who calls what)")
    if protocol.model == "streams" and not protocol.order:
        raise SpecError(spec.path, spec.line("concurrency"), "concurrency: streams need `order`: what phase 2 adds")
    if protocol.model != "streams" and protocol.order:
        raise SpecError(spec.path, spec.line("concurrency.order"), "concurrency.order belongs to the model streams")
