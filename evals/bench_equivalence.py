"""`pibroch bench equivalence`: every family, stage count, replica count and microbatch count equals both references.

All cells run on one warm pool of workers per dtype: float32 against the replay, float64 against the unsplit model.
A family that cannot be built for a cell is listed with its reason. `extra_cells` adds what the grid lacks: uneven cuts,
three replicas, buckets, recomputation, tied weights, dropout and token-weighted losses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from pibroch.evals.judge import judge, negative_control
from pibroch.evals.models import load_workload
from pibroch.runtime.directives import Schedule
from pibroch.runtime.families import FAMILIES, build, excluded
from pibroch.runtime.trainer import Trainer
from pibroch.runtime.workload import Workload

DTYPES = {"replay": "float32", "unsplit": "float64"}
INTERLEAVED = 2  # stages per device in the grid's interleaved cells


@dataclass(frozen=True, slots=True)
class Cell:
    """`stages` counts all stages: an interleaved cell has half as many devices. `note` names what is special."""

    family: str
    stages: int
    replicas: int
    microbatches: int
    workload: str = "mlp-tiny"
    cut: tuple[int, ...] | None = None
    bucket_size: float | None = None
    recompute: bool = False
    note: str = ""

    @property
    def stages_per_device(self) -> int:
        return INTERLEAVED if self.family == "interleaved" else 1

    @property
    def devices(self) -> int:
        """Pipeline positions."""
        return self.stages // self.stages_per_device

    def excluded(self) -> str | None:
        """Why the family has no such cell."""
        if self.stages % self.stages_per_device:
            return f"{self.family}: {self.stages} stages do not divide by {self.stages_per_device} per device"
        return excluded(
            self.family,
            devices=self.devices,
            microbatches=self.microbatches,
            stages_per_device=self.stages_per_device,
            replicas=self.replicas,
        )

    def schedule(self) -> Schedule:
        """The cell's schedule."""
        return build(
            self.family,
            devices=self.devices,
            microbatches=self.microbatches,
            replicas=self.replicas,
            stages_per_device=self.stages_per_device,
            cut=self.cut,
            bucket_size=self.bucket_size,
            recompute=self.recompute,
        )

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.family} S={self.stages} R={self.replicas} m={self.microbatches} {self.workload}{note}"


def grid(
    *,
    families: Iterable[str] = FAMILIES,
    stages: Iterable[int] = (1, 2, 3, 4),
    replicas: Iterable[int] = (1, 2),
    microbatches: Iterable[int] = (1, 2, 3, 5, 8),
) -> list[Cell]:
    """The full product."""
    return [Cell(*row) for row in product(families, stages, replicas, microbatches)]


def extra_cells() -> list[Cell]:
    """What the grid does not span."""
    small = 1e-6  # MB: every layer is a bucket of its own
    return [
        Cell("1f1b", 3, 1, 5, cut=(1, 6), note="uneven cut"),
        Cell("zb-h1", 4, 1, 3, cut=(1, 2, 7), note="uneven cut"),
        Cell("interleaved", 8, 1, 5, note="one layer per stage"),
        Cell("1f1b", 2, 3, 2, note="three replicas"),
        Cell("gpipe", 1, 3, 3, note="three replicas"),
        Cell("1f1b", 2, 2, 3, bucket_size=small, note="a bucket per layer"),
        Cell("1f1b", 3, 1, 4, recompute=True, note="recompute"),
        Cell("zb-h1", 2, 2, 3, recompute=True, note="recompute"),
        *(Cell("1f1b", s, r, 3, workload="gpt-tiny") for s, r in ((2, 1), (3, 2))),
        *(Cell("zb-h1", s, 1, 4, workload="gpt-tied", note="tied weights") for s in (1, 2, 3)),
        Cell("interleaved", 4, 2, 3, workload="gpt-tied", note="tied weights and replicas"),
        *(Cell("1f1b", s, r, 3, workload="gpt-masked", note="token-weighted") for s, r in ((2, 1), (2, 2))),
        *(Cell("zb-h1", s, r, 3, workload="gpt-dropout", note="dropout") for s, r in ((1, 1), (3, 2))),
    ]


def spanning_cells() -> list[Cell]:
    """A few cells that take every family, stage count, replica count and microbatch count at least once."""
    return [
        Cell("gpipe", 1, 2, 1),
        Cell("gpipe", 3, 1, 2),
        Cell("1f1b", 2, 2, 5),
        Cell("1f1b", 4, 1, 3),
        Cell("interleaved", 4, 1, 8),
        Cell("zb-h1", 2, 2, 3),
        Cell("zb-h1", 3, 1, 1, cut=(1, 6), note="uneven cut"),
    ]


