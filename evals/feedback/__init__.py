"""Why a step took as long as it did: from one trace to typed findings, and to text for a language model.

    findings = diagnose(schedule, trainer.trace(), costs=setting.costs(k, m), model=setting.model(k, m))
    print(as_text(findings))

Two comparisons. The trace against the reference costs, and equal chunks of one trace against each other, give the
machine's faults (`machine.py`). The same schedule on a machine without those faults (`healthy.py`), against itself with
one thing changed, gives the schedule's own problems: every cost is a difference of two simulated steps, and every
"another order, bucket or split is better" was lowered and simulated. Costs of findings overlap and do not add up.
"""

from __future__ import annotations

from collections.abc import Sequence

from pibroch.evals.feedback.case import Case
from pibroch.evals.feedback.communication import communication_findings
from pibroch.evals.feedback.healthy import healthy, slow_devices
from pibroch.evals.feedback.kinds import INHERENT, KINDS, MEANINGS, MIN_SHARE
from pibroch.evals.feedback.machine import machine_findings
from pibroch.evals.feedback.memory import memory_findings
from pibroch.evals.feedback.observed import fixed, observe
from pibroch.evals.feedback.pipeline import pipeline_findings
from pibroch.evals.feedback.text import as_text
from pibroch.evals.finding import Finding
from pibroch.runtime.costs import Costs
from pibroch.runtime.directives import Schedule
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.simulate import simulate
from pibroch.runtime.trace import Trace

__all__ = ["INHERENT", "KINDS", "MEANINGS", "MIN_SHARE", "as_text", "diagnose"]


def diagnose(
    schedule: Schedule,
    trace: Trace,
    *,
    costs: Costs,
    model: ModelSpec,
    memory_limit: int | None = None,
    peak_bytes: Sequence[int] | None = None,
) -> list[Finding]:
    """The causes of one step's time, the costliest first, each of 1% of the step or more; then those about memory.

    `trace` is a step of `schedule`, measured, emulated or simulated; `costs` the reference that it is compared with;
    `model` has the layers and sizes of the trace's microbatch. `memory_limit` in bytes per device; `peak_bytes` per
    device where they were measured. Raises `InputError` where the costs do not know the plan's stages.
    """
    plan, observed = trace.plan, observe(trace, costs)
    well = healthy(observed, costs)
    table = fixed(plan, well)
    base = simulate(plan, table)
    free = simulate(plan, table.silent()).makespan
    replay = observed.replay()
    replayed = simulate(plan, replay).makespan
    case = Case(
        schedule, model, plan, observed, well, base, table, free, replay, replayed, memory_limit, peak_bytes,
        slow=slow_devices(observed, table.by_key(plan).__getitem__),
    )  # fmt: skip
    machine_findings(case)
    communication_findings(case)
    pipeline_findings(case)
    memory_findings(case)
    last = {"memory-tight": 1, "memory-headroom": 2}
    return sorted(case.found, key=lambda f: (last.get(f.kind, 0), -f.seconds))
