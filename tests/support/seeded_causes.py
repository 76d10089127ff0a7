"""Seeded instances of a step with a planted cause, and the judgement of what a diagnosis says of them.

Each instance is a random profile and schedule into which a *planter* puts one thing: a mistake in the schedule or in
how the model lies on it (then the reference costs know of it, for they describe the machine rightly), or a fault of the
machine (then they do not). The trace is a simulation of the plan with that fault, with 2% of noise on every task and a
few dozen microseconds before each. The diagnosis sees schedule, trace, model and reference.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pibroch.evals.feedback import INHERENT, MEANINGS
from pibroch.evals.finding import Finding
from pibroch.runtime.costs import AnalyticCosts, Costs
from pibroch.runtime.directives import AnyDirective, Order, Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.profile import Profile, ProfileLayer
from pibroch.runtime.simulate import Simulation, simulate
from pibroch.runtime.trace import Event, Trace

Times = tuple[float, float, float]
Row = list[dict[str, int | str | None]]

NOISE = 0.02
COSTS = 0.04
"""A planted cause costs at least this part of the step without it; one of two, half of that."""
SMALL = 0.03
"""A finding below this share of the step is small: in a clean control there is no larger one."""


@dataclass
class Draft:
    """What the planters change before the instance is made. `layers` are (forward, input, weight) seconds each;
    `boundary` and `parameters` bytes per layer, where a link carries 1e9 bytes/s."""

    rng: random.Random
    family: str
    p: int
    m: int
    k: int
    v: int
    layers: list[Times]
    boundary: list[float]
    parameters: list[float]
    cut: list[int] | None = None
    latency: float = 1e-5
    collective_latency: float = 1e-5
    bucket_size: float | None = None
    recompute: bool = False
    reorder: Callable[[list[Row]], None] | None = None
    limit: Callable[[Simulation], int] | None = None
    compute: dict[str, Callable[[Plan, Task, float], float]] = field(default_factory=dict)
    transfer: dict[str, Callable[[Task, float], float]] = field(default_factory=dict)
    collective: dict[str, Callable[[float], float]] = field(default_factory=dict)
    gap: Callable[[Task], float] | None = None
    device: int | None = None

    @property
    def stages(self) -> int:
        return self.p * self.v

    @property
    def forward(self) -> float:
        """Mean seconds of a stage's forward."""
        return sum(layer[0] for layer in self.layers) / self.stages

    @property
    def backward(self) -> float:
        return sum(layer[1] + layer[2] for layer in self.layers) / self.stages

    def profile(self) -> Profile:
        per_stage = len(self.layers) // self.stages
        cut = self.cut or [per_stage * s for s in range(1, self.stages)]
        layers = tuple(
            ProfileLayer(f"l{i}", *times, int(self.parameters[i]), 4096, 4096, int(self.boundary[i]))
            for i, times in enumerate(self.layers)
        )
        return Profile(
            "seeded", "none", (), layers, tuple(cut), self.latency, 1e9, self.collective_latency, 1e9
        )  # fmt: skip

    def schedule(self) -> Schedule:
        made = build(
            self.family, devices=self.p, microbatches=self.m, replicas=self.k, stages_per_device=self.v,
            bucket_size=self.bucket_size, cut=self.cut, recompute=self.recompute,
        )  # fmt: skip
        if self.reorder is None:
            return made
        kept: list[AnyDirective] = [d for d in made.directives if not isinstance(d, Order)]
        rows: list[Row] = [[group[0] for group in d.groups()] for d in made.directives if isinstance(d, Order)]
        self.reorder(rows)
        return Schedule(directives=[*kept, *(Order(filters=list(row)) for row in rows)])


@dataclass(frozen=True)
class Instance:
    """`causes` are the planted kinds. `device` is where the cause lies, where that is one place."""

    causes: tuple[str, ...]
    seed: int
    about: str
    schedule: Schedule
    model: ModelSpec
    costs: Costs
    trace: Trace
    memory_limit: int | None
    device: int | None


