"""Conditions: what meets them, one spelling, and mistakes named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pibroch.playbooks.conditions import holds, normal
from pibroch.runtime.errors import InputError


@pytest.mark.parametrize(
    ("condition", "fact", "expected"),
    [
        (">=4", 4, True), (">=4", 3, False), (">4", 4, False), ("<0.5", 0.49, True), ("<=2", 2, True),
        ("<=2", 3, False),
        ("4", 4, True), ("=4", 4.0, True), ("==4", 5, False), ("!=4", 5, True), ("!=4", 4, False),
        ("2|4", 4, True), ("2|4", 3, False), (">=2,<8", 2, True), (">=2,<8", 8, False), ("!=2,!=4", 3, True),
        ("true", True, True), ("true", False, False), ("false", False, True), ("true", 1, False), (">=0", True, False),
        ("gpt-tiny|mlp", "mlp", True), ("!=mlp", "gpt", True), (">=4", "many", False), ("4", "4", True),
    ],
)  # fmt: skip
def test_holds(condition: str, fact: bool | float | str, expected: bool) -> None:
    assert holds(condition, fact) is expected


def test_normal_spells_one_way() -> None:
    assert normal({"stages": "4 | 2", "devices": ">= 4.0", "memory_bound": "== true"}) == {
        "devices": ">=4",
        "memory_bound": "true",
        "stages": "2|4",
    }


@pytest.mark.parametrize(
    ("key", "condition"),
    [
        ("Devices", "4"), ("a b", "4"), ("finding:", "true"), ("devices", ""), ("devices", ">="), ("devices", ">=many"),
        ("devices", ">=2|4"), ("devices", ">=2,"), ("devices", ">8,<8"), ("devices", "2,4"), ("kind", "a,b"),
        ("devices", "nan?"), ("memory_bound", "true,false"),
    ],
)  # fmt: skip
def test_mistakes_are_named(key: str, condition: str) -> None:
    with pytest.raises(InputError, match="condition") as caught:
        normal({key: condition})
    assert key in str(caught.value)


@given(
    parts=st.lists(
        st.tuples(st.sampled_from((">=", "<=", ">", "<", "=", "!=")), st.integers(-2, 3)), min_size=1, max_size=3
    ),
    facts=st.lists(st.floats(-4, 5), max_size=20),
)
def test_what_is_refused_holds_nowhere_and_spelling_changes_nothing(
    parts: list[tuple[str, int]], facts: list[float]
) -> None:
    condition = ",".join(f"{op}{bound}" for op, bound in parts)
    facts = [*facts, *range(-3, 5), *(n + 0.5 for n in range(-3, 4))]
    try:
        spelled = normal({"devices": condition})["devices"]
    except InputError:
        assert not any(holds(condition, fact) for fact in facts)
    else:
        assert [holds(condition, fact) for fact in facts] == [holds(spelled, fact) for fact in facts]
        assert normal({"devices": spelled})["devices"] == spelled
        assert any(holds(condition, fact) for fact in facts)
