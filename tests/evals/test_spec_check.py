"""What `spec check` refuses: one clear message for each kind of bad spec, with file and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_specs import line_of, rely_front, tiny_spec

from pibroch.evals.speceval import consistency
from pibroch.evals.speceval.spec_check import SpecCheck, check_folders

GOOD = 'def f(n: int) -> int:\n    requires("A", n >= 0)\n    ensures("P", result == n + 1)'
SCOPE = "scope: {n: 0..8}"
USES = "def f(n: int) -> int"


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def checked(folder: Path, *texts: str) -> SpecCheck:
    for text in texts:
        name = text.split("module: ")[1].split()[0]
        (folder / f"{name}.spec.md").write_text(text, encoding="utf-8")
    return check_folders([folder])


def refused(folder: Path, text: str, part: str, *others: str) -> str:
    """The one message about `text`, which names its file and the line that holds `part`."""
    found = checked(folder, text, *others)
    name = text.split("module: ")[1].split()[0]
    (error,) = [e for e in found.errors if e.path.name == f"{name}.spec.md"]
    assert str(error).startswith(f"{folder / name}.spec.md:{line_of(text, part)}: ")
    assert "\n" not in error.message
    return error.message


def test_a_good_spec_is_accepted_and_its_rates_are_told(tmp_path: Path) -> None:
    found = checked(tmp_path, tiny_spec("good", GOOD, "scope: {n: -1..8}", exports="f", clauses="P"))
    assert found.passed
    module = found.modules["good"]
    rate = module.acceptance["f"]
    assert isinstance(rate, float)
    assert 0.5 < rate < 1
    assert module.satisfiable == {"f": "a case"}
    assert "accepted    f " in module.lines()[0]


def test_what_was_found_once_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tiny_spec("kept", GOOD, SCOPE, exports="f", clauses="P")
    first = checked(tmp_path, text)
    monkeypatch.setattr(consistency, "check", lambda spec: pytest.fail("judged again"))
    again = checked(tmp_path, text.replace("{n: 0..8}", "{ n:   0..8 }"))  # layout does not count
    assert again.modules["kept"].cached
    assert again.modules["kept"].acceptance == first.modules["kept"].acceptance
    monkeypatch.undo()
    assert not checked(tmp_path, text.replace("n + 1", "n + 2")).modules["kept"].cached


def test_an_error_that_was_kept_follows_its_line(tmp_path: Path) -> None:
    text = tiny_spec("moved", GOOD.replace("n + 1", "n // 0"), SCOPE, exports="f", clauses="P")
    refused(tmp_path, text, "n // 0")
    refused(tmp_path, text, "n // 0")
    refused(tmp_path, text.replace("## Functionality", "\n\n## Functionality"), "n // 0")


def test_a_syntax_error(tmp_path: Path) -> None:
    text = tiny_spec("syntax", GOOD.replace("n + 1)", "n + )"), SCOPE, exports="f")
    assert "syntax error" in refused(tmp_path, text, "n + )")


def test_a_syntax_error_in_the_front_matter(tmp_path: Path) -> None:
    text = tiny_spec("yaml", GOOD, "scope: {n: [0..8}", exports="f")
    assert "no YAML" in refused(tmp_path, text, "scope:")


def test_an_unknown_rely(tmp_path: Path) -> None:
    text = tiny_spec("lonely", GOOD, rely_front("nowhere", USES, [], []) + "\n" + SCOPE, exports="f")
    assert "relies on nowhere, which has no spec" in refused(tmp_path, text, "module: nowhere")


def test_a_cyclic_rely(tmp_path: Path) -> None:
    one = tiny_spec("one", GOOD, rely_front("two", USES, ["n >= 0"], []) + "\n" + SCOPE, exports="f")
    two = tiny_spec("two", GOOD, rely_front("one", USES, ["n >= 0"], []) + "\n" + SCOPE, exports="f")
    found = checked(tmp_path, one, two)
    (error,) = found.errors
    assert str(error).startswith(f"{tmp_path / 'one'}.spec.md:{line_of(one, 'module: two')}: ")
    assert "one -> two -> one" in error.message


def test_a_precondition_that_nobody_can_meet(tmp_path: Path) -> None:
    block = GOOD.replace('"A", n >= 0)', '"A", n >= 3)\n    requires("B", n < 2)')
    text = tiny_spec("vacuous", block, SCOPE, exports="f")
    message = refused(tmp_path, text, '"B"')
    first, second = line_of(text, '"A"'), line_of(text, '"B"')
    assert f"A (line {first}: n >= 3) and B (line {second}: n < 2) exclude each other" in message


def test_a_precondition_that_the_domain_hardly_ever_meets(tmp_path: Path) -> None:
    text = tiny_spec("rare", GOOD.replace("n >= 0", "n == 7919"), "scope: {n: 0..9999}", exports="f")
    message = refused(tmp_path, text, '"A"')
    assert "meet its precondition, fewer than 20%" in message


def test_clauses_that_contradict_each_other(tmp_path: Path) -> None:
    block = GOOD + '\n    ensures("Q", result >= 0)\n    ensures("R", result < n)'
    text = tiny_spec("torn", block, SCOPE, exports="f")
    message = refused(tmp_path, text, '"R"')
    first, second = line_of(text, '"P"'), line_of(text, '"R"')
    both = f"P (line {first}: result == n + 1) and R (line {second}: result < n)"
    assert message == f"f can never return: {both} exclude each other"


def test_clauses_that_contradict_each_other_for_some_arguments(tmp_path: Path) -> None:
    block = GOOD + '\n    ensures("Q", implies(n > 6, result == 0))'
    text = tiny_spec("partly", block, SCOPE, exports="f")
    message = refused(tmp_path, text, '"Q"')
    assert message.startswith(("f cannot return when n = 7: P", "f cannot return when n = 8: P"))


def test_invariants_and_frames_can_contradict_too(tmp_path: Path) -> None:
    block = """
