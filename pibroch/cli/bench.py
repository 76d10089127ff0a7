"""`pibroch bench`: the project's measurements, each in a module of its own under evals/."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Literal

import typer

from pibroch.cli.common import Json, finish, say

NAME = "bench"
Bench = Literal["equivalence", "pipelining", "reload", "scale", "emulate"]


def command(
    name: Annotated[Bench, typer.Argument(help="What to measure.", show_default=False)],
    launcher: Annotated[
        Literal["ray", "local"] | None, typer.Option("--launcher", help="Default: the bench's own.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small part of it, for a first look.")] = False,
    as_json: Json = False,
) -> None:
    """Measure: equivalence with the single process over the grid of families; step time and memory against
    torch.distributed.pipelining; reload on warm workers; scale of lower, verify and simulate; emulated against
    simulated step times."""
    module = import_module(f"pibroch.evals.bench_{name}")
    options: dict[str, Any] = {"progress": say}
    if launcher is not None:
        if name == "scale":
            raise typer.BadParameter("scale starts no workers: it takes no --launcher")
        options["launcher"] = launcher
    if quick:
        options |= _quick(name, module)
    result = module.run(**options)
    finish({"ok": True, "bench": name, **result}, module.report(result), as_json=as_json)


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
    raise typer.BadParameter(f"{name} is short: it takes no --quick")
