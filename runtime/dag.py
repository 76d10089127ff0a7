"""The global training DAG that the passes rewrite, from logical chunks to tasks on devices."""

from __future__ import annotations

from dataclasses import dataclass, field

from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Bucket, Buffer, ChunkSpec, Task


@dataclass(slots=True)
class Dag:
    """`tasks[i].id == i`. Before `place`, tasks are logical (device -1) and of replica 0.

    `compute` maps (op, stage, part, mb) to the task of replica 0; that of replica k is `block * k` further on.
    `rank[i]` is the position of task i in one topological order of the whole DAG, set by `order`.
    """

    model: ModelSpec
    schedule: Schedule
    chunks: list[ChunkSpec] = field(default_factory=list)
    stages: int = 0
    microbatches: int = 1
    dim_name: str = "MB"
    replicas: int = 1
    placement: list[list[int]] = field(default_factory=list)
    transfer_stream: str = "transfer"
    tasks: list[Task] = field(default_factory=list)
    compute: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    block: int = 0
    buckets: list[Bucket] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    _by_stage: dict[int, list[ChunkSpec]] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        return 1 + max((d for row in self.placement for d in row), default=-1)

    def chunks_of(self, stage: int) -> list[ChunkSpec]:
        """The chunks of one stage, in layer order; none where there is no such stage."""
        if len(self._by_stage) != self.stages:
            self._by_stage = {}
            for c in self.chunks:
                self._by_stage.setdefault(c.stage, []).append(c)
        return self._by_stage.get(stage, [])

    def add(self, task: Task) -> Task:
        task.id = len(self.tasks)
        self.tasks.append(task)
        return task

    def backwards(self, stage: int, part: int, replica: int) -> list[int]:
        """Ids of all tasks that add to the gradients of one chunk's parameters, on one replica's device."""
        ids = []
        for op in ("B", "BI", "BW"):
            for mb in range(self.microbatches):
                if (i := self.compute.get((op, stage, part, mb))) is not None:
                    ids.append(i + replica * self.block)
        return ids


def invalid(directive: int | None, message: str, *, rule: str = "V9") -> InputError:
    """A user's mistake in the schedule, with the rule's id and the directive's index."""
    where = f"directive {directive}: " if directive is not None else ""
    return InputError(f"{rule}: {where}{message}")
