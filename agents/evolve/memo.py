"""A language model whose replies the journal keeps: a resumed run hears them again, and pays for them once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pibroch.agents.evolve.journal import Journal
from pibroch.agents.lm.accounting import BudgetError, Metered
from pibroch.agents.lm.base import MAX_REPLY_BYTES, LMError, Reply, Request, Usage, digest, finish

PATIENCE = 3  # calls in a row without an answer: a model that hangs costs no more than that many deadlines


class Memo:
    """`Paused` passes through: nobody has answered yet. A failure is kept like a reply.

    `seconds_left` of the run, None for no limit: no call may take longer.
    """

    def __init__(
        self, lm: Metered, journal: Journal, *, seconds_left: Callable[[], float | None] = lambda: None
    ) -> None:
        self.lm, self.journal, self.name, self.seconds_left = lm, journal, lm.name, seconds_left
        self.unanswered = 0

    def complete(self, request: Request) -> Reply:
        """Raises `LMError`, `BudgetError` or `Paused`."""
        if self.unanswered >= PATIENCE:
            raise LMError(f"it did not answer {PATIENCE} times in a row, and is not asked again")
        asked = []
        left = self.seconds_left()
        if left is not None:
            request = replace(request, deadline_s=max(min(request.deadline_s, left), 1.0))

        def ask() -> dict[str, Any]:
            asked.append(request)
            try:
                reply = self.lm.complete(request)
            except (LMError, BudgetError) as error:
                return {"error": type(error).__name__, "text": str(error)[:500]}
            return {
                "text": reply.text[: MAX_REPLY_BYTES + 1],  # what is longer is refused anyway
                "tokens": [reply.usage.input_tokens, reply.usage.output_tokens],
                "model": reply.model,
                "who": reply.who,
            }

        key = digest([request.key, request.prompt_hash])
        record = self.journal.once("reply", {"role": request.role, "key": key}, ask)
        if not asked and record.get("error") != "BudgetError":  # which is said before anything is sent
            self._charge(record)
        self.unanswered = self.unanswered + 1 if record.get("error") == "LMError" else 0
        if "error" in record:
            raise (BudgetError if record["error"] == "BudgetError" else LMError)(record["text"])
        usage = Usage(record["tokens"][0], record["tokens"][1], estimated=False)
        return Reply(record["text"], usage, record["model"], who=record["who"])

    def finish(self) -> None:
        """Pass it on."""
        finish(self.lm)

    def _charge(self, record: dict[str, Any]) -> None:
        spent = self.lm.spent
        used = record.get("tokens", (0, 0))
        spent.calls += 1
        spent.input_tokens += used[0]
        spent.output_tokens += used[1]
        if self.lm.price:
            spent.money += self.lm.price.of(*used)
