from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pibroch.runtime.action import Action, Chunk, parse_action

chunks = st.builds(Chunk, st.integers(0, 99), st.integers(0, 9))
actions = st.one_of(
    st.tuples(st.sampled_from(["F", "B", "BI", "BW"]), chunks, st.integers(0, 999)).map(lambda t: Action(*t)),
    st.tuples(st.sampled_from(["SEND", "RECV"]), chunks, st.integers(0, 999), chunks, st.sampled_from("FB")).map(
        lambda t: Action(*t)
    ),
    st.builds(lambda b: Action("REDUCE", bucket=b), st.integers(0, 99)),
    st.builds(lambda s: Action("UPDATE", Chunk(s)), st.integers(0, 99)),
)


@given(actions)
def test_text_parses_back_to_the_same_action(action: Action) -> None:
    assert parse_action(str(action)) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("0F3", Action("F", Chunk(0), 3)),
        ("1.2BW0", Action("BW", Chunk(1, 2), 0)),
        ("1BI2", Action("BI", Chunk(1), 2)),
        ("0>1F3", Action("SEND", Chunk(0), 3, Chunk(1), "F")),
        ("0<1.1B2", Action("RECV", Chunk(0), 2, Chunk(1, 1), "B")),
        ("R2", Action("REDUCE", bucket=2)),
        ("U1", Action("UPDATE", Chunk(1))),
    ],
)
def test_examples(text: str, action: Action) -> None:
    assert parse_action(text) == action
    assert str(action) == text


JUNK = ("", "0F", "F3", "0F3x", "0F3 ", "0.0F3", "0>F3", "0>1BI3", "R", "U1.1", "-1F0", "0X3")


@pytest.mark.parametrize("junk", JUNK)
def test_junk_is_refused(junk: str) -> None:
    with pytest.raises(ValueError, match="not an action"):
        parse_action(junk)
