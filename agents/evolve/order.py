"""List scheduling: rows of small makespan for given stages, costs and bounds on what is in flight.

A position that is free takes the best chunk that could start now: a backward, a forward within the bounds, or a weight
gradient, which waits for nothing and so fills what would be idle. Time is followed as in the simulator (one link per
device, one transfer at a time per channel), but for the windows of receives.

In-flight bounds. A stage needs as many microbatches in flight as fit into the time from its forward to its backward
when the pipeline is full: `ceil(depth * round trip / slowest position's time per microbatch)`. Under unit costs and
depth 1 that is 1F1B's p - r. The memory bound holds besides.

Priorities follow Kelley's list scheduling (1961); weight gradients fill bubbles as in Qi et al., arXiv 2401.10241.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil, inf

from pibroch.agents.evolve.design import Design, Row, Rule
from pibroch.agents.evolve.figures import Figures, figures, layout_key
from pibroch.agents.evolve.kept import kept
from pibroch.evals.setting import Setting

POLICIES = ("auto", "backward-first", "forward-first")
DEPTHS = (1.0, 1.25, 1.5, 2.0, 3.0, inf)


@dataclass(frozen=True, slots=True)
class Policy:
    """`forward`: forwards go before backwards. `deep`: among forwards the highest stage goes first, else the lowest
    microbatch. `oldest`: among backwards the lowest microbatch goes first, else the highest stage. `patience`: a weight
    gradient does not start where other work arrives within this part of its duration. `lag`: with so many of them per
    stage left to do, one goes before the next forward."""

    depth: float = 1.0
    forward: bool = False
    deep: bool = True
    oldest: bool = True
    patience: float = 0.0
    lag: float = inf


@dataclass(frozen=True, slots=True)
class Built:
    """Rows with the makespan (seconds) and the peak bytes per position that the builder followed."""

    rows: tuple[Row, ...]
    makespan: float
    peak: tuple[int, ...]
    policy: Policy
    split: frozenset[int]


def build_rows(design: Design, setting: Setting, rule: Rule, *, quick: bool = False) -> Built:
    """Rows for the design's stages, placement, cut and costs by a `list` rule. Whatever rows it has do not matter.
    `quick` looks at a few bounds only."""
    assert rule.kind == "list", rule
    assert rule.name in POLICIES, rule
    key = (rule, quick, layout_key(design))
    return kept(setting, "rows", key, lambda: _build_rows(design, setting, rule, quick=quick))


def _build_rows(design: Design, setting: Setting, rule: Rule, *, quick: bool) -> Built:
    known = figures(design, setting)
    limit = setting.task.memory_limit

    split = frozenset(range(design.stages)) if rule.split else frozenset[int]()

    def built(policy: Policy, split: frozenset[int] = split) -> Built:
        return list_schedule(design, known, policy, split=split, extra=rule.extra, memory_limit=limit)

    forwards = {"auto": (False, True), "backward-first": (False,), "forward-first": (True,)}[rule.name]
    depths: tuple[float, ...] = (DEPTHS[::3] if quick else DEPTHS) if rule.depth is None else (rule.depth,)
    depths = _different(design, known, depths, split=split)
    best = min(
        (built(Policy(depth=depth, forward=forward)) for forward in forwards for depth in depths),
        key=lambda one: _key(one, limit),
    )
    # Then one choice after the other, each from the best so far: the full product would take seconds.
    choices: list[list[dict[str, bool | float]]] = []
    if quick:
        return best
    if design.stages_per_device > 1:
        choices.append([{"deep": False}, {"oldest": False}, {"deep": False, "oldest": False}])
    if rule.split:
        choices.append([{"patience": 0.6}])
        choices.append([{"lag": float(lag)} for lag in _lags(len(design.positions))])
    for rows in choices:
        policies = [replace(best.policy, **row) for row in rows]  # type: ignore[arg-type]
        best = min([best, *map(built, policies)], key=lambda one: _key(one, limit))
    for stages in design.positions:
        if best.split & set(stages) and _splitting_costs(known, stages):
            whole = built(best.policy, best.split - set(stages))
            best = min([best, whole], key=lambda one: _key(one, limit))
    return best


def _splitting_costs(known: Figures, stages: Sequence[int]) -> bool:
    """Whether two halves of a backward of these stages take longer than the whole, so that joining them can pay."""
    halves, whole = (sum(known.seconds[op][s] for op in ops for s in stages) for ops in (("BI", "BW"), ("B",)))
    return halves > whole * (1 + 1e-6)


def _different(design: Design, known: Figures, depths: Sequence[float], *, split: frozenset[int]) -> tuple[float, ...]:
    """Of depths with the same in-flight bounds the first."""
    found: dict[tuple[int, ...], float] = {}
    for depth in depths:
        found.setdefault(tuple(in_flight_bounds(design, known, depth, split=split)), depth)
    return tuple(found.values())


def _key(built: Built, limit: int | None) -> tuple[float, ...]:
    over = max(0, max(built.peak) - limit) if limit is not None else 0
    return (over, float(f"{built.makespan:.9g}"), max(built.peak))


def _lags(positions: int) -> list[int]:
    return sorted({1, max(1, positions // 2), positions})


def list_schedule(
    design: Design,
    known: Figures,
    policy: Policy,
    *,
    split: frozenset[int],
    extra: Sequence[int] = (),
    memory_limit: int | None = None,
) -> Built:
    """One run of the list scheduler. Backwards of the stages in `split` are cut in two; `extra` is added to the
    in-flight bounds of each position."""
    run = _Run(design, known, policy, split=split, extra=extra, memory_limit=memory_limit)
    run.all()
    return Built(tuple(map(tuple, run.rows)), run.finish(), tuple(run.most()), policy, split)


def in_flight_bounds(design: Design, known: Figures, depth: float, *, split: frozenset[int]) -> list[int]:
    """Per stage, at least 1."""
    m = design.microbatches
    slowest = max(known.load(stages) for stages in design.positions)
    if depth == inf or slowest <= 0:
        return [m] * design.stages
    forward_end, backward_end = [0.0] * design.stages, [0.0] * design.stages
    for s in range(design.stages):
        forward_end[s] += known.seconds["F"][s]
        for edge in known.forward_to[s]:
            forward_end[edge.stage] = max(forward_end[edge.stage], forward_end[s] + edge.seconds + edge.latency)
    bounds = [1] * design.stages
    for s in reversed(range(design.stages)):
        ready = max(backward_end[s], forward_end[s])
        trip = ready - forward_end[s] + known.seconds["F"][s]
        bounds[s] = min(m, max(1, ceil(depth * trip / slowest - 1e-9)))
        for edge in known.backward_to[s]:
            there = ready + known.seconds["BI" if s in split else "B"][s] + edge.seconds + edge.latency
            backward_end[edge.stage] = max(backward_end[edge.stage], there)
    return bounds


class _Run:
    """The state of one list scheduling. All lists are per stage or per position."""

    def __init__(
        self, design: Design, known: Figures, policy: Policy, *, split: frozenset[int], extra: Sequence[int],
        memory_limit: int | None,
    ) -> None:  # fmt: skip
        p, stages, m = len(design.positions), design.stages, design.microbatches
        self.design, self.known, self.policy = design, known, policy
        self.back = ["BI" if s in split else "B" for s in range(stages)]
        self.where = design.position_of
        bounds = in_flight_bounds(design, known, policy.depth, split=split)
        more = [*extra, *[0] * p]
        self.bound = [max(1, b + more[self.where[s]]) for s, b in enumerate(bounds)]
        self.needs_f = [0] * stages
        self.needs_b = [1] * stages
        for s in range(stages):
            for edge in known.forward_to[s]:
                self.needs_f[edge.stage] += 1
            for edge in known.backward_to[s]:
                self.needs_b[edge.stage] += 1
        self.left_f = [[n] * m for n in self.needs_f]
        self.left_b = [[n] * m for n in self.needs_b]
        self.ready: dict[str, list[list[int]]] = {op: [[] for _ in range(stages)] for op in ("F", "B", "BW")}
        self.coming: list[list[float]] = [[] for _ in range(p)]
        self.flying = [0] * stages
        self.backwards = [0] * stages
        self.free = [0.0] * p
        self.link = [0.0] * p
        self.lane: dict[tuple[int, int, str], float] = {}
        self.reduce_free = [0.0] * p
        self.rows: list[list[tuple[str, int, int]]] = [[] for _ in range(p)]
        self.held = list(known.fixed)
        self.peak = list(known.fixed)
        self.limit = inf if memory_limit is None else float(memory_limit)
        self.heap: list[tuple[float, int, str, int, int]] = []
        self.moves = 0
        self.woken = set(range(p))
        self.need = [max(known.during[op][s] for op in ("F", self.back[s])) for s in range(stages)]
        # What the deeper stages of a position need for one microbatch is kept free for them, or it could block.
        self.reserve = [
            sum(known.kept[t] for t in design.positions[self.where[s]] if t > s)
            + sum(known.posted[t] for t in design.positions[self.where[s]])
            + max(self.need[t] for t in design.positions[self.where[s]])
            for s in range(stages)
        ]
        for s in range(stages):
            if not self.needs_f[s]:
                for mb in range(m):
                    self.arrive("F", s, mb)

    def all(self) -> None:
        heap = self.heap
        left = self.design.microbatches * sum(3 if back == "BI" else 2 for back in self.back)
        now = 0.0
        while True:
            # Only what arrived or ended at a position changes what it may start.
            for r in sorted(self.woken):
                if self.free[r] <= now and self.start(r, now):
                    left -= 1
            self.woken.clear()
            if heap:
                now = heap[0][0]
                edge = now + 1e-12 * (1.0 + now)
                while heap and heap[0][0] <= edge:
                    now, _, op, s, mb = heappop(heap)
                    if op[0] == ">":
                        heappop(self.coming[self.where[s]])
                        self.arrive(op[1:], s, mb)
                    else:
                        self.ended(op, s, mb, now)
            elif left:
                self.force(now)
                left -= 1
            else:
                return

    def arrive(self, op: str, s: int, mb: int) -> None:
        """One thing that a chunk waits for is there."""
        left = self.left_f if op == "F" else self.left_b
        left[s][mb] -= 1
        self.woken.add(self.where[s])
        if left[s][mb] <= 0:
            heappush(self.ready[op][s], mb)

    def start(self, r: int, now: float) -> bool:
        """Start the best chunk on position r, if there is one."""
        forward = self.forward(r)
        if forward >= 0 and self.policy.lag < inf:
            waiting = sum(len(self.ready["BW"][s]) for s in self.design.positions[r])
            if waiting >= self.policy.lag * len(self.design.positions[r]):
                forward = -1
        if forward >= 0 and self.policy.forward:
            return self.run("F", r, forward, now)
        backward = self.first("B", r, oldest=self.policy.oldest)
        if backward >= 0:
            return self.run(self.back[backward], r, backward, now)
        if forward >= 0:
            return self.run("F", r, forward, now)
        weight = self.first("BW", r, oldest=True)
        if weight < 0:
            return False
        wait = self.policy.patience * self.known.seconds["BW"][weight]
        if wait and self.coming[r] and self.coming[r][0] - now < wait:
            return False
        return self.run("BW", r, weight, now)

    def first(self, op: str, r: int, *, oldest: bool) -> int:
        """The stage whose chunk goes first: that of the lowest microbatch, or the highest stage; -1 for none."""
        ready = self.ready[op]
        stages = [s for s in self.design.positions[r] if ready[s]]
        if not stages:
            return -1
        return max(stages, key=lambda s: (-ready[s][0], s)) if oldest else stages[-1]

    def forward(self, r: int) -> int:
        """The stage of the best forward within the bounds, or -1."""
        ready, kept, held = self.ready["F"], self.known.kept, self.held[r]
        stages = [
            s
            for s in self.design.positions[r]
            if ready[s] and self.flying[s] < self.bound[s] and held + kept[s] + self.reserve[s] <= self.limit
        ]
        if not stages:
            return -1
        return stages[-1] if self.policy.deep else max(stages, key=lambda s: (-ready[s][0], s))

    def run(self, op: str, r: int, s: int, now: float) -> bool:
        """The first ready chunk of a stage starts."""
        known = self.known
        mb = heappop(self.ready["B" if op == "BI" else op][s])
        self.rows[r].append((op, s, mb))
        self.free[r] = now + known.seconds[op][s]
        if op == "F":
            self.flying[s] += 1
            self.held[r] += known.kept[s]
        elif op == "BI":
            self.held[r] += known.weight_kept[s]
        self.peak[r] = max(self.peak[r], self.held[r] + known.during[op][s])
        self.moves += 1
        heappush(self.heap, (self.free[r], self.moves, op, s, mb))
        return True

    def ended(self, op: str, s: int, mb: int, now: float) -> None:
        known, r = self.known, self.where[s]
        self.woken.add(r)
        if op == "F":
            for edge in known.forward_to[s]:
                self.send("F", s, edge.stage, mb, edge.seconds, edge.latency, now)
            self.arrive("B", s, mb)
            return
        if op == "BW":
            self.held[r] -= known.weight_kept[s]
        else:
            self.flying[s] -= 1
            self.held[r] -= known.kept[s]
            if op == "BI":
                heappush(self.ready["BW"][s], mb)
            for edge in known.backward_to[s]:
                self.send("B", s, edge.stage, mb, edge.seconds, edge.latency, now)
        if op != "BI":
            self.backwards[s] += 1
            if self.backwards[s] == self.design.microbatches:
                for left, seconds in known.reductions[s]:
                    ready = now - left * known.seconds[op][s]
                    self.reduce_free[r] = max(self.reduce_free[r], ready) + seconds

    def send(self, payload: str, s: int, t: int, mb: int, seconds: float, latency: float, now: float) -> None:
        a, b = self.where[s], self.where[t]
        if a == b:
            self.arrive(payload, t, mb)
            return
        begin = max(now, self.lane.get((a, b, payload), 0.0))
        self.link[a] = max(begin, self.link[a]) + seconds
        there = self.lane[a, b, payload] = self.link[a] + latency
        self.moves += 1
        heappush(self.coming[b], there)
        heappush(self.heap, (there, self.moves, f">{payload}", t, mb))

    def force(self, now: float) -> None:
        """Nothing runs and nothing may: the forward of the deepest stage goes, whatever the bounds."""
        s = max((s for s, ready in enumerate(self.ready["F"]) if ready), default=-1)
        assert s >= 0, "list scheduling: chunks are left that nothing will make ready"
        self.run("F", self.where[s], s, now)

    def most(self) -> list[int]:
        """The peak of each position with all receives that may be posted."""
        rows = zip(self.peak, self.design.positions, strict=True)
        return [peak + sum(self.known.posted[s] for s in stages) for peak, stages in rows]

    def finish(self) -> float:
        """Each position's updates follow its last chunk and its reductions."""
        rows = zip(self.free, self.reduce_free, self.design.positions, strict=True)
        return max(max(times) + sum(self.known.update[s] for s in stages) for *times, stages in rows)


def relaxed(rule: Rule, *, position: int, positions: int, by: int) -> Rule:
    """The rule with the in-flight bound of one position changed by so many microbatches."""
    extra = [*rule.extra, *[0] * positions][:positions]
    extra[position] += by
    return replace(rule, extra=tuple(extra))
