"""What changed from one version of a spec to the next: clause by clause, by id and by structure, not by text.

Whether a changed guarantee is weaker or stronger is an implication, which `evals/speceval/evolution.py` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from pibroch.specs.model import Clause, Helper, Operation, Spec, Unit
from pibroch.specs.names import clauses_of
from pibroch.specs.store import comments, plain_tree, semantic_hash

Kind = Literal["added", "removed", "changed", "renamed"]
Part = Literal[
    "clause", "signature", "operation", "class", "field", "view", "frame", "helper", "rely", "imports", "library",
    "guarantee", "concurrency", "cost", "scope", "several_answers", "version", "summary", "prose",
]  # fmt: skip
CONTRACT: tuple[Part, ...] = (  # what other modules and the module's own code can depend on
    "clause", "signature", "operation", "class", "field", "view", "frame", "helper", "rely", "guarantee", "concurrency",
    "library",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `name` is the clause's id, the operation's name, the key of the front matter, …; `owner` the
    operation or class of a clause; `line` counts in the new spec, for what was removed in the old one.

    For clauses, `old_clause` and `new_clause` are both sides (None where there is none).
    """

    kind: Kind
    part: Part
    name: str
    owner: str
    old: str
    new: str
    line: int
    old_clause: Clause | None = None
    new_clause: Clause | None = None

    def __str__(self) -> str:
        where = f" of {self.owner}" if self.owner and self.owner != self.name else ""
        head = f"{self.kind} {self.part} {self.name}{where} (line {self.line})"
        rows = [f"    - {self.old}"] if self.old else []
        rows += [f"    + {self.new}"] if self.new else []
        return "\n".join([head, *rows])


def compare(old: Spec, new: Spec) -> list[Change]:
    """All differences in what two versions of a spec say, in the new one's order; layout does not count."""
    found = [
        *_front(old, new),
        *_relies(old, new),
        *_units(old, new),
        *_clauses(old, new),
        *_helpers(old.helpers, new.helpers),
        *_prose(old, new),
    ]
    if not found and semantic_hash(old) != semantic_hash(new):
        line = new.line("section.functionality")
        found.append(Change("changed", "prose", "order", "", "", "the same, in another order", line))
    return found


def _front(old: Spec, new: Spec) -> Iterator[Change]:
    mine, theirs = old.front.model_dump(mode="json"), new.front.model_dump(mode="json")
    parts: tuple[Part, ...] = ("version", "summary", "imports", "library", "several_answers")
    for part in parts:
        if mine[part] != theirs[part]:
            yield _change(part, part, "", mine[part], theirs[part], new.line(part))
    mappings: tuple[Part, ...] = ("guarantee", "concurrency", "cost", "scope")
    for part in mappings:
        for key in dict.fromkeys([*mine[part], *theirs[part]]):
            a, b = mine[part].get(key), theirs[part].get(key)
            if a != b:
                line = (new if key in theirs[part] else old).line(f"{part}.{key}")
                yield _change(part, f"{part}.{key}", "", a, b, line)


def _relies(old: Spec, new: Spec) -> Iterator[Change]:
    mine, theirs = {r.name: r for r in old.relies}, {r.name: r for r in new.relies}
    for name in dict.fromkeys([*mine, *theirs]):
        a, b = mine.get(name), theirs.get(name)
        if a is None or b is None or a.function.signature != b.function.signature:
            texts = [r.function.signature if r else "" for r in (a, b)]
            yield _change("rely", name, "", texts[0], texts[1], (b or a).line)  # type: ignore[union-attr]
        before = a.function.clauses if a else ()
        after = b.function.clauses if b else ()
        gone = [c for c in before if not any(_same(c, d) for d in after)]
        come = [d for d in after if not any(_same(c, d) for c in before)]
        for pair in zip_longest(gone, come):
            yield _clause_change(*pair, name, part="rely")


def _units(old: Spec, new: Spec) -> Iterator[Change]:
    mine, theirs = {u.name: u for u in old.units}, {u.name: u for u in new.units}
    for name in dict.fromkeys([*mine, *theirs]):
        a, b = mine.get(name), theirs.get(name)
        if a is None or b is None:
            yield _change("class", name, "", a and a.name, b and b.name, (b or a).line)  # type: ignore[union-attr]
        before, after = a or _nothing(name), b or _nothing(name)
        for key in dict.fromkeys([*before.fields, *after.fields]):
            line = new.line(f"field.{name}.{key}") if key in after.fields else old.line(f"field.{name}.{key}")
            if before.fields.get(key) != after.fields.get(key):
                yield _change("field", key, name, before.fields.get(key), after.fields.get(key), line)
        if set(before.view) != set(after.view):
            yield _change("view", "view", name, ", ".join(before.view), ", ".join(after.view), after.line)
        for key in dict.fromkeys([*before.operations, *after.operations]):
            yield from _operation(key, name, before.operations.get(key), after.operations.get(key))


