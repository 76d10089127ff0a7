"""Findings as short text for a language model's prompt."""

from __future__ import annotations

from collections.abc import Sequence

from pibroch.evals.finding import Finding


def as_text(findings: Sequence[Finding], *, limit: int = 6) -> str:
    """A line per finding, worst first: share, kind, where, what, and the evidence. At most `limit` of them."""
    if not findings:
        return "No cause costs 1% of the step or more."
    lines = [_line(finding) for finding in findings[:limit]]
    if len(findings) > limit:
        rest = findings[limit:]
        lines.append(f"- and {len(rest)} more, {sum(f.share for f in rest):.0%} at most: {', '.join(_kinds(rest))}")
    return "\n".join(lines)


def _line(finding: Finding) -> str:
    cost = f"{finding.share:.0%} ({finding.seconds * 1e3:.3g} ms)" if finding.seconds else "memory"
    where = f"directive {finding.directive}" if finding.directive is not None else ""
    ids = f"tasks {', '.join(map(str, finding.tasks[:3]))}" if finding.tasks else ""
    evidence = "; ".join(filter(None, (where, ids)))
    fault = " [machine, not the schedule]" if finding.origin == "machine" else ""
    return f"- {cost} {finding.kind}{fault}: {finding.text}{f' [{evidence}]' if evidence else ''}"


def _kinds(findings: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(f.kind for f in findings))
