"""Every phrase of docs/intent.md is understood, to the last word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pibroch.agents.intent import read_intent

PAGE = Path(__file__).resolve().parents[2] / "docs" / "intent.md"
ROWS = [line.split("|")[1:3] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
EXAMPLES = [(what.strip(), phrase) for what, cell in ROWS for phrase in re.findall(r"`([^`]+)`", cell)]


def test_the_page_has_its_examples() -> None:
    assert len(EXAMPLES) > 50


@pytest.mark.parametrize(("what", "phrase"), EXAMPLES, ids=[phrase for _, phrase in EXAMPLES])
def test_a_documented_phrase_is_understood(what: str, phrase: str) -> None:
    intent = read_intent(phrase)
    assert intent.understood
    assert intent.used
