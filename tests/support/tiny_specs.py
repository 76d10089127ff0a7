"""Small specs for tests, written as texts: a callee and a caller that relies on it."""

from __future__ import annotations

from pathlib import Path

from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec


def tiny_spec(module: str, block: str, front: str = "", *, exports: str, clauses: str = "", version: int = 1) -> str:
    """The text of a spec: `front` are further lines of front matter."""
    head = f"spec: 1\nmodule: {module}\nversion: {version}\nsummary: A small module.\n"
    head += f"guarantee: {{exports: [{exports}], clauses: [{clauses}]}}\n" + (front.strip() + "\n" if front else "")
    return f"---\n{head}---\n# {module}\n## Intent\nSmall.\n## Functionality\n```python\n{block.strip()}\n```\n"


def rely_front(module: str, uses: str, requires: list[str], ensures: list[str]) -> str:
    """The front matter of one rely, its lists over several lines."""
    rows = ["rely:", f"  - module: {module}", f'    uses: "{uses}"', "    requires:"]
    rows += [f'      - "{text}"' for text in requires] if requires else []
    rows = rows if requires else rows[:-1]
    rows += ["    ensures:", *(f'      - "{text}"' for text in ensures)] if ensures else []
    return "\n".join([*rows, f"imports: [{module}]"])


def parsed(*texts: str) -> dict[str, Spec]:
    """Specs by module; the file of `name` is called `name.spec.md`."""
    specs: dict[str, Spec] = {}
    for text in texts:
        name = next(row for row in text.splitlines() if row.startswith("module: ")).removeprefix("module: ")
        specs[name] = parse_spec(text, Path(f"{name}.spec.md"))
    return specs


def line_of(text: str, part: str) -> int:
    """The line, from 1, of the first one that holds `part`."""
    return text.count("\n", 0, text.index(part)) + 1

# The block of a module with state, of which other specs rely on `last`.
RING = """
items: list[int]
view(items)
invariant("INV1", len(self.items) <= 16 and all(x >= 0 for x in self.items))
def put(x: int) -> None:
    modifies(items)
    requires("A1", x >= 0)
    ensures("P1", self.items == (old.items + [x])[-16:])
def last(n: int) -> list[int]:
    requires("A2", n >= 1)
    ensures("P2", result == self.items[-n:])
"""
