"""`pibroch simulate`: the step of a schedule file, or of a family, under a cost model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pibroch.cli.common import Json, Model, Profile, finish

if TYPE_CHECKING:
    from pibroch.runtime.directives import Schedule
    from pibroch.runtime.model import ModelSpec

NAME = "simulate"


def command(
    schedule: Annotated[Path | None, typer.Argument(help="A schedule file.", show_default=False)] = None,
    family: Annotated[
        str | None, typer.Option("--family", help="gpipe, 1f1b, interleaved or zb-h1.", show_default=False)
    ] = None,
    devices: Annotated[int, typer.Option("--devices", min=1, help="Pipeline devices (with --family).")] = 2,
    stages_per_device: Annotated[
        int | None,
        typer.Option("--stages-per-device", min=1, help="Default: 2 for interleaved, else 1.", show_default=False),
    ] = None,
    microbatches: Annotated[int, typer.Option("--microbatches", min=1, help="With --family.")] = 8,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="With --family.")] = 1,
    model: Model = None,
    unit_costs: Annotated[
        bool,
        typer.Option("--unit-costs", help="F, BI, BW cost 1, B 2, communication nothing: the default without a model."),
    ] = False,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Simulate one step. Without a model every stage is one equal layer."""
    from pibroch.cli.loading import load_model, load_schedule_named, lower_named
    from pibroch.cli.report import choose_costs, costs_line, plan_line, simulation_lines, simulation_row
    from pibroch.runtime.families import build
    from pibroch.runtime.profile import load_profile
    from pibroch.runtime.simulate import simulate

    if (schedule is None) == (family is None):
        raise typer.BadParameter("a schedule file, or --family with --devices and --microbatches: one of the two")
    if unit_costs and profile:
        raise typer.BadParameter("--unit-costs and --profile exclude each other")
    unit_costs = unit_costs or (model is None and profile is None)
    if schedule is not None:
        parsed = load_schedule_named(schedule)
    else:
        assert family is not None
        per_device = stages_per_device or (2 if family == "interleaved" else 1)
        parsed = build(
            family, devices=devices, microbatches=microbatches, replicas=replicas, stages_per_device=per_device
        )
    spec = load_model(model).spec if model else load_profile(profile).model() if profile else _equal_layers(parsed)
    costs = choose_costs(profile, unit_costs=unit_costs)
    plan = lower_named(schedule or str(family), parsed, spec)
    simulation = simulate(plan, costs)
    result = {"ok": True, "family": family, "devices": plan.devices, **simulation_row(simulation)}
    lines = [plan_line(plan), *simulation_lines(simulation, units=unit_costs, memory=bool(model or profile))]
    lines.append(costs_line("units" if unit_costs else "profile" if profile else "estimated"))
    finish(result, lines, as_json=as_json)


def _equal_layers(schedule: Schedule) -> ModelSpec:
    """One layer for each stage that the schedule places."""
    from pibroch.runtime.directives import Place
    from pibroch.runtime.model import uniform_model

    stages = [d.filter.get("PP") for d in schedule.directives if isinstance(d, Place)]
    return uniform_model(1 + max((index for index in stages if isinstance(index, int)), default=0))