def run(
    cells: Sequence[Cell] | None = None,
    *,
    references: Sequence[str] = ("replay", "unsplit"),
    launcher: str = "local",
    steps: int = 3,
    seed: int = 0,
    deadline: float = 60.0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Judge every cell (the grid and the extras by default) against both references.

    Returns `ok`, `cells` (one row per cell and reference), `excluded` (cell and reason), `negative_control` per
    reference, `seconds`.
    """
    start = time.monotonic()
    if cells is None:
        cells = [*grid(), *extra_cells()]
    reasons = {cell: cell.excluded() for cell in cells}
    runnable = [cell for cell in cells if reasons[cell] is None]
    rows: list[dict[str, Any]] = []
    controls: dict[str, bool] = {}
    for reference in references:
        for name in dict.fromkeys(cell.workload for cell in runnable):
            workload = load_workload(name)
            if name == "gpt-dropout" and reference == "unsplit":
                continue  # each microbatch draws its own numbers: there is no unsplit run
            mine = [cell for cell in runnable if cell.workload == name]
            options: dict[str, Any] = {"launcher": launcher, "steps": steps, "seed": seed, "deadline": deadline}
            found, control = _judge_cells(workload, mine, reference, progress=progress, **options)
            rows += found
            controls[f"{name}, {reference}"] = control
    return {
        "bench": "equivalence",
        "ok": bool(rows) and all(row["ok"] for row in rows) and all(controls.values()),
        "cells": rows,
        "excluded": [{"cell": str(cell), "reason": reason} for cell, reason in reasons.items() if reason],
        "negative_control": controls,
        "seconds": time.monotonic() - start,
    }


def _judge_cells(
    workload: Workload,
    cells: Sequence[Cell],
    reference: str,
    *,
    launcher: str,
    steps: int,
    seed: int,
    deadline: float,
    progress: Callable[[str], None],
) -> tuple[list[dict[str, Any]], bool]:
    """All cells of one workload on one pool, the largest cell first: it starts as many workers as any needs."""
    ordered = sorted(cells, key=lambda cell: -cell.devices * cell.replicas)
    rows = []
    with Trainer(
        workload, ordered[0].schedule(), launcher=launcher, seed=seed, deadline=deadline, dtype=DTYPES[reference]
    ) as trainer:
        trainer.prepare()
        control = negative_control(trainer, seed=seed)
        for number, cell in enumerate(ordered):
            trainer.load(cell.schedule())
            verdict = judge(trainer, steps=steps, seed=seed + number, peak=False)
            rows.append({"cell": str(cell), **asdict(cell), **verdict.to_json()})
            progress(f"{reference} {number + 1}/{len(ordered)} {'equal' if verdict.ok else 'DIFFERS'}: {cell}")
    return rows, control


def report(result: dict[str, Any]) -> str:
    """A summary for people: counts, the largest errors, every failure, the excluded cells by reason."""
    lines = []
    for reference in dict.fromkeys(row["reference"] for row in result["cells"]):
        rows = [row for row in result["cells"] if row["reference"] == reference]
        bitwise = sum(row["bitwise"] for row in rows)
        worst = max(float(row["max_rel_grad_err"]) for row in rows)
        weight = max(float(row["max_rel_weight_err"]) for row in rows)
        passed = sum(row["ok"] for row in rows)
        lines.append(
            f"{reference} ({DTYPES[reference]}): {passed} of {len(rows)} cells equal, {bitwise} bitwise; "
            f"largest gradient error {worst:.1e}, weight error {weight:.1e}"
        )
    for row in result["cells"]:
        if not row["ok"]:
            lines.append(f"  DIFFERS {row['cell']}: gradients {row['max_rel_grad_err']}, worst {row['worst']}")
    for where, refused in result["negative_control"].items():
        lines.append(f"negative control ({where}): {'refused, as it must be' if refused else 'PASSED: judge is blind'}")
    for reason in dict.fromkeys(row["reason"] for row in result["excluded"]):
        cells = [row["cell"] for row in result["excluded"] if row["reason"] == reason]
        lines.append(f"excluded ({len(cells)} cells, such as {cells[0]}): {reason}")
    lines.append(f"{'all equal' if result['ok'] else 'NOT equal'} in {result['seconds']:.0f} s")
    return "\n".join(lines)
