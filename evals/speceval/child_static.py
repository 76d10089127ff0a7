"""What of a candidate is outside its objects: classes, functions and tables, of which nothing may ever change.

State there would join objects that know nothing of each other, and outlive them; no run of one object alone shows it.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: classes written in Python, to which attributes can be added
_DEPTH = 6


class Static:
    """The state of everything that a module scope holds, at one moment."""

    def __init__(self, scope: Mapping[str, Any], file: str) -> None:
        self.scope, self.file = scope, file
        self.foreign = [(f"{module}.{name}", value) for module, name, value in self._imported()]
        self.sizes = [len(vars(value)) for _, value in self.foreign]
        self.before = dict(self._walk())

    def changed(self) -> str | None:
        """The first thing that is not as it was."""
        now = dict(self._walk())
        for name, value in now.items():
            if name not in self.before or self.before[name] is not value:
                return name
        for name in self.before:
            if name not in now:
                return name
        return next((n for (n, v), size in zip(self.foreign, self.sizes, strict=True) if len(vars(v)) != size), None)

    def _imported(self) -> Iterator[tuple[str, str, Any]]:
        for name, value in self.scope.items():
            if isinstance(value, ModuleType):
                yield "import", name, value
                for inner, each in vars(value).items():
                    if _open(each):
                        yield name, inner, each
            elif _open(value) and getattr(value, "__module__", None) != self.file:
                yield "import", name, value

    def _walk(self) -> Iterator[tuple[str, Any]]:
        for name, value in self.scope.items():
            if not name.startswith("__"):
                yield from self._one(name, value, 0)

    def _one(self, name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
        yield name, value
        kind = type(value)
        if depth > _DEPTH or kind in (int, str, bool, float, type(None)):
            return
        inside: list[tuple[str, Any]] = []
        if kind is list or kind is tuple:
            inside = [(f"{name}[{i}]", each) for i, each in enumerate(value)]
        elif kind is set or kind is frozenset:
            yield f"{name}, size", len(value)
        elif kind is dict:
            inside = [(f"{name}[{key!r:.60}]", each) for key, each in value.items()]
        elif kind is staticmethod:
            inside = [(name, value.__func__)]
        elif kind is FunctionType or getattr(value if isinstance(value, type) else kind, "__module__", "") == self.file:
            held = getattr(value, "__dict__", None) or {}
            inside = [(f"{name}.{n}", v) for n, v in held.items() if not n.startswith("__")]
        for inner, each in inside:
            yield from self._one(inner, each, depth + 1)


def _open(value: Any) -> bool:
    """Whether code can add attributes to it."""
    return type(value) is FunctionType or (isinstance(value, type) and bool(value.__flags__ & _HEAP))
