"""A judge that goes by a word in the candidate, and two small specs for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pibroch.evals.speceval.verdict import Finding, Report, StageReport
from pibroch.specs.model import Spec

COUNTER = """---
spec: 1
module: counter
version: {version}
summary: Counts up to a limit.
imports: [threading]
guarantee: {{exports: [Counter], clauses: [P1]}}
concurrency:
  model: {model}
  roles: {{user: [up]}}
  locks: [{{name: Counter.lock, rank: 1}}]
  guarded_by: {{Counter.lock: [n]}}
scope: {{limit: 0..3}}
---
# Counter
## Intent
It counts calls. It says nothing on Sundays.
## Functionality
```python
class Counter:
    limit: int
    n: int
    view(limit, n)
    def __init__(self, limit: int) -> None:
        requires("A0", limit >= 0)
        ensures("P0", (self.limit, self.n) == (limit, 0))
    def up(self) -> int:
        modifies(n)
        ensures("P1", result == min(old.n + 1, self.limit))
        ensures("P2", self.n == result)
```
"""
USER = """---
spec: 1
module: user
version: 1
summary: Asks a source twice.
rely:
  - module: source
    uses: "def take(n: int) -> int"
    requires: ["n >= 0"]
imports: [source]
guarantee: {exports: [twice]}
scope: {n: 0..3}
---
## Intent
The sum of two takes.
## Functionality
```python
def twice(n: int) -> int:
    requires("U1", n >= 0)
    ensures("U2", result == source.take(n) + source.take(n + 1))
```
"""
SOURCE = """---
spec: 1
module: source
version: 1
summary: Gives numbers.
guarantee: {exports: [take]}
scope: {n: 0..3}
---
## Intent
A number for a number.
## Functionality
```python
def take(n: int) -> int:
    requires("S1", n >= 0)
    ensures("S2", result >= n)
```
"""


def write_specs(root: Path, *, version: int = 1, model: str = "threads", counter: bool = True) -> Path:
    """A project with three specs; returns its folder."""
    folder = root / "specs" / "modules"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "pibroch.toml").write_text('[project]\nname = "p"\n', encoding="utf-8")
    if counter:
        (folder / "counter.spec.md").write_text(COUNTER.format(version=version, model=model), encoding="utf-8")
    (folder / "user.spec.md").write_text(USER, encoding="utf-8")
    (folder / "source.spec.md").write_text(SOURCE, encoding="utf-8")
    return root


@dataclass
class ScriptedJudge:
    """Refuses a candidate that has the word `bad`, with a finding for clause P1. Keeps what it was asked."""

    asked: list[dict[str, Any]] = field(default_factory=list)

    def __call__(
        self, source: str, spec: Spec, *, phase: int, peers: Mapping[str, Spec], sources: Mapping[str, str],
        sequential: str | None = None,
    ) -> Report:  # fmt: skip
        self.asked.append({"source": source, "phase": phase, "sources": dict(sources), "sequential": sequential})
        clauses = list(spec.clauses)
        if "bad" not in source:
            held: Any = dict.fromkeys(clauses, "held")
            evidence = {"acceptance": {"up": 0.5}}
            return Report(spec.module, phase, [StageReport("contract", held, [], evidence, seconds=0.25)])
        at = next(n for n, line in enumerate(source.splitlines(), 1) if "bad" in line)
        found = Finding(
            "contract", clauses[-1], "does not hold", line=spec.clauses[clauses[-1]].line,
            calls=("Counter(2)", "up()"), values={"result": "7"}, code_lines=(at,),
        )  # fmt: skip
        return Report(spec.module, phase, [StageReport("contract", {clauses[-1]: "refuted"}, [found])])


@dataclass
class ScriptedCompare:
    """Two candidates differ where just one of them has the word `odd`."""

    asked: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, source_a: str, source_b: str, spec: Spec, peers: Mapping[str, Spec]) -> Finding | None:
        self.asked.append((source_a, source_b))
        if ("odd" in source_a) == ("odd" in source_b):
            return None
        values = {"result of the first": "1", "result of the second": "2"}
        return Finding("contract", "compare", "the two modules differ", calls=("Counter(2)", "up()"), values=values)
