"""Clauses over plain values: what holds, what is refused, what is bounded, and what a failure shows."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from spec_texts import changed
from tiny_specs import line_of

from pibroch.specs import rewrite
from pibroch.specs.errors import SpecError
from pibroch.specs.evaluate import ClauseError, View, draw, explain, holds
from pibroch.specs.explain import show
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec

OLD = {"limit": 3, "value": 1}


def ask(spec: Spec, clause: str, **given: Any) -> bool:
    values: dict[str, Any] = {"unit": "Counter", "state": OLD, "old": OLD, "result": None, "args": {}} | given
    return holds(spec, spec.clauses[clause], **values)


def with_clause(condition: str, *, helpers: str = "") -> Spec:
    """P2 of `add(step: int) -> bool` replaced, with more helpers."""
    pairs = [("result == (step <= room(old))", condition)]
    if helpers:
        pairs.append(("class Counter:", helpers + "\nclass Counter:"))
    return parse_spec(changed(*pairs))


def value_of(expression: str, *, helpers: str = "", step: Any = 2) -> Any:
    """An expression's value, found by comparing with what it is shown as."""
    spec = with_clause(f"{expression} == result", helpers=helpers)
    shown = explain(spec, spec.clauses["P2"], unit="Counter", state=OLD, old=OLD, result=0, args={"step": step})
    return shown[expression]


def test_clauses_over_state_result_arguments_and_helpers() -> None:
    spec = parse_spec(changed())
    assert ask(spec, "A2", args={"step": 1})
    assert not ask(spec, "A2", args={"step": 0})
    assert ask(spec, "P1", state={"limit": 3, "value": 3}, args={"step": 7})
    assert not ask(spec, "P1", state={"limit": 3, "value": 2}, args={"step": 7})
    assert ask(spec, "P2", result=True, args={"step": 2})
    assert ask(spec, "INV1")
    assert not ask(spec, "INV1", state={"limit": 3, "value": 4})
    assert ask(spec, "P0", state={"limit": 9, "value": 0}, old=None, args={"limit": 9})


def test_conditions_of_a_call_speak_of_the_state_before() -> None:
    spec = parse_spec(changed())
    after = {"limit": 99, "value": 1}
    assert ask(spec, "R1", args={"n": 4}, state=after)  # self.limit is 3, not 99
    assert ask(spec, "R1", args={"n": 4}, state=OLD, old=None)


def test_relies_are_what_the_candidate_was_told() -> None:
    spec = parse_spec(changed())
    told = {("source.newest", (2,)): [1, 1]}
    after = {"limit": 3, "value": 2}
    assert ask(spec, "P3", state=after, args={"n": 2}, relies=lambda name, args: told[name, args])
    assert not ask(spec, "P3", state=after, args={"n": 1}, relies=lambda name, args: told[name, args])
    assert not ask(spec, "P3", state=after, args={"n": 2})
    shown = explain(spec, spec.clauses["P3"], unit="Counter", state=after, old=OLD, result=None, args={"n": 1})
    assert shown["source.newest(n)"] == "not asked by the module during this call"
    named = parse_spec(changed(("source.newest(n)", "source.newest(n=n)")))
    assert ask(named, "P3", state=after, args={"n": 2}, relies=lambda name, args: told[name, args])


def test_clauses_of_a_rely() -> None:
    spec = parse_spec(changed())
    requires, ensures = spec.relies[0].function.clauses
    given: dict[str, Any] = {"unit": "", "state": None, "old": None}
    assert holds(spec, requires, result=None, args={"n": 1}, **given)
    assert not holds(spec, requires, result=None, args={"n": 0}, **given)
    assert not holds(spec, ensures, result=[1, 2], args={"n": 1}, **given)


def test_implies_looks_at_its_second_part_only_where_the_first_holds() -> None:
    spec = with_clause("implies(step == 2, 10 // (step - 1) == 10)")
    assert ask(spec, "P2", args={"step": 1})  # else: division by zero
    assert ask(spec, "P2", args={"step": 2})


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("[][step] == 1", "IndexError: list index out of range"),
        ("1 // (step - 2) == 1", "ZeroDivisionError"),
        ("step", "gives 2, which is neither True nor False"),
        ("step and [1]", "gives [1], which is neither True nor False"),
        ("len(step) == 1", "TypeError"),
    ],
)
def test_a_clause_that_raises_is_no_verdict(condition: str, reason: str) -> None:
    with pytest.raises(ClauseError) as caught:
        ask(with_clause(condition), "P2", args={"step": 2})
    assert caught.value.reason.startswith(reason)
    assert caught.value.clause is not None
    assert caught.value.clause.id == "P2"


