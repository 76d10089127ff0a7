"""`pibroch doctor`: every part is looked at, and a broken one does not hide the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pibroch import doctor
from pibroch.doctor import Finding


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return {finding.name: finding for finding in doctor.examine()}


def test_what_every_installation_has_is_found(findings: dict[str, Finding]) -> None:
    import torch

    assert findings["python"].ok
    assert findings["torch"].ok
    assert findings["torch"].detail.startswith(torch.__version__)
    assert findings["gloo"].ok
    assert findings["cuda"].ok == torch.cuda.is_available()


def test_each_part_is_named_once_and_says_what_it_enables(findings: dict[str, Finding]) -> None:
    assert len(findings) == len(doctor.PARTS)
    assert all(finding.enables and finding.detail for finding in findings.values())


def test_the_kernels_answers_agree_with_its_own_lists(findings: dict[str, Finding]) -> None:
    modules = Path("/sys/kernel/security/lsm")
    try:
        listed = modules.read_text().strip().split(",")
    except OSError:
        pytest.skip("this machine does not list its security modules")
    if not listed or listed == [""]:
        pytest.skip("this machine does not list its security modules")
    assert findings["landlock"].ok == ("landlock" in listed)


def test_the_sandbox_needs_landlock_and_seccomp(findings: dict[str, Finding]) -> None:
    if findings["sandbox"].ok:
        assert findings["landlock"].ok
        assert findings["seccomp"].ok


def test_a_key_is_reported_but_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:hidden@127.0.0.1:8080/v1?token=hidden")
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)
    ok, detail = doctor._endpoint()
    assert ok
    assert "http://127.0.0.1:8080/v1" in detail
    assert "secret" not in detail
    assert "hidden" not in detail
    monkeypatch.setenv("OPENAI_API_BASE", "http://elsewhere/v1")
    broken = doctor._guarded("endpoint", "--lm openai", False, doctor._endpoint)
    assert not broken.ok
    assert "different endpoints" in broken.detail


def test_no_key_and_no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    assert doctor._endpoint()[0] is False


def test_missing_weights_name_their_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PIBROCH_LOCAL_MODEL", raising=False)
    finding = doctor._guarded("weights", "--lm local", False, doctor._weights)
    assert not finding.ok
    assert "Download" in finding.detail


def test_an_installation_that_fails_to_import_is_a_finding() -> None:
    def broken() -> tuple[bool, str]:
        raise OSError("libcudart.so.12: cannot open shared object file")

    finding = doctor._guarded("torch", "everything", True, broken)
    assert finding == Finding(
        "torch", False, "OSError: libcudart.so.12: cannot open shared object file", "everything", True
    )


def test_a_package_that_is_not_there() -> None:
    assert doctor._package("no_such_package", "pip install it")() == (False, "not installed: pip install it")


def test_only_needed_parts_decide() -> None:
    good = Finding("torch", True, "2", "all", True)
    optional = Finding("ray", False, "not installed: pip install ray", "clusters")
    needed = Finding("gloo", False, "none", "runs", True)
    assert doctor.as_data([good, optional])["ok"] is True
    assert doctor.as_data([good, optional, needed])["ok"] is False
    json.dumps(doctor.as_data([good, optional]))
    assert doctor.report([good, optional, needed]) == [
        "ok      torch  2",
        "absent  ray    not installed: pip install ray",
        "               enables: clusters",
        "MISSING gloo   none",
        "               enables: runs",
        "not ready: gloo must be here",
    ]
    assert doctor.report([good, optional])[-2:] == [
        "ready: schedules are written (planner, or --lm mailbox:DIR), checked, simulated, run and viewed",
        "without: clusters",
    ]


def test_long_details_continue_below_themselves() -> None:
    lines = doctor.report([Finding("weights", False, "word " * 60, "--lm local")])
    assert all(len(line) <= doctor.COLUMNS for line in lines)
    assert lines[1].startswith(" " * len("absent  weights  ") + "word")


def test_the_module_imports_nothing_heavy() -> None:
    code = "import sys, pibroch.doctor; print([m for m in ('torch', 'ray', 'openai', 'numpy') if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout == "[]\n"
