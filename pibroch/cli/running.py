"""One measured run on workers: judged against the single process, timed, its memory counted, its trace taken."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pibroch.cli.common import say, show_bytes
from pibroch.runtime.files import write_atomically
from pibroch.runtime.words import count

if TYPE_CHECKING:
    from pibroch.evals.judge import Verdict
    from pibroch.runtime.costs import Costs
    from pibroch.runtime.directives import Schedule
    from pibroch.runtime.model import ModelSpec
    from pibroch.runtime.plan import Plan
    from pibroch.runtime.simulate import Simulation
    from pibroch.runtime.trace import Trace
    from pibroch.runtime.trainer import Trainer
    from pibroch.runtime.workload import Workload

WARMUP = 1  # steps at the start of a run that do not count for its speed, where there are more
MOST_SHOWN_TASKS = 3000  # beyond this many, the view leaves the passes' texts out


@dataclass(frozen=True, slots=True)
class Options:
    """What `run`, `view --measure` and `demo` let a user choose about the workers."""

    launcher: str = "ray"
    address: str | None = None
    device: str = "auto"
    dtype: str | None = None
    deadline: float = 60.0
    port: int = 0
    seed: int = 0
    emulate: str | None = None
    update: bool = True


def open_trainer(workload: Workload, schedule: Schedule, options: Options, *, ranks: int | None = None) -> Trainer:
    """A trainer that has not started its workers yet. Raises `InputError` for an unknown profile."""
    from pibroch.runtime.trainer import Trainer

    costs = emulated_costs(workload, schedule, options.emulate) if options.emulate else None
    return Trainer(
        workload,
        schedule,
        launcher=options.launcher,
        address=options.address,
        ranks=ranks,
        seed=options.seed,
        deadline=options.deadline,
        emulate=costs,
        device=options.device,
        dtype=options.dtype,
        update=options.update,
        port=options.port,
    )


def emulated_costs(workload: Workload, schedule: Schedule, profile: str) -> Costs:
    """A profile's durations, slowed down until the shortest chunk of this plan is long enough to be timed."""
    from pibroch.runtime.capture import capture
    from pibroch.runtime.lower import lower
    from pibroch.runtime.profile import load_profile

    found = load_profile(profile)
    piece = workload.batch(workload.microbatch, 0)
    spec = capture(workload.model(), workload.loss, piece, name=workload.name, clip=workload.clip_norm is not None).spec
    scaled = found.scaled(plan=lower(schedule, spec))
    say(f"emulating {found.name}, everything {scaled.time_scale:.3g} times slower than described")
    return scaled.costs()


def judged(trainer: Trainer, *, seed: int, samples: int | None = None) -> Verdict:
    """Compare the run with the single process over three optimizer steps; the trainer is left reset."""
    from pibroch.evals.judge import judge

    steps = 3
    batches = [trainer.workload.batch(samples, seed + step) for step in range(steps)] if samples else None
    return judge(trainer, batches, steps=steps)


def train(trainer: Trainer, *, steps: int, samples: int | None = None, every: int | None = None) -> dict[str, Any]:
    """Steps on fresh batches from the initial weights: `losses`, `step_s` (median), `tokens_per_s`, and the steps at
    which training had slowed (`slowed`)."""
    from pibroch.runtime.monitor import SlowdownMonitor

    size = samples or trainer.batch_size
    losses: list[float] = []
    seconds: list[float] = []
    tokens = 0
    monitor = SlowdownMonitor()
    slowed: list[int] = []
    for step in range(steps):
        result = trainer.step(trainer.workload.batch(size, step))
        losses.append(result.loss)
        seconds.append(result.seconds)
        tokens = result.tokens
        if step >= WARMUP and (told := monitor.step(tokens, result.seconds)) is not None:
            slowed.append(step)
            say(f"step {step:4d}  {told}")
        if every and (step % every == 0 or step == steps - 1):
            say(f"step {step:4d}  loss {result.loss:.4f}")
    usual = statistics.median(seconds[WARMUP:] or seconds)
    return {"steps": steps, "losses": losses, "step_s": usual, "tokens_per_s": tokens / usual, "slowed": slowed}


def equivalence_row(verdict: Verdict) -> dict[str, Any]:
    """The judge's verdict without what is reported elsewhere."""
    return {key: value for key, value in verdict.to_json().items() if key not in ("peak_bytes", "losses")}


def equivalence_line(verdict: Verdict) -> str:
    """The judge's verdict for people."""
    reference = {"replay": "replay of the same microbatches", "unsplit": "whole batch at once, float64"}
    against = f"one process ({reference[verdict.reference]}, {verdict.steps} optimizer steps)"
    if not verdict.ok:
        return f"DIFFERS    from {against}: {verdict.worst}, relative error {_largest(verdict):.2g}"
    how = "bitwise" if verdict.bitwise else f"largest relative difference {_largest(verdict):.2g}"
    loss = f", loss within {verdict.max_rel_loss_err:.1g}" if verdict.bitwise and verdict.max_rel_loss_err else ""
    return f"equal      to {against}: {how}{loss}"


def finite(values: list[float]) -> bool:
    return all(math.isfinite(value) for value in values)


def memory_line(peaks: list[int]) -> str:
    return f"memory     {', '.join(show_bytes(b) for b in peaks)} at most, per rank"


def write_view(path: Path, trainer: Trainer, *, trace: Trace, verdict: Verdict | None, tokens_per_s: float) -> None:
    """The HTML page of a run: simulated with the costs that were measured on the same workers, beside measured."""
    from pibroch.cli.report import COSTS
    from pibroch.runtime.simulate import simulate

    costs = trainer.emulate or trainer.profile()
    kind = COSTS["profile" if trainer.emulate else "measured"]
    facts: dict[str, Any] = {"verified": True, "tokens_per_second": tokens_per_s, "costs": kind}
    if verdict is not None:
        facts |= {"equal": verdict.ok, "reference": verdict.reference, "largest_difference": _largest(verdict)}
    plan = trainer.plan
    text = page(trainer.schedule, trainer.captured.spec, plan, simulate(plan, costs), facts=facts, trace=trace)
    write_atomically(path, text)


def page(
    schedule: Schedule, spec: ModelSpec, plan: Plan, simulation: Simulation, *, facts: dict[str, Any],
    trace: Trace | None = None,
) -> str:  # fmt: skip
    """The HTML page of a schedule. `facts` are shown beside it."""
    from pibroch.view import render

    replicas = f", {plan.replicas} replicas" if plan.replicas > 1 else ""
    title = f"{plan.model}: {count(plan.stages, 'stage')}{replicas}, {count(plan.microbatches, 'microbatch')}"
    stages = stage_texts(schedule, spec, len(plan.tasks))
    return render(
        title=title, plan=plan, schedule=schedule, simulation=simulation, trace=trace, verdict=facts, stages=stages
    )


def stage_texts(schedule: Schedule, spec: ModelSpec, tasks: int) -> list[tuple[str, str]]:
    """The DAG after each pass, where it is small enough to read."""
    from pibroch.runtime.lower import PASS_NAMES, lower_after

    return [(name, lower_after(schedule, spec, name)) for name in PASS_NAMES] if tasks <= MOST_SHOWN_TASKS else []


def _largest(verdict: Verdict) -> float:
    return max(verdict.max_rel_loss_err, verdict.max_rel_grad_err, verdict.max_rel_weight_err)
