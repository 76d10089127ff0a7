"""Rely and guarantee: what a module takes from another must follow from what that one promises.

Of every rely: its signature fits the operation; what it promises to ask (`requires`) is enough for the operation, which
then does not raise; and the operation's guaranteed clauses (`guarantee.clauses`, invariants among them, and its frame)
imply what it expects (`ensures`). Verdicts are keyed by the rely's clause (`rely.trace_ring.last.ensures.0`), and by
the operation's clause for what that requires (`rely.trace_ring.last.A2`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pibroch.evals.speceval import cache
from pibroch.evals.speceval.implication import Answer, Ruling, implied
from pibroch.evals.speceval.signature import misfits
from pibroch.evals.speceval.statements import Place, Statement, place, promises
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.specs.model import Clause, Operation, Rely, Spec


@dataclass(frozen=True, slots=True)
class Verdict:
    """One implication of a rely. `clause` is the rely's (of `requires`: the operation's that must follow)."""

    rely: Rely
    clause: Clause
    key: str
    line: int
    ruling: Ruling
    by: str
    values: Mapping[str, str]
    message: str


def judge(spec: Spec, peers: Mapping[str, Spec]) -> StageReport:
    """All relies of a spec against its peers' specs. Raises `MissingError` where z3, CrossHair or mypy are missing."""
    report = StageReport("rely")
    for rely in spec.relies:
        fault = misfit(rely, peers)
        if fault:
            report.findings.append(Finding("rely", f"rely.{rely.name}", fault, rely.line))
            continue
        for verdict in verdicts(spec, rely, peers[rely.module]):
            report.verdicts[verdict.key] = verdict.ruling
            if verdict.ruling == "refuted":
                report.findings.append(
                    Finding("rely", verdict.key, verdict.message, verdict.line, values=verdict.values)
                )
    report.evidence = {"relies": len(spec.relies), "implications": len(report.verdicts)}
    return report


def misfit(rely: Rely, peers: Mapping[str, Spec]) -> str:
    """Why the relied-upon function is none that its module offers in this form; empty if it is."""
    if rely.module not in peers:
        return f"relies on {rely.module}, which has no spec"
    where = _place(rely, peers[rely.module])
    if where is None:
        offered = [f"{rely.module}.{o}" for u in peers[rely.module].units if not u.is_class for o in u.operations]
        return f"relies on {rely.name}, which the spec of {rely.module} does not have (it has {_list(offered)})"
    reason = misfits([(rely.function, where.operation)])[0]
    return f"rely {rely.name} {reason}" if reason else ""


def verdicts(spec: Spec, rely: Rely, callee: Spec, *, crosshair: bool = True) -> list[Verdict]:
    """Every implication of one rely that fits its operation."""
    where = _place(rely, callee)
    assert where is not None, rely.name
    found: list[Verdict] = []
    asked = [Statement(spec, spec.module, c) for c in rely.function.of("requires")]
    listed = callee.front.guarantee.clauses
    standing = [p for p in promises(where, listed) if p.early]
    at = asked[0].clause.line if asked else rely.line
    for clause in where.operation.of("requires"):
        answer = ask(where, [*asked, *standing], Statement(callee, where.unit.name, clause), crosshair=crosshair)
        message = f"{rely.name} requires {clause.id} ({clause.text}), which the rely does not promise"
        found.append(_verdict(rely, clause, f"rely.{rely.name}.{clause.id}", at, answer, message))
    called = [*asked, *(p for p in promises(where, listed) if p.early or p.clause.kind in ("requires", "when"))]
    for clause in where.operation.of("raises"):
        answer = ask(where, called, Statement(callee, where.unit.name, clause, negated=True), crosshair=crosshair)
        message = f"{rely.name} may raise {clause.exception} ({clause.id}: {clause.text}): the rely does not exclude it"
        found.append(_verdict(rely, clause, f"rely.{rely.name}.{clause.id}", at, answer, message))
    given = [*asked, *promises(where, listed)]
    for clause in rely.function.of("ensures"):
        answer = ask(where, given, Statement(spec, spec.module, clause), crosshair=crosshair)
        names = [c.id for c in (*where.operation.of("ensures"), *where.unit.invariants) if c.id in listed]
        message = f"expects {clause.text} of {rely.name}, which {_list(names)} of {rely.module} {_do(names)} not give"
        found.append(_verdict(rely, clause, clause.id, clause.line, answer, message))
    return found


def _verdict(rely: Rely, clause: Clause, key: str, line: int, answer: Answer, message: str) -> Verdict:
    return Verdict(rely, clause, key, line, answer.ruling, answer.by, answer.values, message)


def _place(rely: Rely, callee: Spec) -> Place | None:
    """The operation, with the names of the rely's own signature for what it leaves out."""
    for unit in callee.units:
        operation: Operation | None = unit.operations.get(rely.function.name)
        if not unit.is_class and operation is not None:
            return place(callee, unit, operation)
    return None


def ask(where: Place, premises: list[Statement], conclusion: Statement, *, crosshair: bool = True) -> Answer:
    """Whether the premises imply the conclusion, remembered: it depends on clauses, helpers and types alone."""
    parts = [f"{where.operation.signature} {sorted(where.modifies)} {where.fields} {where.first}"]
    for statement in (*premises, conclusion):
        helpers = sorted(h.source for h in statement.spec.helpers.values())
        libraries = ",".join(statement.spec.front.library)
        parts.append(f"{statement.clause.kind}|{statement.clause.text}|{statement.early}|{statement.negated}|"
                     f"{helpers}|{libraries}")  # fmt: skip
    name = cache.key("implication", str(crosshair), *parts)
    kept = cache.find("implications", name)
    if kept is not None:
        return Answer(kept["ruling"], kept["by"], kept["values"])
    answer = implied(where, premises, conclusion, crosshair=crosshair)
    cache.store("implications", name, {"ruling": answer.ruling, "by": answer.by, "values": dict(answer.values)})
    return answer


def _list(names: list[str]) -> str:
    return ", ".join(names) if names else "no guaranteed clause"


def _do(names: list[str]) -> str:
    return "do" if len(names) > 1 else "does"
