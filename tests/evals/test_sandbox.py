"""Escape attempts, each with the one line that must say what happened."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from pibroch.evals import sandbox
from pibroch.evals.sandbox import SandboxError, run_sandboxed
from pibroch.runtime.errors import MissingError

ESCAPES = [
    ("read", "def main():\n    return open('/etc/passwd').read()", "line 2: PermissionError"),
    ("list", "import os\ndef main():\n    return os.listdir('/')", "line 3: PermissionError"),
    ("socket", "import socket\ndef main():\n    socket.socket()", "line 3: PermissionError"),
    ("fork", "import os\ndef main():\n    os.fork()", "line 3: PermissionError"),
    ("exec", "import os\ndef main():\n    os.execv('/bin/sh', ['sh'])", "line 3: PermissionError"),
    ("process", "import subprocess\ndef main():\n    subprocess.run(['true'])", "line 3: PermissionError"),
    ("thread", "import threading\ndef main():\n    threading.Thread(target=print).start()", "line 3: RuntimeError"),
    ("kill", "import os\ndef main():\n    os.kill(1, 9)", "line 3: PermissionError"),
    ("new group", "import os\ndef main():\n    os.setsid()", "line 3: PermissionError"),
    ("chmod", "import os\ndef main():\n    os.chmod('.', 0)", "line 3: PermissionError"),
    ("exit", "import os\ndef main():\n    os._exit(0)", "left the process before main() returned"),
    ("sys.exit", "import sys\ndef main():\n    sys.exit(0)", "line 3: SystemExit: 0"),
    ("memory", "def main():\n    return [0] * 10**9", "needs more memory than allowed"),
    ("recursion", "def main():\n    return main()", "line 2: RecursionError"),
    ("huge value", "def main():\n    return 'x' * (5 << 20)", "wrote more than 4194304 bytes"),
    ("huge output", "import os\ndef main():\n    while True:\n        os.write(3, b'x' * 65536)", "wrote more than"),
    ("set", "def main():\n    return {1, 2}", "not plain JSON: Object of type set"),
    ("nan", "def main():\n    return float('nan')", "not plain JSON"),
    ("object", "class A: pass\ndef main():\n    return A()", "not plain JSON: Object of type A"),
    ("syntax", "def main(:", "line 1: SyntaxError"),
    ("no function", "x = 1", "it defines no function main()"),
    ("not callable", "main = 3", "it defines no function main()"),
    ("forged", "import os\ndef main():\n    os.write(3, b'[1]')\n    os._exit(0)", "not one JSON object"),
    ("twice", "import os\ndef main():\n    os.write(3, b'{\"value\": 1}')\n    return 2", "not one JSON object"),
]


@pytest.mark.parametrize(("source", "message"), [row[1:] for row in ESCAPES], ids=[row[0] for row in ESCAPES])
def test_escape(source: str, message: str) -> None:
    with pytest.raises(SandboxError) as error:
        run_sandboxed(source)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_writes_stay_inside(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(SandboxError, match="PermissionError"):
        run_sandboxed(f"def main():\n    open({str(target)!r}, 'w')")
    assert not target.exists()
    before = set(os.listdir(tempfile.gettempdir()))
    inside = "def main():\n    open('a', 'w').write('text')\n    return open('a').read()"
    assert run_sandboxed(inside) == "text"
    left = [name for name in set(os.listdir(tempfile.gettempdir())) - before if name.startswith("pibroch-sandbox-")]
    assert not left


def test_an_endless_loop_is_killed() -> None:
    with pytest.raises(SandboxError, match=r"did not end within 0\.5 s"):
        run_sandboxed("def main():\n    while True: pass", deadline_s=0.5)


def test_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    names = run_sandboxed("import os\ndef main():\n    return sorted(os.environ)")
    assert "OPENAI_API_KEY" not in names


def test_plain_values_and_the_standard_library_work() -> None:
    source = "import itertools, math, hashlib\ndef add(a, b):\n    return {'sum': [a + b, math.comb(4, 2)]}"
    assert run_sandboxed(source, call="add", args=[2, 3]) == {"sum": [5, 6]}


def test_refuses_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_why_unavailable", lambda: "no Landlock")
    with pytest.raises(MissingError, match="no Landlock"):
        run_sandboxed("def main():\n    return 1")
