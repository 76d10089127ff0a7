"""Where edits come from: drawn at random, or proposed from what was found and what has worked.

`random_edit` and `propose` draw from the same set (`drawable`), so that guided and random search differ in their
choices alone. Neither calls the simulator. But `propose` makes up to `_MOST_LOOKS` candidates and compares those whose
rows the list scheduler made by that builder's own clock, which follows time much as the simulator does; these looks are
not counted as evaluations, and random search has nothing like them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import combinations, product
from math import inf
from typing import Any

from pibroch.agents.evolve.design import Design, looped
from pibroch.agents.evolve.edit_parameters import layout_now
from pibroch.agents.evolve.edit_structure import Divide
from pibroch.agents.evolve.edits import Edit, NotApplicable, apply_edit, edit_key, parse_edit
from pibroch.agents.evolve.figures import design_key, figures, least_bytes, most_bytes
from pibroch.agents.evolve.order import DEPTHS, build_rows
from pibroch.agents.evolve.outlook import outlook
from pibroch.evals.finding import Finding
from pibroch.evals.setting import Setting
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import FAMILIES

UNDRAWN = ("stream", "overlap")
"""They rename, or loosen what the plan orders anyway: no time to win, so neither search spends evaluations on them."""

_TRIES = 64

REMEDIES: dict[str, tuple[dict[str, Any], ...]] = {
    "warm-up-drain": (
        {"op": "reorder", "split": True}, {"op": "stages_per_device", "by": 1, "layout": "v"},
        {"op": "stages_per_device", "by": 1}, {"op": "replicas", "by": 1}, {"op": "microbatches"}, {"op": "layout"},
    ),
    "stage-imbalance": (
        {"op": "balance_cut"}, {"op": "stages_per_device", "by": 1}, {"op": "shift_layers"}, {"op": "layout"},
    ),
    "order": ({"op": "reorder"}, {"op": "family"}, {"op": "warm_up"}, {"op": "shift_weights"}),
    "late-receive": ({"op": "reorder"}, {"op": "warm_up"}, {"op": "move_chunk"}, {"op": "family"}),
    "exposed-transfer": (
        {"op": "reorder"}, {"op": "warm_up", "by": 1}, {"op": "stages_per_device", "by": -1}, {"op": "replicas"},
        {"op": "pipeline"}, {"op": "shift_layers"},
    ),
    "exposed-reduction": (
        {"op": "bucket_size"}, {"op": "replicas", "by": -1}, {"op": "reduce_stream"}, {"op": "shift_weights"},
        {"op": "reorder"},
    ),
    "bucket-too-large": ({"op": "bucket_size"},),
    "bucket-too-small": ({"op": "bucket_size"},),
    "unsplit-backward": ({"op": "reorder", "split": True}, {"op": "family", "name": "zb-h1"}, {"op": "split_backward"}),
    "needless-recompute": ({"op": "fit_recompute"}, {"op": "recompute", "on": False}),
    "microbatch-too-small": ({"op": "microbatches", "by": -1}, {"op": "stages_per_device", "by": -1}),
    "memory-tight": (
        {"op": "fit_recompute"}, {"op": "recompute", "on": True}, {"op": "warm_up", "by": -1},
        {"op": "replicas", "by": -1},
    ),
    "memory-headroom": (
        {"op": "fit_recompute"}, {"op": "recompute", "on": False}, {"op": "replicas", "by": 1},
        {"op": "warm_up", "by": 1},
    ),
}  # fmt: skip
"""Per kind of finding what may mend it, the likeliest first: fields that an edit must have."""

PRIOR: dict[str, float] = {
    "reorder": 1.0, "stages_per_device": 0.8, "balance_cut": 0.8, "replicas": 0.7, "layout": 0.6, "divide": 0.5,
    "fit_recompute": 0.6, "recompute": 0.5,
    "bucket_size": 0.5, "microbatches": 0.5, "family": 0.4, "warm_up": 0.4, "pipeline": 0.3, "shift_layers": 0.3,
    "reduce_stream": 0.3, "split_backward": 0.2, "shift_weights": 0.2, "swap_stages": 0.05, "move_chunk": 0.05,
}  # fmt: skip
"""How much an operator promises before anything was found or learned: broad ones first."""

_EXPLORE = 0.2
_LOOK, _MOST_LOOKS, _CLOSE, _STEEPER = 6, 32, 1.02, 20
"""So many edits are looked at more closely that are about as good as the quickest, of so many in all; rows that take 5%
longer promise a third as much."""
_REMEDY = 3.0
_DIVISION, _STEEP = 2.0, 6
"""A division whose outlook is 10% worse than the best promises about half as much."""


def drawable(design: Design, setting: Setting) -> dict[str, list[dict[str, Any]]]:
    """Per kind the edits, as plain data, that may apply to a design; some that cannot are left out."""
    p, k, stages, v = len(design.positions), design.replicas, range(design.stages), design.stages_per_device
    free = design.cut is not None
    several: list[int | str] = ["all", *stages] if design.stages > 1 else ["all"]
    split, whole = design.split_stages, set(stages) - design.split_stages
    rows: dict[str, Iterable[dict[str, Any]]] = {
        "microbatches": ({"by": by} for by in (-2, -1, 1, 2) if len(setting.choices(k)) > 1),
        "replicas": [
            *({"by": by, "keep": keep} for by, keep in product((-2, -1, 1, 2), ("stages", "stages_per_device"))),
            *({"by": by, "trade": False} for by in (-1, 1) if p * (k + by) <= setting.task.devices),
        ],
        "pipeline": ({"by": by} for by in (-1, 1, 2) if 1 <= p + by <= setting.task.devices // k and free),
        "shift_layers": (
            {"stage": s, "to": to, "layers": n}
            for s, to, n in product((*stages, "slowest"), ("previous", "next"), (1, 2))
            if free and design.stages > 1
        ),
        "balance_cut": ({"by": by} for by in ("costs", "flops", "layers") if free and design.stages > 1),
        "bucket_size": ({"factor": factor} for factor in (None, 0.125, 0.25, 0.5, 2.0, 4.0) if k > 1),
        "recompute": [
            *({"stage": s, "on": False} for s in several if s == "all" or s in design.recompute),
            *({"stage": s, "on": True} for s in several if s == "all" or s not in design.recompute),
        ],
        "fit_recompute": ({} for _ in range(setting.task.memory_limit is not None or bool(design.recompute))),
        "reduce_stream": ({"each": each} for each in (True, False) if k > 1 and v > 1),
        "split_backward": [
            *({"stage": s, "on": True} for s in several if (whole if s == "all" else s in whole)),
            *({"stage": s, "on": False} for s in several if (split if s == "all" else s in split)),
        ],
        "reorder": (
            {"policy": policy, "split": s, "depth": depth}
            for policy, s, depth in (
                *product(("auto",), (True, False), (None,)),
                *product(("auto", "backward-first", "forward-first"), (True, False), DEPTHS[:-1]),
            )
        ),
        "family": ({"name": name} for name in FAMILIES if looped(design)),
        "divide": (
            {"replicas": n, "stages_per_device": each, "layout": layout, "microbatches": m}
            for n in range(1, setting.task.devices + 1)
            for m in _or_none(setting.choices(n))
            for each, layout in ((1, "loop"), *product((2, 3, 4), ("loop", "v")))
            if setting.task.devices % n == 0
            if free or each == 1
            # On one device per replica more stages make no pipeline, but less that is recomputed at once.
            if each == 1 or n < setting.task.devices or (setting.task.memory_limit is not None and layout == "loop")
        ),
        "stages_per_device": (
            {"by": by, "layout": layout}
            for by, layout in product((-1, 1, 2), ("loop", "v"))
            if free and p > 1 and v + by >= 1 and (v + by > 1 or layout == "loop")
        ),
        "layout": ({"to": to} for to in ("loop", "v") if v > 1 and p > 1 and layout_now(design) != to),
        "swap_stages": (
            {"first": a, "second": b}
            for a, b in combinations(stages, 2)
            if design.placement[a] != design.placement[b]
        ),
        "move_chunk": (
            {"chunk": op, "stage": s, "microbatch": mb, "by": by}
            for row in design.rows
            for op, s, mb in row
            for by in (-4, -2, -1, 1, 2, 4)
        ),
        "shift_weights": ({"stage": s, "by": by} for s, by in product(several, (-4, -2, -1, 1, 2, 4)) if split),
        "warm_up": (
            {"position": r, "by": by}
            for r, by in product(("all", *range(p)), (-2, -1, 1, 2))
            if design.microbatches > 1
        ),
    }  # fmt: skip
    found = {op: [{"op": op, **row} for row in some] for op, some in rows.items()}
    return {op: some for op, some in found.items() if some}


def _or_none(choices: tuple[int, ...]) -> tuple[int | None, ...]:
    """One choice is none: an edit that does not name it fits other tasks too."""
    return (None,) if len(choices) == 1 else choices


def random_edit(design: Design, setting: Setting, rng: random.Random) -> Edit:
    """A kind drawn evenly among those that have an edit for this design, then one of its edits; it applies.

    Raises `NotApplicable` where none was found in many draws.
    """
    rows = drawable(design, setting)
    for _ in range(_TRIES):
        edit = parse_edit(rng.choice(rows[rng.choice(sorted(rows))]))
        if _child(edit, design, setting) is not None:
            return edit
    raise NotApplicable("no edit applies")


def propose(
    design: Design,
    setting: Setting,
    findings: Sequence[Finding],
    *,
    rng: random.Random,
    weights: Mapping[str, float] | None = None,
    tabu: Collection[str] = (),
    seen: Collection[Hashable] = (),
) -> tuple[Edit, str]:
    """The most promising edit that was not tried, and why; one time in five a draw in proportion to what each promises.

    `weights` is the learned share of wins per op (0.5 where nothing is known); `tabu` holds edit keys, tried on this
    design already, `seen` the keys of designs that were made of others. Raises `NotApplicable` where nothing is left.
    """
    learned = weights or {}
    scored: list[tuple[float, float, dict[str, Any], str]] = []
    ahead = _outlooks(design, setting)
    for op, rows in sorted(drawable(design, setting).items()):
        many = len(rows) if op not in ("move_chunk", "swap_stages") else 8
        for row in rows if len(rows) <= many else rng.sample(rows, many):
            remedy, why = _remedy(row, findings)
            promise = PRIOR[op] * _plain(row) + _REMEDY * remedy / 2
            if op == "divide":
                promise = _DIVISION * ahead.get(edit_key(parse_edit(row)), 0.0) ** _STEEP
                why = "of all divisions of the devices one of the most promising by its figures"
            promise *= learned.get(op, 0.5) / 0.5
            scored.append((promise, rng.random(), row, why))
    explore = rng.random() < _EXPLORE
    if explore:  # Efraimidis and Spirakis, Inf. Process. Lett. 97, 2006: a weighted order without replacement
        scored = [(draw ** (1 / max(promise, 1e-9)), draw, row, why) for promise, draw, row, why in scored]
    scored.sort(key=lambda one: one[:2], reverse=True)
    found: list[tuple[float, float | None, Edit, str]] = []
    quickest, close = _built_seconds(design, setting) or inf, 0
    for promise, _, row, why in scored:
        edit = parse_edit(row)
        if edit_key(edit) in tabu:
            continue
        child = _child(edit, design, setting, careful=True)
        if child is None or design_key(child) in seen:
            continue
        if explore:
            return edit, why or "drawn to explore"
        seconds = _built_seconds(child, setting)
        found.append((promise, seconds, edit, why or "promises most of what was not tried"))
        quickest = min(quickest, seconds or inf)
        close += seconds is None or seconds <= _CLOSE * quickest
        if close == _LOOK or len(found) == _MOST_LOOKS:
            break
    if not found:
        raise NotApplicable("every edit was tried, or none applies")
    # The builder of rows says how long it thinks that its own take: the quickest keep their promise.
    worth = [promise * ((quickest / seconds) ** _STEEPER if seconds else 1.0) for promise, seconds, _, _ in found]
    return found[worth.index(max(worth))][2:]


def _built_seconds(design: Design, setting: Setting) -> float | None:
    """What the list scheduler gives its own rows; None for rows that it has not made."""
    return build_rows(design, setting, design.rule).makespan if design.rule.kind == "list" else None


def _outlooks(design: Design, setting: Setting) -> dict[str, float]:
    """Per division (by edit key) the best outlook of all over its own: 1 for the best."""
    seconds: dict[str, float] = {}
    for row in drawable(design, setting).get("divide", ()):
        edit = parse_edit(row)
        assert isinstance(edit, Divide)
        try:
            seconds[edit_key(edit)] = outlook(edit.division(design, setting), setting)
        except (NotApplicable, InputError):
            continue
    best = min(seconds.values(), default=0.0)
    return {key: best / value if value > 0 else 1.0 for key, value in seconds.items()}


def _child(edit: Edit, design: Design, setting: Setting, *, careful: bool = False) -> Design | None:
    """The edited design; None where the edit does not apply, or its rows hold more than the memory bound: for sure, or
    with `careful` more likely than not."""
    try:
        new = apply_edit(edit, design, setting)
        limit = setting.task.memory_limit
        if limit is None:
            return new
        known = figures(new, setting)
        least = max(least_bytes(new, known))
        likely = (least + max(most_bytes(new, known))) / 2 if careful else least
        return new if likely <= limit else None
    except (NotApplicable, InputError):
        return None


def _plain(row: dict[str, Any]) -> float:
    """Among edits of one kind the plain ones come first: whole, small, and left to the builder."""
    factor = 1.0
    if row["op"] == "reorder":
        factor = (1.0 if row["depth"] is None else 0.3) * (1.0 if row["policy"] == "auto" else 0.7)
        factor *= 1.0 if row["split"] else 0.5
    elif row["op"] == "stages_per_device":
        factor = (1.0 if row["layout"] == "v" else 0.8) * (1.0 if row["by"] == 1 else 0.6)
    elif row["op"] == "balance_cut":
        factor = 1.0 if row["by"] == "costs" else 0.2
    elif row["op"] == "family":
        factor = 1.0 if row["name"] == "zb-h1" else 0.6
    elif row["op"] == "split_backward":
        factor = 1.0 if row["on"] else 0.5
    elif "by" in row and isinstance(row["by"], int):
        factor = 1.0 / abs(row["by"])
    if row.get("stage", "all") not in ("all", "slowest") or row.get("position", "all") != "all":
        factor *= 0.4
    return factor


def _remedy(row: dict[str, Any], findings: Sequence[Finding]) -> tuple[float, str]:
    """How much of the step the findings that this edit may mend cost, and the weightiest of them in words."""
    total, best, why = 0.0, 0.0, ""
    for finding in findings:
        for rank, remedy in enumerate(REMEDIES.get(finding.kind, ())):
            if all(row.get(name) == value for name, value in remedy.items()):
                stage = row.get("stage")
                right_stage = finding.stage is None or stage in (None, "all", "slowest", finding.stage)
                worth = max(finding.share, 0.02) / (1 + rank) * (1.0 if right_stage else 0.2)
                total += worth
                if worth > best:
                    best, why = worth, f"{finding.kind}: {finding.text}"
                break
    return total, why
