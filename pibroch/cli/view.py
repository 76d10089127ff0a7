"""`pibroch view`: one HTML file that shows a schedule, simulated and, if wished, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pibroch.cli.common import (
    Address,
    Deadline,
    Device,
    Emulate,
    Json,
    LauncherName,
    Model,
    Profile,
    ScheduleFile,
    Seed,
    finish,
    say,
)
from pibroch.runtime.files import check_writable, write_atomically

NAME = "view"


def command(
    schedule: ScheduleFile,
    model: Model = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The HTML file.")] = Path("view.html"),
    measure: Annotated[bool, typer.Option("--measure", help="Run it as well, and show both timelines.")] = False,
    launcher: LauncherName = "ray",
    address: Address = None,
    device: Device = "auto",
    deadline: Deadline = 60.0,
    seed: Seed = 0,
    emulate: Emulate = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Write the timeline, idle time by cause, memory and directives as one HTML file that needs no network."""
    from pibroch.cli.loading import load_model, load_schedule_named, load_workload_named, lower_named
    from pibroch.cli.report import COSTS, choose_costs, costs_line
    from pibroch.cli.running import Options, equivalence_line, judged, open_trainer, page, train, write_view
    from pibroch.runtime.errors import InputError
    from pibroch.runtime.simulate import simulate
    from pibroch.runtime.verify import verify

    if (emulate or launcher == "local" or address) and not measure:
        raise typer.BadParameter("--launcher, --address and --emulate go with --measure")
    if profile and measure:
        raise typer.BadParameter("--profile is for simulation alone: with --measure the measured costs are used")
    check_writable(out)
    parsed = load_schedule_named(schedule)
    if measure:
        options = Options(
            launcher=launcher, address=address, device=device, deadline=deadline, seed=seed, emulate=emulate
        )
        with open_trainer(load_workload_named(model), parsed, options) as trainer:
            say("running it")
            verdict = judged(trainer, seed=seed)
            trained = train(trainer, steps=3)
            write_view(out, trainer, trace=trainer.trace(), verdict=verdict, tokens_per_s=trained["tokens_per_s"])
        result = {"ok": verdict.ok, "view": out, "measured": True, "emulated": emulate is not None, "equal": verdict.ok}
        kind = "profile" if emulate else "measured"
        lines = [equivalence_line(verdict), costs_line(kind), f"view       {out}"]
    else:
        costs, kind = choose_costs(profile), "profile" if profile else "estimated"
        spec = load_model(model).spec
        plan = lower_named(schedule, parsed, spec)
        violations = verify(plan, model=spec)
        if violations:
            raise InputError(f"{schedule}: {violations[0].message}")
        facts = {"verified": True, "costs": COSTS[kind]}
        write_atomically(out, page(parsed, spec, plan, simulate(plan, costs), facts=facts))
        result = {"ok": True, "view": out, "measured": False, "emulated": False, "equal": None}
        lines = [costs_line(kind), f"view       {out}"]
    finish({**result, "costs": kind}, lines, as_json=as_json)