@dataclass
class Faulty:
    """The true machine: the reference with a draft's faults and noise."""

    draft: Draft
    costs: Costs
    seed: int
    gaps: dict[int, float] = field(default_factory=dict)

    def _noise(self, i: int) -> random.Random:
        return random.Random(self.seed * 1_000_003 + i)

    def compute(self, plan: Plan, task: Task) -> float:
        rng = self._noise(task.id)
        seconds = self.costs.compute(plan, task) * math.exp(rng.gauss(0, NOISE))
        for change in self.draft.compute.values():
            seconds = change(plan, task, seconds)
        return seconds + self._gap(task)

    def _gap(self, task: Task) -> float:
        gap = self._noise(-task.id).uniform(1e-5, 6e-5) if self.draft.gap is None else self.draft.gap(task)
        self.gaps[task.id] = gap
        return gap

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        latency, seconds = self.costs.transfer(plan, task)
        seconds *= math.exp(self._noise(task.id).gauss(0, 2 * NOISE))
        for change in self.draft.transfer.values():
            seconds = change(task, seconds)
        return latency + self._gap(task), seconds

    def collective(self, plan: Plan, task: Task) -> float:
        seconds = self.costs.collective(plan, task) * math.exp(self._noise(task.bucket).gauss(0, 2 * NOISE))
        for change in self.draft.collective.values():
            seconds = change(seconds)
        return seconds


def draft(rng: random.Random, *, families: Sequence[str], replicas: Sequence[int] = (1, 1, 2)) -> Draft:
    """An instance without a cause: even stages, links that take 1% of a forward, enough microbatches."""
    family = rng.choice(families)
    p = rng.randint(2, 5)
    v = 2 if family == "interleaved" else 1
    m = p * rng.randint(2, 4) if family == "interleaved" else rng.randint(2 * p, 4 * p)
    per_stage = rng.randint(2, 5)
    base = rng.uniform(4e-3, 12e-3)
    one = base, base * rng.uniform(0.8, 1.4), base * rng.uniform(0.7, 1.1)
    count = p * v * per_stage
    small = 0.005 * base * per_stage * 1e9
    return Draft(rng, family, p, m, rng.choice(replicas), v, [one] * count, [small] * count, [small / 4] * count)


def instance(cause: str | Sequence[str], seed: int, *, guess: bool = False) -> Instance:
    """The instance of a cause, of several, or of none (`clean`): one where each planted cause that costs time costs
    `COSTS` of the step or more, by the run without it. With `guess` the reference knows the operations of each layer
    and no durations, as for a model that was never measured."""
    causes = (cause,) if isinstance(cause, str) else tuple(cause)
    for attempt in range(60):
        rng = random.Random(f"{'+'.join(causes)}:{seed}:{attempt}:{guess}")
        made = draft(rng, families=families_of(causes), replicas=replicas_of(causes, guess=guess))
        for name in causes:
            if name != "clean":
                PLANTERS[name](made)
        try:
            seconds = _run(made, seed)[1].makespan
            cures = [cured for name in causes if (cured := _cured(made, name)) is not None]
            if all(_run(cured, seed)[1].makespan * (1 + COSTS / len(causes)) <= seconds for cured in cures):
                return _finish(made, causes, seed, guess)
        except InputError:
            pass  # a row that contradicts its data: another draw
    raise AssertionError(f"no instance of {causes} with seed {seed}")


def _run(made: Draft, seed: int) -> tuple[Plan, Simulation, Faulty]:
    profile = made.profile()
    plan = lower(made.schedule(), profile.model())
    faulty = Faulty(made, profile.costs(), seed)
    return plan, simulate(plan, faulty), faulty


