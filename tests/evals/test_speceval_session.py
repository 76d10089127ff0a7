"""Sessions: calls, replays, decoding, relies, watching and limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pibroch.evals.speceval.session import Error, LoadFailed, Outcome, Session, SessionEnded
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec

SPEC = parse_spec("""---
spec: 1
module: bag
version: 1
summary: Numbers in a bag.
rely:
  - {module: source, uses: "def pick(low: int, high: int = 9) -> list[int]"}
imports: [threading, source, dataclasses, collections, heapq]
guarantee: {exports: [Bag, double, mixed]}
---
# Bag
## Intent
Numbers in a bag.
## Functionality
```python
def double(x: int) -> int: ...
def mixed(x: list[int]) -> dict[str, tuple[int, ...] | None]: ...

class Bag:
    items: list[int]
    names: dict[str, int]
    view(items, names)
    def __init__(self, first: int) -> None: ...
    def put(self, x: int) -> int: ...
    def add(self, xs: list[int]) -> None: ...
    def all(self) -> list[int]: ...
    def fill(self, n: int) -> int: ...
    def take(self) -> int: ...
```
""")

BAG = """
from __future__ import annotations
import threading, source
from dataclasses import dataclass, field
from typing import Any

def double(x: int) -> int:
    return 2 * x

def mixed(x: list[int]) -> dict[str, tuple[int, ...] | None]:
    return {"all": tuple(x), "none": None}

class Bag:
    looks = 0
    def __init__(self, first: int) -> None:
        if first < 0:
            raise ValueError("negative")
        self.items = [first]
        self.names: dict[str, int] = {}
        self.lock = threading.Lock()

    def put(self, x: int) -> int:
        with self.lock:
            if x == 13:
                raise KeyError(x)
            self.items.append(x)
            self.names[str(x)] = x
            return len(self.items)

    def add(self, xs: list[int]) -> None:
        self.items.extend(xs)

    def all(self) -> list[int]:
        return list(self.items)

    def fill(self, n: int) -> int:
        self.items = source.pick(n, high=n + 1)
        return sum(self.items)

    def take(self) -> int:
        return self.items.pop()

    def view(self) -> dict[str, Any]:
        Bag.looks += 1
        return {"items": list(self.items), "names": dict(self.names)}
