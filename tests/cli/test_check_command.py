"""`pibroch check` and `pibroch lower`: the documented JSON, and one clear message for each kind of mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_helper import here

from pibroch.runtime.families import build

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    file = tmp_path / "1f1b.json"
    file.write_text(json.dumps(build("1f1b", devices=2, microbatches=4, replicas=2).to_json()))
    return file


def edit(file: Path, change: Any) -> Path:
    data = json.loads(file.read_text())
    change(data["directives"])
    file.write_text(json.dumps(data))
    return file


def test_sound_schedule(capsys: Capture, schedule: Path) -> None:
    said = here(capsys, "check", schedule, "--model", "mlp-tiny", "--json")
    assert said.code == 0
    assert said.json["ok"] is True
    assert said.json["violations"] == []
    simulated = said.json["simulated"]
    assert simulated["makespan"] > 0
    assert 0 < simulated["bubble"] < 1
    assert len(simulated["peak_bytes"]) == 4


def test_people_read_it_too(capsys: Capture, schedule: Path) -> None:
    said = here(capsys, "check", schedule, "--model", "mlp-tiny")
    assert said.code == 0
    assert "2 stages × 2 replicas on 4 devices" in said.out
    assert "verified" in said.out
    assert "costs      estimated from operations" in said.out
    assert "capturing mlp-tiny" in said.err
    assert "capturing" not in said.out


def test_memory_limit_is_rule_v7(capsys: Capture, schedule: Path) -> None:
    tight = here(capsys, "check", schedule, "--model", "mlp-tiny", "--memory-limit", "1KB", "--json")
    assert tight.code == 1
    assert {row["rule"] for row in tight.json["violations"]} == {"V7"}
    assert here(capsys, "check", schedule, "--model", "mlp-tiny", "--memory-limit", "1GB").code == 0


def test_missing_replicate_is_reported_with_its_rule(capsys: Capture, schedule: Path) -> None:
    edit(schedule, lambda rows: [rows.remove(row) for row in list(rows) if row["op"] == "replicate"])
    said = here(capsys, "check", schedule, "--model", "mlp-tiny", "--json")
    assert said.code == 1
    assert said.json["ok"] is False
    assert "V8" in {row["rule"] for row in said.json["violations"]}
    assert said.json["simulated"] is None
    plain = here(capsys, "check", schedule, "--model", "mlp-tiny")
    assert (plain.code, "V8" in plain.out) == (1, False)
    assert re.search(r"^pibroch: .*refused by the verifier: \d violations?\n  V8 ", plain.err, flags=re.M)


def test_what_the_compiler_refuses_is_an_error_as_well(capsys: Capture, schedule: Path) -> None:
    edit(schedule, lambda rows: rows.append({"op": "order", "filters": [{"PP": 2, "MB": 0}, {"PP": 2, "MB": 1}]}))
    plain = here(capsys, "check", schedule, "--model", "mlp-tiny")
    assert (plain.code, plain.out) == (1, "")
    assert "refused by the compiler: V9: directive 7: order names stage 2, but the places" in plain.err


def test_one_of_each_is_singular(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text('[{"op": "place", "devices": [0]}]')
    said = here(capsys, "check", file, "--model", "mlp-tiny")
    assert "1 stage on 1 device, 1 microbatch," in said.out


def test_rows_that_wait_for_each_other_are_rule_v5(capsys: Capture, tmp_path: Path) -> None:
    def row(stage: int, *chunks: tuple[str, int]) -> dict[str, Any]:
        return {"op": "order", "filters": [{"PP": stage, "MB": mb, "PASS": p} for p, mb in chunks]}

    # Stage 0 wants B0 before F1, stage 1 wants F1 before B0: each waits for the other.
    directives = [
        {"op": "place", "filter": {"PP": 0}, "devices": [0]},
        {"op": "place", "filter": {"PP": 1}, "devices": [1]},
        {"op": "split", "num_microbatches": 2},
        row(0, ("F", 0), ("B", 0), ("F", 1), ("B", 1)),
        row(1, ("F", 0), ("F", 1), ("B", 0), ("B", 1)),
    ]
    file = tmp_path / "stuck.json"
    file.write_text(json.dumps(directives))
    said = here(capsys, "check", file, "--model", "mlp-tiny", "--json")
    assert said.code == 1
    assert "V5" in {row["rule"] for row in said.json["violations"]}


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("unknown tag", lambda rows: rows[1]["filter"].update(EXPERT=0), ["V9", "EXPERT"]),
        ("placed twice", lambda rows: rows.append(rows[1]), ["V9", "placed"]),
        ("unknown field", lambda rows: rows[1].update(colour="red"), ["directive 1", "colour"]),
        ("unknown op", lambda rows: rows.append({"op": "teleport"}), ["teleport"]),
        ("zero microbatches", lambda rows: rows[0].update(num_microbatches=0), ["num_microbatches"]),
    ],
)
def test_mistakes_in_the_file(capsys: Capture, schedule: Path, name: str, change: Any, words: list[str]) -> None:
    assert json.loads(schedule.read_text())["directives"][0]["op"] == "split"
    said = here(capsys, "check", edit(schedule, change), "--model", "mlp-tiny", "--json")
    assert said.code == 1, name
    for word in words:
        assert word in said.out, name
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["check", "FILE"], 1, "--model"),
        (["check", "FILE", "--model", "gpt-gigantic"], 1, "gpt-gigantic"),
        (["check", "FILE", "--model", "nowhere:job"], 1, "nowhere"),
        (["check", "FILE", "--model", "mlp-tiny", "--memory-limit", "much"], 1, "512MB"),
        (["check", "FILE", "--model", "mlp-tiny", "--profile", "none"], 1, "none"),
        (["check", "missing.json", "--model", "mlp-tiny"], 1, "missing.json"),
        (["check"], 2, "schedule"),
        (["check", "FILE", "--colour"], 2, "--colour"),
        (["lower", "FILE", "--model", "mlp-tiny", "--after", "lunch"], 1, "split-backward"),
        (["polish"], 2, "polish"),
    ],
)
def test_wrong_calls(
    capsys: Capture, schedule: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(schedule.parent)
    said = here(capsys, *[str(schedule) if a == "FILE" else a for a in args], "--json")
    assert said.code == code
    assert said.json["ok"] is False
    assert words in said.json["error"]["message"]
    assert "Traceback" not in said.err
    assert said.err.strip()


def test_model_without_annotations(capsys: Capture, schedule: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(schedule.parent)
    (schedule.parent / "plain_job.py").write_text(
        "import torch\nfrom torch import nn\nfrom pibroch import Workload\n"
        "def workload():\n"
        "    return Workload(name='plain', model=lambda: nn.Linear(4, 4), loss=lambda m, b: m(b).mean(),\n"
        "                    optimizer=torch.optim.AdamW, batch=lambda size, step: torch.zeros(size, 4))\n"
    )
    said = here(capsys, "check", schedule, "--model", "plain_job:workload", "--json")
    assert said.code == 1
    assert "annotate" in said.json["error"]["message"]


def test_a_misspelt_tag_is_one_warning_on_stderr(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typo_job.py").write_text(
        "import torch\nfrom torch import nn\nfrom pibroch import Workload, annotate\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.part = nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        with annotate('LAYR'):\n"
        "            return self.part(x)\n"
        "def workload():\n"
        "    return Workload(name='typo', model=Net, loss=lambda m, b: m(b).mean(),\n"
        "                    optimizer=torch.optim.AdamW, batch=lambda size, step: torch.zeros(size, 4))\n"
    )
    (tmp_path / "one.json").write_text('[{"op": "place", "devices": [0]}]')
    said = here(capsys, "check", "one.json", "--model", "typo_job:workload", "--json")
    assert said.code == 0
    assert [line for line in said.err.splitlines() if "warning" in line] == [
        "pibroch: warning: typo: the tag 'LAYR' is taken as a name of its own: did you mean LAYER? (tags: LAYR)"
    ]


def test_unexpected_exception_is_one_line(capsys: Capture, schedule: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("pibroch.runtime.verify.verify", broken)
    said = here(capsys, "check", schedule, "--model", "mlp-tiny", "--json")
    assert said.code == 1
    assert said.json["error"]["kind"] == "bug"
    assert "this is a bug" in said.json["error"]["message"]
    assert "Traceback" not in said.err
    monkeypatch.setenv("PIBROCH_DEBUG", "1")
    assert "Traceback" in here(capsys, "check", schedule, "--model", "mlp-tiny").err


def test_lower_shows_each_pass_and_the_plan(capsys: Capture, schedule: Path) -> None:
    whole = here(capsys, "lower", schedule, "--model", "mlp-tiny", "--json")
    assert whole.json["plan"]["devices"] == 4
    assert whole.json["hash"] in here(capsys, "lower", schedule, "--model", "mlp-tiny").out
    after = here(capsys, "lower", schedule, "--model", "mlp-tiny", "--after", "split", "--json")
    assert any("1F3" in line for line in after.json["dag"])
