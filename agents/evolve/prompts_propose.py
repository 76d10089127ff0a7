"""New texts for prompts: one request to the reflection model for each, and no text twice.

The model sees the present text, the judged samples, and the last texts that were tried in vain. A text that was
rejected before, that is in the pool already, or that is longer than allowed is never evaluated; the next request says
so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pibroch.agents.evolve.prompts_accept import SignTest
from pibroch.agents.gepa_adapter import candidate_hash
from pibroch.agents.lm.base import LanguageModel, LMError, Message, ReplyError, Request, digest, fenced_block
from pibroch.agents.prompt_files import prompt
from pibroch.runtime.errors import PibrochError

DEADLINE_S = 1800.0
MOST_TOKENS = 2500
FAILURES = 3
_SHOWN_TEXTS = 2
_SHOWN = 1500


def tokens_of(text: str) -> int:
    """About as many as a common tokenizer makes."""
    return len(text.encode()) // 4 + 1


class Proposer:
    """GEPA's `custom_candidate_proposer`. `failed` is what ended it: GEPA swallows a proposer's exceptions.

    `tests` are the rejected candidates by hash, `pool` the accepted ones. `note` keeps a refusal in the journal.
    """

    def __init__(
        self,
        lm: LanguageModel,
        *,
        writer: str,
        tests: Mapping[str, SignTest],
        most_tokens: int = MOST_TOKENS,
        note: Callable[[str, str], None] = lambda candidate, reason: None,
    ) -> None:
        self.lm, self.writer, self.tests, self.most_tokens, self.note = lm, writer, tests, most_tokens, note
        self.pool: set[str] = set()
        self.failed: PibrochError | None = None
        self._asked = self._failures = 0
        self._tried: dict[str, str] = {}
        self._refused = ""

    def __call__(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """Texts by component; nothing where the proposal must not be evaluated."""
        if self.failed is not None:
            raise self.failed
        try:
            return self._propose(candidate, reflective_dataset, components_to_update)
        except PibrochError as error:
            self.failed = error
            raise

    def _propose(
        self, candidate: dict[str, str], dataset: Mapping[str, Sequence[Mapping[str, Any]]], names: list[str]
    ) -> dict[str, str]:
        texts: dict[str, str] = {}
        refused = "there was nothing to reflect on"
        for name in names:
            if dataset.get(name):
                text, refused = self._ask(name, candidate[name], dataset[name])
                if text:
                    texts[name] = text
        child = {**candidate, **texts}
        self._refused = self._refusal(candidate, child) if texts else refused
        if self._refused:
            self.note(candidate_hash(child), self._refused)
            return {}
        self._tried[candidate_hash(child)] = "\n\n".join(texts.values())
        return texts

    def _refusal(self, parent: Mapping[str, str], child: Mapping[str, str]) -> str:
        key = candidate_hash(child)
        if key == candidate_hash(parent):
            return "the text is unchanged"
        if key in self.tests or key in self.pool:
            return "this very text was tried before"
        long = max(tokens_of(text) for text in child.values())
        return f"the text has about {long} tokens, {self.most_tokens} are allowed" if long > self.most_tokens else ""

    def _ask(self, name: str, text: str, records: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """The new text, or why there is none."""
        self._asked += 1
        message = self._message(name, text, records)
        request = Request(
            role="reflector", subject=name, phase=1, attempt=self._asked,
            messages=(Message("system", prompt("evolve_prompt")), Message("user", message)),
            deadline_s=DEADLINE_S, semantic_key=digest([name, text]), previous_hash=digest(list(map(dict, records))),
            max_tokens=4 * self.most_tokens, blocks=("markdown",),
        )  # fmt: skip
        try:
            _, body = fenced_block(self.lm.complete(request).text, ("markdown",))
        except (LMError, ReplyError) as error:
            self._failures += 1
            if self._failures >= FAILURES:
                raise LMError(f"{FAILURES} reflections in a row failed; the last one: {error}") from error
            return "", f"the reply could not be used: {error}"
        self._failures = 0
        return body.strip() + "\n", ""

    def _message(self, name: str, text: str, records: Sequence[Mapping[str, Any]]) -> str:
        fence = "`````"
        parts = [
            f"## The text: {name}, about {tokens_of(text)} tokens; at most {self.most_tokens}. The writer is "
            f"{self.writer}\n\n{fence}\n{text.strip()}\n{fence}",
            "## Samples\n\n" + "\n\n".join(_sample(i, record) for i, record in enumerate(records, 1)),
        ]
        vain = [(key, tried) for key, tried in self._tried.items() if key in self.tests][-_SHOWN_TEXTS:]
        if vain:
            parts.append(
                "## Texts that were tried and were no better\n\n"
                + "\n\n".join(f"{self.tests[key]}\n\n{fence}\n{tried[:_SHOWN].strip()}\n{fence}" for key, tried in vain)
            )
        if self._refused:
            parts.append(f"## Your last text was not tried\n\n{self._refused}")
        return "\n\n".join(parts)


def _sample(number: int, record: Mapping[str, Any]) -> str:
    rows = [f"### Sample {number}"]
    for key, value in record.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        rows.append(f"{key}:\n\n{shown.strip()}")
    return "\n\n".join(rows)
