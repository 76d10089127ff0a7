"""From text to a spec: what is read, and one message with its line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_texts import COUNTER, changed
from tiny_specs import line_of

from pibroch.specs.errors import SpecError
from pibroch.specs.parse import load_spec, parse_spec, prose_lines


def refused(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "a/counter.spec.md")
    assert str(caught.value).startswith("a/counter.spec.md:")
    return caught.value


def test_what_is_read() -> None:
    spec = parse_spec(COUNTER)
    (unit,) = spec.units
    assert (spec.module, unit.name, unit.is_class, unit.view) == ("counter", "Counter", True, ("limit", "value"))
    assert unit.fields == {"limit": "int", "value": "int"}
    assert list(unit.calls) == ["add", "load"]
    assert unit.operations["add"].signature == "add(step: int) -> bool"
    assert unit.operations["add"].modifies == ("value",)
    assert list(spec.clauses) == ["INV1", "A1", "P0", "A2", "P1", "P2", "R1", "P3"]
    assert spec.clauses["P2"].line == line_of(COUNTER, '"P2"')
    assert spec.clauses["R1"].exception == "ValueError"
    assert spec.clauses["R1"].text == "n > self.limit"
    assert spec.relies[0].name == "source.newest"
    assert spec.relies[0].function.clauses[1].line == line_of(COUNTER, "len(result) <= n")
    assert spec.helpers["room"].returns == "int"
    assert spec.sections == {
        "intent": "It counts up to `limit` and stays there.", "functionality": "", "algorithm": "An int.",
    }  # fmt: skip
    assert spec.phases == (1,)


def test_a_module_can_be_a_unit_with_or_without_state() -> None:
    text = """---
