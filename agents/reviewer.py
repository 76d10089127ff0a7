"""The last stage: a language model reads the prose that no clause covers. It can reject; it never accepts alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pibroch.agents.answers import answer_of
from pibroch.agents.lm.base import LanguageModel, ReplyError, Request, digest
from pibroch.agents.module_task import task
from pibroch.evals.speceval.verdict import Finding
from pibroch.runtime.errors import PibrochError
from pibroch.specs.model import Spec
from pibroch.specs.store import semantic_hash

REVIEW_SCHEMA = 1
DEADLINE_S = 600.0
TRIES = 2
PROMPTS = ("review",)


class ReviewFailed(PibrochError):
    """The reviewer gave no readable verdict, and without one nothing is accepted."""


class _Objection(BaseModel):
    model_config = ConfigDict(extra="forbid")

    prose: str = Field(min_length=1)
    line: int = 0
    why: str = Field(min_length=1)
    mend: str = ""


class _Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    verdict: Literal["pass", "reject"]
    findings: list[_Objection] = []


class Reviewer:
    """Reads candidates of one spec. Each review is one more request, with the role `reviewer`."""

    def __init__(
        self, spec: Spec, lm: LanguageModel, prompts: Mapping[str, str] | None, *, say: Callable[[str], None]
    ) -> None:
        self.spec, self.lm, self.prompts, self.say = spec, lm, prompts, say
        self.asked = 0

    def read(
        self, source: str, *, phase: int, answered: Callable[[tuple[str, ...], bool], None] = lambda names, stale: None
    ) -> list[Finding]:
        """What the reviewer rejects; nothing where it passes. Raises `ReviewFailed` where no reply can be read."""
        reason = ""
        for _ in range(TRIES):
            text, stale = self._ask(source, phase, reason)
            answered(PROMPTS, stale)
            try:
                findings = self.parse(text, source)
            except ReplyError as error:
                reason = str(error)
                self.say(f"{self.spec.module}, review {self.asked}: failed: {reason}")
                continue
            self.say(f"{self.spec.module}, review {self.asked}: {findings[0].message if findings else 'passed'}")
            return findings
        raise ReviewFailed(f"the review failed {TRIES} times, so nothing is accepted: {reason}")

    def parse(self, text: str, source: str) -> list[Finding]:
        """A reply as findings. Raises `ReplyError` for what is no verdict, which is a failed review."""
        verdict = answer_of(text, _Verdict)
        if (verdict.verdict == "reject") != bool(verdict.findings):
            raise ReplyError('"reject" comes with findings and "pass" with none')
        prose = _words(" ".join((self.spec.front.summary, *self.spec.sections.values())))
        rows = []
        for row in verdict.findings:
            if _words(row.prose) not in prose:
                raise ReplyError(f"the prose of the spec has no sentence {row.prose[:200]!r}: quote it word for word")
            lines = (row.line,) if 0 < row.line <= len(source.splitlines()) else ()
            values = {"prose": row.prose, **({"mend": row.mend} if row.mend else {})}
            rows.append(Finding("review", "prose", row.why, values=values, code_lines=lines))
        return rows

    def _ask(self, source: str, phase: int, reason: str) -> tuple[str, bool]:
        from pibroch.agents.instructed import Instructed
        from pibroch.agents.lm.dspy_engine import call
        from pibroch.agents.module_dspy import Review

        self.asked += 1
        given: dict[str, Any] = {**task(self.spec, 2)}  # all of the prose, and the block
        for name in ("facts", "words"):
            given.pop(name)
        request = Request(
            role="reviewer", subject=self.spec.module, phase=phase, attempt=self.asked, messages=(),
            deadline_s=DEADLINE_S, semantic_key=semantic_hash(self.spec), schema_version=REVIEW_SCHEMA,
            previous_hash=digest([source, reason]), max_tokens=16384, blocks=("json",),
        )  # fmt: skip
        numbered = "\n".join(f"{n:3d} {line}" for n, line in enumerate(source.rstrip().splitlines(), 1))
        _, reply, _ = call(
            Instructed(Review, PROMPTS, self.prompts), self.lm, request, **given, code=f"```text\n{numbered}\n```",
            feedback=reason,
        )
        return reply.text, reply.stale


def _words(text: str) -> str:
    """Letters and digits alone: quotes differ in line breaks, marks and case."""
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
