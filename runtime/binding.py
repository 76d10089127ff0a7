"""Which CPUs a local worker runs on: whole cores of its own, where there are enough of them.

Left to the kernel, the threads of two workers chase each other over the same cores: on two cores a short step then took
9% longer, and differed more from the next (docs/measurements.md, "Cores of their own").
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"


def bind(rank: int, world: int) -> None:
    """Keep this process, and the threads that it starts from now on, on its share of the CPUs that it may use."""
    if not hasattr(os, "sched_setaffinity"):
        return
    share = share_of(rank, world, {cpu: core_of(cpu) for cpu in os.sched_getaffinity(0)})
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, share)


def share_of(rank: int, world: int, cores: Mapping[int, tuple[int, int]]) -> set[int]:
    """The CPUs of `rank` among `world`: consecutive whole cores. `cores` says which core each CPU belongs to, as
    (socket, core). All CPUs, for everyone, where there are fewer cores than ranks."""
    each = sorted(set(cores.values()))
    if world > len(each):
        return set(cores)
    mine = set(each[rank * len(each) // world : (rank + 1) * len(each) // world])
    return {cpu for cpu, core in cores.items() if core in mine}


def core_of(cpu: int) -> tuple[int, int]:
    """Socket and core of a CPU; where the system does not say, a core of its own."""
    folder = Path(TOPOLOGY.format(cpu))
    try:
        socket, core = (int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return 0, cpu
    return socket, core
