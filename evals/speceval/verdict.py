"""What a stage of SpecEval says: a verdict per clause, findings as feedback, and its evidence.

Feedback is the same on every machine: no wall-clock times, no addresses, no paths. Times are kept apart, in `seconds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Ruling = Literal["proved", "held", "not refuted", "refuted", "not reached"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. `clause` is a clause's id, `frame`, `returns`, `raises`, `cost`, or the name of a rule or protocol;
    `line` is the spec's line (0: none); `calls` the shortest failing run; `values` what was seen; `code_lines` of the
    candidate."""

    stage: str
    clause: str
    message: str
    line: int = 0
    calls: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    code_lines: tuple[int, ...] = ()

    def __str__(self) -> str:
        head = f"[{self.stage} {self.clause}]" + (f" spec line {self.line}:" if self.line else "") + f" {self.message}"
        rows = [head]
        rows += [f"    call  {call}" for call in self.calls]
        rows += [f"    value {name} = {value}" for name, value in self.values.items()]
        if self.code_lines:
            rows.append("    code line " + ", ".join(str(n) for n in self.code_lines))
        return "\n".join(rows)


@dataclass(slots=True)
class StageReport:
    """`verdicts` by clause id. `evidence` holds counts (cases, acceptance, runs, …); `seconds` is for people only."""

    stage: str
    verdicts: dict[str, Ruling] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.findings


@dataclass(slots=True)
class Report:
    """All stages that ran; the last one failed unless `passed`."""

    module: str
    phase: int
    stages: list[StageReport] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(stage.passed for stage in self.stages)

    @property
    def findings(self) -> list[Finding]:
        return [finding for stage in self.stages for finding in stage.findings]

    @property
    def verdicts(self) -> dict[str, Ruling]:
        """Per clause, the last stage's word; a refutation stands."""
        merged: dict[str, Ruling] = {}
        for stage in self.stages:
            for clause, ruling in stage.verdicts.items():
                if merged.get(clause) != "refuted" and (ruling != "not reached" or clause not in merged):
                    merged[clause] = ruling
        return merged
