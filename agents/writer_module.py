"""The schedule writer as DSPy modules: one typed signature per phase, instructions from `agents/prompts`."""

from __future__ import annotations

from collections.abc import Mapping

import dspy

from pibroch.agents.instructed import Instructed


class WritePlacement(dspy.Signature):  # type: ignore[misc]
    """Phase 1."""

    intent: str = dspy.InputField(desc="The sentence of intent")
    reading: str = dspy.InputField(desc="How the sentence was read")
    model: str = dspy.InputField(desc="The model")
    previous: str = dspy.InputField(desc="Your previous reply")
    feedback: str = dspy.InputField(desc="What was wrong with it: mend exactly this")
    reply: str = dspy.OutputField(desc="one fenced block")


class WriteConcurrency(dspy.Signature):  # type: ignore[misc]
    """Phase 2."""

    intent: str = dspy.InputField(desc="The sentence of intent")
    reading: str = dspy.InputField(desc="How the sentence was read")
    model: str = dspy.InputField(desc="The model")
    placement: str = dspy.InputField(desc="Phase 1's directives (settled)")
    stages: str = dspy.InputField(desc="The stages of this placement")
    limits: str = dspy.InputField(desc="What the order is measured by on this placement")
    numbers: str = dspy.InputField(desc="Simulator, with the default order (all forwards, then all backwards)")
    previous: str = dspy.InputField(desc="Your previous reply")
    feedback: str = dspy.InputField(desc="What was wrong with it: mend exactly this")
    reply: str = dspy.OutputField(desc="one fenced block")


class WriteSmall(dspy.Signature):  # type: ignore[misc]
    """Both phases at once, for small models."""

    intent: str = dspy.InputField(desc="The sentence")
    reading: str = dspy.InputField(desc="How it was read")
    reply: str = dspy.OutputField(desc="one fenced block")


def small_writer(prompts: Mapping[str, str] | None = None) -> Instructed:
    """The writer for small models (`agents/schedule_small.py`)."""
    return Instructed(WriteSmall, ("schedule_small",), prompts)


def schedule_writer(phase: int, prompts: Mapping[str, str] | None = None) -> Instructed:
    """The writer of `phase` 1 or 2. Its instructions are the phase's prompt followed by the directive reference
    and the rules that feedback cites."""
    signature = WritePlacement if phase == 1 else WriteConcurrency
    return Instructed(signature, (f"schedule_phase{phase}", "directives", "schedule_rules"), prompts)
