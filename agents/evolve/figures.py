"""What a constructive builder of orders knows: how long each stage's passes take, what flows between stages and what
they hold, read from the setting's costs and a plan of one microbatch. Nothing here runs a simulation."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

from pibroch.agents.evolve.design import Design, Rule, changed, encode
from pibroch.agents.evolve.kept import kept
from pibroch.evals.setting import Setting
from pibroch.runtime.costs import Costs
from pibroch.runtime.lower import lower
from pibroch.runtime.passes.plans import RECV_WINDOW
from pibroch.runtime.plan import Plan, Task

T = TypeVar("T")
PASSES = ("F", "B", "BI", "BW")


@dataclass(frozen=True, slots=True)
class Edge:
    """What one stage hands another: `seconds` of the sender's link and then `latency`; both 0 on one device."""

    stage: int
    latency: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Per stage: `seconds[op]`; `forward_to` and `backward_to` (who waits for its F, for its B); `kept` and
    `weight_kept` bytes of one microbatch from F to the backward's end and from BI to BW; `during[op]` bytes that a
    running chunk needs besides; `posted` bytes of what may stand ready for later chunks, or still wait to be sent.
    `reductions` are (part of the last backward that is still to run when the bucket is complete, seconds); `update`
    seconds of its optimizer step. `fixed` bytes are per position: parameters, gradients, optimizer state."""

    seconds: dict[str, tuple[float, ...]]
    forward_to: tuple[tuple[Edge, ...], ...]
    backward_to: tuple[tuple[Edge, ...], ...]
    kept: tuple[int, ...]
    weight_kept: tuple[int, ...]
    during: dict[str, tuple[int, ...]]
    posted: tuple[int, ...]
    reductions: tuple[tuple[tuple[float, float], ...], ...]
    update: tuple[float, ...]
    fixed: tuple[int, ...]

    def load(self, stages: tuple[int, ...]) -> float:
        """Seconds of one microbatch on the position that has these stages."""
        return sum(self.seconds["F"][s] + self.seconds["B"][s] for s in stages)


def figures(design: Design, setting: Setting) -> Figures:
    """The figures of a design, whatever its rows. Raises `InputError` where it does not lower.

    What one stage recomputes is no matter to the others: where whole stages are recomputed, they are put together from
    those of all and none.
    """
    every = frozenset(range(design.stages))
    if design.layer_recompute or design.recompute in (frozenset(), every):
        return kept(setting, "figures", layout_key(design), lambda: _figures(design, setting))
    key = (design.recompute, layout_key(changed(design, recompute=frozenset())))
    return kept(setting, "mixed figures", key, lambda: _mixed_figures(design, setting))


def layout_key(design: Design) -> Hashable:
    """Equal for designs that differ at most in their rows."""
    return (
        design.microbatches, design.placement, design.cut, design.recompute, design.layer_recompute, design.bucket_size,
        design.reduce_stream,
    )  # fmt: skip


def design_key(design: Design) -> Hashable:
    """Equal for designs that are one schedule, whatever rule made their rows."""
    return layout_key(design), design.rows, design.overlaps, design.stream


def _mixed_figures(design: Design, setting: Setting) -> Figures:
    without = figures(changed(design, recompute=frozenset()), setting)
    with_ = figures(changed(design, recompute=frozenset(range(design.stages))), setting)

    def pick(name: str) -> Any:
        one, other = getattr(with_, name), getattr(without, name)
        if isinstance(one, dict):
            return {op: _picked(one[op], other[op], design.recompute) for op in one}
        return _picked(one, other, design.recompute)

    per_stage = ("seconds", "kept", "weight_kept", "during", "posted", "reductions", "update")
    return replace(without, **{name: pick(name) for name in per_stage})


def _picked(one: tuple[T, ...], other: tuple[T, ...], some: Collection[int]) -> tuple[T, ...]:
    return tuple(a if s in some else b for s, (a, b) in enumerate(zip(one, other, strict=True)))


def _figures(design: Design, setting: Setting) -> Figures:
    costs = setting.costs(design.replicas, design.microbatches)
    plan = _one_microbatch(design, setting)
    compute: dict[tuple[str, int, int], Task] = {(t.op, t.stage, t.part): t for t in plan.tasks if t.replica == 0}
    parts = [[c for c in plan.chunks if c.stage == s] for s in range(plan.stages)]
    one: dict[str, list[list[float]]] = {
        op: [[_seconds(costs, plan, compute, op, s, c.part) for c in row] for s, row in enumerate(parts)]
        for op in PASSES
    }
    transfers = [t for t in plan.tasks if t.op == "SEND" and t.replica == 0]
    links = {(t.payload, t.stage, t.peer_stage): costs.transfer(plan, t) for t in transfers}
    stages = range(plan.stages)
    sources = [sorted({p.stage for c in parts[s] for _, p in c.inputs} - {s}) for s in stages]
    forward: list[list[Edge]] = [[] for _ in stages]
    backward: list[list[Edge]] = [[] for _ in stages]
    for s in stages:
        for source in sources[s]:
            forward[source].append(Edge(s, *links.get(("F", source, s), (0.0, 0.0))))
            backward[s].append(Edge(source, *links.get(("B", s, source), (0.0, 0.0))))
    nbytes = [b.nbytes for b in plan.buffers]
    posted = [0] * plan.stages
    for t in plan.tasks:
        if t.replica == 0 and t.op in ("SEND", "RECV"):
            times = RECV_WINDOW - 1 if t.op == "RECV" else 1
            posted[t.stage] += times * sum(nbytes[b] for b in (*t.reads, *t.writes))
    held = [_held(plan, s) for s in stages]
    return Figures(
        seconds={op: tuple(map(sum, one[op])) for op in PASSES},
        forward_to=tuple(map(tuple, forward)),
        backward_to=tuple(map(tuple, backward)),
        kept=tuple(row.kept for row in held),
        weight_kept=tuple(row.weight_kept for row in held),
        during={op: tuple(row.during[op] for row in held) for op in PASSES},
        posted=tuple(posted),
        reductions=tuple(_reductions(plan, costs, s, one["B"][s]) for s in stages),
        update=tuple(_update_seconds(costs, plan, compute, s) for s in stages),
        fixed=tuple(
            sum(b.nbytes for b in plan.buffers if b.persistent and b.device == plan.placement[row[0]][0])
            for row in design.positions
        ),
    )


def least_bytes(design: Design, known: Figures) -> list[int]:
    """What each position holds at the least when it runs its row: what is kept from each forward to the end of its
    backward and what the running chunk needs, on top of what is always there. `Figures.posted` may come on top."""
    peaks = []
    for fixed, row in zip(known.fixed, design.rows, strict=True):
        held = peak = fixed
        for op, stage, _ in row:
            if op == "F":
                held += known.kept[stage]
            elif op == "BI":
                held += known.weight_kept[stage]
            peak = max(peak, held + known.during[op][stage])
            if op in ("B", "BI"):
                held -= known.kept[stage]
            elif op == "BW":
                held -= known.weight_kept[stage]
        peaks.append(peak)
    return peaks


def most_bytes(design: Design, known: Figures) -> list[int]:
    """The same with what may stand ready or wait to be sent: seldom exceeded, and by little."""
    rows = zip(least_bytes(design, known), design.positions, strict=True)
    return [least + sum(known.posted[s] for s in stages) for least, stages in rows]


def _one_microbatch(design: Design, setting: Setting) -> Plan:
    """A plan of the design's stages that runs one microbatch of its size, all backwards split."""
    rows = tuple(
        tuple((op, s, 0) for op, order in (("F", 1), ("BI", -1), ("BW", -1)) for s in stages[::order])
        for stages in design.positions
    )
    small = changed(design, microbatches=1, rows=rows, rule=Rule("rows"), overlaps=frozenset())
    return lower(encode(small), setting.model(design.replicas, design.microbatches))


