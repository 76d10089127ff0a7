"""`pibroch run` and `pibroch view` on real workers (local processes). Lost workers: tests/failures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from cli_helper import here

from pibroch.evals.judge import Verdict, judge
from pibroch.runtime.directives import schedule_text
from pibroch.runtime.families import build
from pibroch.runtime.trace import read_trace
from pibroch.runtime.trainer import Trainer

Capture = pytest.CaptureFixture[str]
LOCAL = ("--launcher", "local")


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    file = tmp_path / "s.json"
    file.write_text(schedule_text(build("1f1b", devices=2, microbatches=3)))
    return file


def test_documented_json_trace_and_view(capsys: Capture, schedule: Path, tmp_path: Path) -> None:
    trace, view = tmp_path / "t.json", tmp_path / "v.html"
    said = here(
        capsys,
        "run",
        schedule,
        "--model",
        "mlp-tiny",
        "--steps",
        "4",
        *LOCAL,
        "--trace",
        trace,
        "--view",
        view,
        "--json",
    )
    assert said.code == 0, said.err
    result = said.json
    assert result["tokens_per_s"] > 0
    assert len(result["losses"]) == 4
    assert result["losses"][-1] < result["losses"][0]
    assert result["ranks"] == 2
    assert result["emulated"] is False
    assert len(result["peak_bytes"]) == 2
    assert all(isinstance(n, int) and n > 0 for n in result["peak_bytes"])
    assert result["equivalence"]["reference"] == "replay"
    assert result["equivalence"]["bitwise"] is True
    assert result["equivalence"]["max_rel_grad_err"] == 0
    assert result["equivalence"]["max_rel_loss_err"] <= 1e-6
    computed = [e for e in read_trace(trace).events if e.stream == "compute"]
    assert len(computed) == 2 * (3 + 3) + 2  # per stage: 3 F and 3 B, and one update
    text = view.read_text()
    assert "<html" in text
    assert "Measured" in text


def test_losses_do_not_depend_on_the_schedule(capsys: Capture, schedule: Path, tmp_path: Path) -> None:
    one = here(capsys, "run", schedule, "--model", "mlp-tiny", "--steps", "3", *LOCAL, "--no-judge", "--json").json
    other = tmp_path / "other.json"
    other.write_text(schedule_text(build("zb-h1", devices=4, microbatches=3)))
    two = here(capsys, "run", other, "--model", "mlp-tiny", "--steps", "3", *LOCAL, "--no-judge", "--json").json
    assert one["equivalence"] is None
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-6)


def test_float64_is_compared_with_the_unsplit_batch(capsys: Capture, schedule: Path) -> None:
    said = here(
        capsys,
        "run",
        schedule,
        "--model",
        "mlp-tiny",
        "--steps",
        "1",
        *LOCAL,
        "--dtype",
        "float64",
        "--batch",
        "12",
        "--json",
    )
    assert said.code == 0, said.err
    assert said.json["equivalence"]["reference"] == "unsplit"
    assert said.json["equivalence"]["max_rel_grad_err"] <= 1e-10


def test_emulated_results_say_so(capsys: Capture, schedule: Path, tmp_path: Path) -> None:
    view = tmp_path / "v.html"
    said = here(
        capsys, "run", schedule, "--model", "mlp-tiny", "--steps", "1", *LOCAL, "--no-judge", "--emulate", "equal-8",
        "--view", view, "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert said.json["emulated"] is True
    # Two stages of 20 ms F and 40 ms B or longer, 3 microbatches: (3 + 1) x 60 ms at the least.
    assert said.json["step_s"] >= 0.24
    assert "Emulated" in view.read_text()
    assert "Measured" not in view.read_text()


def test_view_of_a_run_that_differs_is_written_and_refused(
    capsys: Capture, schedule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(trainer: Trainer, *, seed: int) -> Verdict:
        return replace(judge(trainer), ok=False, worst="weight.0", max_rel_grad_err=0.5)

    monkeypatch.setattr("pibroch.cli.running.judged", differs)
    view = tmp_path / "v.html"
    said = here(capsys, "view", schedule, "--model", "mlp-tiny", "--measure", *LOCAL, "-o", view)
    assert said.code == 1
    assert re.search(r"DIFFERS .*weight\.0, relative error 0\.5", said.out)
    assert "costs      measured on these workers" in said.out
    page = view.read_text()
    assert "not equal to the reference" in page
    assert "measured on these workers" in page


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--batch", "7"], 1, "does not divide"),
        (["--launcher", "carrier-pigeon"], 2, "launcher"),
        (["--steps", "0"], 2, "steps"),
        (["--emulate", "none"], 1, "equal-8"),
        (["--baseline", "missing.json"], 1, "missing.json"),
        (["--trace", "/"], 1, "folder"),
        (["--memory-limit", "1KB"], 1, "V7"),
        (["--address", "127.0.0.1:1"], 1, "address"),
    ],
)
def test_mistakes(capsys: Capture, schedule: Path, args: list[str], code: int, words: str) -> None:
    launcher = () if "--launcher" in args else LOCAL
    said = here(capsys, "run", schedule, "--model", "mlp-tiny", *launcher, *args, "--json")
    assert said.code == code
    assert words in said.json["error"]["message"]
