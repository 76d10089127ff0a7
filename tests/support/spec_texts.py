"""A small spec as text, with one place to change."""

from __future__ import annotations

COUNTER = """\
---
spec: 1
module: counter
version: 1
summary: A counter that stops at its limit.
rely:
  - module: source
    uses: "def newest(n: int) -> list[int]"
    requires: ["n >= 1"]
    ensures: ["len(result) <= n"]
imports: [source]
guarantee: {exports: [Counter], clauses: [P1]}
scope: {limit: 1..3, step: 1..2, n: 1..2, calls: 5}
---
# Counter
## Intent
It counts up to `limit` and stays there.
## Functionality
```python
def room(c: "Counter") -> int:
    left = c.limit
    for _ in range(c.value):
        left -= 1
    return left

class Counter:
    limit: int
    value: int
    view(limit, value)
    invariant("INV1", 0 <= self.value <= self.limit)
    def __init__(self, limit: int) -> None:
        requires("A1", limit >= 1)
        ensures("P0", self.limit == limit and self.value == 0)
    def add(self, step: int) -> bool:
        modifies(value)
        requires("A2", step >= 1)
        ensures("P1", self.value == old.value + min(step, room(old)))
        ensures("P2", result == (step <= room(old)))
    def load(self, n: int) -> None:
        modifies(value)
        raises("R1", ValueError, when=n > self.limit)
        ensures("P3", self.value == min(sum(source.newest(n)), self.limit))
```
## Algorithm
An int.
"""

SOURCE = """\
---
spec: 1
module: source
version: 1
summary: Numbers.
guarantee: {exports: [newest], clauses: [S1]}
scope: {n: 1..3}
---
## Intent
`newest(n)` returns at most n numbers, all zero.
## Functionality
```python
def newest(n: int) -> list[int]:
    requires("A1", n >= 1)
    ensures("S1", result == [0] * len(result) and len(result) <= n)
```
"""


def changed(*pairs: tuple[str, str], text: str = COUNTER) -> str:
    """The text with each first part replaced by its second; every part must be there."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text
