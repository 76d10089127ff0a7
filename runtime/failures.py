"""What to do when a worker fails: the event policy's advice, from what has failed in this process before.

The policy is generated (`specs/modules/event_policy.spec.md`): "evict" its machine, "retry" in place, or "rollback" to
the last checkpoint. It only advises: where it cannot be asked, the error stands without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pibroch.runtime.errors import InputError, WorkerError
from pibroch.runtime.generated import load_generated

_WORDS = {
    "evict": "replace the machine of {ranks}: it failed in a way, or so often, that it will again",
    "retry": "start again as it is: a first failure of this kind may pass",
    "rollback": "go back to the last checkpoint: the same step would fail again",
}
_DEVICE = ("CUDA error", "NVML", "Xid")  # what torch says where the device itself is gone


class Failures:
    """The failures of one process's workers. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, list[int]] = {}

    def advise(self, error: WorkerError, kind: str, ranks: Sequence[int]) -> None:
        """Set `error.advice`. `kind` is process_died, timeout or exception, and `ranks` are those that failed."""
        if any(sign in str(error) for sign in _DEVICE):
            kind = "device_lost"
        now = int(self._clock())
        earlier = [t for rank in ranks for t in self._seen.get(rank, [])]
        for rank in ranks:
            self._seen.setdefault(rank, []).append(now)
        try:
            word = load_generated("event_policy").advise(kind, now, earlier)
        except InputError:  # not generated yet
            return
        named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, sorted(ranks)))}"
        error.advice = f"{word}: {_WORDS[word].format(ranks=named)}"


FAILURES = Failures()
