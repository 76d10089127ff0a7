"""`pibroch demo`: the whole walk, small."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helper import here

from pibroch.cli.demo import loss_lines
from pibroch.runtime.directives import load_schedule


def test_ends_with_everything_that_it_promises(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "demo"
    said = here(
        capsys, "demo", "1F1B over 2 stages, 4 microbatches, and make it mauve",
        "--launcher", "local", "--out", out, "--steps", "12", "--pairs", "3", "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    result = said.json
    assert result["intent"]["family"] == "1f1b"
    assert any("mauve" in word for word in result["unused_words"])
    assert result["verified"] is True
    assert len(load_schedule(out / "schedule.json").directives) == 5  # split, two places, two order rows
    assert result["equivalence"]["bitwise"] is True
    assert result["losses"][-1] < 0.8 * result["losses"][0]
    assert result["compared"]["single_process"]["tokens_per_s"] > 0
    assert result["compared"]["pipelining"]["name"] == "Schedule1F1B"
    assert "Measured" in (out / "view.html").read_text()


def test_loss_bars_fall_with_the_loss() -> None:
    (line,) = loss_lines([4.0, 3.0, 2.0, 1.0])
    bars = line.split()[2]
    assert bars[0] == "█"
    assert bars[-1] == "▁"
    assert list(bars) == sorted(bars, reverse=True)
    assert loss_lines([1.0, 1.0])[0].split()[2] == "▁▁"