def test_extra_functions_come_from_the_caller() -> None:
    library = ("guarantee:", "library: [pipeline]\nguarantee:")
    text = changed(library, ("result == (step <= room(old))", "twice(step) == 4"))
    spec, extra = parse_spec(text), {"twice": lambda x: 2 * x}
    assert ask(spec, "P2", args={"step": 2}, extra=extra)
    assert not ask(spec, "P2", args={"step": 3}, extra=extra)
    with pytest.raises(ClauseError, match="NameError"):
        ask(spec, "P2", args={"step": 2})


HELPERS = '''
def count(n: int) -> int:
    total = 0
    while n > 0:
        if n % 2 == 0:
            total += 1
            n -= 1
            continue
        n -= 1
        if total > 100:
            break
    return total

def sorted_by_hand(xs: list[int]) -> list[int]:
    out: list[int] = []
    for x in xs:
        i = 0
        while i < len(out) and out[i] <= x:
            i += 1
        out.insert(i, x)
    return out

def swapped(xs: list[int]) -> list[int]:
    xs[0], xs[1] = xs[1], xs[0]
    return xs

def grouped(xs: list[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for x in xs:
        if x % 2 not in found:
            found[x % 2] = []
        found[x % 2].append(x)
    return found

def factorial(n: int) -> int:
    return 1 if n <= 1 else n * factorial(n - 1)
'''


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("count(9)", "4"),
        ("sorted_by_hand([3, 1, 2])", "[1, 2, 3]"),
        ("grouped([1, 2, 3])", "{1: [1, 3], 0: [2]}"),
        ("factorial(5)", "120"),
        ("sorted([2, 1], key=lambda x: -x)", "[2, 1]"),
        ("max([], default=None)", "None"),
        ("'a-b'.split('-')", "['a', 'b']"),
        ("{i: j for i, j in zip([1], [2])}", "{1: 2}"),
    ],
)
def test_helpers_of_several_statements(expression: str, value: str) -> None:
    assert value_of(expression, helpers=HELPERS) == value


def test_helpers_change_no_value_that_came_in() -> None:
    helper = "def first(c: list[int]) -> int:\n    c.append(7)\n    d = c\n    d += [8]\n    return len(d)\n"
    spec = with_clause("first(xs) == 3".replace("xs", "[step]"), helpers=helper)
    assert ask(spec, "P2", args={"step": 1})
    text = changed(("value: int\n", "value: list[int]\n"), ("0 <= self.value <= self.limit", "first(self.value) >= 2"),
                   ("class Counter:", helper + "class Counter:"))  # fmt: skip
    state = {"limit": 1, "value": [1]}
    assert ask(parse_spec(text), "INV1", state=state)
    assert state == {"limit": 1, "value": [1]}