class Counter:
    value: int
    view(value)
    invariant("INV", 0 <= self.value <= 3)
    def __init__(self, start: int) -> None:
        requires("A", 0 <= start <= 3)
        ensures("P0", self.value == start)
    def step(self) -> None:
        ensures("P1", self.value == old.value + 1)
"""
    text = tiny_spec("framed", block, exports="Counter")
    assert "step can never return: P1" in refused(tmp_path, text, '"P1"')
    with_frame = text.replace('ensures("P1"', 'modifies(value)\n        ensures("P1"').replace("framed", "endless")
    found = checked(tmp_path, with_frame)
    warnings = [w.message for w in found.modules["endless"].warnings]
    assert any(w.startswith("step cannot return when old.value = 3: INV") for w in warnings)  # no `when`, no `raises`


def test_a_clause_that_raises(tmp_path: Path) -> None:
    block = 'def f(v: list[int]) -> int:\n    ensures("P", result == min(v))'
    text = tiny_spec("raising", block, "scope: {v: {list: 0..3}}", exports="f")
    message = refused(tmp_path, text, '"P"')
    assert message.startswith("P raises ValueError: min() ")
    assert "result == min(v) (when v = []" in message


def test_a_precondition_that_raises(tmp_path: Path) -> None:
    block = GOOD.replace("n >= 0", "10 // n > 1")
    text = tiny_spec("early", block, SCOPE, exports="f")
    message = refused(tmp_path, text, '"A"')
    assert "A raises ZeroDivisionError" in message
    assert "(when n = 0)" in message


def test_a_clause_that_raises_for_some_results_is_a_doubt(tmp_path: Path) -> None:
    block = 'def f(n: int) -> list[int]:\n    ensures("P", result[0] == n)'
    found = checked(tmp_path, tiny_spec("doubt", block, SCOPE, exports="f"))
    assert found.passed
    (warning,) = [w for w in found.warnings if "raises" in w.message]
    assert "P raises IndexError: list index out of range for some results: result[0] == n" in warning.message


def test_a_generator_that_never_produces(tmp_path: Path) -> None:
    scope = 'scope: {n: {draw: "choose([])"}}'
    text = tiny_spec("barren", GOOD, scope, exports="f")
    assert "never gives a value" in refused(tmp_path, text, "scope:")


def test_a_clause_that_is_ill_typed(tmp_path: Path) -> None:
    text = tiny_spec("typed", GOOD.replace("n + 1", "n.size"), SCOPE, exports="f")
    refused(tmp_path, text, '"P"')


def test_a_rely_that_the_guarantee_does_not_give(tmp_path: Path) -> None:
    callee = tiny_spec("callee", GOOD, SCOPE, exports="f", clauses="P")
    front = rely_front("callee", USES, ["n >= 0"], ["result > n + 1"]) + "\n" + SCOPE
    caller = tiny_spec("caller", GOOD, front, exports="f")
    message = refused(tmp_path, caller, "result > n + 1", callee)
    assert message.startswith("expects result > n + 1 of callee.f, which P of callee does not give (when n = ")
    assert checked(tmp_path, callee).modules["callee"].errors == []
