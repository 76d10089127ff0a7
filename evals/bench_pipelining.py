"""`pibroch bench pipelining`: forward and backward of one GPT on two ranks, against torch.distributed.pipelining.

Both sides hold the same weights and batch in warm processes of one thread each, with the same stage boundaries, and
their steps alternate; all times are by this process's clock. Ratios are speed of ours over theirs. First, each schedule
of ours is judged, and the gradients of each of theirs are compared with the same reference: a peer that loses some is
marked.

Claims, as (ours, microbatches, theirs, bound, what is bounded): see `CLAIMS`. Two more are judged for each of our rows:
the measured step is at most 1.05 of the simulated one (chunk costs profiled on the same workers at the same time), and
peak tensor bytes on no rank exceed those of the same family of theirs.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from pibroch.evals.judge import FLOOR, judge, reference_for, relative_error
from pibroch.evals.models import load_workload
from pibroch.evals.peers import PEERS, PeerPool, even_cut
from pibroch.evals.timing import measurement_lock, paired
from pibroch.runtime.directives import Schedule
from pibroch.runtime.families import build
from pibroch.runtime.simulate import simulate
from pibroch.runtime.trainer import Trainer

RANKS = 2
STEP_OVER_SIMULATED = 1.05
SIMULATED_STEPS = 5


class Claim(NamedTuple):
    """`of` says which number must reach `bound`: the interval's lower limit, or the ratio itself."""

    ours: str
    theirs: str
    microbatches: int
    bound: float
    of: str


CLAIMS = (
    Claim("gpipe", "gpipe", 8, 0.98, "lower"),
    Claim("1f1b", "1f1b", 8, 0.98, "lower"),
    Claim("interleaved", "interleaved", 8, 0.98, "lower"),
    Claim("zb-h1", "1f1b", 4, 1.08, "ratio"),
)


def schedule_of(family: str, microbatches: int, *, blocks: int) -> Schedule:
    """One of our families over two ranks, cut where the peer's stages are."""
    per_device = 2 if family == "interleaved" else 1
    return build(
        family,
        devices=RANKS,
        microbatches=microbatches,
        stages_per_device=per_device,
        cut=even_cut(blocks, RANKS * per_device),
    )


