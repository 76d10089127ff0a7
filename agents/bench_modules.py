"""How often a model writes a module that SpecEval passes: at the first reply, and within the loop.

Each try is an independent writer (its sample number). A try of phase 2 starts from the module that the same try wrote
in phase 1. The reviewer and the comparison of two modules are left out: the table speaks of mechanical judgement alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pibroch.agents.lm.accounting import Metered
from pibroch.agents.lm.base import LanguageModel, finish
from pibroch.agents.module_writer import Judge, Loop, Refused, Track, Written, default_compare, default_judge
from pibroch.runtime.errors import InputError
from pibroch.specs.model import Spec
from pibroch.specs.store import closure

SMALL = ("bucket_packer", "pareto", "event_policy", "retry_delay", "microbatch_sizes", "robust_stats")


@dataclass(frozen=True, slots=True)
class Row:
    """One try at one phase. `first` is the single shot; `faults` stage and clause of each attempt's first finding."""

    module: str
    phase: int
    sample: int
    first: bool
    passed: bool
    attempts: int
    faults: list[str]
    input_tokens: int
    output_tokens: int
    seconds: float


def run(
    lm: LanguageModel,
    specs: Mapping[str, Spec],
    sources: Mapping[str, str],
    *,
    names: Sequence[str] = (),
    tries: int = 3,
    attempts: int = 10,
    single_shot: bool = False,
    judge: Judge = default_judge,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The table for `names` (default: all specs). Raises `InputError` for an unknown name or a replayed model."""
    if lm.name == "replay":
        raise InputError("recorded replies say nothing of a success rate: name the model itself")
    unknown = [name for name in names if name not in specs]
    if unknown:
        raise InputError(f"no spec of the name {', '.join(unknown)} (known: {', '.join(sorted(specs))})")
    limit = 1 if single_shot else attempts
    meter, rows = Metered(lm), list[Row]()
    for name in names or sorted(specs):
        spec = specs[name]
        given = {peer: sources[peer] for peer in closure(specs, [name]) if peer in sources and peer != name}
        for sample in range(tries):
            written = Written(spec)
            loop = Loop(written, meter, specs, given, limit, False, judge, default_compare, None, progress)
            source: str | None = None
            for phase in spec.phases:
                if phase == 2 and source is None:
                    break  # nothing to start from
                source = _one(loop, loop.start(phase, sample, source), meter, rows)
    finish(meter)
    return {
        "lm": lm.name, "tries": tries, "attempts": limit, "rows": [asdict(row) for row in rows],
        "modules": _table(rows, tries, specs),
    }  # fmt: skip


def report(result: Mapping[str, Any]) -> list[str]:
    """The table for people."""
    head = f"{'module':<20} {'phase':>5} {'single shot':>12} {'full loop':>10} {'attempts':>16}  first faults"
    lines = [f"{result['lm']}: {result['tries']} tries, at most {result['attempts']} attempts each", "", head]
    for row in result["modules"]:
        tried = row["tries"]
        lines.append(
            f"{row['module']:<20} {row['phase']:>5} {row['single_shot']:>9}/{tried} {row['full_loop']:>8}/{tried} "
            f"{', '.join(map(str, row['attempts'])):>16}  {', '.join(row['faults'])}"
        )
    return lines


def _one(loop: Loop, track: Track, meter: Metered, rows: list[Row]) -> str | None:
    """Run one try and add its row; the source where it passed."""
    before, started = (meter.spent.input_tokens, meter.spent.output_tokens), time.monotonic()
    source: str | None = None
    try:
        source = loop.go(track)
    except Refused as error:
        loop.say(str(error).splitlines()[0])
    faults = [f"{found[0].stage} {found[0].clause}" for found in track.feedback if found]
    rows.append(
        Row(
            loop.spec.module, track.phase, track.sample, bool(track.feedback) and not track.feedback[0],
            source is not None, track.attempts, faults, meter.spent.input_tokens - before[0],
            meter.spent.output_tokens - before[1], round(time.monotonic() - started, 1),
        )
    )  # fmt: skip
    return source


def _table(rows: Sequence[Row], tries: int, specs: Mapping[str, Spec]) -> list[dict[str, Any]]:
    """By module and phase; a try that never reached phase 2 counts there as failed."""
    table = []
    for name in dict.fromkeys(row.module for row in rows):
        for phase in specs[name].phases:
            chosen = [row for row in rows if (row.module, row.phase) == (name, phase)]
            table.append(
                {
                    "module": name,
                    "phase": phase,
                    "tries": tries,
                    "single_shot": sum(row.first for row in chosen),
                    "full_loop": sum(row.passed for row in chosen),
                    "attempts": [row.attempts for row in chosen],
                    "faults": sorted({fault for row in chosen for fault in row.faults}),
                }
            )
    return table
