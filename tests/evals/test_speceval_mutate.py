"""Mutation: what is changed, what counts, what is equivalent, and what survivors tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from module_samples import BUCKETS, RING, sample_spec

from pibroch.evals.speceval.mutants import Mutant, mutants
from pibroch.evals.speceval.mutate import mutate, read_waivers, widened
from pibroch.specs.errors import SpecError
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec

WEAK = """---
spec: 1
module: weak
version: 1
summary: Says too little.
guarantee: {exports: [f]}
scope: {x: 0..6}
---
## Intent
A test.
## Functionality
```python
def f(x: int) -> int:
    ensures("P1", result >= 0)
    ensures("P2", result >= -1)
```
"""
CODE = """def f(x: int) -> int:
    y = 2
    if x > 3:
        y = 3
    return max(y, 0)
"""


def weak() -> Spec:
    return parse_spec(WEAK)


def made(source: str) -> list[tuple[str, str, str]]:
    return [(m.operator, m.before, m.after) for m in mutants(source)]


def test_operators_change_one_place_each() -> None:
    found = made(
        "def f(a: list[int], n: int) -> bool:\n    while n < len(a) and not a[1:n]:\n        n += 2\n"
        "    return n == 3\n"
    )
    for row in [
        ("comparison", "while n < len(a) and (not a[1:n]):", "while n <= len(a) and (not a[1:n]):"),
        ("and/or", "while n < len(a) and (not a[1:n]):", "while n < len(a) or not a[1:n]:"),
        ("negation left out", "while n < len(a) and (not a[1:n]):", "while n < len(a) and a[1:n]:"),
        ("slice", "while n < len(a) and (not a[1:n]):", "while n < len(a) and (not a[1:]):"),
        ("slice", "while n < len(a) and (not a[1:n]):", "while n < len(a) and (not a[1:n - 1]):"),
        ("arithmetic", "n += 2", "n -= 2"),
        ("statement left out", "n += 2", "(deleted)"),
        ("constant", "n += 2", "n += 3"),
        ("comparison", "return n == 3", "return n != 3"),
    ]:
        assert row in found, row
    assert len(found) == len(set(found))


def test_more_operators() -> None:
    found = made(
        "def f(a: list[int]) -> list[int]:\n    for i in range(len(a)):\n        if i:\n"
        "            continue\n        g(a, i)\n    raise KeyError('words')\n\n\n"
        "def h(x: int) -> str:\n    with lock:\n        return 'evict'\n"
    )
    for row in [
        ("range", "for i in range(len(a)):", "for i in range(len(a) - 1):"),
        ("range", "for i in range(len(a)):", "for i in range(1, len(a)):"),
        ("break/continue", "continue", "break"),
        ("arguments swapped", "g(a, i)", "g(i, a)"),
        ("exception", "raise KeyError('words')", "raise ValueError('words')"),
        ("lock left out", "with lock:", "if True:"),
        ("text", "return 'evict'", "return 'evictx'"),
    ]:
        assert row in found, row
    assert not any("wordsx" in after for _, _, after in found)


def test_every_mutant_of_a_pinned_module_is_killed_by_clauses() -> None:
    result = mutate(BUCKETS, sample_spec("buckets"), phase=1, peers={})
    assert result.score == 1.0
    assert result.passed
    assert result.counted >= 20
    assert all(j.clauses and j.run for j in result.of("killed"))
    assert set().union(*(j.clauses for j in result.judged)) <= {"P1", "P2", "P3", "P4", "raises", "returns", "ends"}


def test_a_module_with_state_is_mutated_too() -> None:
    result = mutate(RING, sample_spec("trace_ring"), phase=1, peers={})
    assert result.score == 1.0
    assert [j.mutant.diff for j in result.of("survived")] == []


def test_survivors_tell_which_behaviour_no_clause_pins() -> None:
    result = mutate(CODE, weak(), phase=1, peers={})
    assert not result.passed
    rows = {j.mutant.after: j for j in result.of("survived")}
    survivor = rows["if x >= 3:"]
    assert survivor.mutant.line == 3
    assert survivor.run == ("f(3)",)
    assert survivor.values == {"result, original": "2", "result, mutant": "3"}
    assert result.unneeded == ["P1", "P2"]  # both, or neither: no mutant breaks one of them alone
    assert {j.mutant.after for j in result.of("equivalent")} == {"return max(y, 1)", "return max(y, -1)"}


def test_waived_mutants_stay_in_the_count(tmp_path: Path) -> None:
    file = tmp_path / "waivers.toml"
    rows = ['module = "weak"', 'before = "if x > 3:"', 'after = "if x >= 3:"', 'reason = "either will do"']
    file.write_text("\n".join(["[[waive]]", *rows]))
    short = "def f(x: int) -> int:\n    if x > 3:\n        return 3\n    return 2\n"
    waived = mutate(short, weak(), phase=1, peers={}, waivers=read_waivers(file))
    assert [j.reason for j in waived.of("waived")] == ["either will do"]
    assert waived.counted == len(waived.judged) - len(waived.of("equivalent")) - len(waived.of("left out"))
    assert waived.score == len(waived.of("killed")) / waived.counted < 0.95
    assert not waived.passed


def test_a_wrong_waiver_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "waivers.toml"
    assert read_waivers(file) == []
    file.write_text('[[waive]]\nmodule = "weak"\n')
    with pytest.raises(SpecError, match="module, before, after"):
        read_waivers(file)
    file.write_text("[[waive")
    with pytest.raises(SpecError, match="no TOML"):
        read_waivers(file)


def test_a_module_that_fails_itself_is_not_mutated() -> None:
    with pytest.raises(SpecError, match="the module itself breaks P1"):
        mutate("def f(x: int) -> int:\n    return -x - 2\n", weak(), phase=1, peers={})


def test_the_widened_scope_has_larger_ranges_and_lists() -> None:
    spec = sample_spec("buckets")
    wide = widened(spec).front.scope
    assert wide["sizes"] == {"list": "-2..5", "max": 6}
    assert wide["floor"] == "-1..7"
    assert spec.front.scope["floor"] == "1..5"


def test_mutants_know_their_function_and_show_a_diff() -> None:
    first = mutants(CODE)[0]
    assert isinstance(first, Mutant)
    assert (first.function, first.line) == ("f", 2)
    assert first.diff == ("- y = 2", "+ y = 3")
