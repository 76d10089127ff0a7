"""`pibroch bench emulate`: eight stages on a machine too small for them, as long as a profile says.

Every family runs 8 devices x 16 microbatches with real processes, communication and numbers; each task lasts what the
profile gives it. The measured step must be within 5% of the simulated makespan, and families that the simulator tells
apart must come in its order (GPipe and 1F1B tie at equal stages). This tests plan and executor, not the cost model: all
figures here are emulated.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from pibroch.evals.models import load_workload
from pibroch.evals.timing import measurement_lock
from pibroch.runtime.directives import Schedule
from pibroch.runtime.families import FAMILIES, build
from pibroch.runtime.lower import lower
from pibroch.runtime.model import uniform_model
from pibroch.runtime.profile import Profile, load_profile
from pibroch.runtime.simulate import simulate
from pibroch.runtime.trainer import Trainer

PROFILES = ("equal-8", "llama3-8b-a100-25g")
WITHIN = 0.05
TIE = 0.02  # makespans closer than this are a tie: their order is not judged


def schedule_of(family: str, *, devices: int, microbatches: int) -> Schedule:
    """The family over these devices; interleaved has two stages on each."""
    per_device = 2 if family == "interleaved" else 1
    return build(family, devices=devices, microbatches=microbatches, stages_per_device=per_device)


def run(
    *,
    profiles: Sequence[str] | None = None,
    families: Sequence[str] = FAMILIES,
    devices: int = 8,
    microbatches: int = 16,
    steps: int = 3,
    workload: str = "mlp-deep",
    launcher: str = "local",
    deadline: float = 120.0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure every family under every profile (by default `PROFILES`). Holds the measurement lock."""
    schedules = {f: schedule_of(f, devices=devices, microbatches=microbatches) for f in families}
    rows: list[dict[str, Any]] = []
    orders: list[dict[str, Any]] = []
    with measurement_lock():
        for name in profiles or PROFILES:
            profile = one_scale(load_profile(name), list(schedules.values()))
            options: dict[str, Any] = {"workload": workload, "steps": steps, "launcher": launcher, "deadline": deadline}
            found = _measure(profile, schedules, progress=progress, **options)
            rows += found
            orders += compare_order(found)
    return {
        "bench": "emulate",
        "emulated": True,
        "ok": bool(rows) and all(row["passed"] for row in rows) and all(order["passed"] for order in orders),
        "devices": devices,
        "microbatches": microbatches,
        "rows": rows,
        "order": orders,
    }


def one_scale(profile: Profile, schedules: Sequence[Schedule]) -> Profile:
    """The profile slowed down until the shortest chunk of all these schedules is long enough: one scale for all."""
    model = uniform_model(16)
    return max((profile.scaled(plan=lower(s, model)) for s in schedules), key=lambda p: p.time_scale)


def compare_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each two families of one profile that the simulator tells apart: whether the measured steps agree."""
    result = []
    for a, b in combinations(rows, 2):
        fast, slow = sorted((a, b), key=lambda row: row["simulated_s"])
        if slow["simulated_s"] > (1 + TIE) * fast["simulated_s"]:
            result.append(
                {
                    "profile": fast["profile"],
                    "faster": fast["family"],
                    "slower": slow["family"],
                    "passed": fast["step_s"] < slow["step_s"],
                }
            )
    return result


def _measure(
    profile: Profile,
    schedules: dict[str, Schedule],
    *,
    workload: str,
    steps: int,
    launcher: str,
    deadline: float,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    model = load_workload(workload)
    rows = []
    with Trainer(
        model, next(iter(schedules.values())), launcher=launcher, emulate=profile.costs(), deadline=deadline
    ) as trainer:
        trainer.prepare()
        for family, schedule in schedules.items():
            trainer.load(schedule)
            batches = [model.batch(trainer.batch_size, step) for step in range(steps + 1)]
            seconds = [trainer.step(batch).seconds for batch in batches][1:]
            makespan = simulate(trainer.plan, profile.costs()).makespan
            measured = statistics.median(seconds)
            rows.append(
                {
                    "profile": profile.name,
                    "family": family,
                    "time_scale": profile.time_scale,
                    "step_s": measured,
                    "steps_s": seconds,
                    "simulated_s": makespan,
                    "step_over_simulated": measured / makespan,
                    "passed": abs(measured / makespan - 1) <= WITHIN,
                }
            )
            progress(_line(rows[-1]))
    return rows


def report(result: dict[str, Any]) -> str:
    """One line per profile and family, then the orders that disagree."""
    lines = [f"emulated: {result['devices']} devices, {result['microbatches']} microbatches"]
    lines += [_line(row) for row in result["rows"]]
    wrong = [row for row in result["order"] if not row["passed"]]
    lines += [f"FAIL {row['profile']}: {row['faster']} should be faster than {row['slower']}" for row in wrong]
    lines.append(f"{len(result['order']) - len(wrong)} of {len(result['order'])} orders as simulated")
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    verdict = "pass" if row["passed"] else "FAIL"
    return (
        f"{verdict} {row['profile']} {row['family']} (emulated): step {row['step_s']:.3f} s, "
        f"simulated {row['simulated_s']:.3f} s, ratio {row['step_over_simulated']:.3f}"
    )
