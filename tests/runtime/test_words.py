from __future__ import annotations

import pytest

from pibroch.runtime.words import count, listed


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "microbatch", "1 microbatch"),
        (2, "microbatch", "2 microbatches"),
        (0, "stage", "0 stages"),
        (1, "replica", "1 replica"),
        (3, "pipeline device", "3 pipeline devices"),
    ],
)
def test_one_is_singular(number: int, noun: str, text: str) -> None:
    assert count(number, noun) == text


def test_lists() -> None:
    assert listed("stage", [0]) == "stage 0"
    assert listed("stage", [0, 1]) == "stages 0 and 1"
    assert listed("stage", [0, 1, 2]) == "stages 0, 1 and 2"
