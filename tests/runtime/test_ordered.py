"""The launch order, and the executor that follows it, on CPUs: the same numbers as with a thread per stream."""

from __future__ import annotations

import pytest
import tiny_models

from pibroch.evals.judge import judge
from pibroch.runtime.capture import capture
from pibroch.runtime.costs import UnitCosts
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.launch_local import LocalLauncher
from pibroch.runtime.launch_order import launch_order
from pibroch.runtime.lower import lower
from pibroch.runtime.plan import Plan
from pibroch.runtime.program import Channel
from pibroch.runtime.trace import matches
from pibroch.runtime.trainer import Trainer

SCHEDULES = {
    "gpipe": build("gpipe", devices=4, microbatches=3),
    "1f1b": build("1f1b", devices=3, microbatches=4),
    "interleaved": build("interleaved", devices=2, stages_per_device=2, microbatches=4),
    "zb-h1": build("zb-h1", devices=4, microbatches=5),
    "replicas": build("1f1b", devices=2, microbatches=2, replicas=2),
}


def plan_of(name: str) -> Plan:
    work = tiny_models.workload()
    return lower(SCHEDULES[name], capture(work.model(), work.loss, work.batch(1, 0), name="tiny").spec)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_launch_order_keeps_streams_and_waits_and_starts_partners_together(name: str) -> None:
    plan = plan_of(name)
    order = launch_order(plan)
    assert sorted(i for ids in order.values() for i in ids) == list(range(len(plan.tasks)))
    for device, names in plan.streams.items():
        place = {i: n for n, i in enumerate(order[device])}
        for ids in names.values():
            assert sorted(ids, key=place.__getitem__) == ids
            assert all(place[w] < place[i] for i in ids for w in plan.tasks[i].waits)
    # One thread per device in this order, each transfer and reduction a rendezvous: everything gets through.
    partners = {i: {a, b} for a, b in matches(plan) for i in (a, b)}
    for bucket in plan.buckets:
        members = {t.id for t in plan.tasks if t.op == "REDUCE" and t.bucket == bucket.id}
        partners |= dict.fromkeys(members, members)
    heads = dict.fromkeys(order, 0)
    while any(heads[d] < len(ids) for d, ids in order.items()):
        at_head = {ids[heads[d]] for d, ids in order.items() if heads[d] < len(ids)}
        ready = [i for i in at_head if partners.get(i, {i}) <= at_head]
        assert ready, "deadlock"
        for i in ready:
            heads[plan.tasks[i].device] += 1


def test_one_thread_in_launch_order_gives_the_same_numbers() -> None:
    work = tiny_models.workload("skip")
    launcher = LocalLauncher(worker="ordered_worker:OrderedWorker")
    with Trainer(work, SCHEDULES["1f1b"], launcher=launcher, ranks=4, device="cpu") as trainer:
        trainer.pool.ordered = True  # as the pool says where it uses NCCL
        for name, schedule in SCHEDULES.items():
            trainer.load(schedule)
            verdict = judge(trainer)
            assert verdict.bitwise, (name, verdict)
        batch = work.batch(trainer.batch_size, 0)
        trainer.step(batch)
        assert trainer.evaluate(batch) > 0
        assert {e.task for e in trainer.trace().events} == {t.id for t in trainer.plan.tasks}
        assert all(peak > 0 for peak in trainer.peak_bytes())


def test_emulation_keeps_to_cpus() -> None:
    with pytest.raises(InputError, match="emulation runs on CPUs"):
        Trainer(tiny_models.workload(), SCHEDULES["1f1b"], emulate=UnitCosts(), device="cuda")


def test_nccl_has_a_communicator_per_direction() -> None:
    there = Channel(0, 1, "F", "pp.0>1.F").group(nccl=True, world=2)
    back = Channel(1, 0, "B", "pp.1>0.B").group(nccl=True, world=2)
    assert there != back
    assert there.members == (0, 1)
    assert back.members == (1, 0)