def _finish(made: Draft, causes: tuple[str, ...], seed: int, guess: bool) -> Instance:
    plan, run, faulty = _run(made, seed)
    profile = made.profile()
    reference = simulate(plan, profile.costs())
    gaps = faulty.gaps
    events = [Event(t.id, t.device, t.stream, run.start[t.id] + gaps.get(t.id, 0.0), run.end[t.id]) for t in plan.tasks]
    device = made.device
    if "stage-imbalance" in causes:
        # Without a cut, lowering balances by cost: the heaviest device (of replica 0) is known only now.
        device = max(range(made.p), key=lambda d: reference.busy[d])
    model = profile.model()
    costs: Costs = profile.costs()
    if guess:
        whole = sum(layer.flops for layer in model.layers)
        costs = AnalyticCosts(flops_per_s=whole / 0.1, bandwidth=1e9, latency=1e-4)
    return Instance(
        causes, seed, f"{made.family} p={made.p} v={made.v} m={made.m} k={made.k}", made.schedule(), model,
        costs, Trace(plan, events), made.limit(reference) if made.limit is not None else None, device,
    )  # fmt: skip


def _cured(made: Draft, cause: str) -> Draft | None:
    """The same draft without one cause; None for causes that cost no time, or that are the instance's size."""
    small = 0.005 * made.forward * 1e9
    count = len(made.layers)
    changes: dict[str, dict[str, Any]] = {
        "stage-imbalance": {"layers": [_mean(made.layers)] * count, "cut": None},
        "order": {"reorder": None},
        "late-receive": {"reorder": None},
        "exposed-transfer": {"boundary": [small] * count},
        "exposed-reduction": {"parameters": [small / count] * count},
        "bucket-too-large": {"bucket_size": 0.9 * made.parameters[0] / 1e6},
        "bucket-too-small": {"bucket_size": None},
        "needless-recompute": {"recompute": False},
        "microbatch-too-small": {"gap": None},
        "host-overhead": {"gap": None},
    }
    hooks: dict[str, Any] = {
        name: {key: hook for key, hook in getattr(made, name).items() if key != cause}
        for name in ("compute", "transfer", "collective")
    }
    if any(cause in getattr(made, name) for name in hooks):
        return replace(made, **hooks)
    return replace(made, **changes[cause]) if cause in changes else None


def _mean(layers: list[Times]) -> Times:
    a, b, c = (sum(times) / len(layers) for times in zip(*layers, strict=True))
    return a, b, c


# The planters


