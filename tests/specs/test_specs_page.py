"""docs/specs.md: the tutorial's spec is a spec, its error is what is said, and the tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pibroch.specs.errors import SpecError
from pibroch.specs.lint import lint
from pibroch.specs.model import Concurrency, FrontMatter
from pibroch.specs.parse import SECTIONS, parse_spec
from pibroch.specs.whitelist import BUILTINS


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "specs.md").read_text()


def test_the_tutorials_spec_is_sound(page: str) -> None:
    text = re.findall(r"^````markdown\n(.*?)^````", page, flags=re.S | re.M)[0]
    spec = parse_spec(text, "specs/gate.spec.md")
    assert (len(spec.clauses), lint(spec)) == (5, [])
    shown = re.search(r"^pibroch: (specs/gate.*)$", page, flags=re.M)
    assert shown
    with pytest.raises(SpecError) as caught:
        parse_spec(text.replace("(now >=", "(nwo >="), "specs/gate.spec.md")
    assert str(caught.value) == shown[1]


def test_the_reference_is_complete(page: str) -> None:
    for name in FrontMatter.model_fields:
        assert f"`{name}`" in page, name
    for name in (*Concurrency.model_fields, "bound", "setup", "call", "sizes"):
        assert re.search(rf"\b{name}\b", page), name
    for name in (*BUILTINS, *("requires", "ensures", "invariant", "raises", "when", "modifies", "view", "implies")):
        assert re.search(rf"\b{name}\b", page), name
    for section in SECTIONS:
        assert f"*{section.capitalize()}*" in page
