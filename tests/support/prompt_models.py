"""Scripted models for prompt evolution: a small writer whose skill lies in its prompt, and a reflector."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator

from pibroch.agents.lm.base import LMError, Reply, Request, Usage
from pibroch.runtime.model import uniform_model

MODEL = uniform_model(4, hidden_bytes=64, param_bytes=1_000_000, saved_bytes=1000)
SENTENCES = [
    f"{family} over {p} stages, {m} microbatches" for family in ("GPipe", "1F1B") for p in (2, 3) for m in (2, 3)
]


class SmallWriter:
    """Right with probability `skill(prompt)`, drawn from prompt, sentence and sample; else a microbatch too many."""

    name = "local:scripted"

    def __init__(self, skill: Callable[[str], float], *, fail_at: int | None = None) -> None:
        self.skill, self.fail_at, self.asked = skill, fail_at, list[Request]()

    def complete(self, request: Request) -> Reply:
        if self.fail_at is not None and len(self.asked) >= self.fail_at:
            raise LMError("the model went away")
        self.asked.append(request)
        system, user = (m.content for m in request.messages)
        gpipe = "- family: gpipe" in user
        p = int(re.findall(r"- stages: (\d+)", user)[0])
        m = int(re.findall(r"- microbatches per replica: (\d+)", user)[0])
        right = random.Random(f"{system} {user} {request.sample}").random() < self.skill(system)
        data = {
            "stages": p, "replicas": 1, "microbatches": m if right else m + 1, "recompute": False,
            "warmup": [m if gpipe else min(m, p - s) for s in range(p)],
        }  # fmt: skip
        return Reply(f"```json\n{json.dumps(data)}\n```", Usage(100, 50, False), self.name)


class Reflector:
    """Gives out texts in turn, then `text 1`, `text 2`, …; keeps what it was asked."""

    name = "scripted"

    def __init__(self, *texts: str) -> None:
        self.asked: list[Request] = []
        self._texts: Iterator[str] = itertools.chain(texts, (f"text {i}" for i in itertools.count(1)))

    def complete(self, request: Request) -> Reply:
        self.asked.append(request)
        return Reply(f"````markdown\n{next(self._texts)}\n````", Usage(10, 5, False), self.name)

    def plain(self, prompt: object) -> str:
        """As a function for `gepa.optimize`."""
        return f"```\n{next(self._texts)}\n```"
