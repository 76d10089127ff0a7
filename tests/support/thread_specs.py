"""Small specs with a correct module each, and the seeded concurrency bugs: what is replaced by what in the module."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec


def spec_of(name: str, front: str, block: str) -> Spec:
    """A spec from its protocol and its `python` block."""
    text = f"""---
spec: 1
module: {name}
version: 1
summary: A small module for tests.
{front.strip()}
---
# Test
## Intent
As the clauses say.
## Functionality
```python
{block.strip()}
```
"""
    return parse_spec(text, f"{name}.spec.md")


def with_scenarios(spec: Spec, *scenarios: dict[str, Any]) -> Spec:
    """The spec with these scenarios and no others."""
    scope = {**spec.front.scope, "scenarios": list(scenarios)}
    return replace(spec, front=spec.front.model_copy(update={"scope": scope}))


BOX = spec_of(
    "box",
    """
imports: [threading]
guarantee: {exports: [Box]}
concurrency:
  model: threads
  roles: {giver: [give], taker: [take]}
  locks: [{name: Box.cond, rank: 1, kind: Condition}]
  guarded_by: {Box.cond: [items]}
  atomic: [give, take]
scope:
  item: 0..3
  scenarios:
    - {threads: [["give(1)", "give(2)"], ["take()"], ["take()"]]}
    - {before: ["give(1)"], threads: [["give(2)"], ["give(3)"], ["take()", "take()"]]}
""",
    """
class Box:
    items: list[int]
    view(items)
    invariant("I1", len(self.items) <= 1)
    def __init__(self) -> None:
        ensures("P0", self.items == [])
    def give(self, item: int) -> None:
        modifies(items)
        when("W1", not self.items)
        ensures("P1", self.items == [item])
    def take(self) -> int:
        modifies(items)
        when("W2", len(self.items) > 0)
        ensures("P2", [result] == old.items and self.items == [])
""",
)
BOX_CODE = """
import threading

class Box:
    def __init__(self) -> None:
        self.cond = threading.Condition()
        self.items = []

    def give(self, item: int) -> None:
        with self.cond:
            while self.items:
                self.cond.wait()
            self.items.append(item)
            self.cond.notify_all()

    def take(self) -> int:
        with self.cond:
            while not self.items:
                self.cond.wait()
            item = self.items.pop()
            self.cond.notify_all()
            return item

    def view(self) -> dict:
        with self.cond:
            return {"items": list(self.items)}
"""

PAIR = spec_of(
    "pair",
    """
imports: [threading]
guarantee: {exports: [Pair]}
concurrency:
  model: threads
  roles: {writer: [put], reader: [get]}
  atomic: [put, get]
scope:
  value: 1..3
  scenarios: [{threads: [["put(1)", "put(2)"], ["get()", "get()"]]}]
""",
    """
class Pair:
    x: int
    y: int
    view(x, y)
    def __init__(self) -> None:
        ensures("P0", (self.x, self.y) == (0, 0))
    def put(self, value: int) -> None:
        modifies(x, y)
        ensures("P1", (self.x, self.y) == (value, value))
    def get(self) -> tuple[int, int]:
        ensures("P2", result == (old.x, old.y))
""",
)
PAIR_CODE = """
import threading

class Pair:
    def __init__(self) -> None:
        self.both = (0, 0)

    def put(self, value: int) -> None:
        self.both = (value, value)

    def get(self) -> tuple[int, int]:
        return self.both

    def view(self) -> dict:
        return {"x": self.both[0], "y": self.both[1]}
"""

CLAIMS = spec_of(
    "claims",
    """
imports: [threading]
guarantee: {exports: [Claims]}
concurrency:
  model: threads
  roles: {one: [claim], other: [claim]}
  locks: [{name: Claims.lock, rank: 1}]
  atomic: [claim]
scope: {key: 0..2}
""",
    """
class Claims:
    taken: set[int]
    view(taken)
    def __init__(self) -> None:
        ensures("P0", self.taken == set())
    def claim(self, key: int) -> bool:
        modifies(taken)
        ensures("P1", result == (key not in old.taken))
        ensures("P2", self.taken == {*old.taken, key})
""",
)
CLAIMS_CODE = """
import threading

class Claims:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.taken = set()

    def claim(self, key: int) -> bool:
        with self.lock:
            if key in self.taken:
                return False
            self.taken.add(key)
            return True

    def view(self) -> dict:
        with self.lock:
            return {"taken": set(self.taken)}
"""

LEDGER = spec_of(
    "ledger",
    """
imports: [threading]
guarantee: {exports: [Ledger]}
concurrency:
  model: threads
  roles: {left: [move, total], right: [back]}
  locks: [{name: Ledger.first, rank: 1}, {name: Ledger.second, rank: 2}]
  guarded_by: {Ledger.first: [a], Ledger.second: [b]}
  atomic: [move, back, total]
scope: {n: 1..3}
""",
    """
class Ledger:
    a: int
    b: int
    view(a, b)
    def __init__(self) -> None:
        ensures("P0", (self.a, self.b) == (9, 9))
    def move(self, n: int) -> None:
        modifies(a, b)
        ensures("P1", (self.a, self.b) == (old.a - n, old.b + n))
    def back(self, n: int) -> None:
        modifies(a, b)
        ensures("P2", (self.a, self.b) == (old.a + n, old.b - n))
    def total(self) -> int:
        ensures("P3", result == old.a + old.b)
""",
)
LEDGER_CODE = """
import threading

