"""What all edits share: their form, the words by which they name stages and positions, and how rows are made again.

An edit never holds a schedule or absolute sizes where a relative one can be said, so that what worked on one task can
be tried on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pibroch.agents.evolve.cuts import layer_figures
from pibroch.agents.evolve.design import Design, Row, Rule, changed, rows_of_family
from pibroch.agents.evolve.figures import Figures, figures
from pibroch.agents.evolve.fit import least_recompute
from pibroch.agents.evolve.order import build_rows
from pibroch.evals.setting import Setting
from pibroch.runtime.errors import InputError
from pibroch.runtime.passes.stages import balanced_bounds

Which = int | Literal["all", "first", "last", "slowest", "fastest"]
"""A stage or position: by index (negative ones from the end), by its place, or by its time per microbatch."""


class NotApplicable(Exception):
    """The edit has no meaning, or no effect, on this design. Says why."""


class EditBase(BaseModel):
    """One change of a design. `op` names its kind; the other fields say how far it goes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    op: str

    def to_json(self) -> dict[str, Any]:
        """Plain data that `parse_edit` reads."""
        return self.model_dump(mode="json")

    def describe(self) -> str:
        """One sentence, in the imperative."""
        raise NotImplementedError

    def apply(self, design: Design, setting: Setting) -> Design:
        """The changed design. Raises `NotApplicable`."""
        raise NotImplementedError


def named(which: Which, noun: str) -> str:
    """Words for a sentence."""
    if which == "all":
        return f"all {noun}s"
    if isinstance(which, str):
        return f"the {which} {noun}"
    return f"{noun} {which}" if which >= 0 else f"{noun} {which} from the end"


def stages_named(which: Which, design: Design, setting: Setting) -> list[int]:
    """Indices of the stages. Raises `NotApplicable`."""
    return _named(which, design.stages, "stage", lambda: [_known(design, setting).load((s,)) for s in _range(design)])


def positions_named(which: Which, design: Design, setting: Setting) -> list[int]:
    """Indices of the positions. Raises `NotApplicable`."""
    return _named(
        which, len(design.positions), "position",
        lambda: [_known(design, setting).load(stages) for stages in design.positions],
    )  # fmt: skip


def _range(design: Design) -> range:
    return range(design.stages)


def _named(which: Which, size: int, noun: str, loads: Any) -> list[int]:
    if isinstance(which, int):
        index = which if which >= 0 else size + which
        if not 0 <= index < size:
            raise NotApplicable(f"there is no {noun} {which}: there are {size}")
        return [index]
    if which == "all":
        return list(range(size))
    if which in ("first", "last"):
        return [0 if which == "first" else size - 1]
    times = loads()
    return [times.index(max(times) if which == "slowest" else min(times))]


def _known(design: Design, setting: Setting) -> Figures:
    try:
        return figures(design, setting)
    except InputError as error:
        raise NotApplicable(str(error)) from error


def remade(design: Design, setting: Setting, rule: Rule | None = None) -> Design:
    """The design with rows made for its present numbers: by the rule, or where its family cannot be built for them, or
    they were made by hand, by list scheduling. Raises `NotApplicable` where it does not lower."""
    rule = rule or design.rule
    if rule.kind == "family":
        rows = rows_of_family(rule.name, design)
        if rows is not None:
            return changed(design, rows=rows, rule=rule, overlaps=frozenset())
        other = {"1f1b": "interleaved", "interleaved": "1f1b"}.get(rule.name)
        rows = rows_of_family(other, design) if other else None
        if other and rows is not None:
            return changed(design, rows=rows, rule=Rule("family", other), overlaps=frozenset())
        rule = Rule("list", "auto", split=rule.name == "zb-h1")
    if rule.kind == "rows":
        rule = Rule("list", "auto", split=rule.split)
    try:
        built = build_rows(design, setting, rule)
    except InputError as error:
        raise NotApplicable(str(error)) from error
    return changed(design, rows=built.rows, rule=rule, overlaps=frozenset())


def refreshed(design: Design, setting: Setting) -> Design:
    """The design after a change that leaves its rows legal: list-scheduled ones are made again for the new times."""
    return remade(design, setting) if design.rule.kind == "list" else design


