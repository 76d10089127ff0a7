"""Rules on a candidate's tree: what is refused, with the line; what plain code may do."""

from __future__ import annotations

import pytest
from module_samples import ANOMALY, RIGHT, changed, sample_spec

from pibroch.evals.speceval import rules
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec

HEAD = "def cuts(sizes: list[int], floor: int) -> list[int]:\n"
LOCKS = """---
spec: 1
module: counter
version: 1
summary: Counts.
imports: [threading]
guarantee: {exports: [Counter], clauses: [P1]}
concurrency:
  model: threads
  roles: {any: [add]}
  locks: [{name: Counter.lock, rank: 1, kind: Condition}]
  guarded_by: {Counter.lock: [count]}
---
## Intent
Counts.
## Functionality
```python
class Counter:
    count: int
    view(count)
    def __init__(self) -> None:
        ensures("P0", self.count == 0)
    def add(self, n: int = 1) -> int:
        modifies(count)
        ensures("P1", result == self.count == old.count + n)
```
"""
COUNTER = """\
import threading
from typing import Any


class Counter:
    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.count = 0

    def view(self) -> dict[str, Any]:
        return {"count": self.count}

    def add(self, n: int = 1) -> int:
        with self.lock:
            while self.count < 0:
                self.lock.wait()
            self.count += n
            return self.count
"""


def broken(source: str, spec: Spec, phase: int = 1) -> list[tuple[str, int]]:
    """Rule and code line of every finding."""
    return [(f.clause, (f.code_lines or (0,))[0]) for f in rules.judge(source, spec, phase).findings]


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_plain_code_passes(name: str) -> None:
    assert broken(RIGHT[name], sample_spec(name)) == []


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("    return eval('[]')", "names"),
        ("    return __import__('os').listdir()", "names"),
        ("    return [id(sizes)]", "names"),
        ("    return getattr(sizes, 'app' + 'end')", "names"),
        ("    return getattr(sizes, '__class__')", "names"),
        ("    look = getattr\n    return []", "names"),
        ("    return type('T', (), {})", "names"),
        ("    return sizes.__class__", "attributes"),
        ("    def f():\n        yield\n    return f().gi_frame", "attributes"),
        ("    try:\n        return []\n    except:\n        return []", "control"),
        ("    try:\n        return []\n    except Exception:\n        return []", "control"),
        ("    try:\n        return []\n    except (ValueError, BaseException):\n        return []", "names"),
        ("    try:\n        return [1]\n    finally:\n        return []", "control"),
        ("    async def f():\n        pass\n    return []", "control"),
        ("    global seen\n    return []", "state"),
        ("    cuts.count = 1\n    return []", "state"),
        ("    import os\n    return []", "imports"),
        ("    return []\nseen = []", "state"),
        ("    return []\nprint('loaded')", "names"),
        ("    return []\nfor i in range(3):\n    pass", "state"),
        ("    return []\ndef extra() -> None:\n    pass", "exports"),
        ("    return []\nclass _T:\n    def __eq__(self, other: object) -> bool:\n        return True", "names"),
        ("    return []\nclass _T(int):\n    pass", "names"),
        ("    return []\nclass _T:\n    seen: list[int] = []", "state"),
        ("    return []\ndef _f(seen: list[int] = []) -> None:\n    pass", "state"),
        ("    return []\nimport functools\n@functools.cache\ndef _f() -> int:\n    return 1", "names"),
    ],
)
def test_tricks_are_refused(body: str, rule: str) -> None:
    assert rule in [name for name, _ in broken(HEAD + body + "\n", sample_spec("buckets"))]


def test_all_violations_come_at_once_in_the_order_of_lines() -> None:
    source = "import os\nfrom sys import modules\n" + HEAD + "    return eval('[]')\n"
    assert broken(source, sample_spec("buckets")) == [("imports", 1), ("imports", 2), ("names", 4)]


def test_a_relied_upon_module_is_imported_as_a_whole_and_used_as_specified() -> None:
    spec = sample_spec("anomaly_trigger")
    aliased = ANOMALY.replace("import trace_ring", "import trace_ring as ring").replace("trace_ring.last", "ring.last")
    assert broken(aliased, spec) == [("imports", 3)]
    assert [name for name, _ in broken(ANOMALY.replace("trace_ring.last(", "trace_ring.record("), spec)] == ["imports"]
    taken = changed(ANOMALY, "import trace_ring", "from trace_ring import last")
    assert ("imports", 3) in broken(taken, spec)


def test_signatures_are_exact() -> None:
    spec = sample_spec("buckets")
    for old, new in [
        ("floor: int", "floor: int = 1"), ("floor: int", "least: int"), ("floor: int", "floor: float"),
        (") -> list[int]:\n    result", ") -> tuple[int, ...]:\n    result"),
        ("floor: int)", "floor: int, *rest: int)"),
    ]:  # fmt: skip
        findings = rules.judge(RIGHT["buckets"].replace(old, new, 1), spec, 1).findings
        assert [f.clause for f in findings] == ["signature"], new
        assert findings[0].line == 16
        assert "cuts(sizes: list[int], floor: int) -> list[int]" in findings[0].message


def test_what_is_missing_is_named_with_the_spec_line() -> None:
    findings = rules.judge("class AnomalyTrigger:\n    pass\n", sample_spec("anomaly_trigger"), 1).findings
    said = " ".join(f.message for f in findings)
    for name in ("observe(tput: int) -> bool", "set_drop_pct", "warm_up", "__init__", "view is missing"):
        assert name in said
    assert all(f.clause == "exports" and f.line for f in findings)


def test_code_that_does_not_parse_or_is_too_long() -> None:
    spec = sample_spec("buckets")
    assert broken("def f(:\n", spec) == [("syntax", 1)]
    assert broken("x = 1\n" * 700, spec) == [("size", 0)]
    assert broken("x = " + "(" * 90 + "1" + ")" * 90, spec)[0][0] in ("syntax", "size", "exports")


def test_locks_are_declared_ones_made_in_init() -> None:
    spec = parse_spec(LOCKS)
    assert broken(COUNTER, spec, 2) == []
    assert ("imports", 1) in broken(COUNTER, spec, 1)  # phase 1 is sequential
    assert [n for n, _ in broken(changed(COUNTER, "Condition()", "Lock()"), spec, 2)] == ["locks"]
    assert [n for n, _ in broken(COUNTER.replace("self.lock", "self.guard"), spec, 2)] == ["locks", "locks"]
    more = "            other = threading.Lock()\n            self.count += n"
    extra = changed(COUNTER, "            self.count += n", more)
    assert broken(extra, spec, 2) == [("locks", 17)]
    assert [n for n, _ in broken(COUNTER.replace("self.count", "self.total"), spec, 2)] == ["fields"]
    thread = changed(COUNTER, "        self.count = 0", "        self.count = 0\n        threading.Thread()")
    assert "locks" in [n for n, _ in broken(thread, spec, 2)]


def test_wait_stands_in_a_loop_over_its_condition() -> None:
    spec = parse_spec(LOCKS)
    once = changed(COUNTER, "while self.count < 0", "if self.count < 0")
    assert broken(once, spec, 2) == [("wait", 16)]
    for_ever = changed(COUNTER, "while self.count < 0", "while True")
    assert broken(for_ever, spec, 2) == [("wait", 16)]
    waits = changed(COUNTER, "self.lock.wait()", "self.lock.wait_for(lambda: self.count >= 0)")
    assert broken(waits, spec, 2) == []
