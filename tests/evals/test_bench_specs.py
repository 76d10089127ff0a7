"""The table of `bench specs`: what it reports of recorded answers, and one small module through the real commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_helper import here

from pibroch.evals import bench_specs
from pibroch.evals.bench_specs import judge_claims, judge_shipped, regenerate_row, report, run, shipped_specs
from pibroch.runtime.errors import InputError, WorkerError

CHECK = {"ok": True, "specs": 2, "kept": 2, "seconds": 3.0, "cpu_s": 2.0, "acceptance": {}}


def module(name: str, seconds: float, **more: Any) -> dict[str, Any]:
    row = {"module": name, "how": "regenerated", "ok": True, "problem": "", "seconds": seconds, "cpu_s": 1.0,
           "phases": [], "stages": {}, "acceptance": {}, "contract_calls": 0, "explored": 0}  # fmt: skip
    return row | more


def met(check: dict[str, Any], *modules: dict[str, Any]) -> list[bool]:
    return [claim["met"] for claim in judge_claims({"uncached": CHECK, "cached": check}, modules, 20.0, 90.0)]


def test_claims_are_met_or_missed() -> None:
    assert met(CHECK, module("a", 10.0), module("b", 20.0)) == [True, True]
    assert met({**CHECK, "seconds": 20.0}, module("a", 90.0)) == [False, False]
    assert met({**CHECK, "kept": 1}, module("a", 10.0, ok=False)) == [False, False]
    assert met({**CHECK, "ok": False}, module("a", 10.0)) == [False, True]
    (_, slowest) = judge_claims({"cached": CHECK}, [module("a", 10.0), module("b", 91.0)], 20.0, 90.0)
    assert slowest["seconds"] == 91.0
    assert "slowest: b" in slowest["claim"]


def answered(seconds: dict[str, float], **more: Any) -> dict[str, Any]:
    evidence = {"contract": {"calls": 100, "runs": 5, "acceptance": {"put": 0.9, "get": 0.5}}}
    return {"phase": 1, "sample": 0, "attempts": 1, "seconds": seconds, "evidence": evidence} | more


def test_a_row_adds_up_what_was_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Equal candidates are judged once; of the acceptance rates the lowest counts."""
    late = {"contract": {"calls": 50, "acceptance": {"put": 0.4}}, "concurrency": {"runs": 700}}
    said = {
        "ok": True,
        "phases": [
            answered({"load": 1.0, "contract": 2.0}),
            answered({"load": 1.0, "contract": 2.0}, sample=1),
            answered({"contract": 3.0, "concurrency": 4.0}, phase=2, evidence=late),
        ],
    }
    monkeypatch.setattr(bench_specs, "_timed", lambda command, folder: (said, 12.0, 8.0))
    row = regenerate_row("gate", tmp_path)
    assert row["stages"] == {"load": 1.0, "contract": 5.0, "concurrency": 4.0}
    assert row["acceptance"] == {"put": 0.4, "get": 0.5}
    assert (row["contract_calls"], row["explored"], row["how"], row["seconds"]) == (150, 700, "regenerated", 12.0)
    text = report(
        {"check": {"cached": CHECK}, "modules": [row], "claims": judge_claims({"cached": CHECK}, [row], 1, 90)}
    )
    assert "accepted put 40%, get 50%" in text
    assert "700 interleavings" in text
    assert "MISSED spec check of 2 specs, cached: 3.0 s (limit 1 s)" in text
    assert "met    regenerate of each of 1 modules" in text


def test_a_refused_module_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = {"ok": False, "error": {"kind": "input", "message": "no such module"}}
    monkeypatch.setattr(bench_specs, "_timed", lambda command, folder: (said, 1.0, 1.0))
    row = regenerate_row("gate", tmp_path)
    assert not row["ok"]
    assert "no such module" in report({"check": {}, "modules": [row], "claims": []})


def test_a_command_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="ended with code 3: oh"):
        bench_specs._timed(["/bin/sh", "-c", "echo oh >&2; exit 3"], tmp_path)


def test_names_are_those_of_shipped_specs(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(bench_specs.QUICK) <= set(shipped_specs())
    with pytest.raises(InputError, match="no shipped spec of the name nope"):
        run(["nope"])
    assert here(capsys, "bench", "scale", "--names", "gate").code == 2
    assert here(capsys, "bench", "specs", "--launcher", "local").code == 2


def test_a_small_module_through_the_commands(tmp_path: Path) -> None:
    """Limits so wide that no machine misses them: what is reported, not how fast."""
    said: list[str] = []
    result = run(["retry_delay"], check_s=1e9, regenerate_s=1e9, progress=said.append)
    assert result["ok"], report(result)
    assert (result["check"]["uncached"]["kept"], result["check"]["cached"]["kept"]) == (0, 1)
    (row,) = result["modules"]
    assert {"load", "rules", "contract"} <= set(row["stages"])
    assert row["acceptance"] == {"delay_ms": 1.0}
    assert [track["sample"] for track in row["phases"]] == [0, 1]
    assert len(said) == 3


def test_without_conversations_the_shipped_module_is_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    judged = judge_shipped("retry_delay")
    monkeypatch.setattr(bench_specs, "_timed", lambda command, folder: (judged, 1.0, 1.0))
    row = regenerate_row("retry_delay", tmp_path / "nowhere")
    assert (row["how"], row["ok"], len(row["phases"])) == ("judged", True, 1)
    assert judge_shipped("nope")["ok"] is False
