"""From names on the command line to a workload, its captured figures, a schedule and a plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pibroch.cli.common import say
from pibroch.project import find_project, find_schedule, model_name
from pibroch.runtime.errors import InputError

if TYPE_CHECKING:
    from pibroch.runtime.capture import Captured
    from pibroch.runtime.directives import Schedule
    from pibroch.runtime.model import ModelSpec
    from pibroch.runtime.plan import Plan
    from pibroch.runtime.workload import Workload


@dataclass(frozen=True, slots=True)
class Loaded:
    """A workload with what its capture says of it."""

    workload: Workload
    captured: Captured

    @property
    def spec(self) -> ModelSpec:
        return self.captured.spec


def load_workload_named(model: str | None) -> Workload:
    """The workload that `--model` (or the project) names. Raises `InputError`."""
    from pibroch.evals.models import load_workload

    project = find_project()
    project.make_importable()
    return load_workload(model_name(model, project))


def load_model(model: str | None) -> Loaded:
    """The same, captured for one microbatch. Raises `InputError`."""
    from pibroch.runtime.capture import capture

    workload = load_workload_named(model)
    say(f"capturing {workload.name}")
    captured = capture(
        workload.model(),
        workload.loss,
        workload.batch(workload.microbatch, 0),
        name=workload.name,
        clip=workload.clip_norm is not None,
    )
    return Loaded(workload, captured)


def load_schedule_named(name: Path) -> Schedule:
    """The schedule in that file, or shipped under that name. Raises `InputError`."""
    from pibroch.runtime.directives import load_schedule

    return load_schedule(find_schedule(name, find_project()))


class Refused(InputError):
    """The compiler refused a schedule: `rule` and `where` say by which rule and at which directive."""

    def __init__(self, source: str, message: str) -> None:
        super().__init__(f"{source}: {message}")
        match = re.fullmatch(r"(V\d): (?:(directive \d+): )?(.*)", message, flags=re.S)
        self.short = message
        self.rule = match[1] if match else ""
        self.where = (match and match[2]) or source
        self.reason = match[3] if match else message


def load_plan(schedule: Path, model: str | None) -> tuple[Schedule, ModelSpec, Plan]:
    """Schedule and model, lowered. The schedule is read first: its errors come at once. Raises `InputError`."""
    parsed = load_schedule_named(schedule)
    spec = load_model(model).spec
    return parsed, spec, lower_named(schedule, parsed, spec)


def lower_named(source: Path | str, schedule: Schedule, spec: ModelSpec, *, update: bool = True) -> Plan:
    """Lower; raises `Refused` with the file's name in its message."""
    from pibroch.runtime.lower import lower

    try:
        return lower(schedule, spec, update=update)
    except InputError as error:
        raise Refused(str(source), str(error)) from error
