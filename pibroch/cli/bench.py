"""`pibroch bench`: the project's measurements, each in a module of its own under evals/."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from pibroch.cli.common import Json, finish

NAME = "bench"
BENCHES = {
    "equivalence": "families × stages × replicas × microbatches against the single process",
    "pipelining": "step time and memory against torch.distributed.pipelining",
    "reload": "how long another schedule takes to start on warm workers",
    "scale": "lower, verify and simulate thousands of devices",
    "emulate": "emulated step time against the simulated makespan",
}


def command(
    name: Annotated[str, typer.Argument(help="One of " + ", ".join(BENCHES) + ".", show_default=False)],
    quick: Annotated[bool, typer.Option("--quick", help="A small part of it, for a first look.")] = False,
    as_json: Json = False,
) -> None:
    """Run one of the project's measurements."""
    if name not in BENCHES:
        rows = "; ".join(f"{key} ({what})" for key, what in BENCHES.items())
        raise typer.BadParameter(f"no benchmark is called {name!r}: {rows}", param_hint="NAME")
    module = import_module(f"pibroch.evals.bench_{name}")
    result = module.run({"quick": quick})
    finish({"ok": True, "bench": name, **result}, module.report(result), as_json=as_json)
