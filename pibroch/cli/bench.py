"""`pibroch bench`: the project's measurements, each in a module of its own under evals/ (that of models: agents/)."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Literal

import typer

from pibroch.cli.common import Json, finish, say

NAME = "bench"
Bench = Literal[
    "equivalence", "pipelining", "reload", "scale", "emulate", "modules", "specs", "false-wins", "overhead", "search",
    "advice",
]  # fmt: skip


def command(
    name: Annotated[Bench, typer.Argument(help="What to measure.", show_default=False)],
    launcher: Annotated[
        Literal["ray", "local"] | None, typer.Option("--launcher", help="Default: the bench's own.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small part of it, for a first look.")] = False,
    lm: Annotated[
        str | None, typer.Option("--lm", help="modules, advice: the model that is asked.", show_default=False)
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(
            "--names", help="modules, specs, tasks: which, by commas; `small` for six modules.", show_default="all"
        ),
    ] = None,
    tries: Annotated[int, typer.Option("--tries", min=1, help="modules, advice: tries of each; search: seeds.")] = 3,
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="modules: the loop's limit.")] = 10,
    single_shot: Annotated[bool, typer.Option("--single-shot", help="modules: one attempt, no feedback.")] = False,
    scores: Annotated[
        Literal["measured", "calibrated", "simulated"],
        typer.Option("--scores", help="search: what decides on the ladder."),
    ] = "simulated",
    confirm: Annotated[
        bool, typer.Option("--confirm", help="search: run the winners against the grid's best.")
    ] = False,
    playbook: Annotated[
        str | None, typer.Option("--playbook", help="advice: a run's learned.json.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure: equivalence with the single process over the grid of families; step time and memory against
    torch.distributed.pipelining; reload on warm workers; scale of lower, verify and simulate; emulated against
    simulated step times; how often a model writes a module that passes; time of `spec check` and of `regenerate`
    without a model; whether evolution claims gains that are none; what an evaluation takes beyond its steps;
    evolution against a grid and random search (`search`); a model's first candidates with and without a playbook
    (`advice`)."""
    if name in ("search", "advice"):
        from pibroch.cli import bench_evolve

        if name == "search":
            bench_evolve.search(
                names, seeds=tries, scores=scores, confirm=confirm, launcher=launcher, quick=quick, as_json=as_json
            )
        else:
            bench_evolve.advice(names, lm=lm, playbook=playbook, samples=tries, as_json=as_json)
        return
    if name == "modules":
        _modules(lm, names, tries, attempts, single_shot, as_json)
        return
    module = import_module(f"pibroch.evals.bench_{name.replace('-', '_')}")
    options: dict[str, Any] = {"progress": say}
    if launcher is not None:
        if name in ("scale", "specs"):
            raise typer.BadParameter(f"{name} starts no workers: it takes no --launcher")
        options["launcher"] = launcher
    if quick:
        options |= _quick(name, module)
    if names is not None:
        if name != "specs":
            raise typer.BadParameter(f"{name} takes no --names")
        options["names"] = [part.strip() for part in names.split(",")]
    result = module.run(**options)
    finish({"ok": True, "bench": name, **result}, module.report(result), as_json=as_json)


def _modules(lm: str | None, names: str | None, tries: int, attempts: int, single_shot: bool, as_json: bool) -> None:
    from pibroch.agents import bench_modules
    from pibroch.agents.regenerate import Shelf
    from pibroch.cli.regenerate import open_model
    from pibroch.project import find_project
    from pibroch.specs.store import load_all

    project = find_project()
    specs = load_all(project.layers("specs"))
    layers = project.layers("generated")
    shelf = Shelf(layers[0], layers)
    sources = {name: text for name, spec in specs.items() if (text := shelf.source(spec)) is not None}
    chosen = bench_modules.SMALL if names == "small" else [part.strip() for part in names.split(",")] if names else ()
    result = bench_modules.run(
        open_model(project, lm, None), specs, sources, names=chosen, tries=tries, attempts=attempts,
        single_shot=single_shot, progress=say,
    )  # fmt: skip
    finish({"ok": True, "bench": "modules", **result}, bench_modules.report(result), as_json=as_json)


def _quick(name: str, module: Any) -> dict[str, Any]:
    """The arguments that make a measurement small."""
    if name == "equivalence":
        return {"cells": module.spanning_cells()}
    if name == "pipelining":
        return {"pairs": 5, "table_microbatches": (4,), "table_peers": ("1f1b",), "table_pairs": 5}
    if name == "emulate":
        return {"profiles": ["equal-8"], "steps": 1}
    if name == "scale":
        return {"quick": True}
    if name == "specs":
        return {"names": module.QUICK}
    if name == "false-wins":
        return {"runs": 2, "candidates": 3, "calibration_pairs": 5}
    raise typer.BadParameter(f"{name} is short: it takes no --quick")
