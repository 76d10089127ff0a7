"""Drafts of specs under a scripted model: the format, what is sent back, what is said to be assumed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripted_judge import SOURCE
from scripted_lm import ScriptedModel

from pibroch.agents.prompt_files import prompt
from pibroch.agents.spec_draft import Draft, assumptions, draft_spec, file_name
from pibroch.runtime.errors import InputError
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec

EXAMPLE = re.findall(r"^````markdown\n(.*?)^````$", prompt("spec_draft"), re.DOTALL | re.MULTILINE)[-1]


def fenced(text: str) -> str:
    return f"Here.\n\n````markdown\n{text}````\n"


def draft(
    replies: list[str], known: dict[str, Spec] | None = None, says: tuple[str, ...] = ()
) -> tuple[Draft, ScriptedModel]:
    lm = ScriptedModel(list(replies))
    return draft_spec("a tank", lm, known=known, attempts=len(replies), check=lambda spec, known: list(says)), lm


def test_the_prompts_own_example_is_a_spec() -> None:
    got, lm = draft([fenced(EXAMPLE)])
    assert got.spec is not None
    assert got.spec.module == "tank"
    assert got.assumptions == "Units are whole numbers. What does not fit is lost."
    assert file_name(got.spec) == Path("specs/modules/tank.spec.md")
    assert lm.asked[0].blocks == ("markdown",)
    assert "a tank" in lm.prompt(0)


def test_three_backticks_will_do() -> None:
    got, _ = draft([f"```markdown\n{EXAMPLE}```\nThat is it."])
    assert got.spec is not None
    assert got.text == EXAMPLE


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("no block", "four backticks"),
        (f"````markdown\n{EXAMPLE}", "four backticks"),
        (fenced(EXAMPLE.replace("version: 1", "version: one")), "line 4"),
        (fenced(EXAMPLE.replace("min(old", "min((old")), "line 26: syntax error"),
        (fenced(EXAMPLE.replace("Assumptions", "Thoughts")), "what it assumed"),
        (fenced(EXAMPLE.replace("exports: [Tank]", "exports: [Tonk]")), "Tonk is exported and never specified"),
        (fenced(EXAMPLE.replace("module: tank", "module: source")), "has a spec already"),
    ],
)
def test_what_is_wrong_goes_back(bad: str, says: str) -> None:
    known = {"source": parse_spec(SOURCE)}
    got, lm = draft([bad, fenced(EXAMPLE)], known)
    assert got.spec is not None
    assert got.attempts == 2
    assert says in got.feedback[0][0]
    assert says in lm.prompt(1)
    assert "source.take(n: int) -> int" in lm.prompt(0)


def test_checks_go_back_too_and_nothing_unchecked_comes_out() -> None:
    got, lm = draft([fenced(EXAMPLE)] * 2, says=("clause P2 is not bool",))
    assert got.spec is None
    assert got.text == ""
    assert "clause P2 is not bool" in lm.prompt(1)
    with pytest.raises(InputError, match="what the module shall do"):
        draft_spec(" ", ScriptedModel([]))


def test_assumptions_may_be_a_paragraph() -> None:
    assert assumptions("x\n\nAssumptions: one,\ntwo.\n\nmore") == "one, two."
    assert assumptions("no assumptions here") == ""