@pytest.mark.parametrize(
    "condition",
    [
        "len(range(10 ** 12)) > 0",
        "'x' * 10 ** 8 == ''",
        "[0] * (1 << 40) == []",
        "7 ** 7 ** 7 ** 7 == 1",
        "1 << 10 ** 9 == 1",
        "all(i >= 0 for _ in range(10 ** 5) for i in range(10 ** 5))",
        "forever(step) == 1",
        "doubled(step) == []",
        "round(1, -10 ** 9) == 1",
        "deep(step) == 1",
    ],
)
def test_every_evaluation_ends(condition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "MAX_STEPS", 200_000)  # a second less
    helpers = (
        "def forever(n: int) -> int:\n    while True:\n        n += 1\n    return n\n"
        "def doubled(n: int) -> list[int]:\n    x = [n]\n    while len(x) > 0:\n        x = x + x\n    return x\n"
        "def deep(n: int) -> int:\n    return deep(n + 1)\n"
    )
    with pytest.raises(ClauseError, match=r"takes too much|RecursionError"):
        ask(with_clause(condition, helpers=helpers), "P2", args={"step": 2})


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("self.__class__ == step", "begins with an underscore"),
        ("self.value.real == 1", "no field 'real'"),
        ("[].append(step) == None", "would change a value"),
        ("'{}'.format(step) == ''", "no method that clauses may call"),
        ("f'{step}' == ''", "an f-string has no place"),
        ("(y := step) == 1", "`:=` has no place"),
        ("(lambda *a: 1)(step) == 1", "cannot be called"),
        ("sorted([1], key=lambda *a: 1) == []", "plain parameters only"),
        ("source.oldest(step) == []", "not among what this spec relies on"),
        ("source.newest == step", "only its value means something"),
        ("b'' == step", "no plain value"),
        ("implies(step == 1) == True", "implies takes two conditions"),
    ],
)
def test_what_the_language_has_not(condition: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason.replace("(", r"\(")) as caught:
        with_clause(condition)
    assert caught.value.line == line_of(changed(), '"P2"')


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("import os", "import has no place in a helper"),
        ("raise ValueError", "raise has no place in a helper"),
        ("global x", "global has no place in a helper"),
        ("c.limit = 2", "assign to a name"),
        ("print(c.limit.denominator)", "no field 'denominator'"),
        ("c.value.append(1)", "would change a value"),
    ],
)
def test_what_helpers_have_not(statement: str, reason: str) -> None:
    text = changed(("    left = c.limit\n", f"    left = c.limit\n    {statement}\n"))
    with pytest.raises(SpecError, match=reason) as caught:
        parse_spec(text)
    assert caught.value.line == text.splitlines().index(f"    {statement}") + 1


def test_a_failure_shows_its_parts_and_the_first_witness() -> None:
    spec = with_clause("all(x < step for x in [self.value, 5]) and result")
    shown = explain(spec, spec.clauses["P2"], unit="Counter", state=OLD, old=OLD, result=True, args={"step": 2})
    assert shown["self.value"] == "1"
    assert shown["result"] == "True"
    assert shown["first x that breaks all((x < step for x in [self.value, 5]))"] == "[5]"
    spec = with_clause("[1][self.value] == step")
    shown = explain(spec, spec.clauses["P2"], unit="Counter", state=OLD, old=OLD, result=True, args={"step": 2})
    assert shown["[1][self.value]"] == "raises IndexError: list index out of range"


def test_shown_values_are_short_and_in_one_order() -> None:
    assert show({"b", "a", "c"}) == "{'a', 'b', 'c'}"
    assert show((1,)) == "(1,)"
    assert show(set()) == "set()"
    assert show(frozenset({2, 1})) == "frozenset({1, 2})"
    assert show(enumerate("ab")) == "[(0, 'a'), (1, 'b')]"  # its own repr is an address
    assert len(show(list(range(1000)))) <= 160
    assert repr(View({"x": 1})) == "(x=1)"
    assert View({"x": 1}) == View({"x": 1}) != View({"x": 2})


def test_draws() -> None:
    spec = parse_spec(changed())
    rng = random.Random(7)
    dag = draw(spec, "Counter", "[[j for j in range(i) if pick(0, 1) == 0] for i in many(0, 6)]", {}, rng.randint)
    assert all(0 <= j < i for i, row in enumerate(dag) for j in row)
    env = {"step": 2, "self": OLD}
    assert draw(spec, "Counter", "choose([self.value, step]) + room(self)", env, lambda a, b: b) == 4
    assert draw(spec, "Counter", "choose({3, 4})", env, lambda a, b: a) in (3, 4)
    with pytest.raises(IndexError):
        draw(spec, "Counter", "choose([])", env, rng.randint)
    with pytest.raises(IndexError):
        draw(spec, "Counter", "pick(2, 1)", env, rng.randint)
    with pytest.raises(ClauseError, match=r"draw '1 \+': is no expression"):
        draw(spec, "Counter", "1 +", env, rng.randint)
    with pytest.raises(ClauseError, match="NameError"):
        draw(spec, "Counter", "nothing", env, rng.randint)
    with pytest.raises(SpecError, match="underscore"):
        draw(spec, "Counter", "self.__dict__", env, rng.randint)


def test_threads_do_not_share_what_was_told() -> None:
    spec = parse_spec(changed())
    after = {"limit": 3, "value": 2}
    wrong: list[int] = []

    def work(own: int) -> None:
        for _ in range(200):
            if ask(spec, "P3", state=after, args={"n": 2}, relies=lambda name, args: [own]) != (own == 2):
                wrong.append(own)

    threads = [threading.Thread(target=work, args=(own,)) for own in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
