"""A language model that answers from a list, and keeps what it was asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pibroch.agents.lm.base import Reply, Request, Usage


class ScriptedModel:
    """Answers are given out in turn; an exception among them is raised."""

    name = "scripted"

    def __init__(self, answers: Sequence[str | Exception]) -> None:
        self.answers, self.asked = list(answers), list[Request]()

    def complete(self, request: Request) -> Reply:
        self.asked.append(request)
        answer = self.answers[len(self.asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return Reply(answer, Usage(10, 5, False), self.name, who="script")

    def prompt(self, i: int) -> str:
        return "\n".join(m.content for m in self.asked[i].messages)


def block(data: Any, language: str = "json") -> str:
    """One fenced block with a sentence before it."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"Here it is.\n\n```{language}\n{text}\n```\n"
