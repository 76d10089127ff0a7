"""A run told in short: who ran which lines when, and where threads were interrupted."""

from __future__ import annotations

from pibroch.evals.speceval.thread_runs import RunLog, Scenario, show_call

_LONGEST = 16  # stretches that are shown; the last ones matter most


def interleaving(scenario: Scenario, log: RunLog) -> tuple[str, tuple[int, ...]]:
    """The lines in the order in which they ran; and those that calls had run, or ran next, when they were interrupted.

    `T0 put(1): 10-12 | T1 take(): 20, 21 -> 1 | T0: 13 -> None`. Needs a log with detail.
    """
    stretches: list[tuple[int, str, list[int], str]] = []
    calls: dict[int, str] = {}
    for event in log.events:
        thread = event.thread
        if thread < 0:
            break
        if event.kind == "call":
            calls[thread] = show_call(scenario.threads[thread][event.what])
            stretches.append((thread, f"T{thread} {calls[thread]}", [], ""))
            continue
        if not stretches or stretches[-1][0] != thread or stretches[-1][3]:
            stretches.append((thread, f"T{thread}", [], ""))
        if event.kind == "line":
            stretches[-1][2].append(event.line)
        elif event.kind in ("return", "raise"):
            call = log.calls[thread, event.what]
            end = f" raises {call.error.type}" if call.error else f" -> {call.value!r:.60}"
            stretches[-1] = (*stretches[-1][:3], end)
    open_in: dict[int, list[int]] = {}  # by thread in mid-call: the lines that it had run when it was left
    marks: dict[int, None] = {}
    for thread, _, lines, end in stretches:
        marks |= dict.fromkeys(line for other, ran in open_in.items() if other != thread for line in ran)
        if thread in open_in:
            marks |= dict.fromkeys(lines[:1])
        if end:
            open_in.pop(thread, None)
        elif lines:
            open_in[thread] = lines
    shown = [f"{who}: {_ranges(lines)}{end}" if lines else f"{who}{end}" for _, who, lines, end in stretches]
    if len(shown) > _LONGEST:
        shown = ["…", *shown[-_LONGEST:]]
    return " | ".join(shown), tuple(sorted(marks)[:12])


def _ranges(lines: list[int]) -> str:
    """`10-12, 15`; repeats of a line in a row count once."""
    found: list[list[int]] = []
    for line in lines:
        if found and line == found[-1][1]:
            continue
        if found and line == found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found[:30])
