"""`pibroch bench` and `pibroch doctor`: thin, but their wiring must hold."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import get_args

import pytest
from cli_helper import here

from pibroch.cli import bench

Capture = pytest.CaptureFixture[str]
OF_AGENTS = ("modules", "advice", "search")  # they live under agents/
NAMES = tuple(name for name in get_args(bench.Bench) if name not in OF_AGENTS)


@pytest.mark.parametrize("name", NAMES)
def test_each_bench_takes_what_the_command_passes(name: str) -> None:
    module = import_module(f"pibroch.evals.bench_{name.replace('-', '_')}")
    taken = inspect.signature(module.run).parameters
    assert "progress" in taken
    assert ("launcher" in taken) == (name not in ("scale", "specs"))
    assert callable(module.report)


@pytest.mark.parametrize("name", NAMES)
def test_result_is_reported(capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = import_module(f"pibroch.evals.bench_{name.replace('-', '_')}")
    monkeypatch.setattr(module, "run", lambda **options: {"ok": False, "seen": sorted(options)})
    monkeypatch.setattr(module, "report", lambda result: f"seen {result['seen']}")
    said = here(capsys, "bench", name, "--json")
    assert said.code == 1
    assert said.json["bench"] == name
    assert said.json["seen"] == ["progress"]
    assert here(capsys, "bench", name).out.startswith("seen")


def test_wrong_calls(capsys: Capture) -> None:
    assert here(capsys, "bench", "patience").code == 2
    assert here(capsys, "bench", "scale", "--launcher", "local").code == 2
    assert "--lm" in here(capsys, "bench", "modules", "--names", "small").err
    assert "needs --lm and --playbook" in here(capsys, "bench", "advice").err
    assert "no task" in here(capsys, "bench", "search", "--names", "nothing").err


def test_the_search_bench_compares_three_searches(capsys: Capture) -> None:
    said = here(capsys, "bench", "search", "--quick", "--names", "swin-4", "--json")
    assert said.code == 0, said.err
    (row,) = said.json["rows"]
    assert (row["task"], row["kind"], said.json["evaluations"]) == ("swin-4", "simulated", 8)
    assert row["structure"] == pytest.approx(row["evolution"] / row["parameters"])
    assert min(row["parameters"], row["random"], row["evolution"]) >= 1
    assert "swin-4" in here(capsys, "bench", "search", "--quick", "--names", "swin-4").out


def test_doctor_names_what_is_there(capsys: Capture) -> None:
    said = here(capsys, "doctor", "--json")
    assert said.code == 0
    names = {finding["name"] for finding in said.json["findings"]}
    assert {"torch", "ray", "cuda", "sandbox"} <= names
    assert "torch" in here(capsys, "doctor").out
