"""The judge as the schedule writer sees it: a schedule in, findings out; what was measured is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pibroch.cli.common import say, show_seconds

if TYPE_CHECKING:
    from pibroch.agents.feedback import Feedback
    from pibroch.cli.running import Options
    from pibroch.runtime.directives import Schedule
    from pibroch.runtime.workload import Workload


@dataclass
class Measurement:
    """Runs each schedule that it is given; `result` and `lines` are those of the last one."""

    workload: Workload
    options: Options
    steps: int = 5
    result: dict[str, Any] | None = None
    lines: list[str] = field(default_factory=list)

    def __call__(self, schedule: Schedule) -> list[Feedback]:
        """No findings where the run equals the single process."""
        from pibroch.agents.feedback import Feedback
        from pibroch.cli.running import equivalence_line, equivalence_row, judged, memory_line, open_trainer, train

        say("running it on workers")
        with open_trainer(self.workload, schedule, self.options) as trainer:
            verdict = judged(trainer, seed=self.options.seed)
            trained = train(trainer, steps=self.steps)
            self.result = {
                "ranks": trainer.plan.devices,
                **trained,
                "equivalence": equivalence_row(verdict),
                "peak_bytes": verdict.peak_bytes,
            }
        line = equivalence_line(verdict)
        speed = f"speed      {trained['tokens_per_s']:,.0f} tokens/s, {show_seconds(trained['step_s'])} a step"
        self.lines = [line, speed, memory_line(verdict.peak_bytes)]
        return [] if verdict.ok else [Feedback("JUDGE", verdict.worst, " ".join(line.split()))]
