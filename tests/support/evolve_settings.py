"""Settings for tests of schedule operators: profiles only, no model runs."""

from __future__ import annotations

from pibroch.evals.models import load_workload
from pibroch.evals.setting import Setting
from pibroch.evals.task import Task
from pibroch.runtime.costs import Costs, UnitCosts
from pibroch.runtime.profile import load_profile


def task(*, devices: int, samples: int, profile: str | None = "equal-8", limit: int | None = None) -> Task:
    """A task that exists for one test only."""
    return Task(
        name="a-test", title="a test", model="mlp-deep", devices=devices, samples=samples, emulate=profile,
        memory_limit=limit, intent="the fastest",
    )  # fmt: skip


def emulated(*, devices: int, samples: int, profile: str = "equal-8", limit: int | None = None) -> Setting:
    """A setting on a shipped profile."""
    given = task(devices=devices, samples=samples, profile=profile, limit=limit)
    return Setting(given, load_workload(given.model), load_profile(profile))


class UnitSetting(Setting):
    """`equal-8`'s sizes with unit costs: F = BI = BW = `unit` per stage, communication free."""

    unit: float = 1.0

    def costs(self, replicas: int, microbatches: int) -> Costs:
        return UnitCosts(self.unit, self.unit, self.unit)


def unit(*, devices: int, samples: int, seconds: float = 1.0) -> UnitSetting:
    """Unit costs on `equal-8`."""
    given = task(devices=devices, samples=samples)
    setting = UnitSetting(given, load_workload(given.model), load_profile("equal-8"))
    setting.unit = seconds
    return setting
