"""What a spec says, as data. `parse.py` makes it from a `*.spec.md`; nothing of a spec is ever imported or run as code.

Terms
    unit        what is specified: an exported class, or the module itself (its functions, and its fields if any).
    operation   a public method of a class, or a function of the module.
    clause      one condition with an id; lines count in the spec's file.
    view        the fields that clauses may speak of. Generated code returns them: `view() -> dict[str, Any]`.
    helper      a function of the spec's block with a body: it defines a word of the clauses and is not exported.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

CLAUSE_KINDS = ("requires", "ensures", "invariant", "raises", "when")
Kind = Literal["requires", "ensures", "invariant", "raises", "when"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RelyEntry(_Strict):
    """What this module takes from another: one function's signature, and what it asks and gets."""

    module: str
    uses: str
    requires: list[str] = []
    ensures: list[str] = []


class Guarantee(_Strict):
    """`exports` are the classes and functions of the module; `clauses` the ids that other modules may rely on."""

    exports: Annotated[list[str], Field(min_length=1)]
    clauses: list[str] = []


class LockEntry(_Strict):
    """`name` is `Class.attribute`; locks are taken in the order of rising `rank`."""

    name: str
    rank: int
    kind: Literal["Lock", "RLock", "Condition"] = "Lock"


class Concurrency(_Strict):
    """The protocol of phase 2.

    `none`: phase 1 is all. `threads`: calls come from several threads. `streams` (schedules): `order` names the
    functions that phase 2 adds; phase 1 writes the others, and phase 2 must not change what they return.
    """

    model: Literal["none", "threads", "streams"] = "none"
    roles: dict[str, list[str]] = {}
    locks: list[LockEntry] = []
    guarded_by: dict[str, list[str]] = {}
    single_writer: dict[str, str] = {}
    atomic: list[str] = []
    no_call_while_holding: dict[str, list[str]] = {}
    order: list[str] = []


class CostBound(_Strict):
    """Growth of one operation: opcodes against `n`. `setup` and `call` are expressions over `n` (see docs/specs.md)."""

    bound: str
    setup: list[str] = []
    call: str = ""
    sizes: list[int] = [8, 32, 128]


class FrontMatter(_Strict):
    """The YAML part of a spec."""

    spec: Literal[1]
    module: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    version: Annotated[int, Field(ge=1)]
    summary: str
    rely: list[RelyEntry] = []
    imports: list[str] = []
    library: list[Literal["pipeline"]] = []
    guarantee: Guarantee
    concurrency: Concurrency = Concurrency()
    cost: dict[str, str | CostBound] = {}
    scope: dict[str, Any] = {}
    several_answers: str = ""  # why two right modules may behave differently; empty: they may not


@dataclass(frozen=True, slots=True)
class Clause:
    """`tree` is the condition; of `raises`, when it must raise `exception` (and only then); `owner` is the operation's
    name, a unit's name for its invariants, or `rely:MODULE.FUNCTION`."""

    id: str
    kind: Kind
    owner: str
    line: int
    text: str
    tree: ast.expr = field(compare=False, repr=False)
    exception: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`type` is its annotation as text, such as `list[int]`; `default` the source of its default, or empty."""

    name: str
    type: str
    default: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """A method or function: its signature, its frame and its clauses. `name` is `__init__` for a constructor."""

    name: str
    params: tuple[Parameter, ...]
    returns: str
    modifies: tuple[str, ...]
    clauses: tuple[Clause, ...]
    line: int

    def of(self, kind: Kind) -> tuple[Clause, ...]:
        """The clauses of one kind, in the spec's order."""
        return tuple(c for c in self.clauses if c.kind == kind)

    @property
    def signature(self) -> str:
        """`name(x: int, y: int) -> bool`, without `self`."""
        parts = [f"{p.name}: {p.type}" + (f" = {p.default}" if p.default else "") for p in self.params]
        return f"{self.name}({', '.join(parts)}) -> {self.returns}"


@dataclass(frozen=True, slots=True)
class Unit:
    """A class (`is_class`) or the module itself, whose name is then the module's. `view` names some of `fields`."""

    name: str
    is_class: bool
    fields: dict[str, str]
    view: tuple[str, ...]
    invariants: tuple[Clause, ...]
    operations: dict[str, Operation]
    line: int

    @property
    def init(self) -> Operation | None:
        """The constructor of a class."""
        return self.operations.get("__init__")

    @property
    def calls(self) -> dict[str, Operation]:
        """The operations without the constructor."""
        return {name: o for name, o in self.operations.items() if name != "__init__"}


@dataclass(frozen=True, slots=True)
class Helper:
    """A word of the clauses: a pure function given by its source."""

    name: str
    params: tuple[Parameter, ...]
    returns: str
    source: str
    line: int
    tree: ast.FunctionDef = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Rely:
    """One function of another module, as this one needs it. Its clauses may use its parameters and `result`."""

    module: str
    function: Operation
    line: int

    @property
    def name(self) -> str:
        """`module.function`, as code and clauses write it."""
        return f"{self.module}.{self.function.name}"


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec. `text` is the whole file; `sections` maps a heading in lower case to its prose."""

    path: Path
    front: FrontMatter
    relies: tuple[Rely, ...]
    units: tuple[Unit, ...]
    helpers: dict[str, Helper]
    sections: dict[str, str]
    block: str
    text: str
    lines: dict[str, int]  # a front-matter key, or `rely.0.ensures.1`, to its line

    @property
    def module(self) -> str:
        return self.front.module

    @property
    def clauses(self) -> dict[str, Clause]:
        """Every clause of the block by id, in the spec's order; not those of the relies."""
        found = [c for u in self.units for c in (*u.invariants, *(c for o in u.operations.values() for c in o.clauses))]
        return {c.id: c for c in found}

    @property
    def phases(self) -> tuple[int, ...]:
        """(1,) where nothing is concurrent, else (1, 2)."""
        return (1,) if self.front.concurrency.model == "none" else (1, 2)

    def line(self, key: str) -> int:
        """The line of a front-matter key or of its nearest parent that is known; 1 at worst."""
        while key:
            if key in self.lines:
                return self.lines[key]
            key = key.rpartition(".")[0]
        return 1