def _seconds(
    costs: Costs, plan: Plan, compute: dict[tuple[str, int, int], Task], op: str, stage: int, part: int
) -> float:
    task = compute["BI" if op == "B" else op, stage, part]
    return costs.compute(plan, replace(task, op="B") if op == "B" else task)


def _update_seconds(costs: Costs, plan: Plan, compute: dict[tuple[str, int, int], Task], stage: int) -> float:
    """0 for a stage that updates nothing."""
    task = compute.get(("UPDATE", stage, 0))
    return costs.compute(plan, task) if task else 0.0


@dataclass(frozen=True, slots=True)
class _Held:
    """Bytes of one stage, as in `Figures`."""

    kept: int
    weight_kept: int
    during: dict[str, int]


def _held(plan: Plan, stage: int) -> _Held:
    """Parts of a stage run one after the other: forwards from the first on, backwards from the last on. What a part
    needs while it runs counts less what the stage's other parts do not hold yet, or no more."""
    own = {(t.op, t.part): t for t in plan.tasks if t.replica == 0 and t.stage == stage and t.op in PASSES}
    parts = sorted({part for _, part in own})

    def size(buffers: set[int]) -> int:
        return sum(plan.buffers[b].nbytes for b in buffers if not plan.buffers[b].persistent)

    kept = [{*own["BI", i].frees} & {*own["F", i].reads, *own["F", i].writes} for i in parts]
    later = [{*own["BW", i].frees} for i in parts]
    sizes, weights = [size(one) for one in kept], [size(one) for one in later]
    needs: dict[str, list[int]] = {"F": [], "B": [], "BI": [], "BW": [0]}
    for i in parts:
        after = sum(sizes[i + 1 :])
        forward = size({*own["F", i].writes} - kept[i]) - after
        backward = size({*own["BI", i].writes, *own["BI", i].frees} - kept[i] - later[i]) - after
        split = backward - sum(weights[:i])
        for op, needed in (("F", forward), ("B", backward), ("BI", split)):
            needs[op].append(needed)
    return _Held(sum(sizes), sum(weights), {op: max(row) for op, row in needs.items()})


def _reductions(plan: Plan, costs: Costs, stage: int, backward: list[float]) -> tuple[tuple[float, float], ...]:
    """Buckets that this stage alone fills. A bucket is complete with the last of its chunks, and the stage's chunks run
    their backwards from the last to the first."""
    until = [0.0, *accumulate(backward)]
    total = until[-1] or 1.0
    found = []
    for task in plan.tasks:
        if task.op == "REDUCE" and task.device == plan.placement[stage][0]:
            chunks = plan.buckets[task.bucket].chunks
            if chunks and {c.stage for c in chunks} == {stage}:
                left = until[min(c.part for c in chunks)] / total
                found.append((left, costs.collective(plan, task)))
    return tuple(sorted(found, reverse=True))
