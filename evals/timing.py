"""Timing two things against each other on a machine that is never quite quiet.

Samples alternate A B A B ...; each pair gives one log-ratio, so slow drifts of the machine cancel. The interval is
Student's t on the mean log-ratio (W. S. Gosset, "The probable error of a mean", 1908), carried back by exp: pairs are
taken as independent, and the few per cent by which one differs from the next as near enough to normal. A sample during
which processes that are not ours used the same CPUs is discarded together with its pair and taken again.

A sample is a callable without arguments; the clock is this module's own. One lock file serves the whole machine, so
that two measurements never overlap.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pibroch.runtime.errors import WorkerError

LOCK_FILE = Path(tempfile.gettempdir()) / "pibroch-measurement.lock"
FOREIGN_SHARE = 0.05  # of one core's time: below it, a step of two processes is disturbed by less than its own noise
_TICKS = os.sysconf("SC_CLK_TCK")
clock = time.perf_counter  # taken before any workload is loaded, so that none can put another one in its place


@dataclass(frozen=True, slots=True)
class Sample:
    """Wall seconds, and CPU seconds that others used meanwhile on the CPUs that we may use."""

    wall: float
    foreign: float

    @property
    def quiet(self) -> bool:
        # Two clock ticks are what the kernel's counters cannot resolve.
        return self.foreign <= FOREIGN_SHARE * self.wall + 2 / _TICKS


@dataclass(frozen=True, slots=True)
class Paired:
    """Seconds. `ratio` is the speed of `candidate` over that of `baseline`: above 1, the candidate is faster."""

    ratio: float
    lower: float
    upper: float
    confidence: float
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]
    discarded: int

    @property
    def pairs(self) -> int:
        return len(self.baseline)

    def to_json(self) -> dict[str, float | int | list[float]]:
        """Plain data: ratio and interval, minima and medians in seconds, how many pairs counted."""
        return {
            "ratio": self.ratio,
            "interval": [self.lower, self.upper],
            "confidence": self.confidence,
            "pairs": self.pairs,
            "discarded": self.discarded,
            "baseline_min": min(self.baseline),
            "baseline_median": statistics.median(self.baseline),
            "candidate_min": min(self.candidate),
            "candidate_median": statistics.median(self.candidate),
        }


def sample(run: Callable[[], object]) -> Sample:
    """Time one call of `run`."""
    busy, own = _busy_seconds(), _own_seconds()
    start = clock()
    run()
    wall = clock() - start
    return Sample(wall, max(0.0, (_busy_seconds() - busy) - (_own_seconds() - own)))


def paired(
    baseline: Callable[[], object],
    candidate: Callable[[], object],
    *,
    pairs: int = 20,
    warmup: int = 2,
    confidence: float = 0.95,
    keep_noisy: bool = False,
) -> Paired:
    """Alternate the two until `pairs` quiet pairs are there, as `collect` has it."""
    for _ in range(warmup):
        baseline()
        candidate()

    def take(_: bool) -> tuple[float, float, bool]:  # A B A B ...
        a, b = sample(baseline), sample(candidate)
        return a.wall, b.wall, a.quiet and b.quiet

    return collect(take, pairs=pairs, confidence=confidence, keep_noisy=keep_noisy)


def collect(
    take: Callable[[bool], tuple[float, float, bool]], *, pairs: int, confidence: float = 0.95, keep_noisy: bool = False
) -> Paired:
    """So many quiet pairs. `take` gives the seconds of both and whether they were quiet; what it is given says whether
    the candidate should go first, which alternates.

    After three times `pairs` attempts it ends with what it has; where fewer than three pairs were quiet it raises
    `WorkerError`, unless `keep_noisy`, which discards nothing.
    """
    kept: list[tuple[float, float]] = []
    discarded = 0
    while len(kept) < pairs and discarded <= 2 * pairs:
        a, b, quiet = take(bool((len(kept) + discarded) % 2))
        if keep_noisy or quiet:
            kept.append((a, b))
        else:
            discarded += 1
    if len(kept) < 3:
        raise WorkerError(
            f"other processes kept the CPUs busy in {discarded} of {discarded + len(kept)} pairs of samples: "
            "measure again on a quiet machine"
        )
    ratio, lower, upper = interval([math.log(a / b) for a, b in kept], confidence=confidence)
    return Paired(ratio, lower, upper, confidence, tuple(a for a, _ in kept), tuple(b for _, b in kept), discarded)


def interval(logs: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float, float]:
    """exp of the mean of two or more log-ratios, and of its two-sided confidence limits."""
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    half = t_quantile(0.5 + confidence / 2, len(logs) - 1) * error
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


@cache
def t_quantile(p: float, freedom: int) -> float:
    """Quantile of Student's t for 1/2 < p < 1, to about six digits: Simpson's rule on the density, then bisection."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def density(x: float) -> float:
        # x = tan(angle) keeps the heavy tails of few degrees of freedom on a finite range.
        return scale * math.pow(1 + math.tan(x) ** 2 / freedom, -(freedom + 1) / 2) / math.cos(x) ** 2

    def mass(angle: float, steps: int = 400) -> float:
        h = angle / steps
        inner = math.fsum((4 if i % 2 else 2) * density(i * h) for i in range(1, steps))
        return h / 3 * (density(0.0) + inner + density(angle))

    low, high = 0.0, math.pi / 2 - 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) < p - 0.5 else (low, middle)
    return math.tan((low + high) / 2)


class LockHeld(WorkerError):
    """Somebody else measures, and went on for too long."""


def _open_shared(path: Path) -> int:
    """The lock's file, which whoever came first on this machine has made; locking it needs no right to write."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY)
    return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)


@contextlib.contextmanager
def measurement_lock(*, deadline: float = 600.0, path: Path = LOCK_FILE) -> Iterator[None]:
    """Hold the machine-wide measurement lock. Raises `LockHeld` when it is not free within `deadline` seconds."""
    handle = _open_shared(path)
    try:
        end = time.monotonic() + deadline
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise LockHeld(f"another measurement held {path} for {deadline:g} s") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)  # releases the lock


def _busy_seconds() -> float:
    """CPU seconds used by anyone (stolen time too) on the CPUs of our affinity mask since boot; 0 where unknown."""
    try:
        text = Path("/proc/stat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    ours = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    ticks = 0
    for line in text.splitlines():
        name, *fields = line.split()
        if name in ours:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(f) for f in fields[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / _TICKS


_others: set[int] = set()  # processes that do not descend from this one; none ever comes to


def _own_seconds() -> float:
    """CPU seconds of this process and of all that descend from it. Taken twice for each pair of steps, which may take
    100 ms: so others are looked at only when they appear."""
    entries = os.listdir("/proc") if os.path.exists("/proc/self") else []
    present = {int(entry) for entry in entries if entry.isdigit()}
    _others.intersection_update(present)
    rows: dict[int, tuple[int, int]] = {}
    for pid in present - _others:
        with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name is in parentheses and may hold anything; fields count from behind it.
            fields = file.read().rpartition(b")")[2].split(maxsplit=14)
            rows[pid] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in rows.items() if parent in ours} - ours:
        ours |= more
    _others.update(rows.keys() - ours)
    return sum(rows[pid][1] for pid in ours if pid in rows) / _TICKS
