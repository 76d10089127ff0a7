"""`pibroch evolve`: a faster schedule for a task, and a playbook that learned from the search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pibroch.cli.common import (
    Address,
    Deadline,
    Device,
    Json,
    LauncherName,
    MemoryLimit,
    finish,
    parse_bytes,
    say,
)
from pibroch.runtime.errors import InputError
from pibroch.runtime.files import check_writable, write_atomically
from pibroch.runtime.words import count

if TYPE_CHECKING:
    from pibroch.agents.evolve.session import Session
    from pibroch.evals.task import Task
    from pibroch.playbooks.model import Playbook
    from pibroch.project import Project

NAME = "evolve"
RUNS = Path("runs") / "evolve"
WITH_RESUME = ("task", "model", "resume", "budget", "max_seconds", "max_tokens", "max_money", "apply", "as_json")
ASSUMED = " (its costs are assumed: 0.1 s for the forward of a sample, links of 1 GB/s)"


def command(
    context: typer.Context,
    task: Annotated[
        str | None, typer.Argument(help="A task by name, or its file. None: --model.", show_default=False)
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget", min=1, help="Candidates to evaluate. Default: 40.", show_default=False, rich_help_panel="Budget"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Instead of a task: a shipped model or your module:function.",
            show_default=False,
            rich_help_panel="Task of your own",
        ),
    ] = None,
    devices: Annotated[
        int,
        typer.Option("--devices", min=1, help="With --model: how many devices.", rich_help_panel="Task of your own"),
    ] = 2,
    samples: Annotated[
        int,
        typer.Option("--samples", min=1, help="With --model: samples of one step.", rich_help_panel="Task of your own"),
    ] = 16,
    memory_limit: MemoryLimit = None,
    schedule: Annotated[
        Path | None,
        typer.Option(
            "--schedule",
            help="The start. Default: the fastest 1F1B of all divisions.",
            show_default=False,
            rich_help_panel="Search",
        ),
    ] = None,
    scores: Annotated[
        Literal["measured", "calibrated", "simulated"],
        typer.Option(
            "--scores",
            help="measured runs candidates; simulated believes the simulator; calibrated measures the costs first and "
            "runs the best at the end.",
            rich_help_panel="Search",
        ),
    ] = "measured",
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the search and of the weights.", rich_help_panel="Search")
    ] = 0,
    lm: Annotated[
        str | None,
        typer.Option(
            "--lm",
            help="openai[:MODEL], local[:FILE], mailbox:DIR or replay:DIR. Without: edits, bullets, families.",
            show_default=False,
            rich_help_panel="Language model",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            help="Write the conversation here, for replay:DIR.",
            show_default=False,
            rich_help_panel="Language model",
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", help="Wall time of the whole run.", show_default=False, rich_help_panel="Budget"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            help="Of the language model, in and out.",
            show_default=False,
            rich_help_panel="Language model",
        ),
    ] = None,
    max_money: Annotated[
        float | None,
        typer.Option(
            "--max-money",
            help="Of the language model; needs --price.",
            show_default=False,
            rich_help_panel="Language model",
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            "--price",
            help="Per million input and output tokens: IN,OUT.",
            show_default=False,
            rich_help_panel="Language model",
        ),
    ] = None,
    playbook: Annotated[
        str | None,
        typer.Option(
            "--playbook",
            help="A playbook's file, or none. Default: the project's.",
            show_default=False,
            rich_help_panel="Search",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help=f"The run's folder. Default: {RUNS}/TASK-N.", show_default=False, rich_help_panel="Run"
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Go on with the run in this folder.", show_default=False, rich_help_panel="Run"),
    ] = None,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Write a sure winner and the lessons into the project.", rich_help_panel="Run"),
    ] = False,
    launcher: LauncherName = "ray",
    address: Address = None,
    device: Device = "auto",
    deadline: Deadline = 60.0,
    as_json: Json = False,
) -> None:
    """Search for a faster schedule: propose, prove, simulate, run, time in pairs; learn from each result."""
    from dataclasses import replace

    from pibroch.agents.evolve.budget import Budget
    from pibroch.agents.evolve.session import Ask, Launch, Session, evolve, finished, new_run_dir, resumed
    from pibroch.cli.evolve_view import LiveView
    from pibroch.project import find_project
    from pibroch.runtime.directives import load_schedule

    if resume is not None:
        _check_resume(context)
    if sum(given is not None for given in (task, model, resume)) != 1:
        raise typer.BadParameter("name a task, or a model with --model, or a run with --resume: one of them")
    project = find_project()
    project.make_importable()
    if apply and project.root is None:
        raise InputError("--apply writes into a project, and here is none: `pibroch init` makes one")
    chosen: Session
    if resume is not None:
        path = resume
        chosen = resumed(resume, evaluations=budget, seconds=max_seconds, tokens=max_tokens, money=max_money)
    else:
        found = _task(task, project) if task else _own_task(model or "", devices, samples, memory_limit)
        path = out or new_run_dir(RUNS, found)
        chosen = Session(
            task=found,
            playbook=_playbook(playbook, project),
            start=load_schedule(schedule) if schedule else None,
            seed=seed,
            budget=Budget(budget or 40, max_seconds, max_tokens, max_money),
            launch=Launch(scores, launcher, address, device, deadline),
            ask=Ask(lm or project.settings.get("lm"), _price(price), record),
        )
    chosen = replace(chosen, prompts=project.prompts())
    check_writable(path / "report.html")
    result = finished(path, chosen) if resume is not None else None
    if result is None:
        with LiveView(budget=chosen.budget.evaluations) as view:
            result = evolve(path, chosen, resume=resume is not None, say=say, listeners=[view.record])
    result["report"] = _report(path)
    result["applied"] = _apply(project, path, result) if apply else None
    finish(result, _lines(result), as_json=as_json)


def _check_resume(context: typer.Context) -> None:
    """A resumed run takes what it is from its folder."""
    sources = {param.opts[0]: context.get_parameter_source(str(param.name)) for param in context.command.params}
    named = {param.opts[0]: param.name for param in context.command.params}
    given = [
        opt for opt, source in sources.items()
        if named[opt] not in WITH_RESUME and source is not None and source.name == "COMMANDLINE"
    ]  # fmt: skip
    if given:
        raise typer.BadParameter(f"--resume goes on with what the run was told: leave out {', '.join(given)}")


def _task(name: str, project: Project) -> Task:
    from pibroch.evals.task import find_task

    return find_task(name, project.layers("tasks"))


def _own_task(model: str, devices: int, samples: int, memory_limit: str | None) -> Task:
    from pibroch.evals.task import Task

    name = "".join(c if c.isalnum() else "-" for c in model.lower()).strip("-")
    return Task(
        name=name, title=f"{model} on {devices} devices", model=model, devices=devices, samples=samples,
        memory_limit=parse_bytes(memory_limit),
        intent=f"the fastest schedule over {devices} devices for {samples} samples a step",
    )  # fmt: skip


def _playbook(given: str | None, project: Project) -> Playbook:
    from pibroch.playbooks.model import Playbook
    from pibroch.playbooks.store import Store, open_store

    if given == "none":
        return Playbook()
    return Store(Path(given)).load() if given else open_store(project.layers("playbooks")).load()


def _price(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        one, two = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--price {text!r}: write two numbers, as 0.15,0.6") from None
    return one, two


def _report(path: Path) -> Path:
    from pibroch.view.evolution import report

    file = path / "report.html"
    write_atomically(file, report(path))
    return file


def _apply(project: Project, path: Path, result: dict[str, Any]) -> dict[str, Any]:
    """The winner as a schedule of the project, and the run's deltas in its playbook."""
    from pibroch.agents.evolve.applying import apply_run

    assert project.root is not None
    return apply_run(project.root, path, task=result["task"], better=_better(result))


