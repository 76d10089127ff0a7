"""SpecEval's mechanical stages in their order; the first one that fails ends the judgement.

load        the spec's clauses type-check
rules       the code's syntax tree: imports, names, shape
contract    runs of calls against the clauses, with stubs for what the module relies on
symbolic    CrossHair looks for a run that breaks a clause; what it finds is run again and judged outside
cost        growth of the work with the size
rely        what is relied upon fits what is guaranteed, and then: together with the real modules
concurrency interleavings against the protocol (phase 2)

The last word, a reviewer's that reads prose, is a language model's: `agents/reviewer.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from pibroch.evals.speceval.verdict import Report, StageReport
from pibroch.specs.model import Spec

Stage = tuple[str, Callable[[], StageReport]]


def judge_module(
    source: str,
    spec: Spec,
    *,
    phase: int,
    peers: Mapping[str, Spec],
    sources: Mapping[str, str],
    sequential: str | None = None,
    effort: Literal["quick", "full"] = "full",
    stop: bool = True,
) -> Report:
    """Judge one candidate.

    `peers` are the specs of all modules, `sources` the accepted code of those that this one relies on; a rely without
    code is judged against stubs alone. `sequential`, the accepted phase-1 module, proposes witnesses in phase 2.
    With `stop=False` every stage runs that can.
    """
    report = Report(spec.module, phase)
    for name, run in _stages(source, spec, phase, peers, sources, sequential, effort):
        started = time.monotonic()
        stage = run()
        stage.stage, stage.seconds = name, time.monotonic() - started
        report.stages.append(stage)
        if not stage.passed and (stop or name in ("load", "rules")):
            break
    return report


def _stages(
    source: str,
    spec: Spec,
    phase: int,
    peers: Mapping[str, Spec],
    sources: Mapping[str, str],
    sequential: str | None,
    effort: Literal["quick", "full"],
) -> Iterator[Stage]:
    # Imported here: mypy and z3 take a second each, and not every caller gets so far.
    from pibroch.evals.speceval import concurrency, contract, cost, real_relies, rely, rules, symbolic, typecheck

    yield "load", lambda: typecheck.judge(spec, peers=peers)
    yield "rules", lambda: rules.judge(source, spec, phase)
    yield "contract", lambda: contract.judge(source, spec, phase=phase, peers=peers, effort=effort)
    if effort == "full":
        yield "symbolic", lambda: symbolic.judge(source, spec, phase=phase)
    if spec.front.cost and effort == "full":
        yield "cost", lambda: cost.judge(source, spec)
    if spec.relies:
        yield "rely", lambda: rely.judge(spec, peers)
        yield "together", lambda: real_relies.judge(source, spec, phase=phase, peers=peers, sources=sources)
    if phase == 2 and spec.front.concurrency.model == "threads":
        yield "concurrency", lambda: concurrency.judge(source, spec, peers=peers, sequential=sequential)