def layout_of(stages: int, positions: int, layout: Literal["loop", "v"]) -> tuple[int, ...]:
    """The position of each stage: round and round, or to and fro (rank r owns r and 2p - 1 - r)."""
    if layout == "loop":
        return tuple(s % positions for s in range(stages))
    to_and_fro = [*range(positions), *reversed(range(positions))]
    return tuple(to_and_fro[s % (2 * positions)] for s in range(stages))


def arranged(
    design: Design,
    setting: Setting,
    *,
    positions: int,
    stages: int,
    replicas: int,
    layout: Literal["loop", "v"],
    microbatches: int | None = None,
) -> Design:
    """Another division of the devices, with rows remade, and under a memory bound only those stages recomputed that it
    asks for. See `divided`. Raises `NotApplicable`.
    """
    new = divided(
        design, setting, positions=positions, stages=stages, replicas=replicas, layout=layout,
        microbatches=microbatches,
    )  # fmt: skip
    # List-scheduled rows are made once what is recomputed is known.
    return fitted(new if new.rule.kind == "list" else remade(new, setting), setting)


def divided(
    design: Design,
    setting: Setting,
    *,
    positions: int,
    stages: int,
    replicas: int,
    layout: Literal["loop", "v"],
    microbatches: int | None = None,
) -> Design:
    """Another division of the devices without its rows: stages cut by costs, as many microbatches as fit what there
    were. Position r of replica k is device `k * positions + r`. Raises `NotApplicable`.
    """
    if positions * replicas > setting.task.devices:
        raise NotApplicable(f"{positions} x {replicas} devices: the task has {setting.task.devices}")
    choices = setting.choices(replicas)
    if not choices:
        raise NotApplicable(f"the batch does not divide over {replicas} replicas")
    wanted = microbatches or max(1, design.microbatches * design.replicas // replicas)
    m = min(choices, key=lambda n: (abs(n - wanted), n))
    model = setting.model(replicas, m)
    if model.fixed_stages and stages != design.stages:
        raise NotApplicable("the model fixes its stages")
    if stages < positions or stages > len(model.layers):
        raise NotApplicable(f"{stages} stages of {len(model.layers)} layers on {positions} positions")
    where = layout_of(stages, positions, layout)
    same = stages == design.stages
    sizes = {size for size in design.bucket_size if size is not None}
    buckets = design.bucket_size if same else ((min(sizes) if sizes else None),) * stages
    streams = design.reduce_stream
    if streams is not None and not same:
        streams = tuple(f"reduce{s}" for s in range(stages)) if len(set(streams)) > 1 else (streams[0],) * stages
    every = len(design.recompute) == design.stages
    new = changed(
        design,
        microbatches=m,
        placement=tuple(tuple(k * positions + r for k in range(replicas)) for r in where),
        rows=(),
        cut=None,
        bucket_size=buckets if replicas > 1 else (None,) * stages,
        reduce_stream=streams,
        recompute=frozenset(range(stages)) if every else frozenset(),
        layer_recompute=design.layer_recompute if same else (),
        overlaps=frozenset(),
    )
    if not model.fixed_stages:
        new = changed(new, cut=tuple(cut_by_costs(new, setting)))
    return new


def fitted(design: Design, setting: Setting) -> Design:
    """The design with only those stages recomputed for which the memory bound has no room.

    List-scheduled rows can also hold less by keeping fewer microbatches in flight, so there the builder chooses among
    none, all, and what its rows ask for. Raises `NotApplicable`.
    """
    try:
        if design.rule.kind != "list":
            return changed(design, recompute=least_recompute(design, setting), layer_recompute=())
        limit, every = setting.task.memory_limit, frozenset(range(design.stages))
        if limit is None:
            return remade(changed(design, recompute=frozenset(), layer_recompute=()), setting)
        p = len(design.positions)
        # None, all, or the first stages of every position: those keep most microbatches.
        choices = [frozenset(range(n)) for n in range(0, design.stages, p)] + [every]
        most = len(choices) + 2
        best: tuple[tuple[float, ...], frozenset[int]] | None = None
        for stages in choices:
            plain = changed(design, recompute=stages, layer_recompute=())
            built = build_rows(plain, setting, design.rule, quick=True)
            key = (max(0, max(built.peak) - limit), built.makespan)
            if best is None or key < best[0]:
                best = key, stages
            # Rows with all stages recomputed are those of a full pipeline: what do they leave room for?
            least = least_recompute(changed(plain, rows=built.rows), setting)
            if len(choices) < most and least not in choices:
                choices.append(least)
        assert best is not None
        return remade(changed(design, recompute=best[1], layer_recompute=()), setting)
    except InputError as error:
        raise NotApplicable(str(error)) from error


def best_fit(design: Design, setting: Setting) -> tuple[tuple[float, float], Design]:
    """`fitted` for a list rule, with (bytes over the memory bound, seconds) of what the builder made."""
    new = fitted(design, setting)
    limit, built = setting.task.memory_limit, build_rows(new, setting, new.rule)
    return (0.0 if limit is None else max(0, max(built.peak) - limit), built.makespan), new


def cut_by_costs(design: Design, setting: Setting) -> list[int]:
    """Boundaries that make the slowest position fast, and then the positions even. Starts from stages as even as the
    costs allow and moves one layer from any stage to any other while that helps."""
    known, m = layer_figures(setting, design.replicas, design.microbatches).plain, design.microbatches
    seconds = [known.load((x,)) + update / m for x, update in enumerate(known.update)]
    return even_positions(seconds, design.position_of)


def even_positions(seconds: Sequence[float], position_of: Sequence[int]) -> list[int]:
    """The inner boundaries for layers of these times and stages on these positions."""
    stages = len(position_of)
    best = balanced_bounds(list(seconds), stages)
    sums = [0.0]
    for one in seconds:
        sums.append(sums[-1] + one)

    def unevenness(bounds: Sequence[int]) -> tuple[float, float, float]:
        loads = [0.0] * (max(position_of) + 1)
        spread = 0.0
        for s, r in enumerate(position_of):
            time = sums[bounds[s + 1]] - sums[bounds[s]]
            loads[r] += time
            spread += time * time
        return round(max(loads), 12), sum(load * load for load in loads), spread

    score = unevenness(best)
    improved = True
    while improved:
        improved = False
        for first in range(1, stages):
            for last in range(first, stages):
                for step in (-1, 1):
                    moved = [b + step if first <= i <= last else b for i, b in enumerate(best)]
                    if moved[first] <= moved[first - 1] or moved[last] >= moved[last + 1]:
                        continue
                    if (new := unevenness(moved)) < _less(score):
                        best, score, improved = moved, new, True
    return best[1:-1]


def _less(score: tuple[float, float, float]) -> tuple[float, float, float]:
    """A little below: rounding must not let the search go round in circles."""
    return score[0], score[1] * (1 - 1e-9), score[2] * (1 - 1e-9)


def check_rows(design: Design) -> None:
    """Raises `NotApplicable` where the rows contradict what depends on what (for stages in a chain)."""
    split = {(s, mb) for row in design.rows for op, s, mb in row if op == "BI"}
    done: set[tuple[str, int, int]] = set()
    heads = [0] * len(design.rows)

    def ready(op: str, s: int, mb: int) -> bool:
        if op == "F":
            return s == 0 or ("F", s - 1, mb) in done
        if op == "BW":
            return ("BI", s, mb) in done
        after = s + 1 == design.stages or ("BI" if (s + 1, mb) in split else "B", s + 1, mb) in done
        return after and ("F", s, mb) in done

    moved = True
    while moved:
        moved = False
        for r, row in enumerate(design.rows):
            while heads[r] < len(row) and ready(*row[heads[r]]):
                done.add(row[heads[r]])
                heads[r] += 1
                moved = True
    for r, row in enumerate(design.rows):
        if heads[r] < len(row):
            op, s, mb = row[heads[r]]
            raise NotApplicable(f"position {r} would wait for itself at {s}{op}{mb}")


def with_row(design: Design, position: int, row: Row) -> Design:
    """The design with one row written by hand. Raises `NotApplicable` where that is the same or a deadlock."""
    if row == design.rows[position]:
        raise NotApplicable("the row stays the same")
    rows = tuple(row if r == position else one for r, one in enumerate(design.rows))
    return by_hand(design, rows)


def by_hand(design: Design, rows: tuple[Row, ...]) -> Design:
    """The design with other rows, checked. Raises `NotApplicable`."""
    if rows == design.rows:
        raise NotApplicable("the rows stay the same")
    split = any(op == "BW" for row in rows for op, _, _ in row)
    new = changed(design, rows=rows, rule=Rule("rows", split=split), overlaps=frozenset())
    check_rows(new)
    return new
