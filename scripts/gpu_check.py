"""What `gpu_check.sh` runs: checks and times of training on this machine's GPUs, or on CPUs with `--dry`.

Every check stands alone: one that fails is a row that says so, and the next one runs. Times are those of this machine
at this moment, of a few steps: enough to see that nothing is badly off, too few to compare versions by.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pibroch.evals.gpt import GPT, mean_loss
from pibroch.evals.judge import Verdict, judge
from pibroch.evals.models import adamw, load_workload
from pibroch.evals.text import random_tokens
from pibroch.runtime.directives import Schedule
from pibroch.runtime.families import FAMILIES, build
from pibroch.runtime.launch_local import LocalLauncher
from pibroch.runtime.plan import Plan
from pibroch.runtime.trace import Trace
from pibroch.runtime.trainer import Trainer
from pibroch.runtime.workload import Workload

BUDGET = 270.0  # seconds after which no further check begins
MICROBATCHES = 4
EVOLVE = 90  # seconds of wall time for the short search


@dataclass(frozen=True)
class Where:
    """The device of this run, and how much work fits it."""

    device: str
    gpus: int

    @property
    def dry(self) -> bool:
        return self.device == "cpu"

    def trainer(self, workload: Workload, schedule: Schedule, *, ranks: int, shared: bool, **options: Any) -> Trainer:
        """`shared` puts all ranks on the first GPU, so that transfers go through host memory."""
        env = {"CUDA_VISIBLE_DEVICES": "0"} if shared and not self.dry else {}
        launcher = LocalLauncher(env=env)
        return Trainer(workload, schedule, launcher=launcher, ranks=ranks, device=self.device, deadline=90.0, **options)


def environment(where: Where) -> dict[str, Any]:
    """Versions and devices."""
    found: dict[str, Any] = {"python": sys.version.split()[0], "torch": torch.__version__, "gpus": where.gpus}
    if not where.dry:
        found["gpu"] = torch.cuda.get_device_name(0)
        found["memory_gib"] = round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1)
        nccl: Any = torch.cuda.nccl.version
        found["nccl"] = ".".join(str(part) for part in nccl())
    return found


def one_rank(where: Where) -> dict[str, Any]:
    """One device alone, which on CUDA means NCCL's executor: equal to a replay on the same device."""
    schedule = build("1f1b", devices=1, microbatches=MICROBATCHES)
    with where.trainer(load_workload("gpt-tiny"), schedule, ranks=1, shared=True) as trainer:
        return _equal({"1f1b": judge(trainer, steps=2)})


def families(where: Where, *, shared: bool, name: str = "gpt-tiny", dtype: str | None = None) -> dict[str, Any]:
    """Every family over two ranks, and two replicas: equal to a replay (float32) or to the whole batch (float64)."""
    schedules = {family: _two_devices(family) for family in FAMILIES}
    schedules["replicas"] = build("1f1b", devices=1, microbatches=MICROBATCHES, replicas=2)
    if where.dry:
        schedules = {family: schedules[family] for family in ("zb-h1", "replicas")}
    verdicts: dict[str, Verdict] = {}
    with where.trainer(load_workload(name), schedules["zb-h1"], ranks=2, shared=shared, dtype=dtype) as trainer:
        for family, schedule in schedules.items():
            trainer.load(schedule)
            verdicts[family] = judge(trainer, steps=2, peak=False)
    return _equal(verdicts)


def memory(where: Where) -> dict[str, Any]:
    """GPipe keeps every microbatch's activations, 1F1B two: the first rank's peak says so."""
    microbatches, peaks = 8, dict[str, list[int]]()
    schedules = {f: build(f, devices=2, microbatches=microbatches) for f in ("gpipe", "1f1b")}
    workload = load_workload("gpt-tiny" if where.dry else "gpt-bench")
    with where.trainer(workload, schedules["gpipe"], ranks=2, shared=True) as trainer:
        for family, schedule in schedules.items():
            trainer.load(schedule)
            trainer.step(workload.batch(trainer.batch_size, 0))
            peaks[family] = trainer.peak_bytes()
    right = peaks["gpipe"][0] > peaks["1f1b"][0] > 0
    return {"ok": right, **{f"{family}_mb": [round(b / 1e6, 1) for b in found] for family, found in peaks.items()}}


