"""`pibroch init`: a new project with a model to change and a schedule to run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pibroch.cli.common import Json, finish
from pibroch.project import FILE
from pibroch.runtime.files import write_atomically

NAME = "init"

_TOML = """\
# A pibroch project. Its specs/, generated/, playbooks/ and tasks/ are looked into before the shipped ones.
[project]
name = {name}
model = "model:workload"   # the default of --model
# lm = "mailbox:mail"      # the default of --lm; without one the planner writes the schedules
"""

_MODEL = '''\
"""The model of this project: change it, keep the annotations."""

from functools import partial

import torch
from torch import nn

from pibroch import Workload, annotate

WIDTH = 32


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            with annotate("LAYER"):
                x = layer(x)
        with annotate("LAYER"):
            return self.head(x)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The mean over the samples of the batch."""
    x, y = batch
    return ((model(x) - y) ** 2).mean()


def batch(size: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of one step: the same numbers whenever it is asked for."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, WIDTH, generator=generator)
    return x, x.sum(dim=1, keepdim=True).sin()


def workload() -> Workload:
    return Workload(
        name="model", model=Net, loss=loss, optimizer=partial(torch.optim.AdamW, lr=1e-2), batch=batch, microbatch=4
    )
'''


def command(
    folder: Annotated[Path, typer.Argument(help="The new project's folder.")] = Path("."),
    as_json: Json = False,
) -> None:
    """Make a project: pibroch.toml, a small model, a schedule."""
    from pibroch.runtime.directives import schedule_text
    from pibroch.runtime.errors import InputError
    from pibroch.runtime.families import build

    if (folder / FILE).exists():
        raise InputError(f"{folder / FILE} exists: this folder is a project already")
    schedule = build("1f1b", devices=2, microbatches=4)
    files = {
        FILE: _TOML.format(name=json.dumps(folder.resolve().name)),
        "model.py": _MODEL,
        "generated/schedules/1f1b.json": schedule_text(schedule),
    }
    written = []
    for name, text in files.items():
        if not (folder / name).exists():
            write_atomically(folder / name, text)
            written.append(name)
    for room in ("specs", "playbooks", "tasks"):
        (folder / room).mkdir(exist_ok=True)
    lines = [f"wrote {name}" for name in written]
    enter = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    lines.append(f"next: {enter}pibroch check 1f1b && pibroch run 1f1b --steps 3")
    finish({"ok": True, "project": str(folder), "files": written}, lines, as_json=as_json)