"""


@contextmanager
def bag(change: tuple[str, str] = ("", ""), **options: Any) -> Iterator[Session]:
    """A session on the bag, with one piece of its source exchanged."""
    old, new = change
    assert old in BAG
    with Session(BAG.replace(old, new, 1) if old else BAG, SPEC, **options) as session:
        yield session


def function(body: str, *, imports: str = "", spec: Spec = SPEC, x: int = 1, **options: Any) -> Outcome:
    """What `double(x)` with this body gives."""
    source = f"{imports}\ndef double(x: int) -> int:\n" + "\n".join("    " + row for row in body.splitlines())
    with Session(source, spec, **options) as session:
        session.fresh("bag", [])
        return session.call("double", [x])


# Calls


def test_fresh_and_call() -> None:
    with bag() as session:
        made = session.fresh("Bag", [5])
        assert (made.value, made.view, made.error, made.fault) == (None, {"items": [5], "names": {}}, None, "")
        seen = session.call("put", [7])
        assert (seen.value, seen.view) == (2, {"items": [5, 7], "names": {"7": 7}})
        session.fresh("Bag", [1])
        assert session.call("all", []).value == [1]
        session.fresh("bag", [])
        assert session.call("double", [4]).value == 8
        assert session.call("mixed", [[1, 2]]).value == {"all": (1, 2), "none": None}


def test_errors_name_type_message_and_line() -> None:
    with bag() as session:
        bad = session.fresh("Bag", [-1])
        line = BAG.splitlines().index('            raise ValueError("negative")') + 1
        assert bad.error == Error("ValueError", "negative", line)
        assert bad.view is None
        session.fresh("Bag", [1])
        seen = session.call("put", [13])
        assert seen.error is not None
        assert (seen.error.type, seen.view) == ("KeyError", {"items": [1], "names": {}})


def test_a_namesake_of_a_builtin_error_is_another() -> None:
    seen = function("raise ValueError(1)", imports="class ValueError(Exception): pass")
    assert seen.error == Error("candidate.ValueError", "1", 3)


def test_replay_is_the_same_as_calls() -> None:
    calls = [("put", [3]), ("put", [13]), ("all", []), ("fill", [4]), ("take", [])]
    with bag(relies=lambda name, args: list(args)) as session:
        one = [session.fresh("Bag", [5]), *(session.call(name, args) for name, args in calls)]
        many = session.replay("Bag", [5], calls)
        assert many == one
        assert many[4].asked == [("source.pick", [4, 5], [4, 5])]
        assert [o.value for o in session.replay("Bag", None, [("all", [])])] == [[4]]
        only = session.replay("Bag", [-1], calls)
        assert [o.error and o.error.type for o in only] == ["ValueError"]


def test_nobody_looks() -> None:
    with bag(("list(self.items)\n\n    def fill", "[Bag.looks]\n\n    def fill")) as session:
        calls = [("put", [1]), ("put", [2]), ("all", [])]
        assert session.replay("Bag", [0], calls, look=False)[-1].value == [0]
        assert session.replay("Bag", [0], calls)[-1].value == [3]


@pytest.mark.parametrize(
    ("change", "honest"),
    [
        (("return list(self.items)\n\n    def fill", "return self.items\n\n    def fill"), False),
        (("self.items.extend(xs)", "self.items = xs"), False),
        (("", ""), True),
    ],
)
def test_scribbling_finds_what_is_shared(change: tuple[str, str], honest: bool) -> None:
    calls = [("add", [[2, 3]]), ("all", []), ("all", [])]
    with bag(change) as session:
        plain = [o.value for o in session.replay("Bag", [1], calls)]
        spoilt = [o.value for o in session.replay("Bag", [1], calls, scribble=True)]
        assert (plain == spoilt) is honest


def test_arguments_afterwards() -> None:
    with bag(("self.items.extend(xs)", "self.items.append(xs.pop())")) as session:
        session.fresh("Bag", [1])
        assert session.call("add", [[2, 3]]).args == [[2]]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("return len(self.items)", "return True"), "result: expected int, got bool"),
        (("return len(self.items)", "return self"), "result: expected int, got an object of type Bag"),
        (("return len(self.items)", "return None"), "result: expected int, got None"),
        (('"items": list', '"item": list'), "view() has the fields item, names; declared are items, names"),
        (('"items": list(self.items)', '"items": tuple(self.items)'), "view.items: expected list[int], got tuple"),
        (
            ('return {"items"', 'raise IndexError("x")\n        return {"items"'),
            "view() raised IndexError in line 45: x",
        ),
        (("def view", "def viw"), "view() raised AttributeError in line 0: 'Bag' object has no attribute 'view'"),
    ],
)
def test_faults_of_type(change: tuple[str, str], fault: str) -> None:
    with bag(change) as session:
        session.fresh("Bag", [1])
        assert session.call("put", [2]).fault == fault


def test_a_module_with_state_is_executed_anew() -> None:
    spec = parse_spec(
        SPEC.text.replace("\nclass Bag:", "n: int\nview(n)\n~").replace("[Bag, double", "[double").split("~")[0]
        + "```\n"
    )
    source = "n = 0\ndef double(x):\n    global n\n    n += x\n    return n\ndef view():\n    return {'n': n}"
    with Session(source, spec) as session:
        assert session.fresh("bag", []).view == {"n": 0}
        assert [session.call("double", [2]).value for _ in range(2)] == [2, 4]
        assert session.call("double", [1]).view == {"n": 5}
        assert session.fresh("bag", []).view == {"n": 0}


# Relies


@pytest.mark.parametrize(
    ("call", "asked"),
    [("pick(n)", [2, 9]), ("pick(low=n)", [2, 9]), ("pick(n, n)", [2, 2]), ("pick(high=1, low=n)", [2, 1])],
)
def test_questions_are_bound_to_the_signature(call: str, asked: list[int]) -> None:
    with bag(("pick(n, high=n + 1)", call), relies=lambda name, args: [sum(args)]) as session:
        session.fresh("Bag", [1])
        seen = session.call("fill", [2])
        assert (seen.value, seen.asked) == (sum(asked), [("source.pick", asked, [sum(asked)])])


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("pick('a')", "asked source.pick(low: expected int, got str)"),
        ("pick()", "asked source.pick(no argument low)"),
        ("pick(1, 2, 3)", "asked source.pick(other arguments than pick(low: int, high: int = 9) -> list[int])"),
        ("pick(1, low=2)", "asked source.pick(other arguments than pick(low: int, high: int = 9) -> list[int])"),
    ],
)
def test_wrong_questions_are_faults(call: str, fault: str) -> None:
    with bag(("pick(n, high=n + 1)", call), relies=lambda name, args: [1]) as session:
        session.fresh("Bag", [1])
        seen = session.call("fill", [2])
        assert seen.fault == fault
        assert seen.error is not None
        assert seen.error.type == "TypeError"


def test_without_answers_nothing_can_be_asked() -> None:
    with bag() as session:
        session.fresh("Bag", [1])
        assert session.call("fill", [2]).fault == "asked source.pick is not there to be called"


def test_the_answer_is_a_copy() -> None:
    given = [1, 2]
    with bag(("sum(self.items)", "self.items.append(9) or 0"), relies=lambda name, args: given) as session:
        session.fresh("Bag", [1])
        assert session.call("fill", [2]).view == {"items": [1, 2, 9], "names": {}}
    assert given == [1, 2]


# Watching


def test_lines_that_ran() -> None:
    with bag(watch="lines") as session:
        rows = BAG.splitlines()
        assert rows.index("class Bag:") + 1 in session.loaded_lines
        session.fresh("Bag", [1])
        reached = session.call("put", [2]).lines
        assert rows.index("            return len(self.items)") + 1 in reached
        assert rows.index("                raise KeyError(x)") + 1 not in reached
        assert rows.index("                raise KeyError(x)") + 1 in session.call("put", [13]).lines


def test_opcodes_grow_with_the_work() -> None:
    body = "total = 0\nfor i in range(x):\n    total += i\nreturn total"
    ten, twenty, thirty = (function(body, x=n, watch="opcodes").opcodes for n in (10, 20, 30))
    assert 0 < twenty - ten == thirty - twenty
    assert function(body, x=10).opcodes == 0


# Limits


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def double(x:", r"line 1: SyntaxError"), ("x = 1\ny = 1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("import os", "line 1: ImportError: os is not among the spec's imports"),
        ("from time import time", "ImportError: time is not among"), ("import bisect", "ImportError: bisect is not"),
        ("import os.path", "ImportError: os.path is not among"), ("from . import x", "ImportError"),
        ("from collections import _sys", "ImportError"), ("from dataclasses import sys", "ImportError"),
        ("from typing import get_type_hints", "ImportError"), ("open('x')", "NameError: name 'open' is not defined"),
        ("getattr(1, '__class__')", "AttributeError: getattr of '__class__' is not allowed"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)  # fmt: skip
def test_sources_that_do_not_load(source: str, message: str) -> None:
    with pytest.raises(LoadFailed, match=message), Session(source, SPEC):
        pass


def test_what_a_candidate_may_use() -> None:
    imports = (
        "from __future__ import annotations\nimport collections.abc, heapq\nfrom collections import deque\n"
        "from dataclasses import dataclass\nfrom typing import NamedTuple, Iterable\n"
        "@dataclass(order=True)\nclass P:\n    a: int\n    b: collections.abc.Iterable[int] = ()\n"
        "class N(NamedTuple):\n    a: int\n"
    )
    body = (
        "h = [P(x), P(0)]\nheapq.heapify(h)\nreturn heapq.heappop(h).a + N(2).a + len(deque([1])) + getattr(h[0], 'a')"
    )
    seen = function(body, imports=imports, x=5)
    assert (seen.value, seen.error) == (8, None)


@pytest.mark.parametrize(
    "body",
    [
        "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        "c = threading.Condition()\nwith c:\n    try:\n        c.wait()\n    except Exception:\n        return 1",
        "threading.Semaphore(0).acquire()", "threading.Event().wait()",
        "c = threading.Condition(threading.Lock())\nwith c, c:\n    return 1",
    ],
)  # fmt: skip
def test_a_lock_that_would_block_raises(body: str) -> None:
    seen = function(body, imports="import threading")
    assert seen.error is not None
    assert seen.error.type == "WouldBlock"


def test_locks_that_do_not_block_work() -> None:
    body = (
        "r, c, s, e = threading.RLock(), threading.Condition(), threading.BoundedSemaphore(1), threading.Event()\n"
        "with r, r, c, s:\n    c.notify()\n    e.set()\n"
        "    assert e.wait() and c.wait_for(lambda: True) and not c.wait(0)\n"
        "assert not r.locked() and s.acquire(False) and not s.acquire(False)\nreturn 1"
    )
    assert function(body, imports="import threading").value == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("while True: pass", "the code does not end: its time is over"),
        ("return 'x' * (5 << 20)", "the code wrote more than 4194304 bytes"),
    ],
)
def test_a_limit_ends_the_session(body: str, message: str) -> None:
    with pytest.raises(SessionEnded) as error:
        function(body, deadline_s=0.5 if "while" in body else 10.0)
    assert str(error.value) == message


def test_memory_is_bounded() -> None:
    seen = function("y = [0] * 10**9\nreturn 1")
    assert seen.error is not None
    assert seen.error.type == "MemoryError"


def test_after_its_end_a_session_answers_no_more() -> None:
    with bag(deadline_s=0.5) as session:
        session.fresh("bag", [])
    with pytest.raises(SessionEnded, match="over"):
        session.call("double", [1])


def test_hashes_follow_the_seed() -> None:
    body = "return hash('a word')"
    assert function(body, seed=1).value == function(body, seed=1).value
    assert function(body, seed=1).value != function(body, seed=2).value


def test_nothing_is_left_behind() -> None:
    with bag() as session:
        child, folder = session._child, session._folder
        assert child is not None
        assert folder is not None
        session.fresh("Bag", [1])
    assert child.returncode is not None
    assert not Path(folder.name).exists()


def test_large_requests_and_replies() -> None:
    xs = list(range(100_000))
    with bag() as session:
        session.fresh("Bag", [1])
        session.call("add", [xs])
        assert session.call("all", []).value == [1, *xs]