def _operation(name: str, unit: str, old: Operation | None, new: Operation | None) -> Iterator[Change]:
    if old is None or new is None:
        one = new or old
        assert one is not None
        yield _change("operation", name, unit, old and old.signature, new and new.signature, one.line)
        return
    if old.signature != new.signature:
        yield _change("signature", name, unit, old.signature, new.signature, new.line)
    if set(old.modifies) != set(new.modifies):
        before, after = (f"modifies({', '.join(o.modifies)})" for o in (old, new))
        yield _change("frame", name, unit, before, after, new.line)


def _clauses(old: Spec, new: Spec) -> Iterator[Change]:
    mine, theirs = _owned(old), _owned(new)
    gone = {key: entry for key, entry in mine.items() if key not in theirs}
    for key, (clause, unit) in theirs.items():
        if key in mine:
            before, where = mine[key]
            if not _same(before, clause) or (before.owner, where) != (clause.owner, unit):
                yield _clause_change(before, clause, clause.owner)
            continue
        home = (clause.owner, unit)
        twin = next((k for k, (c, u) in gone.items() if _same(c, clause) and (c.owner, u) == home), None)
        if twin is not None:
            before, _ = gone.pop(twin)
            name = clause.id
            yield Change("renamed", "clause", name, clause.owner, before.id, name, clause.line, before, clause)
        else:
            yield _clause_change(None, clause, clause.owner)
    for clause, _ in gone.values():
        yield _clause_change(clause, None, clause.owner)


def _owned(spec: Spec) -> dict[str, tuple[Clause, str]]:
    return {clause.id: (clause, unit.name) for unit in spec.units for clause, _, _ in clauses_of(unit)}


def _same(a: Clause, b: Clause) -> bool:
    return (a.kind, a.exception) == (b.kind, b.exception) and plain_tree(a.tree) == plain_tree(b.tree)


def _clause_change(old: Clause | None, new: Clause | None, owner: str, *, part: Part = "clause") -> Change:
    one = new or old
    assert one is not None
    kind: Kind = "added" if old is None else "removed" if new is None else "changed"
    return Change(kind, part, one.id, owner, _text(old), _text(new), one.line, old, new)


def _text(clause: Clause | None) -> str:
    if clause is None:
        return ""
    raised = f"{clause.exception}, when=" if clause.exception else ""
    return f"{clause.kind}({raised}{clause.text})"


def _helpers(old: Mapping[str, Helper], new: Mapping[str, Helper]) -> Iterator[Change]:
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name), new.get(name)
        if a is None or b is None or plain_tree(a.tree) != plain_tree(b.tree):
            line = b.line if b else a.line if a else 0
            yield _change("helper", name, "", a and a.source, b and b.source, line)


def _prose(old: Spec, new: Spec) -> Iterator[Change]:
    for name in dict.fromkeys([*old.sections, *new.sections]):
        a, b = (" ".join(spec.sections.get(name, "").split()) for spec in (old, new))
        if a != b:
            line = (new if b else old).line(f"section.{name}")
            yield _change("prose", name, "", _first_difference(a, b), _first_difference(b, a), line)
    a, b = ("; ".join(comments(spec.block)) for spec in (old, new))
    if a != b:
        line = new.line("section.functionality")
        yield _change("prose", "comments", "", _first_difference(a, b), _first_difference(b, a), line)


def _first_difference(text: str, other: str) -> str:
    """The part of `text` that the other one has not, with some words around it."""
    if not text or not other:
        return text[:120]
    start = next((i for i, (x, y) in enumerate(zip(text, other, strict=False)) if x != y), min(len(text), len(other)))
    back = next((i for i, (x, y) in enumerate(zip(text[::-1], other[::-1], strict=False)) if x != y), 0)
    start, end = max(start - 20, 0), min(max(len(text) - back, start) + 20, len(text))
    cut = text[start:end]
    return ("…" if start else "") + (cut if len(cut) <= 160 else cut[:157] + "…") + ("…" if end < len(text) else "")


def _change(part: Part, name: str, owner: str, old: Any, new: Any, line: int) -> Change:
    a, b = ("" if v in (None, "", [], {}) else v if isinstance(v, str) else str(v) for v in (old, new))
    kind: Kind = "added" if not a else "removed" if not b else "changed"
    return Change(kind, part, name, owner, a, b, line)


def _nothing(name: str) -> Unit:
    return Unit(name, True, {}, (), (), {}, 0)
