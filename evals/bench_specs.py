"""`pibroch bench specs`: how long `spec check` and `regenerate` take for the shipped specs, with nothing remembered.

Each measurement is the command itself in a process of its own, with a fresh cache folder. `regenerate` answers from the
recorded conversations of a checkout, so no model's time is in it, and judges everything anew; without them the shipped
module is judged once at its last phase. Times are those on the wall; processor time, which other work on the machine
stretches less, stands beside them.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pibroch
import pibroch.generated
import pibroch.specs
from pibroch.evals.speceval.pipeline import judge_module
from pibroch.runtime.errors import InputError, WorkerError
from pibroch.specs.model import Spec
from pibroch.specs.store import load_all, order

CHECK_S = 20.0
"""Claimed of `spec check` of everything where nothing has changed."""
REGENERATE_S = 90.0
"""Claimed of `regenerate` of each module, without model time."""
QUICK = ("retry_delay", "trace_ring", "gpipe")
HOME = Path(pibroch.__file__).resolve().parents[1]
CONVERSATIONS = HOME / "tests" / "agents" / "conversations" / "modules"
DEADLINE_S = 1800.0

Progress = Callable[[str], None]


def run(
    names: Sequence[str] | None = None,
    *,
    conversations: Path = CONVERSATIONS,
    check_s: float = CHECK_S,
    regenerate_s: float = REGENERATE_S,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Time the commands for these shipped modules (default: all). Returns `ok`, `check`, `modules` and `claims`.

    Raises `InputError` for an unknown name and `WorkerError` where a command does not finish.
    """
    known = shipped_specs()
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise InputError(f"no shipped spec of the name {', '.join(unknown)} (known: {', '.join(sorted(known))})")
    chosen = [name for name in order(known) if names is None or name in names]
    checks = check_twice(chosen, progress=progress)
    modules = []
    for name in chosen:
        modules.append(regenerate_row(name, conversations))
        progress("\n".join(_module_lines(modules[-1])))
    claims = judge_claims(checks, modules, check_s, regenerate_s)
    sound = all(row["ok"] for row in (*checks.values(), *modules))
    return {"ok": sound and all(claim["met"] for claim in claims), "check": checks, "modules": modules,
            "claims": claims}  # fmt: skip


def shipped_specs() -> dict[str, Spec]:
    """The specs of this package, without any project's."""
    return load_all([Path(folder) for folder in pibroch.specs.__path__])


def check_twice(names: Sequence[str], *, progress: Progress = lambda _: None) -> dict[str, dict[str, Any]]:
    """`uncached` and `cached`: `spec check` in a fresh cache folder, and once more in the same."""
    rows = {}
    with tempfile.TemporaryDirectory(prefix="pibroch-bench-") as folder:
        for kind in ("uncached", "cached"):
            said, wall, processor = _command(["spec", "check", *names, "--json"], Path(folder))
            rows[kind] = {
                "ok": bool(said["ok"]), "specs": len(said.get("specs", [])), "seconds": wall, "cpu_s": processor,
                "kept": sum(bool(row["cached"]) for row in said.get("specs", [])),
                "acceptance": {row["module"]: row["acceptance"] for row in said.get("specs", [])},
            }  # fmt: skip
            progress(_check_line(kind, rows[kind]))
    return rows


def regenerate_row(name: str, conversations: Path) -> dict[str, Any]:
    """One module in a fresh project and cache folder. `ok` is False, and `problem` says why, where it was refused."""
    with tempfile.TemporaryDirectory(prefix="pibroch-bench-") as folder:
        here = Path(folder)
        if conversations.is_dir():
            (here / "pibroch.toml").write_text('[project]\nname = "bench"\n', encoding="utf-8")
            arguments = ["regenerate", name, "--lm", f"replay:{conversations}", "--json"]
            said, wall, processor = _command(arguments, here)
            how = "regenerated"
        else:
            code = f"import json; from {__name__} import judge_shipped; print(json.dumps(judge_shipped({name!r})))"
            said, wall, processor = _timed([sys.executable, "-c", code], here)
            how = "judged"
    problem = said.get("problem") or (said.get("error") or {}).get("message", "")
    tracks = [_track(track) for track in said.get("phases", [])]
    return {
        "module": name, "how": how, "ok": bool(said["ok"]), "problem": problem, "seconds": wall, "cpu_s": processor,
        "phases": tracks, "stages": _stages(tracks), "acceptance": _acceptance(tracks),
        "contract_calls": sum(track["calls"] for track in _distinct(tracks)),
        "explored": sum(track["explored"] for track in _distinct(tracks)),
    }  # fmt: skip


def judge_shipped(name: str) -> dict[str, Any]:
    """The shipped module judged at its last phase, in the shape of `regenerate --json`."""
    specs = shipped_specs()
    sources = {path.stem: path.read_text(encoding="utf-8") for folder in pibroch.generated.__path__
               for path in Path(folder).glob("*/*.py")}  # fmt: skip
    if name not in sources:
        return {"ok": False, "problem": f"{name}: no generated module"}
    phase = max(specs[name].phases)
    report = judge_module(sources[name], specs[name], phase=phase, peers=specs, sources=sources)
    return {
        "ok": report.passed,
        "problem": str(report.findings[0]) if report.findings else "",
        "phases": [
            {
                "phase": phase, "sample": 0, "attempts": 1,
                "seconds": {stage.stage: round(stage.seconds, 3) for stage in report.stages},
                "evidence": {stage.stage: stage.evidence for stage in report.stages},
            }
        ],
    }  # fmt: skip


