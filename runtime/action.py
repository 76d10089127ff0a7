"""Tasks as short text that parses back: in messages, plans, traces and tests alike.

0F3  1B2  1BI2  1BW2     forward, backward, input-gradient, weight-gradient of stage 0 or 1, microbatch 3 or 2
0.1F3                    the same for part 1 of a stage whose chunks are cut (part 0 is not written)
0>1F3  1<0F3             send of stage 0's activation to stage 1, and the receive of it at stage 1
1>0B3  0<1B3             send of stage 1's input gradient to stage 0, and the receive of it at stage 0
R2                       all-reduce of gradient bucket 2
U1                       optimizer update of stage 1
"""

from __future__ import annotations

import re
from typing import NamedTuple

COMPUTE = ("F", "B", "BI", "BW")
_CHUNK = r"(\d+)(?:\.([1-9]\d*))?"
_COMPUTE_RE = re.compile(_CHUNK + r"(F|BI|BW|B)(\d+)")
_TRANSFER_RE = re.compile(_CHUNK + r"([><])" + _CHUNK + r"([FB])(\d+)")
_STEP_RE = re.compile(r"([RU])(\d+)")


class Chunk(NamedTuple):
    """Part `part` of stage `stage`; most stages have the one part 0."""

    stage: int
    part: int = 0

    def __str__(self) -> str:
        return f"{self.stage}.{self.part}" if self.part else f"{self.stage}"


class Action(NamedTuple):
    """What a task does, without its device. Fields that an op does not use hold their defaults.

    `op` is F, B, BI, BW, SEND, RECV, REDUCE or UPDATE; `payload` of a transfer is F (activation) or B (gradient).
    """

    op: str
    chunk: Chunk = Chunk(-1)
    mb: int = -1
    peer: Chunk = Chunk(-1)
    payload: str = ""
    bucket: int = -1

    def __str__(self) -> str:
        if self.op == "REDUCE":
            return f"R{self.bucket}"
        if self.op == "UPDATE":
            return f"U{self.chunk.stage}"
        if self.op in COMPUTE:
            return f"{self.chunk}{self.op}{self.mb}"
        return f"{self.chunk}{'>' if self.op == 'SEND' else '<'}{self.peer}{self.payload}{self.mb}"


def parse_action(text: str) -> Action:
    """The inverse of `str(action)`. Raises `ValueError` on anything else, trailing junk included."""
    if m := _COMPUTE_RE.fullmatch(text):
        return Action(m[3], Chunk(int(m[1]), int(m[2] or 0)), int(m[4]))
    if m := _TRANSFER_RE.fullmatch(text):
        here, there = Chunk(int(m[1]), int(m[2] or 0)), Chunk(int(m[4]), int(m[5] or 0))
        return Action("SEND" if m[3] == ">" else "RECV", here, int(m[7]), there, m[6])
    if m := _STEP_RE.fullmatch(text):
        if m[1] == "R":
            return Action("REDUCE", bucket=int(m[2]))
        return Action("UPDATE", Chunk(int(m[2])))
    raise ValueError(f"not an action: {text!r} (examples: 0F3, 1BI2, 0>1F3, 1<0F3, R2, U1)")
