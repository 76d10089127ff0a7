"""`pibroch evolve-prompts`: better prompts for the schedule writer, chosen on sentences that it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibroch.cli.common import Json, Model, Seed, finish, say
from pibroch.runtime.errors import InputError
from pibroch.runtime.files import write_atomically

if TYPE_CHECKING:
    from pibroch.agents.evolve.prompts import Evolved

NAME = "evolve-prompts"
RUNS = Path("runs") / "prompts"
STOP = "STOP"


def command(
    lm: Annotated[str, typer.Option("--lm", help="The writer: local[:FILE], openai[:MODEL] or mailbox:DIR.")],
    reflection_lm: Annotated[
        str | None,
        typer.Option("--reflection-lm", help="Who rewords the prompts. Default: the writer.", show_default=False),
    ] = None,
    intents: Annotated[
        Path | None,
        typer.Option("--intents", help="Sentences: train, validation, test. Default: ours.", show_default=False),
    ] = None,
    model: Model = None,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Schedules to write while evolving.")] = 300,
    confirm: Annotated[
        int, typer.Option("--confirm", min=0, help="Held-out samples of the seed's and of the best prompts, each.")
    ] = 100,
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="Tries per phase of one schedule.")] = 1,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Of the reflection model, in and out.", show_default=False)
    ] = None,
    most_tokens: Annotated[int, typer.Option("--most-tokens", min=50, help="Of one prompt.")] = 2500,
    seed: Seed = 0,
    out: Annotated[
        Path, typer.Option("--out", help="The run's folder; an old one is resumed. A file STOP in it ends the run.")
    ] = RUNS,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write better prompts into the project's prompts/ folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Evolve the schedule writer's prompts; the winner must be better on held-out sentences."""
    from pibroch.agents.evolve.journal import Journal
    from pibroch.agents.evolve.prompts import evolve_prompts
    from pibroch.agents.evolve.prompts_intents import load_intents
    from pibroch.agents.lm import open_lm
    from pibroch.cli.loading import load_model
    from pibroch.project import find_project

    project = find_project()
    if apply and project.root is None:
        raise InputError("--apply writes into a project: make one with `pibroch init`, or take the texts from --out")
    writer = open_lm(lm)
    reflector = open_lm(reflection_lm or lm)
    if writer is None or reflector is None:
        raise InputError("--lm none: prompts are evolved for a language model; name one")
    specs: dict[str, Any] = {}

    def spec(name: str) -> Any:
        if name not in specs:
            specs[name] = load_model(model or name).spec
        return specs[name]

    parts = load_intents(intents, spec)
    journal = Journal(out / "journal.jsonl")
    try:
        done = evolve_prompts(
            parts, writer, reflector, journal=journal, budget=budget, confirm=confirm, seed=seed,
            prompts=project.prompts(), attempts=attempts, max_tokens=max_tokens, most_tokens=most_tokens,
            stopped=(out / STOP).exists, say=say,
        )  # fmt: skip
    finally:
        journal.close()
        for one in (writer, reflector):
            getattr(one, "close", lambda: None)()
    files = [out / "prompts" / f"{name}.md" for name in done.prompts]
    if apply and done.changed and project.root is not None:
        files += [project.root / "prompts" / f"{name}.md" for name in done.prompts]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, done.prompts[file.stem])
    finish(_result(done, out, files), _lines(done, files), as_json=as_json)


def _result(done: Evolved, out: Path, files: list[Path]) -> dict[str, Any]:
    both = done.confirmation
    return {
        "ok": True,
        "changed": done.changed,
        "reason": done.reason,
        "rollouts": done.rollouts,
        "tested": len(done.tests),
        "accepted": done.accepted,
        "refused": done.refused,
        "held_out": both and {
            "seed": both.seed.to_json(), "evolved": both.evolved.to_json(), "wins": both.wins, "losses": both.losses,
            "gain": both.gain,
        },
        "prompts": done.prompts,
        "files": files,
        "run_dir": out,
    }  # fmt: skip


def _lines(done: Evolved, files: list[Path]) -> list[str]:
    lines = [
        f"evolved    {len(done.tests)} proposals tested, {done.accepted} accepted, {done.refused} not tried; "
        f"{done.rollouts} schedules written ({done.reason})"
    ]
    if done.confirmation is not None:
        lines.append(f"seed       {done.confirmation.seed}")
        lines.append(f"evolved    {done.confirmation.evolved}")
    chosen = "the evolved prompts" if done.changed else "the prompts as they were: nothing was shown to be better"
    return [*lines, f"chosen     {chosen}", *(f"           {file}" for file in files)]
