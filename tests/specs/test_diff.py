"""Two versions of a spec, clause by clause; and what the lint doubts."""

from __future__ import annotations

import pytest
from spec_texts import COUNTER, changed
from tiny_specs import line_of

from pibroch.specs.diff import compare
from pibroch.specs.lint import lint
from pibroch.specs.parse import parse_spec


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"P2", result', '"P9", result', ("renamed", "clause", "P9", "add")),
        ("step >= 1)", "step >= 0)", ("changed", "clause", "A2", "add")),
        ("        requires(\"A2\", step >= 1)\n", "", ("removed", "clause", "A2", "add")),
        ("def load", "def store", ("added", "operation", "store", "Counter")),
        ("step: int) -> bool", "step: int, by: int = 1) -> bool", ("changed", "signature", "add", "Counter")),
        ("bool:\n        modifies(value)", "bool:\n        modifies(value, limit)",
         ("changed", "frame", "add", "Counter")),
        ("    value: int\n", "    value: int\n    high: int\n", ("added", "field", "high", "Counter")),
        ("view(limit, value)", "view(value, limit)", ("changed", "prose", "order", "")),
        ("left -= 1", "left -= 2", ("changed", "helper", "room", "")),
        ("len(result) <= n", "len(result) == n", ("changed", "rely", "rely.source.newest.ensures.0", "source.newest")),
        ("def newest(n: int)", "def newest(n: int, m: int = 0)", ("changed", "rely", "source.newest", "")),
        ("limit: 1..3", "limit: 1..4", ("changed", "scope", "scope.limit", "")),
        ("scope:", "cost: {add: O(1)}\nscope:", ("added", "cost", "cost.add", "")),
        ("clauses: [P1]", "clauses: [P1, P2]", ("changed", "guarantee", "guarantee.clauses", "")),
        ("imports: [source]", "imports: [source, math]", ("changed", "imports", "imports", "")),
        ("stays there", "stays here", ("changed", "prose", "intent", "")),
        ("## Algorithm\nAn int.\n", "", ("removed", "prose", "algorithm", "")),
        ("    value: int\n", "    value: int  # now\n", ("added", "prose", "comments", "")),
        ("version: 1", "version: 2", ("changed", "version", "version", "")),
    ],
)  # fmt: skip
def test_each_change_is_named(old: str, new: str, said: tuple[str, ...]) -> None:
    found = compare(parse_spec(COUNTER), parse_spec(changed((old, new))))
    assert said in [(c.kind, c.part, c.name, c.owner) for c in found]
    if "def load" not in old:  # a renamed operation takes its clauses along
        assert len(found) == 1
    assert str(found[0]).startswith(f"{found[0].kind} {found[0].part} {found[0].name}")


def test_layout_is_no_change() -> None:
    new = changed(("min(step, room(old))", "min(step,  room( old ))"), ("imports: [source]", "imports: [ source ]"))
    assert compare(parse_spec(COUNTER), parse_spec(new)) == []


def test_lines_are_those_of_the_side_that_has_them() -> None:
    gone = ('        requires("A2", step >= 1)\n', "")
    new = changed(("## Intent\n", "## Intent\nMore.\n"), gone, ("== 0)", "== 1)"))
    found = {c.name: c for c in compare(parse_spec(COUNTER), parse_spec(new))}
    assert found["A2"].line == line_of(COUNTER, '"A2"')
    assert found["P0"].line == line_of(new, '"P0"')
    assert (found["P0"].old, found["P0"].new) == (
        "ensures(self.limit == limit and self.value == 0)", "ensures(self.limit == limit and self.value == 1)",
    )  # fmt: skip
    assert found["intent"].new.startswith("More.")


def test_a_sound_spec_raises_no_doubt() -> None:
    assert lint(parse_spec(COUNTER)) == []


@pytest.mark.parametrize(
    ("old", "new", "rule", "at"),
    [
        ("stays there.", "should stay there.", "vague", "should stay"),
        ("An int.", "An int, or something\nappropriate.", "vague", "appropriate."),
        ("A counter that", "A fast counter that", "vague", "A fast"),
        ("stays there.", "stays there for 17 calls.", "number", "17 calls"),
        ("up to `limit`", "up to `bound`", "word", "`bound`"),
        (' and self.value == 0)', ")", "frame", "def __init__"),
        ('"P2", result == (step <= room(old))', '"P2", self.value >= 0', "result", "def add"),
        ('"P3", self.value == min(sum(source.newest(n)), self.limit)', '"P3", n == n', "frame", "def load"),
        ('        ensures("P3", self.value == min(sum(source.newest(n)), self.limit))\n', "", "ensures", "def load"),
        ("step: int) -> bool", "step: int, unused: int) -> bool", "parameter", "def add"),
        ("    value: int\n", "    value: int\n    high: int\n", "field", "high: int"),
        ("    view(limit, value)", "    high: int\n    view(limit, value, high)", "field", "high: int"),
        ("class Counter", "def unused(x: int) -> int:\n    return x\n\nclass Counter", "helper", "def unused"),
        ('ensures: ["len(result) <= n"]', "ensures: []", "rely", "  - module: source"),
        ("sum(source.newest(n))", "n", "rely", "  - module: source"),
        ('"P2", result == (step <= room(old))', '"P2", 1 == 1', "clause", '"P2"'),
        ('"P2", result', '"P2", step != 0.5 and result', "float", '"P2"'),
        ("scope:", "concurrency: {model: threads, roles: {a: [add]}}\nscope:", "prose", "concurrency:"),
        ("imports: [source]", "imports: [source, threading]", "imports", "imports:"),
    ],
)
def test_each_doubt_has_its_line(old: str, new: str, rule: str, at: str) -> None:
    text = changed((old, new))
    assert (rule, line_of(text, at)) in [(d.rule, d.line) for d in lint(parse_spec(text, "counter.spec.md"))]


def test_words_in_code_and_numbers_in_other_forms_are_no_doubts() -> None:
    prose = "stays there: `fast` is a name. At 5 % more it is `20 * x > 21`; also 43.\n\n    m = 7, 8\n"
    text = changed(("stays there.", prose),
                   ('"P2", result ==', '"P2", 20 * step > 21 or result =='), ("limit: 1..3", "limit: 1..3, fast: 1..3"),
                   ("step: int) -> bool", "step: int, fast: int) -> bool"))  # fmt: skip
    assert {d.rule for d in lint(parse_spec(text))} == {"parameter", "number"}
    assert [d.message for d in lint(parse_spec(text)) if d.rule == "number"] == ["no clause holds the number 43"]
