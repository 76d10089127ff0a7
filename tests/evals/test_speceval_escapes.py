"""Escapes with the rules on code switched off: the sandbox of a session alone must hold, and says with which errno."""

from __future__ import annotations

import ctypes  # noqa: F401, the probes expect it to be there, as it is in the child
from pathlib import Path

import pytest
from escape_probes import PROBES, probe_source

from pibroch.evals.speceval.session import Session
from pibroch.specs.parse import parse_spec

PROBE = parse_spec("""---
spec: 1
module: probes
version: 1
summary: Attempts, and what came of each.
guarantee: {exports: [probe]}
---
# Probes
## Intent
Attempts, and what came of each.
```python
def probe(x: int) -> list[str]: ...
```
""")


@pytest.mark.parametrize(("expressions", "errno"), [p[1:] for p in PROBES], ids=[p[0] for p in PROBES])
def test_escape(expressions: list[str], errno: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("whole")
    before = target.stat()
    with Session(probe_source(expressions, target), PROBE) as session:
        session.fresh("probes", [])
        seen = session.call("probe", [1])
    assert (seen.error, seen.fault) == (None, "")
    assert dict(zip(expressions, seen.value, strict=True)) == dict.fromkeys(expressions, errno)
    assert target.read_text() == "whole"
    assert (target.stat().st_mode, target.stat().st_uid) == (before.st_mode, before.st_uid)
    assert [file.name for file in tmp_path.iterdir()] == ["target"]


def test_probes_are_many_and_reach_the_kernel(tmp_path: Path) -> None:
    """The same calls are possible for a process that is not locked up, so that a refusal means something."""
    assert len(PROBES) >= 16
    assert sum(len(p[1]) for p in PROBES) >= 60
    scope: dict[str, object] = {}
    exec(
        probe_source(["attempt(os.open, TARGET, 0)", "call('socket', 2, 1, 0)", "call('fcntl', 0, 1)"], tmp_path), scope
    )
    assert scope["probe"](1) == ["done", "done", "done"]  # type: ignore[operator]


def test_only_the_pipe_is_open_inside() -> None:
    expressions = ["' '.join(str(n) for n in range(32) if attempt(os.fstat, n) == 'done')"]
    with Session(probe_source(expressions, Path("x")), PROBE) as session:
        session.fresh("probes", [])
        assert session.call("probe", [1]).value == ["0 1 2 3 4"]


def test_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with Session(probe_source(["*sorted(os.environ)"], Path("x")), PROBE) as session:
        session.fresh("probes", [])
        assert set(session.call("probe", [1]).value) <= {"LC_CTYPE", "MALLOC_ARENA_MAX", "PYTHONHASHSEED"}