spec: 1
module: ring
version: 1
summary: s
guarantee: {exports: [put, double]}
---
## Intent
i
## Functionality
```python
items: list[int]
view(items)
invariant("I1", len(self.items) < 9)
def put(x: int) -> None:
    modifies(items)
    ensures("P1", self.items == old.items + [x])
def double(x: int = 3) -> int:
    ensures("P2", result == 2 * x)
```
"""
    spec = parse_spec(text)
    (unit,) = spec.units
    assert (unit.name, unit.is_class, unit.view, list(unit.calls)) == ("ring", False, ("items",), ["put", "double"])
    assert unit.operations["double"].params[0].default == "3"
    assert unit.init is None


def test_layout_that_is_no_mistake() -> None:
    lines = COUNTER.replace("\n", "\r\n")
    assert list(parse_spec("\n".join(lines.splitlines()) + "\n").clauses) == list(parse_spec(COUNTER).clauses)
    commented = changed(("An int.", "An int. <!-- ```python\nx\n``` ## Nothing -->\n```text\n## no heading\n```"))
    assert parse_spec(commented).sections["algorithm"] == "An int."
    split = changed(("result == (step <= room(old))", "result ==  # so\n            (step <= room(old))"))
    assert parse_spec(split).clauses["P2"].text == "result == (step <= room(old))"
    assert parse_spec(split).clauses["P3"].line == line_of(split, '"P3"')


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "counter.spec.md"
    path.write_bytes(b"\xef\xbb\xbf" + COUNTER.replace("\n", "\r\n").encode())
    assert load_spec(path).module == "counter"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="cannot be read: not UTF-8"):
        load_spec(path)
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        load_spec(tmp_path / "none.spec.md")


def test_prose_knows_its_lines() -> None:
    rows = [(line, section) for line, section, _ in prose_lines(parse_spec(COUNTER))]
    assert rows == [(line_of(COUNTER, "It counts"), "intent"), (line_of(COUNTER, "An int."), "algorithm")]


@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        # front matter
        ("---\nspec: 1", "spec: 1", "spec: 1", "opens with YAML front matter"),
        ("summary: A", "summary: A: B", "summary:", "no YAML: mapping values are not allowed here; quote a text"),
        ("version: 1", "version: [1", "summary:", "no YAML"),
        ("version: 1", "version: 1\nversion: 2", "version: 2", "the key 'version' stands twice"),
        ("version: 1", "version: 0", "version: 0", "front matter, version: Input should be greater than"),
        ("summary: A", "# A", "spec: 1", "front matter, summary: is missing"),
        ("version: 1", "version: 1\nimport: [os]", "import: [os]", "unknown key; did you mean imports?"),
        ("version: 1", "version: &a 1\nseveral_answers: *a", "several_answers", "no aliases"),
        ("module: counter", "module: Counter", "module: Counter", "String should match pattern"),
        ("n: 1..2", "n: \x01", "spec: 1", "no YAML"),
        # text around the block
        ("## Algorithm", "## Algorithms", "## Algorithms", "unknown section 'Algorithms'; the sections are Intent"),
        ("## Algorithm", "## Intent", "## Algorithm", "section 'Intent' stands twice"),
        ("It counts up to `limit` and stays there.\n", "", "## Intent", "section 'Intent' is missing or empty"),
        ("```python", "```", "---\n# Counter", "one ```python block, this one has 0"),
        ("An int.", "```python\n```", "An int.", "one ```python block, this one has 2"),
        # the block
        ("self.value == old.value +", "self.value == = old.value", '"P1"', "syntax error: invalid syntax"),
        ("def add(self, step: int) -> bool:", "def add(self, step: int) -> bool", "def add", "syntax error: exp"),
        ("def add(self, step: int)", "def add(self, *, step: int)", "def add", "plain parameters only"),
        ("def add(self, step: int)", "def add(self, step)", "def add", "annotate every parameter"),
        ("def add(self, step: int)", "def add(step: int)", "def add", "first parameter is self"),
        ("def load(self, n: int) -> None:", "def add(self, n: int) -> None:", "def load", "add is specified twice"),
        ("    value: int", "    value: int = 3", "    value", "not part of a spec"),
        ("    value: int", "    limit: int", "    value", "'limit' stands twice"),
        ("view(limit, value)", "view(limit, size)", "class Counter", "view names 'size', which is no declared field"),
        ("view(limit, value)", "view(limit, 'value')", "view(", "name fields here"),
        ("modifies(value)", "modifies(size)", "def add", "modifies 'size', not in the view"),
        ('requires("A1", limit >= 1)', "requires(limit >= 1)", '"A1"', "requires begins with an id in quotes"),
        ('requires("A1", limit >= 1)', 'assert limit >= 1', '"A1"', "__init__: not a clause: 'assert limit >= 1'"),
        ('requires("A1", limit >= 1)', 'when("A1", limit >= 1)', '"A1"', "when(...) has no meaning in a constructor"),
        ('requires("A1", limit >= 1)', 'invariant("A1", limit >= 1)', '"A1"', "stands in a class or at the top"),
        ('"A2"', '"A1"', '"A2"', "clause id A1 is used in line 32 already"),
        ("ValueError, when=", "ValueError, ", '"R1"', 'write raises("R1", ValueError, when=condition)'),
        ("ValueError, when=", "KeyboardInterrupt, when=", '"R1"', "KeyboardInterrupt is no built-in exception"),
        ("ValueError, when=", "Wrong, when=", '"R1"', "Wrong is no built-in exception"),
        ("    return left", "    pass", "def room", ""),
        # names and types
        ("[Counter]", "[Counter, Meter]", "guarantee:", "Meter is exported and never specified"),
        ("[Counter]", "[room]", "    left = c.limit", "room: not a clause: 'left = c.limit'"),
        ("clauses: [P1]", "clauses: [P1, P9]", "guarantee:", "guarantee names clause P9: unknown"),
        ("imports: [source]", "imports: []", "    uses:", "rely source is missing under imports"),
        ("result == (step", "result == (stop", '"P2"', "P2: unknown name 'stop'"),
        ('"A2", step >= 1', '"A2", open(step) == 1', '"A2"', "A2: unknown name 'open'"),
        ('"A2", step >= 1', '"A2", result', '"A2"', "'result' (only `ensures` of an operation speaks of it)"),
        ('"A1", limit >= 1', '"A1", self.limit >= 1', '"A1"', "'self' (before the constructor there is no view)"),
        ('"INV1", 0 <= self', '"INV1", 0 <= old', '"INV1"', "'old' (an invariant has no state before)"),
        ("for _ in range(c.value)", "for _ in range(c.value + more)", "for _ in", "room: unknown name 'more'"),
        ("step: int) -> bool", "len: int) -> bool", "def add", "'len' needs another name"),
        ("step: int) -> bool", "step: Money) -> bool", "def add", "add, step: Money is no type of a plain value"),
        ("step: int) -> bool", "step: list) -> bool", "def add", "add, step: list says not what it holds"),
        ("step: int) -> bool", "step: dict[list[int], int]) -> bool", "def add", "cannot be members"),
        ("    value: int", "    value: object", "    value", "Counter.value: object is no type"),
        ('"n >= 1"', '"n >="', '"n >= 1"', "rely source, requires: invalid syntax: n >="),
        ('"n >= 1"', '"m >= 1"', '"n >= 1"', "unknown name 'm'"),
        ("def newest(n: int) -> list[int]", "newest", "uses:", "`uses` is a function, such as"),
        ("def newest(n: int) -> list[int]", "def newest(n: int -> int", "uses:", "`uses` is no signature"),
        ("  - module: source", "  - module: counter", "  - module", "relies in a circle: counter -> counter"),
        ("scope:", "concurrency: {model: threads}\nscope:", "concurrency:", "threads need roles"),
        ("scope:", "concurrency: {model: threads, roles: {a: [ad]}}\nscope:", "concurrency:",
         "ad is no operation (known: add"),
        ("scope:", "cost: {ad: O(1)}\nscope:", "cost:", "cost: ad is no operation"),
        ("scope:", "concurrency: {model: threads, roles: {a: [add]}, locks: [{name: lock, rank: 1}]}\nscope:",
         "concurrency:",
         "lock lock: write Class.attribute"),
    ],
)  # fmt: skip
def test_each_mistake_has_one_message_with_its_line(old: str, new: str, at: str, message: str) -> None:
    text = changed((old, new))
    if not message:  # a helper without a result says something else than it seems, but mypy says that
        parse_spec(text)
        return
    error = refused(text)
    assert message in error.message
    assert error.line == line_of(text if at in text else COUNTER, at)


def test_nesting_beyond_the_stack_is_a_message() -> None:
    error = refused(changed(("step <= room(old)", " + ".join(["step"] * 20_000) + " > 0")))
    assert "nested too deeply" in error.message or "cannot be parsed" in error.message
