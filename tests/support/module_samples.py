"""Right modules for the specs in tests/support/specs, and bugs seeded into them: (module, right text, wrong text)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pibroch.specs.model import Spec
from pibroch.specs.parse import load_spec

FOLDER = Path(__file__).with_name("specs")

ANOMALY = '''\
from typing import Any

import trace_ring


class AnomalyTrigger:
    def __init__(self, window: int, drop_pct: int, cooldown: int) -> None:
        self.window = window
        self.drop_pct = drop_pct
        self.cooldown = cooldown
        self.base: list[int] = []
        self.quiet = 0

    def view(self) -> dict[str, Any]:
        return {"window": self.window, "drop_pct": self.drop_pct, "cooldown": self.cooldown,
                "base": list(self.base), "quiet": self.quiet}

    def observe(self, tput: int) -> bool:
        full = len(self.base) == self.window
        if full and tput * 100 * self.window < sum(self.base) * (100 - self.drop_pct):
            if self.quiet == 0:
                self.quiet = self.cooldown
                return True
        else:
            self.base = (self.base + [tput])[-self.window:]
        self.quiet = max(self.quiet - 1, 0)
        return False

    def set_drop_pct(self, pct: int) -> None:
        self.drop_pct = pct

    def warm_up(self, n: int) -> None:
        self.base = trace_ring.last(n)[-self.window:]
'''
RING = '''\
from typing import Any

samples: list[int] = []


def view() -> dict[str, Any]:
    return {"samples": list(samples)}


def record(value: int) -> None:
    samples.append(value)
    if len(samples) > 4:
        samples.pop(0)


def last(n: int) -> list[int]:
    return samples[-n:]
'''
BUCKETS = '''\
def cuts(sizes: list[int], floor: int) -> list[int]:
    result: list[int] = []
    held, rest = 0, sum(sizes)
    for i, size in enumerate(sizes):
        held += size
        rest -= size
        if held >= floor and rest >= floor:
            result.append(i + 1)
            held = 0
    return result
'''
ORDER = '''\
import heapq


def order(before: list[list[int]]) -> list[int]:
    missing = [len(set(b)) for b in before]
    after: list[list[int]] = [[] for _ in before]
    for i, b in enumerate(before):
        for j in set(b):
            after[j].append(i)
    ready = [i for i, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    result: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        result.append(i)
        for k in after[i]:
            missing[k] -= 1
            if missing[k] == 0:
                heapq.heappush(ready, k)
    return result
'''
FRONT = '''\
def front(points: list[tuple[int, int]]) -> list[int]:
    result = []
    for i, (x, y) in enumerate(points):
        beaten = any(a <= x and b <= y and (a < x or b < y) for a, b in points)
        if not beaten and (x, y) not in points[:i]:
            result.append(i)
    return result
'''
STAGE = '''\
def order(stages: int, stage: int, count: int) -> list[int]:
    first = min(stages - stage, count)
    row = list(range(1, first + 1))
    for i in range(count - first):
        row += [-(i + 1), first + i + 1]
    row += [-(i + 1) for i in range(count - first, count)]
    return row
'''
RIGHT = {
    "anomaly_trigger": ANOMALY, "trace_ring": RING, "buckets": BUCKETS, "list_order": ORDER, "pareto_front": FRONT,
    "stage_order": STAGE,
}  # fmt: skip
BUGS = [
    ("anomaly_trigger", "self.window < sum", "self.window <= sum"),
    ("anomaly_trigger", "        else:\n            self", "        if True:\n            self"),
    ("anomaly_trigger", "self.quiet = self.cooldown", "self.quiet = self.cooldown - 1"),
    ("trace_ring", "if len(samples) > 4", "if len(samples) > 5"),
    ("trace_ring", "samples.pop(0)", "samples.pop()"),
    ("trace_ring", "return samples[-n:]", "return samples[:n]"),
    ("buckets", "held >= floor", "held > floor"),
    ("buckets", "            held = 0\n", ""),
    ("buckets", " and rest >= floor", ""),
    ("list_order", "        for j in set(b):", "        for j in b[:1]:"),
    ("list_order", "heapq.heappush(ready, k)", "ready.append(k)"),
    ("list_order", "if missing[k] == 0", "if missing[k] <= 1"),
    ("pareto_front", "(a < x or b < y)", "(a < x and b < y)"),
    ("pareto_front", " and (x, y) not in points[:i]", ""),
    ("pareto_front", "b <= y and", "b < y and"),
    ("stage_order", "stages - stage, count", "stages - stage - 1, count"),
    ("stage_order", "first + i + 1]", "first + i]"),
    ("stage_order", "range(count - first, count)", "range(count - first + 1, count)"),
]


@cache
def sample_spec(name: str) -> Spec:
    """A spec of tests/support/specs; one object per name, so that its clauses are compiled once."""
    return load_spec(FOLDER / f"{name}.spec.md")


def changed(text: str, old: str, new: str) -> str:
    """`text` with one place changed."""
    assert text.count(old) == 1, (old, text.count(old))
    return text.replace(old, new)
