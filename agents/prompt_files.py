"""The prompts: files of `agents/prompts`, the only source of what a model is told to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources

from pibroch.agents.lm.base import digest


def prompt(name: str, prompts: Mapping[str, str] | None = None) -> str:
    """The text of `agents/prompts/NAME.md`, unless `prompts` brings its own (as evolution does)."""
    if prompts and name in prompts:
        return prompts[name]
    return resources.files("pibroch.agents").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")


def prompt_hashes(names: Iterable[str], prompts: Mapping[str, str] | None = None) -> dict[str, str]:
    """A hash of each prompt by its name; a name without a file is left out."""
    found = {}
    for name in sorted(names):
        try:
            found[name] = digest(prompt(name, prompts))
        except FileNotFoundError:
            continue
    return found