def trace(where: Where, *, shared: bool) -> dict[str, Any]:
    """Task times: every task after what it waits for, all within the step; how much of the transfers compute hides."""
    workload = load_workload("gpt-tiny" if where.dry else "gpt-bench")
    with where.trainer(workload, _two_devices("1f1b"), ranks=2, shared=shared) as trainer:
        trainer.step(workload.batch(trainer.batch_size, 0))
        found, plan = trainer.trace(), trainer.plan
    return {"ok": in_order(plan, found), "step_ms": _ms(found.makespan), "hidden_ms": _ms(hidden(plan, found))}


def speed(where: Where) -> dict[str, Any]:
    """Steps of one rank against a plain PyTorch loop on the same device; both with AdamW, both warm."""
    workload = load_workload("mlp-tiny") if where.dry else _large()
    schedule = build("1f1b", devices=1, microbatches=MICROBATCHES)
    steps = 3 if where.dry else 10
    with where.trainer(workload, schedule, ranks=1, shared=True) as trainer:
        batches = [workload.batch(trainer.batch_size, step) for step in range(steps + 2)]
        results = [trainer.step(batch) for batch in batches][2:]
        busy = _compute_seconds(trainer.plan, trainer.trace())
    mine = statistics.median(r.seconds for r in results)
    theirs = statistics.median(_eager(workload, batches, where.device)[2:])
    found = {"step_ms": _ms(mine), "eager_ms": _ms(theirs), "compute_ms": _ms(busy), "ratio": round(theirs / mine, 3)}
    return {**found, "tokens_per_s": round(results[0].tokens / mine)}


def pipeline_speed(where: Where) -> dict[str, Any]:
    """Steps of two GPUs over NCCL."""
    workload, schedule = _large(), _two_devices("1f1b")
    with where.trainer(workload, schedule, ranks=2, shared=False) as trainer:
        results = [trainer.step(workload.batch(trainer.batch_size, step)) for step in range(12)][2:]
    mine = statistics.median(r.seconds for r in results)
    return {"step_ms": _ms(mine), "tokens_per_s": round(results[0].tokens / mine)}


def evolve_command(where: Where, out: Path) -> list[str]:
    """A short search without a key: a few candidates proved, simulated and timed in pairs on this machine."""
    task, budget, device = ("gpt-tiny-2", "2", "cpu") if where.dry else ("gpt-small-2", "4", "cuda")
    return [
        "evolve", task, "--budget", budget, "--scores", "measured", "--launcher", "local", "--device", device,
        "--playbook", "none", "--max-seconds", str(EVOLVE), "--out", str(out), "--json",
    ]  # fmt: skip


def evolve(where: Where) -> dict[str, Any]:
    """`pibroch evolve` ends with a best schedule, or with the start's where nothing was faster."""
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        return {"ok": None, "skipped": f"the command line needs {' and '.join(missing)}"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pibroch", *evolve_command(where, Path(folder) / "run")]
        env = {**os.environ, **({} if where.dry else {"CUDA_VISIBLE_DEVICES": "0"})}
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=EVOLVE + 60)
    if done.returncode:
        return {"ok": False, "error": f"exit status {done.returncode}", "detail": done.stderr[-2000:]}
    result = json.loads(done.stdout.splitlines()[-1])
    best = result["best"]
    right = result["evaluations"] >= 1 and result["kind"] == "measured"
    return {"ok": right, "evaluations": result["evaluations"], "ended": result["ended"], "ratio": best["ratio"]}


def checks(where: Where) -> list[tuple[str, Callable[[Where], dict[str, Any]]]]:
    """What to run here, the most telling first."""
    rows: list[tuple[str, Callable[[Where], dict[str, Any]]]] = [
        ("environment", environment),
        ("one rank", one_rank),
        ("families, shared GPU", partial(families, shared=True)),
    ]
    if where.gpus >= 2:
        rows.append(("families, NCCL", partial(families, shared=False)))
    rows += [("trace, shared GPU", partial(trace, shared=True)), ("memory", memory), ("speed", speed)]
    rows.append(("evolve, shared GPU", evolve))
    if where.gpus >= 2:
        rows += [("trace, NCCL", partial(trace, shared=False)), ("speed, two GPUs", pipeline_speed)]
    if not where.dry:
        rows += [
            ("dropout, shared GPU", partial(families, shared=True, name="gpt-dropout")),
            ("tied, shared GPU", partial(families, shared=True, name="gpt-tied")),
            ("float64, shared GPU", partial(families, shared=True, dtype="float64")),
        ]
    return rows


def in_order(plan: Plan, trace: Trace) -> bool:
    """Every task ran, for a time that is not negative, after what it waits for and within the step."""
    start = {e.task: e.start for e in trace.events}
    end = {e.task: e.end for e in trace.events}
    slack = 1e-5  # CUDA gives times to about half a microsecond, in single precision
    return len(start) == len(plan.tasks) and all(
        0.0 <= start[t.id] <= end[t.id] + slack and all(end[w] <= start[t.id] + slack for w in t.waits)
        for t in plan.tasks
    )