def _better(result: dict[str, Any]) -> bool:
    """Whether the best is worth writing down: confirmed, or the simulator's where that decided everything."""
    found: bool = result["best"]["confirmed"] or (result["scores"] == "simulated" and result["best"]["evaluation"] > 0)
    return found


def _counted(result: dict[str, Any]) -> str:
    """How many candidates there were, by verdict."""
    verdicts = [row["verdict"] for row in result["rejected"]]
    faster = result["evaluations"] - len(verdicts)
    others = [f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts)]
    return f"{count(result['evaluations'], 'candidate')}: " + ", ".join([f"{faster} faster", *others])


def _lines(result: dict[str, Any]) -> list[str]:
    best, book, cost = result["best"], result["playbook"], result["cost"]
    kind = "" if result["kind"] == "measured" else f" ({result['kind']})"
    times = f"{best['ratio']:.3f} times as fast as the start"
    if best["evaluation"] == 0:
        gain = "nothing faster than the start was found"
    elif result["scores"] == "simulated":
        gain = f"{times} in the simulator; not run{ASSUMED if result['costs'] == 'assumed' else ''}"
    elif best["interval"] is None:
        gain = f"{times}{kind} when it was found; not confirmed"
    else:
        low, high = best["interval"]
        sure = f"{times}{kind}" if best["confirmed"] else f"no gain confirmed{kind}: {best['ratio']:.3f}"
        gain = f"{sure}, {low:.3f} to {high:.3f} in {best['pairs']} pairs"
    rows = [
        f"best       {gain}",
        f"schedule   {best['file']}",
        f"evaluated  {_counted(result)}; ended: {result['ended']}",
        f"playbook   {', '.join(f'{n} {what}' for what, n in book.items() if n) or 'nothing learned'}",
    ]
    if cost["calls"]:
        tokens = f"{cost['input_tokens']} tokens in, {cost['output_tokens']} out"
        rows.append(f"model      {cost['calls']} calls, {tokens}, {cost['money']:.4f}")
    rows += [f"  {line}" for line in result["failures"][:5]]
    rows.append(f"report     {result['report']}")
    if result["ended"] in ("interrupted", "stopped"):
        rows.append(f"go on      pibroch evolve --resume {result['run_dir']}")
    if result["applied"]:
        rows.append(f"applied    {result['applied']['text']}")
    return rows