def _stage_imbalance(d: Draft) -> None:
    """A cut that gives one stage the layers of its neighbours, or one heavy layer."""
    per_stage = len(d.layers) // d.stages
    stage = d.rng.randrange(d.stages)
    if per_stage >= 3 and d.rng.random() < 0.5:
        cut = [per_stage * s for s in range(1, d.stages)]
        take = d.rng.randint(max(per_stage // 3, 1), per_stage - 1)
        if stage:
            cut[stage - 1] -= take
        if stage < d.stages - 1:
            cut[stage] += take
        d.cut = cut
    else:
        i = stage * per_stage + d.rng.randrange(per_stage)
        grow = d.rng.uniform(0.5, 1.2) * per_stage * d.v
        d.layers = [*d.layers]
        a, b, c = d.layers[i]
        d.layers[i] = a * (1 + grow), b * (1 + grow), c * (1 + grow)


def _few_microbatches(d: Draft) -> None:
    d.m = d.rng.randint(1, d.p)


def _order(d: Draft) -> None:
    """Rows that fit each other badly: backwards in another order on some positions, or too few forwards ahead."""
    how = d.rng.choice(("reverse", "shuffle", "shallow"))
    chosen = d.rng.sample(range(d.p), d.rng.randint(1, d.p - 1))
    ahead = d.rng.randint(1, 2)
    shuffle = random.Random(d.rng.random())

    def reorder(rows: list[Row]) -> None:
        if how == "shallow":
            for r in range(d.p):
                rows[r] = _in_turn(rows[r], min(d.p - r, ahead))
            return
        for r in chosen:
            places = [i for i, f in enumerate(rows[r]) if f["PASS"] == "B"]
            backwards = [rows[r][i] for i in places]
            if how == "reverse":
                backwards.reverse()
            else:
                shuffle.shuffle(backwards)
            for i, f in zip(places, backwards, strict=True):
                rows[r][i] = f

    d.reorder = _once(reorder)


def _in_turn(row: Row, ahead: int) -> Row:
    """One backward and one forward in turn after so many forwards."""
    forwards = [f for f in row if f["PASS"] == "F"]
    backwards = [f for f in row if f["PASS"] == "B"]
    made = forwards[:ahead]
    for i, b in enumerate(sorted(backwards, key=lambda f: int(f["MB"] or 0))):
        made.append(b)
        made.extend(forwards[ahead + i : ahead + i + 1])
    return made


def _once(reorder: Callable[[list[Row]], None]) -> Callable[[list[Row]], None]:
    """The same rows at every call, whatever the generator's state."""
    kept: list[Row] = []

    def again(rows: list[Row]) -> None:
        if not kept:
            reorder(rows)
            kept.extend([*row] for row in rows)
        rows[:] = [[*row] for row in kept]

    return again


def _late_receive(d: Draft) -> None:
    """One chunk that another device waits for, a few places further back in its row."""
    r = d.device = d.rng.randrange(d.p)
    op = "F" if r == 0 else "B" if r == d.p - 1 else d.rng.choice(("F", "B"))
    where, places = d.rng.random(), d.rng.randint(2, 5)

    def reorder(rows: list[Row]) -> None:
        row = rows[r]
        found = [i for i, f in enumerate(row) if f["PASS"] in (op, "BI" if op == "B" else op)]
        i = found[int(where * len(found))]
        row.insert(min(i + places, len(row) - 1), row.pop(i))

    d.reorder = reorder


def _exposed_transfer(d: Draft) -> None:
    """Boundaries that take long: all of them, or one."""
    size = d.rng.uniform(0.5, 1.3) * d.forward * 1e9
    if d.rng.random() < 0.5:
        d.boundary = [size] * len(d.boundary)
    else:
        per_stage = len(d.layers) // d.stages
        r = d.rng.randrange(d.stages - 1)
        d.boundary = [*d.boundary]
        d.boundary[per_stage * (r + 1) - 1] = 2 * size


def _ring_bytes(d: Draft, seconds: float) -> float:
    """Bytes of a stage's parameters whose ring all-reduce at 1e9 bytes/s takes that long."""
    return seconds * 1e9 * d.k / (2 * (d.k - 1))


def _exposed_reduction(d: Draft) -> None:
    per_stage = len(d.layers) // d.stages
    d.m = max(2, d.m // 2)
    whole = _ring_bytes(d, d.rng.uniform(2.0, 4.0) * (d.forward + d.backward))
    d.parameters = [whole / per_stage] * len(d.layers)
    d.bucket_size = 0.9 * whole / per_stage / 1e6


def _bucket_too_large(d: Draft) -> None:
    d.m = max(2, d.m // 2)
    layers = d.rng.randint(5, 8) * d.stages
    d.layers, d.boundary = [d.layers[0]] * layers, [d.boundary[0]] * layers
    whole = _ring_bytes(d, d.rng.uniform(0.7, 1.0) * d.backward)
    d.parameters = [whole / (layers // d.stages)] * layers
    d.bucket_size = None if d.rng.random() < 0.6 else whole / 1e6


def _bucket_too_small(d: Draft) -> None:
    d.m = max(2, d.m // 2)
    per_layer = d.rng.randint(5, 8)
    layers = per_layer * d.stages
    d.layers, d.boundary = [d.layers[0]] * layers, [d.boundary[0]] * layers
    size = d.parameters[0]
    d.parameters = [size] * layers
    d.bucket_size = size * d.rng.choice((0.5, 0.9)) / 1e6
    # Each small reduction takes longer than the backward of the layer that it could hide behind.
    d.collective_latency = d.rng.uniform(1.5, 3.0) * (d.layers[0][1] + d.layers[0][2]) / (2 * (d.k - 1))


def _unsplit(d: Draft) -> None:
    d.m = d.p * d.rng.randint(1, 2)


def _recompute(d: Draft) -> None:
    d.recompute = True
    if d.rng.random() < 0.5:
        d.limit = lambda run: 40 * max(run.peak_bytes)


def _memory_tight(d: Draft) -> None:
    part = d.rng.uniform(0.92, 1.05)
    d.limit = lambda run: int(max(run.peak_bytes) / part)


def _memory_headroom(d: Draft) -> None:
    part = d.rng.uniform(0.1, 0.45)
    d.limit = lambda run: int(max(run.peak_bytes) / part)


def _small_microbatches(d: Draft) -> None:
    """Chunks that take not much more than starting them does."""
    scale = d.rng.uniform(6e-4, 2.5e-3) / d.forward
    d.layers = [(a * scale, b * scale, c * scale) for a, b, c in d.layers]
    d.boundary = [b * scale for b in d.boundary]
    d.parameters = [b * scale for b in d.parameters]
    gap, seed = d.rng.uniform(3e-4, 8e-4), d.rng.random()
    d.gap = lambda task: gap * random.Random(f"{seed}:{task.id}").uniform(0.7, 1.2)


def _straggler(d: Draft) -> None:
    """A device that is slow: all the time, or during a part of the step."""
    device = d.device = d.rng.randrange(d.p * d.k)
    factor = d.rng.uniform(1.2, 2.0)
    if d.rng.random() < 0.7:
        d.compute["straggler"] = lambda plan, task, s: s * factor if task.device == device else s
        return
    first, part = d.rng.uniform(0, 0.5), d.rng.uniform(0.35, 0.5)

    def at_times(plan: Plan, task: Task, seconds: float) -> float:
        row = plan.streams[task.device]["compute"]
        slow = task.device == device and first <= row.index(task.id) / len(row) < first + part
        return seconds * (factor + 0.3) if slow else seconds

    d.compute["straggler"] = at_times


def _slow_link(d: Draft) -> None:
    """One link, or the reductions, several times slower than the reference has it."""
    if d.k > 1 and d.rng.random() < 0.4:
        whole = _ring_bytes(d, 0.05 * d.forward)
        d.parameters = [whole * d.stages / len(d.layers)] * len(d.layers)
        factor = d.rng.uniform(20, 60)
        d.collective["slow-link"] = lambda s: s * factor
        return
    replica, r = d.rng.randrange(d.k), d.rng.randrange(d.p - 1)
    ends = replica * d.p + r, replica * d.p + r + 1
    source, target = ends if d.rng.random() < 0.5 else ends[::-1]
    d.boundary = [0.02 * d.forward * 1e9] * len(d.boundary)
    d.device = source
    factor = d.rng.uniform(25, 70)
    d.transfer["slow-link"] = lambda task, s: s * factor if (task.device, task.peer) == (source, target) else s


def _host_overhead(d: Draft) -> None:
    every = d.rng.random() < 0.3
    if not every:
        d.device = d.rng.randrange(d.p * d.k)
    gap, device, seed = d.rng.uniform(0.15, 0.4) * d.forward, d.device, d.rng.random()

    def between(task: Task) -> float:
        rng = random.Random(f"{seed}:{task.id}")
        return gap * rng.uniform(0.5, 1.5) if device in (None, task.device) else rng.uniform(1e-5, 6e-5)

    d.gap = between


def _jitter(d: Draft) -> None:
    """One to three tasks of one device, many times as long as they should be."""
    device = d.device = d.rng.randrange(d.p * d.k)
    count, factor, pick = d.rng.randint(1, 3), d.rng.uniform(5, 10), d.rng.random()

    def compute(plan: Plan, task: Task, seconds: float) -> float:
        mine = [i for i in plan.streams[device]["compute"] if plan.tasks[i].op in ("F", "B", "BI")]
        return seconds * factor if task.id in random.Random(pick).sample(mine, count) else seconds

    d.compute["jitter"] = compute


def _slower(d: Draft) -> None:
    factor = d.rng.uniform(1.15, 1.8)
    name = "slower-than-reference"
    d.compute[name] = lambda plan, task, s: s * factor
    d.transfer[name] = lambda task, s: s * factor
    d.collective[name] = lambda s: s * factor


PLANTERS: dict[str, Callable[[Draft], None]] = {
    "stage-imbalance": _stage_imbalance,
    "warm-up-drain": _few_microbatches,
    "order": _order,
    "late-receive": _late_receive,
    "exposed-transfer": _exposed_transfer,
    "exposed-reduction": _exposed_reduction,
    "bucket-too-large": _bucket_too_large,
    "bucket-too-small": _bucket_too_small,
    "unsplit-backward": _unsplit,
    "needless-recompute": _recompute,
    "memory-tight": _memory_tight,
    "memory-headroom": _memory_headroom,
    "microbatch-too-small": _small_microbatches,
    "straggler": _straggler,
    "slow-link": _slow_link,
    "host-overhead": _host_overhead,
    "jitter": _jitter,
    "slower-than-reference": _slower,
}
CAUSES: tuple[str, ...] = tuple(PLANTERS)

GUESSED: tuple[str, ...] = tuple(c for c in CAUSES if c not in ("slower-than-reference", "slow-link"))
"""Causes that a reference without durations shows."""

PAIRS: tuple[tuple[str, str], ...] = (
    ("stage-imbalance", "straggler"),
    ("needless-recompute", "slow-link"),
    ("order", "straggler"),
    ("exposed-transfer", "jitter"),
    ("bucket-too-large", "straggler"),
    ("stage-imbalance", "needless-recompute"),
    ("straggler", "jitter"),
    ("exposed-reduction", "stage-imbalance"),
)
"""Two-cause controls."""

ALL = ("gpipe", "1f1b", "interleaved", "zb-h1")


def families_of(causes: Sequence[str]) -> Sequence[str]:
    """Families that can have the causes: backwards that are whole, or one stage per device."""
    if "order" in causes:
        return ("gpipe", "1f1b")
    whole = {"unsplit-backward", "bucket-too-large", "bucket-too-small"}
    return ("gpipe", "1f1b", "interleaved") if whole & set(causes) else ALL


def replicas_of(causes: Sequence[str], *, guess: bool = False) -> Sequence[int]:
    """One, or several where gradients are to be reduced, or where only a peer can tell that a device is slow."""
    if guess and "straggler" in causes:
        return (2, 3)
    reducing = {"exposed-reduction", "bucket-too-large", "bucket-too-small"}
    return (2, 3) if reducing & set(causes) else (1, 1, 2)


# The judgement


def relevant(findings: Sequence[Finding], causes: Sequence[str]) -> list[Finding]:
    """Findings without those that the family has anyway, unless they were planted."""
    return [f for f in findings if f.kind not in INHERENT or f.kind in causes]


def right(one: Instance, findings: Sequence[Finding]) -> bool:
    """The planted cause comes first, on the planted device; of two causes both are among the first three; few
    microbatches come first of all, inherent kinds included. A clean control has nothing but small ones."""
    rest = relevant(findings, one.causes)
    if one.causes == ("clean",):
        return all(f.share < SMALL for f in rest)
    if one.causes == ("warm-up-drain",):
        return bool(findings) and findings[0].kind == "warm-up-drain"
    if len(one.causes) > 1:
        return set(one.causes) <= {f.kind for f in rest[:3]}
    return bool(rest) and rest[0].kind == one.causes[0] and one.device in (None, rest[0].device)


def confused(one: Instance, findings: Sequence[Finding]) -> list[Finding]:
    """Findings, not small, of an origin of which nothing was planted."""
    planted = {MEANINGS[cause][0] for cause in one.causes if cause != "clean"}
    return [f for f in relevant(findings, one.causes) if f.origin not in planted and f.share >= SMALL]
