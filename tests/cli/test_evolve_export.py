"""`pibroch evolve-export`: event files that TensorBoard reads, an MLflow run, a report; clear errors without them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_helper import here
from evolution_journal import NASTY, Written, write_run

from pibroch.cli.evolve_export import figures
from pibroch.view.evolution import read_run


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_run(tmp_path_factory.mktemp("run"), evaluations=12, nasty=True)


def test_tensorboard_reads_back_every_figure(told: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="pibroch[tensorboard] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said = here(capsys, "evolve-export", told.path, "--tensorboard", tmp_path / "tb", "--json")
    assert said.code == 0, said.err
    assert said.json["tensorboard"] == str(tmp_path / "tb")
    read = EventAccumulator(str(tmp_path / "tb"), size_guidance={"tensors": 0})  # 0: all of them
    read.Reload()
    speeds = {event.step: event.value for event in read.Scalars("measured/speed")}
    expected = {n: told.speed[key] for n, key in enumerate(told.schedules) if n and key in told.speed}
    assert speeds == pytest.approx(expected, rel=1e-6)
    assert [e.value for e in read.Scalars("measured/best_speed")][-1] == pytest.approx(told.speed[told.best])
    assert [e.value for e in read.Scalars("measured/confirmed_speed_lower")] == [pytest.approx(1.05)]
    assert [e.value for e in read.Scalars("model/tokens")][-1] == 1000 * (told.calls - told.failures)
    texts = [t.tensor_proto.string_val[0].decode() for t in read.Tensors("verdict/text_summary")]
    assert len(texts) == 12
    # Indented by four: Markdown shows it as it is, tags and all.
    assert all(line.startswith("    ") for text in texts for line in text.splitlines())
    assert not any(tag.startswith(("simulated/speed", "emulated/")) for tag in read.Tags()["scalars"])


def test_figures_of_different_kinds_never_share_a_series(tmp_path: Path) -> None:
    simulated = read_run(write_run(tmp_path / "a", scores="simulated").path)
    emulated = read_run(write_run(tmp_path / "b", emulate="equal-8").path)
    assert {name.split("/")[0] for name, _, _ in figures(simulated)} == {"simulated", "memory", "model", "evaluation"}
    names = {name for name, _, _ in figures(emulated)}
    assert {"emulated/speed", "emulated/step_s", "simulated/step_s"} <= names
    assert not any(name.startswith("measured/") for name in names)


def test_mlflow_holds_the_run(told: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlflow", reason="pibroch[mlflow] is not installed")
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    said = here(capsys, "evolve-export", told.path, "--mlflow", uri)
    assert said.code == 0, said.err
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("pibroch")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["task_name"] == "uneven-2"
    assert run.data.tags["pibroch.kind"] == "measured"
    history = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "measured/speed")}
    assert history == pytest.approx({n: told.speed[k] for n, k in enumerate(told.schedules) if n and k in told.speed})
    assert {a.path for a in client.list_artifacts(run.info.run_id)} >= {"journal.jsonl", "playbook.json"}


@pytest.mark.parametrize(
    ("option", "module", "extra"),
    [("--tensorboard", "torch.utils.tensorboard", "tensorboard"), ("--mlflow", "mlflow.entities", "mlflow")],
)
def test_a_missing_package_is_named_with_its_extra(
    told: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    option: str, module: str, extra: str,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, module, None)  # as Python marks a module that cannot be imported
    said = here(capsys, "evolve-export", told.path, option, tmp_path / "out")
    assert said.code == 3
    assert said.err == f"pibroch: {option} needs a package that is not installed: pip install 'pibroch[{extra}]'\n"
    assert not (tmp_path / "out").exists()


def test_the_report_of_a_run_under_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run", evaluations=3, end=None, torn=True)
    said = here(capsys, "evolve-export", tmp_path / "run", "--html", tmp_path / "now.html")
    assert said.code == 0, said.err
    html = (tmp_path / "now.html").read_text(encoding="utf-8")
    assert "under way, or interrupted" in html
    assert html.count('class="pick node"') == 4


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "--tensorboard DIR, --mlflow URI or --html FILE"),
        (["--html", "."], 1, "it is a folder"),
        (["--tensorboard", "a-file"], 1, "a part of the path is a file"),
    ],
)
def test_wrong_input_is_one_clear_message(
    told: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], code: int, text: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("a-file").write_text("x", encoding="utf-8")
    said = here(capsys, "evolve-export", told.path, *arguments)
    assert said.code == code
    assert text in said.err
    assert said.err.count("\n") == 1


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = here(capsys, "evolve-export", tmp_path, "--html", tmp_path / "x.html", "--json")
    assert said.code == 1
    assert "no run to read" in said.json["error"]["message"]
    assert not (tmp_path / "x.html").exists()
    assert NASTY not in said.err
