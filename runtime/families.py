"""Families: schedules of the classic pipeline orders.

Terms
    p, m, v     pipeline positions (devices of one replica), microbatches, stages per position. Stage s sits on
                position s % p; position r of replica k is device k * p + r.
    row         the chunks of one position in the order in which they run: (pass, stage, microbatch).

    gpipe        all forwards, then all backwards                          Huang et al., arXiv 1811.06965
    1f1b         one forward and one backward in turn                      Narayanan et al., arXiv 2006.09503
    interleaved  1F1B over several stages per position                     Narayanan et al., arXiv 2104.04473
    zb-h1        1F1B whose weight halves of the backwards fill bubbles    Qi et al., arXiv 2401.10241

The rows are built by `generated/schedules`, from `specs/schedules`: each spec says, draws and proves what its family is
(idle time, chunks in flight, order). Every family takes any p >= 1 and m >= 1; `excluded` says which numbers of stages
per position it cannot use, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pibroch.runtime.directives import AnyDirective, Cut, Order, Place, Recompute, Replicate, Schedule, Split
from pibroch.runtime.errors import InputError
from pibroch.runtime.generated import load_generated
from pibroch.runtime.words import count

_MODULES = {"gpipe": "gpipe", "1f1b": "one_f_one_b", "interleaved": "interleaved", "zb-h1": "zb_h1"}
FAMILIES: tuple[str, ...] = tuple(_MODULES)

Row = list[tuple[str, int, int]]


def build(
    family: str,
    *,
    devices: int,
    microbatches: int,
    replicas: int = 1,
    stages_per_device: int = 1,
    bucket_size: float | None = None,
    cut: Sequence[int] | None = None,
    recompute: bool = False,
    stream: str | None = None,
    reduce_stream: str | None = None,
) -> Schedule:
    """A complete schedule of one family over `devices` pipeline positions (`devices * replicas` devices in all).

    `bucket_size` (MB) and `reduce_stream` concern the reductions over replicas and have no effect with one replica;
    without `reduce_stream` they run on `replicate`'s default.
    `cut` lists the first layer of each stage but the first. Raises `InputError` on an unknown family, on numbers below
    one, on a cut of the wrong length, and where `excluded` gives a reason.
    """
    reason = excluded(
        family, devices=devices, microbatches=microbatches, stages_per_device=stages_per_device, replicas=replicas
    )
    if reason:
        raise InputError(reason)
    stages = devices * stages_per_device
    if cut is not None and len(cut) != stages - 1:
        raise InputError(f"{family}: cut has length {len(cut)}, {count(stages, 'stage')} need {stages - 1}")
    directives: list[AnyDirective] = [Split(num_microbatches=microbatches)]
    if cut:
        directives.append(Cut(at=list(cut)))
    positions: list[int] = _module(family).placement(devices, stages_per_device)
    members = [[k * devices + position for k in range(replicas)] for position in positions]
    directives += [Place(filter={"PP": s}, devices=members[s], stream=stream) for s in range(stages)]
    if replicas > 1:
        named: dict[str, Any] = {} if reduce_stream is None else {"reduce_stream": reduce_stream}
        directives += [
            Replicate(filter={"PP": s}, devices=members[s], bucket_size=bucket_size, **named) for s in range(stages)
        ]
    if recompute:
        directives.append(Recompute())
    for row in rows(family, devices=devices, microbatches=microbatches, stages_per_device=stages_per_device):
        directives.append(Order(filters=[{"PP": stage, "MB": mb, "PASS": name} for name, stage, mb in row]))
    return Schedule(directives=directives)


def excluded(
    family: str, *, devices: int, microbatches: int, stages_per_device: int = 1, replicas: int = 1
) -> str | None:
    """Why `family` cannot be built for these numbers, or None. Raises `InputError` where they make no sense at all."""
    if family not in FAMILIES:
        raise InputError(f"no family {family!r}: choose one of {', '.join(FAMILIES)}")
    numbers = {"devices": devices, "microbatches": microbatches, "replicas": replicas}
    for name, number in {**numbers, "stages_per_device": stages_per_device}.items():
        if number < 1:
            raise InputError(f"{family}: {name} is at least 1, not {number}")
    if family == "interleaved" and stages_per_device < 2:
        return "interleaved: needs at least 2 stages per device; with one stage per device use 1f1b"
    if family in ("1f1b", "zb-h1") and stages_per_device > 1:
        return f"{family}: has one stage per device, not {stages_per_device}; for several use interleaved or gpipe"
    return None


def rows(family: str, *, devices: int, microbatches: int, stages_per_device: int = 1) -> list[Row]:
    """The row of each pipeline position. The arguments must have passed `excluded`."""
    table: list[Row] = _module(family).rows(devices, microbatches, stages_per_device)
    return table


def _module(family: str) -> Any:
    return load_generated(_MODULES[family], kind="schedules")