def run(
    *,
    workload: str = "gpt-bench",
    claims: Sequence[Claim] = CLAIMS,
    table_family: str = "zb-h1",
    table_peers: Sequence[str] = tuple(PEERS),
    table_microbatches: Sequence[int] = (4, 8),
    pairs: int = 20,
    table_pairs: int = 8,
    launcher: str = "local",
    seed: int = 0,
    deadline: float = 120.0,
    keep_noisy: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure every claim, then `table_family` against all of `table_peers`. Holds the measurement lock throughout.

    Raises `WorkerError` where the machine is never quiet; `keep_noisy` keeps such samples, for smoke tests.
    """
    most = max([claim.microbatches for claim in claims] + list(table_microbatches))
    with measurement_lock(), _Bench(workload, most, launcher=launcher, seed=seed, deadline=deadline) as bench:
        timed = partial(bench.compare, keep_noisy=keep_noisy)
        rows = []
        for claim in claims:
            row = timed(claim.ours, claim.theirs, claim.microbatches, pairs=pairs)
            value = row["interval"][0] if claim.of == "lower" else row["ratio"]
            row |= {"bound": claim.bound, "of": claim.of, "passed": value >= claim.bound and row["equal"]}
            if claim.ours == claim.theirs:
                row["memory_passed"] = all(
                    a <= b for a, b in zip(row["peak_bytes"], row["their_peak_bytes"], strict=True)
                )
            row["simulated_passed"] = row["step_over_simulated"] <= STEP_OVER_SIMULATED
            rows.append(row)
            progress(_claim_line(row))
        table = []
        for microbatches in table_microbatches:
            for theirs in table_peers:
                table.append(timed(table_family, theirs, microbatches, pairs=table_pairs))
                progress(_table_line(table[-1]))
        single = {m: bench.single(m) for m in sorted({row["microbatches"] for row in rows + table})}
    checks = [row[key] for row in rows for key in ("passed", "memory_passed", "simulated_passed") if key in row]
    return {
        "bench": "pipelining",
        "workload": workload,
        "ok": all(checks),
        "claims": rows,
        "table": table,
        "single_process_s": single,
        "torch": torch.__version__,
        "cpus": len(os.sched_getaffinity(0)),
        "launcher": launcher,
    }


class _Bench:
    """Both pools, warm."""

    def __init__(self, name: str, microbatches: int, *, launcher: str, seed: int, deadline: float) -> None:
        self.workload = load_workload(name)
        self.blocks = len(self.workload.model().blocks)  # type: ignore[arg-type]
        self.seed = seed
        self.batch = self.workload.batch(microbatches * self.workload.microbatch, seed)
        self.peers = PeerPool(self.workload, self.batch, ranks=RANKS, seed=seed, deadline=deadline)
        try:
            self.trainer = Trainer(
                self.workload,
                schedule_of("1f1b", microbatches, blocks=self.blocks),
                launcher=launcher,
                seed=seed,
                deadline=deadline,
                update=False,
            )
            self.trainer.prepare()
        except BaseException:
            self.peers.close()
            raise
        self._judged: dict[tuple[str, int], bool] = {}
        self._peer_errors: dict[tuple[str, int], tuple[float, str]] = {}

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.peers.close()
        self.trainer.close()

    def samples(self, microbatches: int) -> Any:
        """The batch that both sides use: the first samples."""
        return {name: t[: microbatches * self.workload.microbatch] for name, t in self.batch.items()}

    def compare(self, ours: str, theirs: str, microbatches: int, *, pairs: int, keep_noisy: bool) -> dict[str, Any]:
        """Judge, then time one of ours against one of theirs."""
        batch = self.samples(microbatches)
        self.trainer.load(schedule_of(ours, microbatches, blocks=self.blocks))
        if (ours, microbatches) not in self._judged:
            self._judged[ours, microbatches] = judge(self.trainer, [batch], steps=1, peak=False).ok
        self.peers.load(theirs, microbatches)
        error, lost = self._check_peer(theirs, microbatches)
        result = paired(
            lambda: self.peers.step(theirs, microbatches),
            lambda: self.trainer.step(batch),
            pairs=pairs,
            keep_noisy=keep_noisy,
        )
        measured, simulated = zip(*(self._beside_simulation(batch) for _ in range(SIMULATED_STEPS)), strict=True)
        return {
            "ours": ours,
            "theirs": theirs,
            "microbatches": microbatches,
            **result.to_json(),
            "equal": self._judged[ours, microbatches],
            "peer_gradient_error": error,
            "peer_lost_gradients": lost,
            "simulated_s": statistics.median(simulated),
            "step_over_simulated": statistics.median(a / b for a, b in zip(measured, simulated, strict=True)),
            "peak_bytes": self.trainer.peak_bytes(),
            "their_peak_bytes": self.peers.peak_bytes(theirs, microbatches),
        }

    def _beside_simulation(self, batch: Any) -> tuple[float, float]:
        """Seconds of a step by the workers' clocks, and the simulated makespan with chunk costs profiled just then."""
        costs = self.trainer.profile(steps=2)
        return self.trainer.step(batch).seconds, simulate(self.trainer.plan, costs).makespan

    def single(self, microbatches: int) -> float:
        """Seconds of the same step in one process: the least of three."""
        self.peers.single_step(microbatches)
        return min(self.peers.single_step(microbatches) for _ in range(3))

    def _check_peer(self, theirs: str, microbatches: int) -> tuple[float, str]:
        """The peer's largest relative gradient error against our reference, and the parameters that it has none for."""
        if (theirs, microbatches) not in self._peer_errors:
            _, expected = reference_for(self.trainer).gradients(self.samples(microbatches))
            found = self.peers.gradients(theirs, microbatches)
            floor = FLOOR * max(float(g.abs().max()) for g in expected.values())
            errors = [relative_error(found[name], g, floor=floor) for name, g in expected.items() if name in found]
            lost = ", ".join(sorted(expected.keys() - found.keys()))
            self._peer_errors[theirs, microbatches] = (max(errors), lost)
        return self._peer_errors[theirs, microbatches]


def report(result: dict[str, Any]) -> str:
    """The claims with their verdicts, the table, and the single process beside them."""
    return "\n".join(_lines(result))


def _lines(result: dict[str, Any]) -> Iterator[str]:
    yield f"{result['workload']}, {RANKS} ranks, forward and backward, torch {result['torch']}"
    for row in result["claims"]:
        yield _claim_line(row)
    if result["table"]:
        yield "ours / theirs, median step, speed of ours over theirs with interval:"
        yield from map(_table_line, result["table"])
    for microbatches, seconds in result["single_process_s"].items():
        yield f"single process, {microbatches} microbatches: {seconds * 1e3:.0f} ms"
    yield "every claim holds" if result["ok"] else "NOT every claim holds"


def _claim_line(row: dict[str, Any]) -> str:
    lower, upper = row["interval"]
    parts = [
        f"{'pass' if row['passed'] else 'FAIL'} {row['ours']} m={row['microbatches']} against their {row['theirs']}: "
        f"{row['ratio']:.3f} [{lower:.3f}, {upper:.3f}], {row['of']} must be >= {row['bound']}",
        f"step / simulated {row['step_over_simulated']:.3f}{'' if row['simulated_passed'] else ' FAIL'}",
    ]
    if "memory_passed" in row:
        mine, peer = (max(row[key]) / 1e6 for key in ("peak_bytes", "their_peak_bytes"))
        parts.append(f"peak {mine:.1f} MB against {peer:.1f} MB{'' if row['memory_passed'] else ' FAIL'}")
    if not row["equal"]:
        parts.append("ours DIFFERS from the single process")
    return "; ".join(parts)


def _table_line(row: dict[str, Any]) -> str:
    lower, upper = row["interval"]
    wrong = f"; theirs has no gradient of {row['peer_lost_gradients']}" if row["peer_lost_gradients"] else ""
    if row["peer_gradient_error"] > 1e-3:
        wrong += f"; theirs is wrong by {row['peer_gradient_error']:.1e}"
    return (
        f"  m={row['microbatches']} {row['ours']} {row['candidate_median'] * 1e3:.0f} ms / {row['theirs']} "
        f"{row['baseline_median'] * 1e3:.0f} ms: {row['ratio']:.3f} [{lower:.3f}, {upper:.3f}]{wrong}"
    )
