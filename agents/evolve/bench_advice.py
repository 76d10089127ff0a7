"""`pibroch bench advice`: does a learned playbook make a model's first candidate on a new task better?

Each arm asks the same model the same question (the task, 1F1B as the start, its findings), with other bullets:

    learned      what runs over other tasks left behind
    none         no bullets
    irrelevant   as many tokens of advice on other matters

The figure of a sample is its candidate's speed over the start's in the simulator; a sample without a legal schedule
counts as 1. Samples of one arm differ in their sample number, which a model that draws answers another way.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pibroch.agents.evolve.facts import facts_of
from pibroch.agents.evolve.start import starting_schedule
from pibroch.agents.evolve.writer import Writer
from pibroch.agents.lm.base import LanguageModel
from pibroch.evals.feedback.simulated import simulated_findings
from pibroch.evals.setting import open_setting
from pibroch.evals.task import Task
from pibroch.playbooks.model import Bullet, Playbook
from pibroch.playbooks.retrieve import estimate, render, select

TOKENS = 1500
ELSEWHERE = (
    "Shuffle the shards of a dataset anew in every epoch, and keep the seed in the checkpoint.",
    "Warm the learning rate up over the first two thousand steps, then let it fall along a cosine.",
    "Log the norm of the gradients beside the loss: a spike there comes before one in the loss.",
    "Keep the tokenizer's files beside the weights, so that an evaluation cannot pair the wrong two.",
    "Exclude biases and norms from weight decay.",
    "Evaluate on the same held-out documents in every run, and never on those of the training set.",
    "Write checkpoints to local storage first and copy them to the object store afterwards.",
    "Average the last weights exponentially for evaluation.",
)


def irrelevant(tokens: int) -> list[Bullet]:
    """Bullets on other matters that cost about so many tokens."""
    found: list[Bullet] = []
    while estimate(render(found)) < tokens:
        number = len(found)
        text = ELSEWHERE[number % len(ELSEWHERE)]
        found.append(Bullet(id=f"other-{number + 1:05d}", section="schedules", text=text))
    return found


def run(
    task: Task,
    lm: LanguageModel,
    learned: Playbook,
    *,
    samples: int = 5,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Per arm the speeds of its samples, their median, and how many tokens its bullets took. Raises `Paused`."""
    setting = open_setting(task)
    start = starting_schedule(setting)
    before = setting.simulate(setting.lower(start)).makespan
    findings = simulated_findings(setting, start)
    chosen = select(learned, facts_of(setting, start, findings), tokens=TOKENS)
    arms: Mapping[str, Sequence[Bullet]] = {
        "learned": chosen, "none": (), "irrelevant": irrelevant(estimate(render(chosen))),
    }  # fmt: skip
    rows: dict[str, Any] = {}
    for name, bullets in arms.items():
        speeds: list[float] = []
        whys: list[str] = []
        for sample in range(samples):
            answer = Writer(lm, setting, sample=sample).propose(start, findings, bullets, evaluation=1)
            legal = answer.schedule is not None
            speeds.append(
                before / setting.simulate(setting.lower(answer.schedule)).makespan if answer.schedule else 1.0
            )
            whys.append(answer.why)
            progress(f"{task.name}, {name}, sample {sample}: {speeds[-1]:.3f}{'' if legal else ' (none)'}")
        rows[name] = {
            "speeds": speeds, "median": statistics.median(speeds), "bullets": len(bullets),
            "tokens": estimate(render(bullets)), "why": whys,
        }  # fmt: skip
    return {"task": task.name, "kind": "simulated", "samples": samples, "model": lm.name, "arms": rows}


def report(result: dict[str, Any]) -> str:
    """A line per arm."""
    lines = [f"{result['task']}: first candidates of {result['model']}, speed over the start's (simulated)"]
    for name, row in result["arms"].items():
        speeds = " ".join(f"{s:.3f}" for s in row["speeds"])
        lines.append(
            f"{name:<11} {row['bullets']:>2} bullets, {row['tokens']:>4} tokens: median {row['median']:.3f}; {speeds}"
        )
    return "\n".join(lines)
