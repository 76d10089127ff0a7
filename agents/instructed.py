"""The one DSPy module of ours: a typed signature that takes its instructions from prompt files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy

from pibroch.agents.prompt_files import prompt


class Instructed(dspy.Module):  # type: ignore[misc]
    """A signature whose instructions are prompt files, one after the other."""

    def __init__(self, signature: Any, names: tuple[str, ...], prompts: Mapping[str, str] | None = None) -> None:
        super().__init__()
        text = "\n".join(prompt(name, prompts) for name in names)
        self.ask = dspy.Predict(signature.with_instructions(text))

    def forward(self, **inputs: Any) -> Any:
        """One prediction with the field `reply`."""
        return self.ask(**inputs)
