"""clip: scale all gradients by one factor, so that their norm over the whole model is bounded.

Requires reductions in place.
Ensures, where the model asks for clipping, one REDUCE of a bucket without parameters on every device: after all
backwards and all other reductions there, it sums the squared norms over the devices and scales the device's gradients
in place. A parameter that several devices hold counts once. Without clipping it does nothing.
"""

from __future__ import annotations

from pibroch.runtime.dag import Dag
from pibroch.runtime.plan import Bucket, Task

STREAM = "clip"
NORM_BYTES = 8


def run(dag: Dag) -> None:
    if not dag.model.clip:
        return
    chunks = tuple(c.key for c in dag.chunks)
    bucket = Bucket(len(dag.buckets), (), chunks, tuple(range(dag.devices)), NORM_BYTES, STREAM)
    dag.buckets.append(bucket)
    sums = [t for t in dag.tasks if t.op == "REDUCE"]
    for device in bucket.group:
        deps = [t.id for t in sums if t.device == device]
        for stage, part in chunks:
            if device in dag.placement[stage]:
                deps += dag.backwards(stage, part, dag.placement[stage].index(device))
        dag.add(Task(0, "REDUCE", device, STREAM, bucket=bucket.id, group=bucket.group, deps=deps))


def ensures(dag: Dag) -> None:
    clipping = [b for b in dag.buckets if not b.params]
    assert len(clipping) == int(dag.model.clip)
    for bucket in clipping:
        assert bucket is dag.buckets[-1]
        assert bucket.group == tuple(range(dag.devices))
