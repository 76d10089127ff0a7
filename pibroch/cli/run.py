"""`pibroch run`: train on workers; judged, timed, traced."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pibroch.cli.common import (
    Address,
    Deadline,
    Device,
    Emulate,
    Json,
    LauncherName,
    MemoryLimit,
    Model,
    Port,
    ScheduleFile,
    Seed,
    finish,
    parse_bytes,
    say,
    show_seconds,
)
from pibroch.runtime.files import check_writable
from pibroch.runtime.words import count

if TYPE_CHECKING:
    from pibroch.cli.running import Options
    from pibroch.runtime.trainer import Trainer

NAME = "run"


def command(
    schedule: ScheduleFile,
    model: Model = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Training steps to run and time.")] = 10,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", min=1, help="Samples in a step. Default: what the microbatches hold.", show_default=False
        ),
    ] = None,
    launcher: LauncherName = "ray",
    address: Address = None,
    device: Device = "auto",
    dtype: Annotated[
        Literal["float32", "float64"], typer.Option("--dtype", help="float64 is compared with the unsplit batch.")
    ] = "float32",
    deadline: Deadline = 60.0,
    port: Port = 0,
    seed: Seed = 0,
    judge: Annotated[bool, typer.Option("--judge/--no-judge", help="Compare with the single process first.")] = True,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="Time against this schedule, in alternation.", show_default=False)
    ] = None,
    emulate: Emulate = None,
    memory_limit: MemoryLimit = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write a trace that Perfetto opens.", show_default=False)
    ] = None,
    view: Annotated[Path | None, typer.Option("--view", help="Write the HTML view.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Run a schedule on workers: equal to the single process? how fast? how much memory?"""
    from pibroch.cli.loading import load_schedule_named, load_workload_named
    from pibroch.cli.report import plan_line
    from pibroch.cli.running import (
        Options,
        equivalence_line,
        equivalence_row,
        finite,
        judged,
        memory_line,
        open_trainer,
        train,
        write_view,
    )
    from pibroch.runtime.trace import write_trace

    limit = parse_bytes(memory_limit)
    for path in (trace, view):
        if path is not None:
            check_writable(path)  # before minutes of work
    options = Options(
        launcher=launcher, address=address, device=device, dtype=None if dtype == "float32" else dtype,
        deadline=deadline, port=port, seed=seed,
        emulate=emulate,
    )  # fmt: skip
    parsed = load_schedule_named(schedule)
    other = load_schedule_named(baseline) if baseline else None
    workload = load_workload_named(model)
    with open_trainer(workload, parsed, options) as trainer:
        say(f"starting workers ({launcher})")
        trainer.prepare(workload.batch(batch, 0) if batch else None)
        plan = trainer.plan
        if limit is not None:
            _check_memory(trainer, limit)
        verdict = None
        if judge:
            say("comparing with the single process")
            verdict = judged(trainer, seed=seed, samples=batch)
        say(f"training {count(steps, 'step')} on {count(plan.devices, 'worker')}")
        trained = train(trainer, steps=steps, samples=batch, every=max(1, steps // 10))
        peaks = verdict.peak_bytes if verdict and verdict.peak_bytes else trainer.peak_bytes()
        result: dict[str, Any] = {
            "ok": finite(trained["losses"]) and (verdict is None or verdict.ok),
            "schedule": str(schedule),
            "model": workload.name,
            "launcher": launcher,
            "emulated": emulate is not None,
            "ranks": plan.devices,
            **trained,
            "equivalence": equivalence_row(verdict) if verdict else None,
            "peak_bytes": peaks,
        }
        speed = f"{trained['tokens_per_s']:,.0f} tokens/s, {show_seconds(trained['step_s'])} a step"
        lines = [
            plan_line(plan),
            equivalence_line(verdict) if verdict else "not compared with a single process (--no-judge)",
            f"loss       {trained['losses'][0]:.4f} → {trained['losses'][-1]:.4f} in {count(steps, 'step')}",
            f"speed      {speed}{' (emulated)' if emulate else ''}",
            memory_line(peaks),
        ]
        if trace or view:
            events = trainer.trace()
            if trace:
                write_trace(trace, events)
                lines.append(f"trace      {trace}")
            if view:
                write_view(view, trainer, trace=events, verdict=verdict, tokens_per_s=trained["tokens_per_s"])
                lines.append(f"view       {view}")
            result |= {"trace": trace, "view": view}
        if other is not None:
            result["baseline"] = _against(trainer, other, options, samples=batch)
            result["baseline"]["schedule"] = str(baseline)
            ratio, (low, high) = result["baseline"]["ratio"], result["baseline"]["interval"]
            lines.append(f"baseline   {ratio:.3f} times as fast as {baseline} (95%: {low:.3f} to {high:.3f})")
    finish(result, lines, as_json=as_json)


def _check_memory(trainer: Trainer, limit: int) -> None:
    """Rule V7 on the simulated peak, before any step. Raises `InputError`."""
    from pibroch.runtime.costs import AnalyticCosts
    from pibroch.runtime.errors import InputError
    from pibroch.runtime.simulate import simulate
    from pibroch.runtime.verify import verify

    peaks = simulate(trainer.plan, AnalyticCosts()).peak_bytes
    violations = verify(trainer.plan, memory_limit=limit, peak_bytes=peaks)
    if violations:
        raise InputError(f"--memory-limit: {violations[0].message}")


def _against(trainer: Trainer, other: Any, options: Options, *, samples: int | None) -> dict[str, Any]:
    """Steps of both schedules in alternation, on two warm pools; ratio above 1: ours is faster."""
    from pibroch.cli.running import open_trainer
    from pibroch.evals.timing import measurement_lock, paired

    say("timing against the baseline")
    with open_trainer(trainer.workload, other, options) as peer, measurement_lock():
        peer.prepare(trainer.workload.batch(samples, 0) if samples else None)
        # Without --batch each schedule takes its own size, and the ratio is that of tokens per second.
        mine = trainer.workload.batch(samples or trainer.batch_size, 0)
        theirs = trainer.workload.batch(samples or peer.batch_size, 0)
        found = paired(lambda: peer.step(theirs), lambda: trainer.step(mine), pairs=10, keep_noisy=True)
        share = 1.0 if samples else trainer.batch_size / peer.batch_size
        limits = [found.lower * share, found.upper * share]
        return {**found.to_json(), "ratio": found.ratio * share, "interval": limits}
