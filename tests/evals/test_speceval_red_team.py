"""Candidates of a red team that are wrong and once passed, and right ones that are written unusually."""

from __future__ import annotations

import pytest

from pibroch.evals.speceval import contract
from pibroch.specs.parse import parse_spec

STORE = parse_spec("""---
spec: 1
module: store
version: 1
summary: How often each handle was put.
guarantee: {exports: [Store], clauses: [S1]}
scope: {handle: 0..2, count: 1..3}
---
# Store
## Intent
How often each handle was put.
## Functionality
```python
class Store:
    uses: dict[int, int]
    view(uses)
    def __init__(self) -> None:
        ensures("S0", self.uses == {})
    def put(self, handle: int, count: int) -> None:
        modifies(uses)
        requires("A1", count >= 1)
        ensures("S1", self.uses == {**old.uses, handle: count})
    def drop(self, handle: int) -> None:
        modifies(uses)
        ensures("S2", self.uses == {h: n for h, n in old.uses.items() if h != handle})
```
""")
CODE = """\
TOP

class Store:
    made = 0

    def __init__(self) -> None:
        self.uses: dict[int, int] = {}
        self.n = 0
        MADE

    def view(self) -> dict[str, object]:
        return {"uses": VIEW}

    def put(self, handle: int, count: int) -> None:
        PUT
        self.uses[handle] = COUNT

    def drop(self, handle: int) -> None:
        if handle in self.uses:
            del self.uses[handle]
"""


def code(
    top: str = "", made: str = "pass", view: str = "dict(self.uses)", put: str = "pass", count: str = "count"
) -> str:
    """A store with some of its places filled otherwise."""
    text = CODE.replace("TOP", top).replace("MADE", made).replace("VIEW", view)
    return text.replace("PUT", put).replace("COUNT", count)


OUTSIDE = {
    "setattr on the class": code(made='setattr(Store, "newest", self)', count="count + (Store.newest is not self)"),
    "type(self)": code(made="type(self).made += 1", count="count + (Store.made > 10 ** 9)"),
    "alias of the class": code(made="kind = Store; kind.made += 1", count="count + (Store.made > 10 ** 9)"),
    "alias at the top": code(
        "class _B:\n    n = 0\n\n_b = _B\n", put="_b.n += 1", count="count + (_b.n > 10 ** 9)"
    ),
    "attribute of a function": code(
        "def _n() -> int:\n    f = _n\n    f.n = getattr(f, 'n', 0) + 1\n    return f.n\n",
        count="count + (_n() > 10 ** 9)",
    ),
    "attribute of an imported function": code(
        "from typing import cast\n", put="cast.n = getattr(cast, 'n', 0) + 1", count="count + (cast.n > 10 ** 9)"
    ),
}  # fmt: skip
WRONG = {
    "view gives the state away": (code(view="self.uses"), "alias"),
    "many handles": (code(count="count + (len(self.uses) == 37)"), "S1"),
    "large numbers": (code(count="int(float(count))"), "S1"),
    "a count that is computed": (code(put="self.n += 1", count="count + (self.n * self.n > 2 ** 22)"), "S1"),
    "equal arguments told apart": (code(count="count + (handle is count and handle > 256)"), "alias"),
}
RIGHT = {
    "a private class with constants": code("class _Entry:\n    kind = 'entry'\n", put="entry = _Entry(); entry.n = 1"),
    "a table": code("_RANK = {'a': 1, 'b': [2, 3]}\n", count="count * _RANK['a']"),
    "a generator kept in a field": code(made="self.ticks = iter(range(10 ** 9))", put="next(self.ticks)"),
    "a closure": code("def _add(n: int):\n    def inner(x: int) -> int:\n        return x + n\n    return inner\n",
                      count="_add(0)(count)"),
    "setattr on self": code(put='setattr(self, "n", self.n + 1)'),
    "a dict made anew": code(put="self.uses = dict(self.uses)"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_state_outside_of_objects(name: str) -> None:
    report = contract.judge(OUTSIDE[name], STORE, phase=1, peers={}, effort="quick")
    assert not report.passed
    assert "state lives in the fields of one object" in report.findings[0].message


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    source, clause = WRONG[name]
    report = contract.judge(source, STORE, phase=1, peers={})
    assert [f.clause for f in report.findings] == [clause]


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    report = contract.judge(RIGHT[name], STORE, phase=1, peers={})
    assert [str(f) for f in report.findings] == []