def judge_claims(
    checks: Mapping[str, Mapping[str, Any]], modules: Sequence[Mapping[str, Any]], check_s: float, regenerate_s: float
) -> list[dict[str, Any]]:
    """What is claimed, the figure (the slowest module's), and whether it is met. A refused module meets nothing."""
    cached, slowest = checks["cached"], max(modules, key=lambda row: float(row["seconds"]))
    how = "regenerate" if slowest["how"] == "regenerated" else "judging"
    return [
        {
            "claim": f"spec check of {cached['specs']} specs, cached", "limit_s": check_s,
            "seconds": cached["seconds"],
            "met": cached["ok"] and cached["kept"] == cached["specs"] and cached["seconds"] < check_s,
        },
        {
            "claim": f"{how} of each of {len(modules)} modules without model time (slowest: {slowest['module']})",
            "limit_s": regenerate_s, "seconds": slowest["seconds"],
            "met": all(row["ok"] and row["seconds"] < regenerate_s for row in modules),
        },
    ]  # fmt: skip


def report(result: Mapping[str, Any]) -> str:
    """Both checks, every module with its stages and rates, and the claims."""
    lines = [_check_line(kind, row) for kind, row in result["check"].items()]
    for row in result["modules"]:
        lines += _module_lines(row)
    for claim in result["claims"]:
        word = "met   " if claim["met"] else "MISSED"
        lines.append(f"{word} {claim['claim']}: {claim['seconds']:.1f} s (limit {claim['limit_s']:g} s)")
    return "\n".join(lines)


def _command(arguments: Sequence[str], folder: Path) -> tuple[dict[str, Any], float, float]:
    return _timed([sys.executable, "-m", "pibroch", *arguments], folder)


def _timed(command: Sequence[str], folder: Path) -> tuple[dict[str, Any], float, float]:
    """A command that prints JSON as its last line: the object, seconds on the wall and processor seconds."""
    path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
    own = {k: v for k, v in os.environ.items() if k != "PIBROCH_GENERATED"}
    environment = own | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    before, started = _processor(), time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise WorkerError(f"bench specs: {' '.join(command[1:4])} took more than {DEADLINE_S:g} s") from error
    wall = time.perf_counter() - started
    try:
        said = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise WorkerError(f"bench specs: {' '.join(command[1:4])} ended with code {done.returncode}: "
                          f"{done.stderr.strip()[-400:]}") from error  # fmt: skip
    assert isinstance(said, dict)
    return said, round(wall, 2), round(_processor() - before, 2)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _track(track: Mapping[str, Any]) -> dict[str, Any]:
    evidence = track["evidence"]
    contract = evidence.get("contract", {})
    return {
        "phase": track["phase"], "sample": track["sample"], "attempts": track["attempts"],
        "seconds": track["seconds"], "acceptance": contract.get("acceptance", {}), "calls": contract.get("calls", 0),
        "explored": evidence.get("concurrency", {}).get("runs", 0),
    }  # fmt: skip


def _distinct(tracks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two writers that wrote the same module were judged once, and both tracks tell of it."""
    return list({(t["phase"], json.dumps(t["seconds"])): t for t in tracks}.values())


def _stages(tracks: Sequence[dict[str, Any]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for track in _distinct(tracks):
        for stage, seconds in track["seconds"].items():
            total[stage] = round(total.get(stage, 0.0) + seconds, 3)
    return total


def _acceptance(tracks: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Per operation, the lowest over the phases and samples."""
    rates: dict[str, float] = {}
    for track in tracks:
        for name, rate in track["acceptance"].items():
            rates[name] = min(rate, rates.get(name, rate))
    return rates


def _check_line(kind: str, row: Mapping[str, Any]) -> str:
    word = "ok  " if row["ok"] else "FAIL"
    return (
        f"{word} spec check, {kind}: {row['specs']} specs in {row['seconds']:.1f} s ({row['cpu_s']:.1f} s of processor)"
    )


def _module_lines(row: Mapping[str, Any]) -> list[str]:
    head = f"{'ok  ' if row['ok'] else 'FAIL'} {row['module']} {row['how']} in {row['seconds']:.1f} s"
    lines = [f"{head} ({row['cpu_s']:.1f} s of processor)"]
    if row["problem"]:
        lines.append(f"       {row['problem'].splitlines()[0]}")
    if row["stages"]:
        lines.append("       stages   " + ", ".join(f"{stage} {s:.1f} s" for stage, s in row["stages"].items()))
    if row["acceptance"]:
        lines.append("       accepted " + ", ".join(f"{name} {rate:.0%}" for name, rate in row["acceptance"].items()))
    explored = f", {row['explored']} interleavings" if row["explored"] else ""
    return [*lines, f"       explored {row['contract_calls']} calls{explored}"]
