"""Several questions asked at once, where the model can be asked so: they wait in the generated request queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pibroch.agents.lm.base import LanguageModel, LMError, backend
from pibroch.runtime.errors import InputError
from pibroch.runtime.generated import load_generated

_T = TypeVar("_T")

ANSWERERS = 2
CONCURRENT = ("mailbox", "openai")
"""Models that answer several requests at once. A local model has one thread, and scripted or replayed replies come in
one order."""


def at_once(lm: LanguageModel) -> bool:
    """Whether this model answers several requests at once."""
    return backend(lm) in CONCURRENT


def together(
    calls: Sequence[Callable[[], _T]], *, lm: LanguageModel, deadline_s: float, answerers: int = ANSWERERS,
    clock: Callable[[], float] = time.monotonic,
) -> list[_T]:  # fmt: skip
    """The results of `calls`, each of which asks `lm`, in their order. A call not begun within `deadline_s` seconds of
    now raises `LMError`; of several errors the first call's is raised, after all have ended.

    One after the other where the model answers one at a time, or where the queue has not been generated yet.
    """
    queue = _queue(len(calls)) if len(calls) > 1 and at_once(lm) else None
    if queue is None:
        return [call() for call in calls]
    results: dict[int, _T] = {}
    errors: dict[int, BaseException] = {}
    begin = clock()

    def milliseconds() -> int:
        return int((clock() - begin) * 1000)

    def answer() -> None:
        while True:
            number, late = queue.take(milliseconds())
            for i in late:
                errors[i] = LMError(f"{lm.name} was busy for {deadline_s:g} s with other requests")
            if number is None:
                if not late:
                    return
                continue
            try:
                results[number] = calls[number]()
            except BaseException as error:
                errors[number] = error

    threads = [threading.Thread(target=answer, name=f"answerer-{i}", daemon=True) for i in range(answerers)]
    for thread in threads:
        thread.start()
    for i in range(len(calls)):
        queue.put(i, int(deadline_s * 1000))
    queue.close()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[i] for i in range(len(calls))]


def _queue(limit: int) -> Any:
    try:
        return load_generated("request_queue").RequestQueue(limit)
    except InputError:  # this module may be the one that is being written
        return None
