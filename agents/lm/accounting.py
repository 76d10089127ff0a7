"""Tokens and money: reserved before a call, settled after it, never beyond the budget.

Prices change, so none are built in: a money budget needs the price of its model, and an unknown one is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from pibroch.agents.lm.base import LanguageModel, Paused, Reply, Request, backend, finish
from pibroch.runtime.errors import InputError, PibrochError

FREE = ("local", "mailbox", "replay", "scripted")


class BudgetError(PibrochError):
    """The next call could pass the budget; it was not made."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Price:
    """Money per million input and output tokens."""

    input_per_million: float
    output_per_million: float

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """The cost of one call."""
        return (input_tokens * self.input_per_million + output_tokens * self.output_per_million) / 1e6


@dataclass(slots=True)
class Spent:
    """Totals so far."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    money: float = 0.0


def estimate_tokens(request: Request) -> int:
    """More than any common tokenizer makes of the messages: two bytes per token and four tokens per message."""
    return sum(len(m.content.encode()) // 2 + 4 for m in request.messages)


class Metered:
    """A language model under a budget. `max_tokens` counts input and output together; `max_money` as the price is."""

    def __init__(
        self,
        lm: LanguageModel,
        *,
        max_tokens: int | None = None,
        max_money: float | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self.lm, self.name = lm, lm.name
        self.max_tokens, self.max_money = max_tokens, max_money
        self.spent = Spent()
        self._reserved_tokens, self._reserved_money = 0, 0.0
        self._lock = threading.Lock()
        price = (prices or {}).get(lm.name)
        if price is None and backend(lm) in FREE:
            price = Price(0.0, 0.0)
        if max_money is not None and price is None:
            raise InputError(
                f"a money budget was given, but the price of {lm.name!r} is not known: give its price per million "
                "tokens, or a token budget instead"
            )
        self.price = price

    def complete(self, request: Request) -> Reply:
        """Raises `BudgetError` before a call that could pass the budget."""
        tokens, most = estimate_tokens(request), request.max_tokens
        money = self.price.of(tokens, most) if self.price else 0.0
        self._reserve(tokens + most, money)
        try:
            reply = self.lm.complete(request)
        except Paused:
            self._settle(tokens + most, money, 0, 0, called=False)
            raise
        except BaseException:
            # A call that failed may have been charged for what was sent.
            self._settle(tokens + most, money, tokens, 0)
            raise
        used = reply.usage
        self._settle(tokens + most, money, used.input_tokens, used.output_tokens)
        return reply

    def finish(self) -> None:
        """Pass it on."""
        finish(self.lm)

    def _reserve(self, tokens: int, money: float) -> None:
        with self._lock:
            total = self.spent.input_tokens + self.spent.output_tokens + self._reserved_tokens + tokens
            if self.max_tokens is not None and total > self.max_tokens:
                raise BudgetError(f"the next call could bring the run to {total} tokens, past {self.max_tokens}")
            cost = self.spent.money + self._reserved_money + money
            if self.max_money is not None and cost > self.max_money:
                raise BudgetError(f"the next call could bring the run to {cost:.4f}, past {self.max_money:.4f}")
            self._reserved_tokens += tokens
            self._reserved_money += money

    def _settle(
        self, reserved: int, money: float, input_tokens: int, output_tokens: int, *, called: bool = True
    ) -> None:
        with self._lock:
            self._reserved_tokens -= reserved
            self._reserved_money -= money
            self.spent.calls += called
            self.spent.input_tokens += input_tokens
            self.spent.output_tokens += output_tokens
            if self.price:
                self.spent.money += self.price.of(input_tokens, output_tokens)