def hidden(plan: Plan, trace: Trace) -> float:
    """Seconds of sends, over all devices, during which the same device computes."""
    total = 0.0
    compute = [e for e in trace.events if e.stream == "compute"]
    for send in (e for e in trace.events if plan.tasks[e.task].op == "SEND"):
        total += sum(
            max(0.0, min(e.end, send.end) - max(e.start, send.start)) for e in compute if e.device == send.device
        )
    return total


def _two_devices(family: str) -> Schedule:
    return build(family, devices=2, microbatches=MICROBATCHES, stages_per_device=2 if family == "interleaved" else 1)


def _equal(verdicts: dict[str, Verdict]) -> dict[str, Any]:
    worst = max(verdicts.values(), key=lambda v: max(v.max_rel_loss_err, v.max_rel_grad_err, v.max_rel_weight_err))
    return {
        "ok": all(v.ok for v in verdicts.values()),
        "bitwise": [name for name, v in verdicts.items() if v.bitwise],
        "differ": [name for name, v in verdicts.items() if not v.ok],
        "largest": f"{max(worst.max_rel_loss_err, worst.max_rel_grad_err, worst.max_rel_weight_err):.2g} {worst.worst}",
    }


def _large() -> Workload:
    """A GPT large enough that a GPU's time goes into its kernels: 100 million parameters in its blocks."""
    length, vocabulary = 512, 8192
    return Workload(
        name="gpt-large",
        model=partial(GPT, vocabulary=vocabulary, width=1024, heads=16, blocks=8, length=length),
        loss=mean_loss,
        optimizer=partial(adamw, lr=3e-4),
        batch=partial(random_tokens, length=length, vocabulary=vocabulary),
        microbatch=4,
        tokens=length,
    )


def _eager(workload: Workload, batches: list[Any], device: str) -> list[float]:
    model = workload.model().to(device)
    optimizer = workload.optimizer(list(model.named_parameters()))
    seconds = []
    for batch in batches:
        start = _now(device)
        leaves, structure = torch.utils._pytree.tree_flatten(batch)
        for pieces in zip(*[leaf.to(device).tensor_split(MICROBATCHES) for leaf in leaves], strict=True):
            loss = workload.loss(model, torch.utils._pytree.tree_unflatten(list(pieces), structure))
            assert isinstance(loss, torch.Tensor)
            (loss / MICROBATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(_now(device) - start)
    return seconds


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.monotonic()


def _compute_seconds(plan: Plan, trace: Trace) -> float:
    return sum(e.end - e.start for e in trace.events if plan.tasks[e.task].stream == "compute")


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def main() -> int:
    """Run the checks and print; the exit status is 1 if one fails, 3 without a GPU."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, help="folder for gpu_check.json")
    parser.add_argument("--dry", action="store_true", help="on CPUs, with less work")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds after which no further check begins")
    options = parser.parse_args()
    gpus = 0 if options.dry or not torch.cuda.is_available() else torch.cuda.device_count()
    if not gpus and not options.dry:
        print("gpu_check: no CUDA device here; --dry checks the same on CPUs", file=sys.stderr)
        return 3
    where = Where("cuda" if gpus else "cpu", gpus)
    begin, rows = time.monotonic(), list[dict[str, Any]]()
    for name, check in checks(where):
        start = time.monotonic()
        if start - begin > options.budget:
            rows.append({"check": name, "ok": None, "skipped": "out of time"})
            continue
        try:
            found = check(where)
        except Exception as error:  # a row, so that the rest still runs
            found = {
                "ok": False,
                "error": f"{type(error).__name__}: {error}",
                "detail": getattr(error, "detail", "")[-2000:],
            }
        row = {"check": name, "ok": found.pop("ok", True), "seconds": round(time.monotonic() - start, 1), **found}
        rows.append(row)
        state = "ok" if row["ok"] else "WRONG"
        facts = "  ".join(f"{k}={v}" for k, v in found.items() if k != "detail" and v not in ("", []))
        print(f"{name:22} {state:6} {row['seconds']:6.1f} s  {facts}")
    ok = all(row["ok"] is not False for row in rows)
    result = json.dumps({"ok": ok, "dry": where.dry, "seconds": round(time.monotonic() - begin, 1), "checks": rows})
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "gpu_check.json").write_text(result + "\n", encoding="utf-8")
    print(result)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
