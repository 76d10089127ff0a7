"""The one protocol that every language model of ours speaks: messages in, text and usage out.

A reply is plain text with exactly one fenced block. A request carries, beside its messages, what makes it findable
again: role, subject, phase, attempt, a semantic hash of the task, the hash of the previous candidate and the sample
number. Wall-clock time and machine names never enter a request.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Protocol

from pibroch.runtime.errors import PibrochError

MAX_REPLY_BYTES = 1 << 20


class LMError(PibrochError):
    """The model did not answer: a deadline passed, the endpoint or the child failed."""

    exit_code = 4


class Paused(PibrochError):
    """Nobody has answered yet. The run can be resumed; no attempt is spent."""

    exit_code = 4


class ReplyError(ValueError):
    """A reply is malformed; the message is feedback for the next attempt."""


@dataclass(frozen=True, slots=True)
class Message:
    """`role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `estimated` where the backend does not count them."""

    input_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """One question. `deadline_s` covers the whole call, retries included; `blocks` are the fence languages allowed.

    `json_schema` describes a reply in JSON: models that can be held to a schema while they generate are.
    """

    role: str
    subject: str
    phase: int
    attempt: int
    messages: tuple[Message, ...]
    deadline_s: float = 120.0
    semantic_key: str = ""
    previous_hash: str = ""
    sample: int = 0
    schema_version: int = 1
    max_tokens: int = 4096
    blocks: tuple[str, ...] = ("json", "python")
    json_schema: dict[str, Any] | None = None

    @property
    def prompt_hash(self) -> str:
        """Of the messages alone."""
        return digest([[m.role, m.content] for m in self.messages])

    @property
    def key(self) -> dict[str, Any]:
        """What a recorded reply is found by."""
        return {
            "role": self.role, "schema_version": self.schema_version, "semantic_key": self.semantic_key,
            "phase": self.phase, "attempt": self.attempt, "previous_hash": self.previous_hash, "sample": self.sample,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reply:
    """`stale`: recorded for another wording of the prompt. `who` answered, where that is known."""

    text: str
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    seconds: float = 0.0
    stale: bool = False
    who: str = ""


class LanguageModel(Protocol):
    """Raises `LMError` or `Paused`; never retries a call that was answered."""

    name: str

    def complete(self, request: Request) -> Reply:
        """Answer one request within its deadline."""
        ...


def backend(lm: LanguageModel) -> str:
    """Which kind of model this is: `openai` of `openai:gpt-4.1`."""
    return lm.name.split(":", 1)[0]


def finish(lm: LanguageModel) -> None:
    """Tell a model that keeps state between calls (a mailbox) that the run is over."""
    end = getattr(lm, "finish", None)
    if end is not None:
        end()


def digest(data: Any) -> str:
    """A short stable hash of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


_OPENING = re.compile(r"(`{3,}|~{3,})[ \t]*([\w+-]*)")


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, body) of each fenced block: from a line that opens one to the next line of the same marks alone.

    One pass: a reply of nothing but opening lines would keep a search that starts again at each of them for an hour.
    """
    lines = text.split("\n")
    closing: dict[str, list[int]] = {}
    for i, line in enumerate(lines):
        if line[:3] in ("```", "~~~") and not (bare := line.rstrip(" \t")).strip(bare[0]):
            closing.setdefault(bare, []).append(i)
    blocks, i = [], 0
    while i < len(lines):
        match = _OPENING.match(lines[i])
        marks = match[1] if match else ""
        # One mark too many in the opening line is forgiven: it is then closed by fewer.
        for fence in (marks, *(marks[:k] for k in range(min(len(marks) - 1, 8), 2, -1))):
            ends = closing.get(fence, [])
            at = bisect_right(ends, i)
            if match and at < len(ends):
                language = match[2] if fence == marks else ""
                blocks.append((language, "".join(line + "\n" for line in lines[i + 1 : ends[at]])))
                i = ends[at]
                break
        i += 1
    return blocks


def _guess(body: str) -> str:
    """The language of an unlabelled block, where there is no doubt; small models often leave the label out."""
    if body.lstrip()[:1] in ("[", "{"):
        return "json"
    return "python" if re.search(r"^def \w+\(", body, re.MULTILINE) else ""


def fenced_block(text: str, allowed: tuple[str, ...] = ("json", "python")) -> tuple[str, str]:
    """(language, body) of the one fenced block of a reply. Raises `ReplyError` that says what is wrong."""
    if len(text.encode()) > MAX_REPLY_BYTES:
        raise ReplyError(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
    blocks = _blocks(text)
    if len(blocks) != 1:
        count = "no fenced block" if not blocks else f"{len(blocks)} fenced blocks"
        if not blocks and re.search(r"^(`{3,}|~{3,})", text, re.MULTILINE):
            count = "a fenced block that is never closed"
        raise ReplyError(f"the reply has {count}: give exactly one, opened by ```{allowed[0]} and closed by ```")
    language, body = blocks[0]
    language = {"py": "python", "python3": "python", "md": "markdown"}.get(language.lower(), language.lower())
    language = language or _guess(body)
    if language not in allowed:
        names = " or ".join(allowed)
        raise ReplyError(f"the fenced block says {language or 'no language'!r}: it must say {names}")
    if not body.strip():
        raise ReplyError("the fenced block is empty")
    return language, body
