"""Evolution's roles as DSPy signatures: the proposing writer, the reflector and the curator."""

from __future__ import annotations

import dspy


class Propose(dspy.Signature):  # type: ignore[misc]
    """A better schedule than the incumbent. What differs from request to request stands last."""

    task: str = dspy.InputField(desc="The task")
    model: str = dspy.InputField(desc="The model")
    incumbent: str = dspy.InputField(desc="The incumbent, the fastest schedule so far")
    findings: str = dspy.InputField(desc="Why its step takes as long as it does")
    bullets: str = dspy.InputField(desc="Bullets from the playbook")
    edits: str = dspy.InputField(desc="Edits")
    tried: str = dspy.InputField(desc="Tried before, and what came of it: never again the same")
    previous: str = dspy.InputField(desc="Your previous reply")
    feedback: str = dspy.InputField(desc="What was wrong with it: mend exactly this")
    reply: str = dspy.OutputField(desc="one fenced block")


class Reflect(dspy.Signature):  # type: ignore[misc]
    """One measured edit to a lesson."""

    edit: str = dspy.InputField(desc="The edit")
    effect: str = dspy.InputField(desc="What was measured")
    before: str = dspy.InputField(desc="Findings before")
    after: str = dspy.InputField(desc="Findings after")
    facts: str = dspy.InputField(desc="Facts of the task")
    draft: str = dspy.InputField(desc="The lesson as rules have it")
    feedback: str = dspy.InputField(desc="What was wrong with your previous reply: mend exactly this")
    reply: str = dspy.OutputField(desc="one fenced block")


class Curate(dspy.Signature):  # type: ignore[misc]
    """Lessons to deltas."""

    bullets: str = dspy.InputField(desc="Bullets of the playbook")
    lessons: str = dspy.InputField(desc="Lessons")
    reply: str = dspy.OutputField(desc="one fenced block")
