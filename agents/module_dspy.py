"""Writer and reviewer of modules, and the drafter of specs, as DSPy modules with typed signatures."""

from __future__ import annotations

import dspy


class WriteSequential(dspy.Signature):  # type: ignore[misc]
    """Phase 1. The fields stand in the request in this order: what a small model needs most is last."""

    intent: str = dspy.InputField(desc="Intent")
    algorithm: str = dspy.InputField(desc="Algorithm")
    relies: str = dspy.InputField(desc="What the module relies on")
    facts: str = dspy.InputField(desc="Facts")
    words: str = dspy.InputField(desc="Words of the conditions")
    block: str = dspy.InputField(desc="The spec's block")
    skeleton: str = dspy.InputField(desc="The skeleton")
    previous: str = dspy.InputField(desc="Your previous reply")
    feedback: str = dspy.InputField(desc="What was wrong with it: mend exactly this")
    mind: str = dspy.InputField(desc="What was wrong with an earlier module: write a new one that does better")
    now: str = dspy.InputField(desc="Now")
    reply: str = dspy.OutputField(desc="one fenced block")


class WriteShort(dspy.Signature):  # type: ignore[misc]
    """Phase 1 for a small model."""

    task: str = dspy.InputField(desc="Task")
    tests: str = dspy.InputField(desc="It must pass")
    previous: str = dspy.InputField(desc="Your last code")
    feedback: str = dspy.InputField(desc="It is wrong, mend it")
    reply: str = dspy.OutputField(desc="one fenced block")


class WriteConcurrent(dspy.Signature):  # type: ignore[misc]
    """Phase 2."""

    intent: str = dspy.InputField(desc="Intent")
    algorithm: str = dspy.InputField(desc="Algorithm")
    concurrency: str = dspy.InputField(desc="Concurrency")
    relies: str = dspy.InputField(desc="What the module relies on")
    facts: str = dspy.InputField(desc="Facts")
    block: str = dspy.InputField(desc="The spec's block")
    protocol: str = dspy.InputField(desc="The protocol")
    accepted: str = dspy.InputField(desc="The accepted module of phase 1")
    previous: str = dspy.InputField(desc="Your previous reply")
    feedback: str = dspy.InputField(desc="What was wrong with it: mend exactly this")
    mind: str = dspy.InputField(desc="What was wrong with an earlier module: write a new one that does better")
    now: str = dspy.InputField(desc="Now")
    reply: str = dspy.OutputField(desc="one fenced block")


class Review(dspy.Signature):  # type: ignore[misc]
    """The prose against the code."""

    intent: str = dspy.InputField(desc="Intent")
    algorithm: str = dspy.InputField(desc="Algorithm")
    concurrency: str = dspy.InputField(desc="Concurrency")
    relies: str = dspy.InputField(desc="What the module relies on")
    block: str = dspy.InputField(desc="The spec's block")
    protocol: str = dspy.InputField(desc="The protocol")
    code: str = dspy.InputField(desc="The module")
    feedback: str = dspy.InputField(desc="Why your last review could not be read")
    reply: str = dspy.OutputField(desc="one fenced block")


class DraftSpec(dspy.Signature):  # type: ignore[misc]
    """Prose in, a spec out."""

    wish: str = dspy.InputField(desc="What the module shall do")
    known: str = dspy.InputField(desc="Modules that it may rely on")
    previous: str = dspy.InputField(desc="Your previous reply")
    feedback: str = dspy.InputField(desc="What was wrong with it: mend exactly this")
    reply: str = dspy.OutputField(desc="one fenced block")
