"""`pibroch simulate`: closed forms, and what it says to wrong calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helper import here

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("family", "stages_per_device", "makespan", "idle", "inflight"),
    [
        # p = 4, m = 8, F = BI = BW = 1, B = 2: idle is (p - 1)(F + B), with ZB-H1 (p - 1)(F + B - 2W), interleaved
        # (p - 1)(F + B) / v in whole stages; interleaved counts half-stage chunks, so its time and idle are doubled.
        ("gpipe", 1, 8 * 3 + 9, 9, [8, 8, 8, 8]),
        ("1f1b", 1, 8 * 3 + 9, 9, [4, 3, 2, 1]),
        ("interleaved", 2, 2 * (8 * 3) + 9, 9, [11, 9, 7, 5]),
        ("zb-h1", 1, 8 * 3 + 3, 3, [4, 4, 4, 4]),
    ],
)
def test_closed_forms(
    capsys: Capture, family: str, stages_per_device: int, makespan: int, idle: int, inflight: list[int]
) -> None:
    said = here(
        capsys, "simulate", "--unit-costs", "--family", family, "--devices", "4",
        "--stages-per-device", str(stages_per_device), "--microbatches", "8", "--json",
    )  # fmt: skip
    assert said.code == 0
    assert said.json["makespan"] == makespan
    assert said.json["idle"] == [idle] * 4
    assert said.json["peak_inflight"] == inflight


def test_file_without_model_has_one_layer_per_stage(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(
        '[{"op": "place", "filter": {"PP": 0}, "devices": [0]}, {"op": "place", "filter": {"PP": 1}, "devices": [1]},'
        ' {"op": "split", "num_microbatches": 3}]'
    )
    said = here(capsys, "simulate", file, "--json")
    # All forwards, then all backwards: 3 microbatches of F + B = 3, and (p - 1)(F + B) = 3 idle.
    assert said.json["makespan"] == 12


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([], 2, "--family"),
        (["x.json", "--family", "1f1b"], 2, "one of the two"),
        (["--family", "1f1b", "--unit-costs", "--profile", "p"], 2, "exclude"),
        (["--family", "2f2b"], 1, "2f2b"),
        (["--family", "1f1b", "--devices", "0"], 2, "--devices"),
        (["nowhere.json"], 1, "nowhere.json"),
    ],
)
def test_wrong_calls(capsys: Capture, args: list[str], code: int, words: str) -> None:
    said = here(capsys, "simulate", *args, "--json")
    assert said.code == code
    assert words in said.json["error"]["message"]
    assert said.json["ok"] is False
    assert len(said.err.splitlines()) == 1
