"""Any OpenAI-compatible endpoint, through the `openai` package.

OPENAI_API_KEY, and OPENAI_BASE_URL or OPENAI_API_BASE (an error where they differ). The resolved address is logged,
the key never. The package's own retries are off: the bounded retry here is the only one, and the deadline covers it.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
import time
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pibroch.agents.lm.base import LMError, Reply, Request, Usage
from pibroch.runtime.errors import InputError, MissingError
from pibroch.runtime.generated import load_generated

log = logging.getLogger("pibroch.lm")
DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-4.1"
TRIES = 3
BASE_MS, LIMIT_MS = 1_000, 30_000  # of the pauses between tries
_RETRIED = (408, 409, 429, 500, 502, 503, 504)


def resolve_base_url() -> str:
    """The endpoint that the environment names. Raises `InputError` where its two names disagree."""
    first, second = (os.environ.get(name, "").strip().rstrip("/") for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"))
    if first and second and first != second:
        raise InputError("OPENAI_BASE_URL and OPENAI_API_BASE name different endpoints: unset one")
    return first or second or DEFAULT_URL


def _pause_s(attempt: int) -> float:
    """Seconds before the try after `attempt`. A tree whose modules are still to be generated waits the longest."""
    try:
        ms: int = load_generated("retry_delay").delay_ms(attempt, BASE_MS, LIMIT_MS)
    except InputError:
        ms = LIMIT_MS
    return ms / 1000


def shown(url: str) -> str:
    """A URL without user name, password, query and fragment, for logs and messages."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))


class OpenAIModel:
    """`openai:MODEL`. The model's name is `OPENAI_MODEL`'s or the default's where the spec gives none."""

    def __init__(self, model: str | None = None, *, tries: int = TRIES) -> None:
        self.model = model or os.environ.get("OPENAI_MODEL") or DEFAULT_MODEL
        self.name = f"openai:{self.model}"
        self.base_url, self.tries = resolve_base_url(), tries
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not key and self.base_url == DEFAULT_URL:
            raise MissingError("OPENAI_API_KEY is not set: export it, or use --lm mailbox:DIR, local or none")
        self._key = key or "none"
        log.info("language model %s at %s", self.model, shown(self.base_url))

    def complete(self, request: Request) -> Reply:
        """Raises `LMError` where the endpoint fails or the deadline passes."""
        started = time.monotonic()
        ends = started + request.deadline_s
        last = "no try was made"
        for attempt in range(self.tries):
            left = ends - time.monotonic()
            if left <= 0:
                break
            outcome = self._try(request, left)
            if isinstance(outcome, Reply):
                return outcome
            last, again = outcome
            if not again:
                raise LMError(f"{self.name} at {shown(self.base_url)}: {last}")
            pause = min(_pause_s(attempt) * (0.5 + random.random() / 2), max(0.0, ends - time.monotonic()))
            if attempt + 1 < self.tries:
                time.sleep(pause)
        if time.monotonic() >= ends:
            last = f"no answer within {request.deadline_s:g} s (last: {last})"
        raise LMError(f"{self.name} at {shown(self.base_url)}: {last}")

    def _try(self, request: Request, left: float) -> Reply | tuple[str, bool]:
        """One call in a thread of its own: a server that drips bytes cannot outlast the deadline."""
        import openai

        client = openai.OpenAI(api_key=self._key, base_url=self.base_url, max_retries=0, timeout=left)
        box: queue.Queue[Any] = queue.Queue(1)
        started = time.monotonic()
        threading.Thread(target=self._put, args=(box, client, request), daemon=True).start()
        try:
            answer = box.get(timeout=left)
            if isinstance(answer, BaseException):
                raise answer
        except queue.Empty:
            return "the deadline passed", False
        except openai.APIStatusError as error:
            return f"HTTP {error.status_code}: {_reason(error)}", error.status_code in _RETRIED
        except openai.APITimeoutError:
            return "the connection timed out", True
        except openai.APIConnectionError as error:
            return f"no connection: {error.__cause__ or error}", True
        except openai.OpenAIError as error:
            return f"{type(error).__name__}: {error}"[:300], False
        finally:
            client.close()
        return self._reply(answer, time.monotonic() - started)

    def _put(self, box: queue.Queue[Any], client: Any, request: Request) -> None:
        try:
            box.put(self._call(client, request))
        except Exception as error:
            box.put(error)

    def _call(self, client: Any, request: Request) -> Any:
        limit = "max_completion_tokens" if self.base_url == DEFAULT_URL else "max_tokens"
        return client.chat.completions.create(
            model=self.model,
            messages=[{"role": m.role, "content": m.content} for m in request.messages],
            **{limit: request.max_tokens},
        )

    def _reply(self, answer: Any, seconds: float) -> Reply | tuple[str, bool]:
        choices = getattr(answer, "choices", None)
        text = choices[0].message.content if choices else None
        if not text:
            return "the endpoint answered without text", False
        usage = answer.usage
        counted = Usage(usage.prompt_tokens, usage.completion_tokens, False) if usage else Usage(0, len(text) // 2)
        return Reply(text, counted, self.name, seconds, who=self.name)


def _reason(error: Any) -> str:
    body = error.body if isinstance(error.body, dict) else {}
    return str(body.get("message") or error.message)[:300]
