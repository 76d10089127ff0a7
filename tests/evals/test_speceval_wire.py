"""Plain values as JSON: there and back, and exactly of their type."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from pibroch.evals.speceval import wire

PLAIN: list[Any] = [
    0, -(10**30), True, None, "", "naïve \ud800", 0.1, -0.0, math.inf, [], [1, [2.5, "a"]], (), (1,), {1: "a"}, {},
    {(1, 2): {3, 4}}, set(), frozenset({("a", 1)}), [None, True, {"t": [1]}, {"x": 1}],
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_go_there_and_back(value: Any) -> None:
    back = wire.decode("Any", json.loads(json.dumps(wire.encode(value))))
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 3), ("bool", True), ("float", 1.5), ("float", math.inf), ("None", None), ("int | None", None),
        ("Optional[list[int]]", [1]), ("list[tuple[int, str]]", [(1, "a")]), ("tuple[int, ...]", (1, 2)),
        ("dict[str, list[int]]", {"a": [1]}), ("set[int]", {1}), ("frozenset[str]", frozenset("a")), ("list", [1, "a"]),
        ("Literal['a', 'b']", "b"), ("Union[int, str]", "a"), ("'list[int]'", [1]), ("tuple[()]", ()),
    ],
)  # fmt: skip
def test_a_value_of_its_type_is_taken(kind: str, value: Any) -> None:
    assert wire.decode(kind, wire.encode(value)) == value


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int", True, "expected int, got bool"), ("bool", 1, "expected bool, got int"),
        ("int", 1.0, "expected int, got float"), ("list[int]", (1,), "expected list[int], got tuple"),
        ("list[int]", [1, None], "[1]: expected int, got None"), ("float", "1", "expected float, got str"),
        ("dict[str, int]", {"a": []}, "['a']: expected int, got list"),
        ("set[int]", [1], "expected set[int], got list"),
        ("dict[str, int]", {1: 1}, " key: expected str, got int"), ("None", 0, "expected None, got int"),
        ("tuple[int, int]", (1,), "expected tuple[int, int], got a tuple of 1"),
        ("int | None", "a", "expected int | None, got str"),
        ("list[list[int]]", [[True]], "[0][0]: expected int, got bool"),
        ("Literal[1]", True, "expected Literal[1], got 'True'"),
        ("frozenset[int]", {1}, "expected frozenset[int], got set"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_named(kind: str, value: Any, message: str) -> None:
    with pytest.raises(wire.TypeMismatch) as error:
        wire.decode(kind, wire.encode(value))
    assert str(error.value) == message


def test_an_int_counts_as_a_float_and_becomes_one() -> None:
    assert repr(wire.decode("list[float]", [1, 2.5])) == "[1.0, 2.5]"


class _One(int):
    pass


@pytest.mark.parametrize(
    "value",
    [_One(1), object(), [_One(1)], {"a": b"x"}, 1 << 5000, lambda: 0],
    ids=["subclass", "object", "inside", "bytes", "huge", "function"],
)
def test_what_is_not_plain_is_not_encoded(value: Any) -> None:
    with pytest.raises(wire.TypeMismatch):
        wire.encode(value)


def test_a_cycle_ends() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(wire.TypeMismatch, match="deeper"):
        wire.encode(cycle)


@pytest.mark.parametrize(
    "data", [{}, {"q": 1}, {"t": 1}, {"d": [1]}, {"d": [[], 1]}, {"s": [[]]}, {"f": 3}, {"f": "1"}]
)
def test_nonsense_is_no_value(data: Any) -> None:
    with pytest.raises(wire.TypeMismatch):
        wire.unpack(data)
    with pytest.raises(wire.TypeMismatch):
        wire.decode("dict[Any, Any]", data)


@pytest.mark.parametrize("text", ["Foo", "list[Foo]", "int |", "1", "list[int, int]", "x.y"])
def test_an_annotation_that_is_no_plain_type(text: str) -> None:
    with pytest.raises(ValueError, match="no "):
        wire.checker(text)