class Ledger:
    def __init__(self) -> None:
        self.first = threading.Lock()
        self.second = threading.Lock()
        self.a = 9
        self.b = 9

    def move(self, n: int) -> None:
        with self.first:
            with self.second:
                self.a -= n
                self.b += n

    def back(self, n: int) -> None:
        with self.first:
            with self.second:
                self.b -= n
                self.a += n

    def total(self) -> int:
        with self.first, self.second:
            return self.a + self.b

    def view(self) -> dict:
        with self.first, self.second:
            return {"a": self.a, "b": self.b}
"""

COUNTER = spec_of(
    "counter",
    """
imports: [threading]
guarantee: {exports: [Counter]}
concurrency:
  model: threads
  roles: {one: [bump], other: [bump, read]}
  locks: [{name: Counter.lock, rank: 1}]
  guarded_by: {Counter.lock: [count, seen]}
  atomic: [bump, read]
scope: {}
""",
    """
class Counter:
    count: int
    seen: list[int]
    view(count, seen)
    def __init__(self) -> None:
        ensures("P0", (self.count, self.seen) == (0, []))
    def bump(self) -> int:
        modifies(count, seen)
        ensures("P1", result == old.count + 1 and self.count == result)
        ensures("P2", self.seen == old.seen + [result])
    def read(self) -> list[int]:
        ensures("P3", result == old.seen[:1] + old.seen[-1:])
""",
)
COUNTER_CODE = """
import threading

class Counter:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.seen = []

    def bump(self) -> int:
        with self.lock:
            n = self.count
            self.count = n + 1
            self.seen.append(n + 1)
        return n + 1

    def read(self) -> list[int]:
        with self.lock:
            seen = self.seen
            return seen[:1] + seen[-1:]

    def view(self) -> dict:
        with self.lock:
            return {"count": self.count, "seen": list(self.seen)}
"""


@dataclass(frozen=True)
class Seeded:
    """One bug: `old` becomes `new` in `code`. What is found names `clause` and the line with the text `says`."""

    name: str
    spec: Spec
    code: str
    old: str
    new: str
    clause: str
    says: str

    @property
    def faulty(self) -> str:
        assert self.code.count(self.old) == 1, self.name
        return self.code.replace(self.old, self.new)

    def line(self, text: str) -> int:
        """The first line of the faulty code with this text."""
        return next(i for i, row in enumerate(self.faulty.split("\n"), 1) if text in row)


SEEDED = [
    Seeded(
        "lost wake-up, nobody notifies", BOX, BOX_CODE,
        "item = self.items.pop()\n            self.cond.notify_all()", "item = self.items.pop()", "W1",
        "self.cond.wait()",
    ),
    Seeded(
        "lost wake-up, the wrong one is notified", BOX,
        BOX_CODE.replace("self.items.append(item)\n            self.cond.notify_all()",
                         "self.items.append(item)\n            self.cond.notify()"),
        "self.cond.notify_all()", "self.cond.notify()", "W2", "self.cond.notify()",
    ),
    Seeded("if for while", BOX, BOX_CODE, "while not self.items:", "if not self.items:", "raises", "self.items.pop()"),
    Seeded(
        "torn read", PAIR,
        PAIR_CODE.replace("self.both = (0, 0)", "self.x = self.y = 0").replace(
            "self.both = (value, value)", "self.x = value\n        self.y = value"
        ).replace('"x": self.both[0], "y": self.both[1]', '"x": self.x, "y": self.y'),
        "return self.both", "return (self.x, self.y)", "atomic", "return (self.x, self.y)",
    ),
    Seeded(
        "check, then act", CLAIMS, CLAIMS_CODE,
        "        with self.lock:\n            if key in self.taken:\n                return False\n"
        "            self.taken.add(key)\n            return True",
        "        if key in self.taken:\n            return False\n        with self.lock:\n"
        "            self.taken.add(key)\n        return True", "atomic", "if key in self.taken",
    ),
    Seeded(
        "lock order", LEDGER, LEDGER_CODE,
        "        with self.first:\n            with self.second:\n                self.b -= n",
        "        with self.second:\n            with self.first:\n                self.b -= n", "lock_order",
        "            with self.first:",
    ),
    Seeded(
        "split atomic section", COUNTER, COUNTER_CODE,
        "n = self.count\n            self.count", "n = self.count\n        with self.lock:\n            self.count",
        "atomic", "n = self.count",
    ),
    Seeded(
        "unguarded read", COUNTER, COUNTER_CODE,
        "        with self.lock:\n            seen = self.seen\n            return seen[:1] + seen[-1:]",
        "        return self.seen[:1] + self.seen[-1:]", "guarded_by", "return self.seen[:1]",
    ),
    Seeded(
        "torn read of what was fetched under the lock", COUNTER, COUNTER_CODE,
        "            seen = self.seen\n            return seen[:1] + seen[-1:]",
        "            seen = self.seen\n        return seen[:1] + seen[-1:]", "atomic", "return seen[:1]",
    ),
    Seeded(
        "a lock that is kept", COUNTER, COUNTER_CODE,
        "        with self.lock:\n            seen = self.seen\n            return",
        "        self.lock.acquire()\n        seen = self.seen\n        return", "locks", "self.lock.acquire()",
    ),
]  # fmt: skip

CORRECT = {
    "box": (BOX, BOX_CODE), "pair": (PAIR, PAIR_CODE), "claims": (CLAIMS, CLAIMS_CODE), "ledger": (LEDGER, LEDGER_CODE),
    "counter": (COUNTER, COUNTER_CODE),
}  # fmt: skip
