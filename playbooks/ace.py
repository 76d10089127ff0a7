"""ACE's line format, read and written.

    ## STRATEGIES & INSIGHTS
    [str-00001] helpful=5 harmful=0 :: Give the slowest stage fewer layers

It holds section, id, two counters and the text. ACE's counters are a model's votes and are tied to no measurement, so
an import keeps them as evidence ("claimed"), never as `helpful` and `harmful` of ours; ids are given anew. An export
leaves out conditions, edit, the other counters and evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pibroch.playbooks.model import Add, Playbook
from pibroch.runtime.errors import InputError

SECTION = "others"  # of lines above the first heading, as ACE names it
SHOWN = 5  # bad lines that a message names
_LINE = re.compile(
    r"\[(?P<id>[A-Za-z_]+-\d+)\]\s+helpful=(?P<helpful>\d+)\s+harmful=(?P<harmful>\d+)\s+::\s*(?P<text>.*)"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One bullet of an ACE file; `number` is its line, from 1, where it was read."""

    section: str
    id: str
    helpful: int
    harmful: int
    text: str
    number: int = 0


def parse(text: str, *, name: str = "the text") -> list[Line]:
    """The bullets of an ACE file. Raises `InputError` that names every bad line (the first few) and what is wrong."""
    lines: list[Line] = []
    bad: list[str] = []
    section, seen = SECTION, dict[str, int]()
    for number, raw in enumerate(text.splitlines(), 1):
        row = raw.strip()
        if row.startswith("##"):
            section = " ".join(row.lstrip("#").lower().split()) or SECTION
        elif row and not row.startswith("# "):
            match = _LINE.fullmatch(row)
            if match is None:
                bad.append(f"line {number}: expected `[str-00001] helpful=0 harmful=0 :: text`, found {row[:60]!r}")
            elif not match["text"]:
                bad.append(f"line {number}: {match['id']} has no text")
            elif match["id"] in seen:
                bad.append(f"line {number}: {match['id']} stands in line {seen[match['id']]} already")
            else:
                seen[match["id"]] = number
                votes = int(match["helpful"]), int(match["harmful"])
                lines.append(Line(section, match["id"], *votes, match["text"], number))
    if bad:
        more = f" (and {len(bad) - SHOWN} more lines)" if len(bad) > SHOWN else ""
        raise InputError(f"{name}: " + "; ".join(bad[:SHOWN]) + more)
    return lines


def as_deltas(lines: Iterable[Line]) -> list[Add]:
    """What imports the lines: the votes become evidence."""
    return [
        Add(
            section=line.section,
            text=line.text,
            evidence=(f"imported from ACE: {line.id}, claimed helpful={line.helpful} harmful={line.harmful}",),
        )
        for line in lines
    ]


def as_lines(playbook: Playbook) -> list[Line]:
    """What ACE's format can hold of a playbook, by section in the order in which they first occur."""
    sections = list(dict.fromkeys(b.section for b in playbook.bullets))
    ordered = sorted(playbook.bullets, key=lambda b: sections.index(b.section))
    return [Line(b.section, b.id, b.helpful, b.harmful, b.text) for b in ordered]


def dumps(lines: Iterable[Line]) -> str:
    """The text of an ACE file."""
    rows: list[str] = []
    section = None
    for line in lines:
        if line.section != section:
            section = line.section
            rows += [*([""] if rows else []), f"## {section.upper()}"]
        rows.append(f"[{line.id}] helpful={line.helpful} harmful={line.harmful} :: {line.text}")
    return "\n".join(rows) + "\n" if rows else ""
