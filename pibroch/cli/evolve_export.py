"""`pibroch evolve-export`: a run's journal as TensorBoard events, as an MLflow run, or as a fresh HTML report.

A figure's name begins with what it is (`measured/speed`, `emulated/speed`, `simulated/speed`): the three never share a
series. A step is the index of an evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from pibroch.cli.common import Json, finish
from pibroch.runtime.errors import InputError, MissingError
from pibroch.runtime.files import check_writable, write_atomically
from pibroch.runtime.words import count
from pibroch.view.evolution_data import RunView
from pibroch.view.evolution_fold import read_run
from pibroch.view.evolution_parts import cut

NAME = "evolve-export"
ARTIFACTS = ("journal.jsonl", "best.json", "playbook.json", "report.html")
LONGEST = 250  # characters of a parameter that every MLflow server takes


def command(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run of `pibroch evolve`.", show_default=False)],
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Write event files into this folder.", show_default=False)
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", help="Log a run to this tracking URI.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the report, of a run under way too.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a run elsewhere: in TensorBoard, in MLflow, or as a page of what its journal holds by now."""
    if tensorboard is None and mlflow is None and html is None:
        raise typer.BadParameter("say where to: --tensorboard DIR, --mlflow URI or --html FILE")
    if html is not None:
        check_writable(html)
    run = read_run(run_dir)
    lines = [f"run        {run_dir}: {count(run.evaluations, 'evaluation')}, {run.kind}"]
    if tensorboard is not None:
        to_tensorboard(run, tensorboard)
        lines.append(f"tensorboard {tensorboard}")
    if mlflow is not None:
        to_mlflow(run, run_dir, mlflow)
        lines.append(f"mlflow     {mlflow}")
    if html is not None:
        from pibroch.project import find_project
        from pibroch.view.evolution import report

        find_project().make_importable()  # the task's model may be the project's own
        write_atomically(html, report(run_dir))
        lines.append(f"report     {html}")
    result = {"ok": True, "run_dir": run_dir, "evaluations": run.evaluations, "kind": run.kind}
    finish({**result, "tensorboard": tensorboard, "mlflow": mlflow, "html": html}, lines, as_json=as_json)


def figures(run: RunView) -> Iterator[tuple[str, float, int]]:
    """(name, value, evaluation) of everything that is a number, in the order of the evaluations."""
    best, tokens, money = 1.0, 0, 0.0
    for one in run.evaluated:
        result, number, kind = one.result, one.number, run.of(one)
        assert result
        rows: dict[str, float | None] = {
            "speed": one.speed, "speed_lower": one.lower, "speed_upper": one.upper, "ratio_to_incumbent": result.ratio,
            "step_s": result.step_s, "tokens_per_s": result.tokens_per_s,
        }  # fmt: skip
        yield from ((f"{kind}/{name}", value, number) for name, value in rows.items() if value is not None)
        if result.simulated_s is not None:
            yield "simulated/step_s", result.simulated_s, number
        if result.peak_bytes is not None:
            yield "memory/peak_bytes", float(result.peak_bytes), number
        if one.state == "faster" and one.speed is not None:
            best = one.speed
        yield f"{run.kind}/best_speed", best, number
        tokens, money = tokens + one.asked.tokens, money + (one.asked.money or 0.0)
        yield "model/tokens", float(tokens), number
        if run.spent.money is not None:
            yield "model/money", money, number
        yield "evaluation/total_s", result.total_s, number
    if run.confirmed is not None:
        row = run.confirmed
        for name, value in (("speed", row.ratio), ("speed_lower", row.lower), ("speed_upper", row.upper)):
            yield f"{run.confirmed_kind}/confirmed_{name}", value, run.evaluations


def facts(run: RunView) -> dict[str, str]:
    """What the run was told, and how it ended."""
    names = ("name", "model", "devices", "samples", "memory_limit", "emulate", "use")
    rows = {f"task_{name}": run.task.get(name) for name in names}
    rows |= {f"budget_{name}": value for name, value in run.budget.items()}
    rows |= {"kind": run.kind, "scores": run.scores, "seed": run.seed, "lm": run.lm, "start": run.start}
    rows |= {"best": run.best, "end": run.reason or "under way, or interrupted"}
    return {name: str(value) for name, value in rows.items() if value is not None and value != ""}


def to_tensorboard(run: RunView, folder: Path) -> None:
    """Event files. Raises `MissingError` without the package, `InputError` where the folder cannot be written."""
    check_writable(folder / "events")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise _missing("tensorboard", "--tensorboard") from error
    try:
        # torch leaves this class without types.
        writer: Any = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from error
    try:
        for name, value, number in figures(run):
            writer.add_scalar(name, value, number)
        writer.add_text("run", _table([("fact", "value"), *facts(run).items()]), 0)
        for one in run.evaluated:
            assert one.result
            writer.add_text("verdict", _plain(f"{one.state}: {one.result.reason}"), one.number)
        for change in run.changes:
            text = change.after or change.before or change.reason
            writer.add_text("playbook", _plain(f"{change.done} {change.id}: {text}"), change.evaluation)
    finally:
        writer.close()


def to_mlflow(run: RunView, run_dir: Path, uri: str) -> None:
    """One MLflow run in the experiment "pibroch", with the run's files. Raises `MissingError` without the package,
    `InputError` where the server refuses."""
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise _missing("mlflow", "--mlflow") from error
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name("pibroch")
        experiment = found.experiment_id if found else client.create_experiment("pibroch")
        made = client.create_run(experiment, run_name=run.path, tags={"pibroch.kind": run.kind})
        key = made.info.run_id
        begun = made.info.start_time
        metrics = [Metric(name, value, begun, number) for name, value, number in figures(run)]
        params = [Param(name, cut(value, LONGEST - 30)) for name, value in facts(run).items()]
        for first in range(0, len(metrics), 1000):  # as many as one request may hold
            client.log_batch(key, metrics=metrics[first : first + 1000])
        verdicts = [c.state for c in run.evaluated]
        tags = [RunTag(f"verdicts.{name}", str(verdicts.count(name))) for name in sorted(set(verdicts))]
        client.log_batch(key, params=params, tags=tags)
        for name in ARTIFACTS:
            if (run_dir / name).is_file():
                client.log_artifact(key, str(run_dir / name))
        client.set_terminated(key, "FINISHED" if run.reason else "RUNNING")
    except MlflowException as error:
        raise InputError(f"--mlflow {uri}: {cut(' '.join(str(error).split()), 300)}") from error


def _missing(extra: str, option: str) -> MissingError:
    return MissingError(f"{option} needs a package that is not installed: pip install 'pibroch[{extra}]'")


def _plain(text: str) -> str:
    """TensorBoard reads text as Markdown; indented by four it shows it as it is."""
    return "\n".join(f"    {line}" for line in cut(text).splitlines())


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"    {name:{width}}  {' '.join(value.split())}" for name, value in rows)
