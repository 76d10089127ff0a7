"""What came of one call, read from the child's data by the spec's annotations."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pibroch.evals.speceval import wire
from pibroch.specs.model import Operation


@dataclass(frozen=True, slots=True)
class Error:
    """An exception of the candidate. Only a genuine builtin has a bare `type`, such as `ValueError`; one that the
    candidate defines is `candidate.Name`. `line` is the candidate's, 0 where none is to blame."""

    type: str
    message: str
    line: int

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(slots=True)
class Outcome:
    """What came of one call.

    `value` is the result (None after an `error`), `view` the view afterwards (None where there is none or nobody
    looked), `args` the arguments afterwards, `asked` the questions to relies as (function, arguments, answer),
    `lines` the candidate's lines that ran and `opcodes` how many (as `watch` says). `fault` says what was not of its
    declared type; the value or view concerned is then None.
    """

    value: Any = None
    error: Error | None = None
    view: dict[str, Any] | None = None
    args: list[Any] = field(default_factory=list)
    asked: list[tuple[str, list[Any], Any]] = field(default_factory=list)
    lines: frozenset[int] = frozenset()
    opcodes: int = 0
    fault: str = ""


def read_row(row: Any, returns: str | None, fields: Mapping[str, wire.Checker]) -> Outcome:
    """A row of the child, decoded; `returns` None: nobody asked for the value.

    Raises `TypeError` or `ValueError` where it is no row; a value of a wrong type is the outcome's `fault`.
    """
    if type(row) is not list:
        raise TypeError("no row")
    value, error, view, after, lines, opcodes, wrong = row
    if type(after) is not list:
        raise TypeError("no arguments")
    made = Outcome(error=None if error is None else _error(error), lines=_lines(lines), opcodes=_count(opcodes))
    faults = []
    try:
        if error is None and returns is not None:
            made.value = wire.decode(returns, value)
    except wire.TypeMismatch as mismatch:
        faults.append(f"result: {mismatch}")
    if wrong is not None:
        faults.append(wire.printable(wrong, 300))
    if view is not None:
        try:
            made.view = _view(fields, view)
        except wire.TypeMismatch as mismatch:
            faults.append(str(mismatch))
    try:
        made.args = wire.unpack(after)
    except wire.TypeMismatch as mismatch:
        faults.append(f"arguments afterwards: {mismatch}")
    made.fault = faults[0] if faults else ""
    return made


def bound(function: Operation, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Arguments in the order of the signature, decoded. Raises `TypeMismatch`."""
    names = [p.name for p in function.params]
    if len(args) > len(names) or set(kwargs) - set(names[len(args) :]):
        raise wire.TypeMismatch(f"other arguments than {function.signature}")
    given = dict(zip(names, args, strict=False)) | kwargs
    values = []
    for param in function.params:
        if param.name in given:
            try:
                values.append(wire.decode(param.type, given[param.name]))
            except wire.TypeMismatch as error:
                raise wire.TypeMismatch(f"{param.name}{error.where}: {error.what}") from None
        elif param.default:
            values.append(ast.literal_eval(param.default))
        else:
            raise wire.TypeMismatch(f"no argument {param.name}")
    return values


def _view(fields: Mapping[str, wire.Checker], data: Any) -> dict[str, Any]:
    """Exactly the view's fields, decoded. Raises `TypeMismatch`."""
    pairs = data.get("d") if type(data) is dict and len(data) == 1 else None
    if type(pairs) is not list or len(pairs) % 2:
        raise wire.TypeMismatch(f"view(): expected dict, got {wire.what(data)}")
    names = pairs[::2]
    if not all(type(n) is str for n in names) or sorted(names) != sorted(fields):
        found = ", ".join(wire.printable(n) for n in names)
        raise wire.TypeMismatch(f"view() has the fields {found}; declared are {', '.join(fields)}")
    values = dict(zip(names, pairs[1::2], strict=True))
    made = {}
    for name, check in fields.items():
        try:
            made[name] = check(values[name])
        except wire.TypeMismatch as error:
            raise wire.TypeMismatch(f"view.{name}{error.where}: {error.what}") from None
    return made


def _error(data: Any) -> Error:
    kind, message, line = data
    return Error(wire.printable(kind), wire.printable(message, 300), _count(line))


def _lines(data: Any) -> frozenset[int]:
    return frozenset(_count(x) for x in data) if data else frozenset()


def _count(data: Any) -> int:
    if type(data) is not int or data < 0:
        raise ValueError("no count")
    return data
