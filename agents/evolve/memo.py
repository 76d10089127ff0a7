"""A language model whose replies the journal keeps: a resumed run hears them again, and pays for them once."""

from __future__ import annotations

from typing import Any

from pibroch.agents.evolve.journal import Journal
from pibroch.agents.lm.accounting import BudgetError, Metered
from pibroch.agents.lm.base import LMError, Reply, Request, Usage, digest, finish


class Memo:
    """`Paused` passes through: nobody has answered yet. A failure is kept like a reply."""

    def __init__(self, lm: Metered, journal: Journal) -> None:
        self.lm, self.journal, self.name = lm, journal, lm.name

    def complete(self, request: Request) -> Reply:
        """Raises `LMError`, `BudgetError` or `Paused`."""
        asked = []

        def ask() -> dict[str, Any]:
            asked.append(request)
            try:
                reply = self.lm.complete(request)
            except (LMError, BudgetError) as error:
                return {"error": type(error).__name__, "text": str(error)[:500]}
            return {
                "text": reply.text,
                "tokens": [reply.usage.input_tokens, reply.usage.output_tokens],
                "model": reply.model,
                "who": reply.who,
            }

        key = digest([request.key, request.prompt_hash])
        record = self.journal.once("reply", {"role": request.role, "key": key}, ask)
        if not asked:
            self._charge(record)
        if "error" in record:
            raise (BudgetError if record["error"] == "BudgetError" else LMError)(record["text"])
        usage = Usage(*record["tokens"], estimated=False)
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
