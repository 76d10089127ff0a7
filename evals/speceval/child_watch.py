"""What the candidate's code touches, seen from inside the child: fields of objects, variables, lines. Standard library
only. Fields are watched by hooks on the candidate's classes, variables and lines by a trace function."""

from __future__ import annotations

import dis
import sys
from types import CodeType, FrameType
from typing import Any

from pibroch.evals.speceval.child_load import FILE
from pibroch.evals.speceval.child_sync import KINDS, Here

_FIELDS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"})
_VARIABLES = {"LOAD_GLOBAL": "read", "STORE_GLOBAL": "write", "DELETE_GLOBAL": "write"}
# Opcodes of 3.11 to 3.13 that may read or change the inside of a container, which others may hold too.
_INSIDE = frozenset({
    "BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "BINARY_SLICE", "STORE_SLICE", "CONTAINS_OP", "FOR_ITER",
    "UNPACK_SEQUENCE", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "CALL", "CALL_FUNCTION_EX", "CALL_KW",
})  # fmt: skip
_METHODS = (type(lambda: 0), staticmethod, classmethod, property)
_plain: dict[str, frozenset[str]] = {}


def watch(made: Any, unit: str) -> None:
    """Hook a class of the candidate, so that reads and writes of its objects' fields during a run are logged."""
    kind = type(made)
    if kind is not type or made.__module__ != FILE or issubclass(made, tuple | BaseException):
        return
    name = made.__qualname__
    if name not in _plain:
        _plain[name] = frozenset(n for base in made.__mro__ for n, v in vars(base).items() if isinstance(v, _METHODS))
    methods, get, put, drop = _plain[name], made.__getattribute__, made.__setattr__, made.__delattr__
    numbers: list[Any] = []

    def label(thing: Any, field: str) -> str:
        if name == unit:
            return f"{name}.{field}"
        at = next((i for i, seen in enumerate(numbers) if seen is thing), len(numbers))
        if at == len(numbers):
            numbers.append(thing)
        return f"{name}#{at}.{field}"

    def __getattribute__(self: Any, field: str) -> Any:
        value = get(self, field)
        run = Here.run
        if run is not None and field not in methods and field[:2] != "__" and type(value) not in KINDS:
            run.touch("read", label(self, field), sys._getframe(1).f_lineno)
        return value

    def __setattr__(self: Any, field: str, value: Any) -> None:
        put(self, field, value)
        run = Here.run
        if run is not None:
            run.touch("write", label(self, field), sys._getframe(1).f_lineno)

    def __delattr__(self: Any, field: str) -> None:
        drop(self, field)
        run = Here.run
        if run is not None:
            run.touch("write", label(self, field), sys._getframe(1).f_lineno)

    made.__getattribute__, made.__setattr__, made.__delattr__ = __getattribute__, __setattr__, __delattr__


class Tracer:
    """A trace function: with `opcodes`, points before what may touch shared data; with `detail`, every line; always
    the reads and writes of the module's `variables`. `fields` are the attributes that are worth a point."""

    def __init__(
        self, unit: str, opcodes: bool, detail: bool, fields: frozenset[str], variables: frozenset[str]
    ) -> None:
        self.unit, self.opcodes, self.detail, self.fields, self.variables = unit, opcodes, detail, fields, variables
        self.tables: dict[CodeType, dict[int, tuple[bool, str, str]]] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if code.co_filename != FILE:
            return None
        table = self.tables.get(code)
        if table is None:
            table = self.tables[code] = self.table(code)
        frame.f_trace_opcodes, frame.f_trace_lines = bool(table), self.detail
        return self.local if table or self.detail else None

    def table(self, code: CodeType) -> dict[int, tuple[bool, str, str]]:
        """By offset of an opcode: whether it is a point, and which variable it reads or writes."""
        found: dict[int, tuple[bool, str, str]] = {}
        for step in dis.get_instructions(code):
            name = step.opname
            if name in _VARIABLES and step.argval in self.variables:
                found[step.offset] = (self.opcodes, _VARIABLES[name], f"{self.unit}.{step.argval}")
            elif self.opcodes and (name in _INSIDE or (name in _FIELDS and step.argval in self.fields)):
                found[step.offset] = (True, "", "")
        return found

    def local(self, frame: FrameType, event: str, arg: Any) -> Any:
        run = Here.run
        if run is None or run.stopping:
            return self.local
        if event == "opcode":
            entry = self.tables[frame.f_code].get(frame.f_lasti)
            if entry is not None:
                point, kind, variable = entry
                if point:
                    run.point()
                if kind:
                    run.touch(kind, variable, frame.f_lineno)
        elif event == "line":
            run.log("line", run.me().index, frame.f_lineno)
        return self.local
