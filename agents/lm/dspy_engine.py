"""DSPy modules over our language models: an engine and an adapter of ours, no cache, no second call.

The engine makes exactly one call of `LanguageModel.complete` per DSPy call; the adapter puts a signature's
instructions and inputs into two messages and hands the reply on as it is. Parsing is ours (`base.fenced_block`), so
that a malformed reply becomes feedback and never a silent reformatting call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dspy
from dspy import lm15

from pibroch.agents.lm.base import LanguageModel, Message, Reply, Request


class OneCallEngine:
    """Fills a `Request` whose messages are still empty from what DSPy asks. Lives for one call."""

    def __init__(self, lm: LanguageModel, request: Request) -> None:
        self.lm, self.request = lm, request
        self.reply: Reply | None = None
        self.error: BaseException | None = None

    def complete(self, request: Any) -> Any:
        """DSPy's engine protocol. Our own errors are kept, as DSPy wraps them."""
        assert self.reply is None, "one call per engine"
        assert self.error is None, "one call per engine"
        system = request.system if isinstance(request.system, str) else "".join(p.text for p in request.system or ())
        messages = [Message("system", system)] if system else []
        messages += [Message(m.role, m.text or "") for m in request.messages]
        self.request = replace(self.request, messages=tuple(messages))
        try:
            self.reply = self.lm.complete(self.request)
        except BaseException as error:
            self.error = error
            raise
        text = self.reply.text or "\n"  # DSPy raises at an empty text; to us it is a malformed reply like others
        used = self.reply.usage
        total = used.input_tokens + used.output_tokens
        return lm15.Response(
            id=None, model=self.reply.model or self.lm.name, finish_reason="stop",
            message=lm15.Message.assistant([lm15.TextPart(text)]),
            usage=lm15.Usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens, total_tokens=total),
        )  # fmt: skip

    def stream(self, request: Any) -> Iterator[Any]:
        """The whole reply as one stream."""
        events: Iterator[Any] = lm15.response_to_events(self.complete(request))
        return events

    def close(self) -> None:
        """Nothing is held open."""


class PlainAdapter(dspy.Adapter):  # type: ignore[misc]
    """Instructions as the system message, inputs as Markdown sections, the reply whole."""

    def format(self, signature: Any, demos: Any, inputs: dict[str, Any]) -> list[dict[str, str]]:
        """Empty inputs are left out."""
        parts = [
            f"## {signature.input_fields[name].json_schema_extra['desc']}\n\n{str(value).strip()}"
            for name, value in inputs.items()
            if str(value).strip()
        ]
        return [{"role": "system", "content": signature.instructions}, {"role": "user", "content": "\n\n".join(parts)}]

    def parse(self, signature: Any, completion: str) -> dict[str, str]:
        """The one output field is the reply's text."""
        return {next(iter(signature.output_fields)): completion}


def call(module: Any, lm: LanguageModel, request: Request, **inputs: Any) -> tuple[Any, Reply, Request]:
    """Run a DSPy module on one of our models: (prediction, reply, the request as sent). Our errors pass unchanged."""
    engine = OneCallEngine(lm, request)
    model = dspy.LM(f"pibroch-{request.role}", engine=engine, cache=False, num_retries=0)
    try:
        with dspy.context(lm=model, adapter=PlainAdapter()):
            prediction = module(**inputs)
    except Exception:
        if engine.error is not None:
            raise engine.error from None
        raise
    assert engine.reply is not None
    return prediction, engine.reply, engine.request
