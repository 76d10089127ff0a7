"""`pibroch demo`: the whole walk, from a sentence to a measured and drawn training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pibroch.cli.common import Deadline, Json, LauncherName, Model, finish, say
from pibroch.runtime.files import check_writable, write_atomically
from pibroch.runtime.words import count

NAME = "demo"
INTENT = "1F1B over 2 stages, 8 microbatches"


def command(
    sentence: Annotated[str, typer.Argument(help="What you want, in your words.")] = INTENT,
    model: Model = "gpt-small",
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder for schedule and view.")] = Path("runs/demo"),
    steps: Annotated[int, typer.Option("--steps", min=2, help="Training steps.")] = 60,
    pairs: Annotated[int, typer.Option("--pairs", min=3, help="Pairs of timed steps in each comparison.")] = 10,
    launcher: LauncherName = "ray",
    deadline: Deadline = 60.0,
    as_json: Json = False,
) -> None:
    """A sentence becomes a schedule; it is proved, trains a small GPT on real text, and is compared and drawn."""
    from pibroch.agents.schedule_writer import write_schedule
    from pibroch.cli.generate import intent_lines, written_lines
    from pibroch.cli.loading import load_model
    from pibroch.cli.report import costs_line, plan_line, simulation_lines, simulation_row
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
    from pibroch.evals.compare import compare
    from pibroch.runtime.costs import AnalyticCosts
    from pibroch.runtime.directives import schedule_text
    from pibroch.runtime.errors import InputError
    from pibroch.runtime.simulate import simulate

    file, page = out / "schedule.json", out / "view.html"
    check_writable(file)
    check_writable(page)
    say(f"reading: {sentence}")
    loaded = load_model(model)
    written = write_schedule(sentence, loaded.spec, say=say)
    if written.schedule is None:
        raise InputError("\n".join(written_lines(written)))
    write_atomically(file, schedule_text(written.schedule))
    options = Options(launcher=launcher, deadline=deadline)
    with open_trainer(loaded.workload, written.schedule, options) as trainer:
        say(f"starting workers ({launcher})")
        trainer.prepare()
        plan = trainer.plan
        simulation = simulate(plan, AnalyticCosts())
        say("comparing with the single process")
        verdict = judged(trainer, seed=0)
        say(f"training {loaded.workload.name} for {count(steps, 'step')} on {count(plan.devices, 'worker')}")
        trained = train(trainer, steps=steps, every=max(1, steps // 10))
        write_view(page, trainer, trace=trainer.trace(), verdict=verdict, tokens_per_s=trained["tokens_per_s"])
        compared = compare(trainer, family=written.intent.family, pairs=pairs, progress=say)
    falls = trained["losses"][-1] < trained["losses"][0]
    result: dict[str, Any] = {
        "ok": verdict.ok and finite(trained["losses"]) and falls,
        "intent": written.intent.model_dump(mode="json", exclude_defaults=True),
        "unused_words": list(written.unused_words),
        "schedule": str(file),
        "verified": written.verified,
        "simulated": simulation_row(simulation),
        "ranks": plan.devices,
        **trained,
        "equivalence": equivalence_row(verdict),
        "peak_bytes": verdict.peak_bytes,
        "compared": compared,
        "view": str(page),
    }
    lines = [
        "",
        *intent_lines(written.intent),
        f"schedule   {file}",
        plan_line(plan),
        *written_lines(written),
        *simulation_lines(simulation)[:1],
        costs_line("estimated"),
        equivalence_line(verdict),
        *loss_lines(trained["losses"]),
        *speed_lines(compared),
        memory_line(verdict.peak_bytes),
        f"view       {page}",
    ]
    finish(result, lines, as_json=as_json)


def loss_lines(losses: list[float], *, width: int = 40) -> list[str]:
    """The loss as a row of bars, each the mean of its part of the run."""
    width = min(width, len(losses))
    parts = [losses[i * len(losses) // width : (i + 1) * len(losses) // width] for i in range(width)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    bars = "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * (m - low) / (high - low or 1.0)))] for m in means)
    return [f"loss       {losses[0]:.3f} {bars} {losses[-1]:.3f} in {len(losses)} steps"]


def speed_lines(compared: dict[str, Any]) -> list[str]:
    """Tokens per second of forward and backward, beside the single process and beside the peer, each in alternation."""
    lines = [f"speed      {_against(compared['single_process'], 'in a single process')}"]
    peer = compared["pipelining"]
    if "reason" in peer:
        return [*lines, f"           torch.distributed.pipelining: not compared, {peer['reason']}"]
    name = f"with torch.distributed.pipelining ({peer['name']}, {peer['processes']} processes)"
    return [*lines, f"           {_against(peer, name)}"]


def _against(row: dict[str, Any], what: str) -> str:
    low, high = row["interval"]
    rates = f"{row['ours_tokens_per_s']:,.0f} tokens/s against {row['tokens_per_s']:,.0f} {what}"
    return f"{rates}: {row['ratio']:.2f} times as fast ({low:.2f} to {high:.2f}, 95%)"
