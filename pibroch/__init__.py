"""Pibroch writes, proves, runs and improves distributed-training schedules.

The public names load on first use, so that `import pibroch` costs nothing:

    annotate       marks a region of a model:  with annotate("LAYER"): ...
    Workload       a training job without a schedule: model, loss, optimizer, batches
    Schedule       a list of directives;  load_schedule(path) reads one,  build(family, ...) writes a classic one
    capture        model -> layers with their parameters and values
    lower          schedule + model -> plan;  verify(plan) lists violations,  simulate(plan, costs) times it
    Trainer        runs a schedule on workers:  with Trainer(workload, schedule) as t: t.step(batch)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pibroch.runtime.annotate import annotate
    from pibroch.runtime.capture import capture
    from pibroch.runtime.directives import Schedule, load_schedule
    from pibroch.runtime.families import build
    from pibroch.runtime.lower import lower
    from pibroch.runtime.simulate import simulate
    from pibroch.runtime.trainer import Trainer
    from pibroch.runtime.verify import verify
    from pibroch.runtime.workload import Workload

__version__ = "0.1.0"

_HOME = {
    "Schedule": "directives",
    "Trainer": "trainer",
    "Workload": "workload",
    "annotate": "annotate",
    "build": "families",
    "capture": "capture",
    "load_schedule": "directives",
    "lower": "lower",
    "simulate": "simulate",
    "verify": "verify",
}

__all__ = [
    "Schedule",
    "Trainer",
    "Workload",
    "__version__",
    "annotate",
    "build",
    "capture",
    "load_schedule",
    "lower",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pibroch' has no attribute {name!r}")
    value = getattr(import_module(f"pibroch.runtime.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
