"""The simulator: by hand on small plans, against the published figures through the compiler, and against relaxation."""

from __future__ import annotations

import pytest
from hand_plan import hand_times, pipeline_plan
from rows_clock import clock

from pibroch.runtime.costs import AnalyticCosts, UnitCosts
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build, rows
from pibroch.runtime.lower import lower
from pibroch.runtime.model import uniform_model
from pibroch.runtime.plan import Bucket, Buffer, ChunkSpec, Plan, Task
from pibroch.runtime.simulate import Simulation, simulate
from pibroch.runtime.trace import memory as trace_memory


class TableCosts:
    """Durations by op; a transfer is (latency, seconds of link)."""

    def __init__(self, link: tuple[float, float] = (0.0, 0.0), **ops: float) -> None:
        self.ops, self.link = ops, link

    def compute(self, plan: Plan, task: Task) -> float:
        return self.ops.get(task.op, 0.0)

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        return self.link

    def collective(self, plan: Plan, task: Task) -> float:
        return self.ops.get("REDUCE", 0.0)


def make_plan(tasks: list[Task], *, devices: int, buffers: list[Buffer] | None = None, send_buffers: int = 1) -> Plan:
    """Streams in the order of the tasks."""
    streams: dict[int, dict[str, list[int]]] = {d: {} for d in range(devices)}
    for task in tasks:
        streams[task.device].setdefault(task.stream, []).append(task.id)
    return Plan(
        model="hand", devices=devices, microbatches=1, replicas=1, loss="mean",
        chunks=[ChunkSpec(s, 0, s, s + 1) for s in range(devices)], placement=[[d] for d in range(devices)],
        buckets=[Bucket(0, ("w",), (), tuple(range(devices)), 8)], tasks=tasks, buffers=buffers or [],
        streams=streams, send_buffers=send_buffers,
    )  # fmt: skip


def family(name: str, p: int, m: int, v: int = 1, *, replicas: int = 1, update: bool = True) -> Simulation:
    schedule = build(name, devices=p, microbatches=m, stages_per_device=v, replicas=replicas)
    return simulate(lower(schedule, uniform_model(p * v), update=update), UnitCosts())


@pytest.mark.parametrize(
    ("p", "m", "plain", "zb", "interleaved"),
    [(2, 4, 15, 13, 27), (4, 8, 33, 27, 57), (4, 16, 57, 51, 105), (8, 16, 69, 55, 117)],
)
def test_published_makespans(p: int, m: int, plain: int, zb: int, interleaved: int) -> None:
    assert family("gpipe", p, m).makespan == plain
    assert family("1f1b", p, m).makespan == plain
    assert family("zb-h1", p, m).makespan == zb
    assert family("interleaved", p, m, 2).makespan == interleaved


def test_published_peaks_in_flight() -> None:
    assert family("1f1b", 4, 16).peak_inflight == [4, 3, 2, 1]
    assert family("gpipe", 4, 16).peak_inflight == [16] * 4
    assert family("zb-h1", 4, 16).peak_inflight == [4] * 4
    assert family("interleaved", 4, 16, 2).peak_inflight == [11, 9, 7, 5]


@pytest.mark.parametrize("p", [2, 3, 5, 8, 13])
def test_closed_forms(p: int) -> None:
    m = 2 * p
    for name, v, idle in (("gpipe", 1, 3), ("1f1b", 1, 3), ("zb-h1", 1, 1), ("interleaved", 2, 3)):
        result = family(name, p, m, v)
        assert result.idle == [(p - 1) * idle] * p
        assert result.bubble == pytest.approx((p - 1) * idle / (3 * m * v + (p - 1) * idle))


def test_closed_forms_at_64_stages() -> None:
    assert family("1f1b", 64, 9).idle == [63 * 3] * 64
    assert family("zb-h1", 64, 64).idle == [63] * 64


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1"])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 3), (3, 1), (3, 2), (3, 7), (4, 6)])
def test_compiled_families_start_when_their_rows_do(name: str, p: int, m: int) -> None:
    """Without communication time, compiler and transfers cost nothing: the rows alone decide."""
    v = 2 if name == "interleaved" else 1
    result = family(name, p, m, v, replicas=2)
    times = clock(rows(name, devices=p, microbatches=m, stages_per_device=v), {"F": 1, "B": 2, "BI": 1, "BW": 1})
    for task in result.plan.tasks:
        if task.op in ("F", "B", "BI", "BW"):
            assert (result.start[task.id], result.end[task.id]) == times[task.op, task.stage, task.mb]


@pytest.mark.parametrize("split", [False, True])
def test_agrees_with_relaxation(split: bool) -> None:
    """With communication, a reduction and updates: the same ends as an independent relaxation of the same plan."""
    plan = pipeline_plan(3, 5, replicas=2, split_backward=split)
    costs = TableCosts(F=1, B=2, BI=1, BW=1, REDUCE=2, UPDATE=0.5, link=(0.25, 0.0))
    expected, result = hand_times(plan), simulate(plan, costs)
    compute = [t.id for t in plan.tasks if t.op not in ("SEND", "RECV", "REDUCE")]
    assert [result.end[i] for i in compute] == pytest.approx([expected.end[i] for i in compute])
    assert result.makespan == pytest.approx(expected.makespan)
    assert result.busy == pytest.approx(expected.busy)


def test_transfer_needs_both_ends_and_then_both_end_together() -> None:
    tasks = [
        Task(0, "F", 0, "compute", 0, mb=0),
        Task(1, "SEND", 0, "x", 0, mb=0, peer=1, peer_stage=1, payload="F", waits=(0,)),
        Task(2, "F", 1, "compute", 1, mb=9),
        Task(3, "RECV", 1, "x", 1, mb=0, peer=0, peer_stage=0, payload="F", waits=(2,)),
    ]
    costs = TableCosts(F=3, link=(0.5, 1))
    early = simulate(make_plan(tasks, devices=2), costs)
    assert (early.start[1], early.start[3], early.end[1], early.end[3]) == (3, 3, 4.5, 4.5)
    tasks[3].waits = ()
    posted = simulate(make_plan(tasks, devices=2), costs)
    assert (posted.start[1], posted.start[3], posted.end[1], posted.end[3]) == (3, 0, 4.5, 4.5)


@pytest.mark.parametrize(("send_buffers", "ends"), [(1, [3, 6]), (2, [3, 4])])
def test_send_buffers_bound_the_sends_under_way(send_buffers: int, ends: list[float]) -> None:
    """Latency 2, link 1: with two buffers the second transfer follows on the link, else after the first's end."""
    tasks = [
        *(Task(i, "SEND", 0, "x", 0, mb=i, peer=1, peer_stage=1, payload="F") for i in range(2)),
        *(Task(2 + i, "RECV", 1, "x", 1, mb=i, peer=0, peer_stage=0, payload="F") for i in range(2)),
    ]
    result = simulate(make_plan(tasks, devices=2, send_buffers=send_buffers), TableCosts(link=(2, 1)))
    assert result.end == [*ends, *ends]


def test_a_device_owns_the_bandwidth_of_what_it_sends() -> None:
    """Two transfers from device 0 share its link in the order of their start; one from device 1 does not wait."""
    tasks = [
        Task(0, "SEND", 0, "0>1", 0, peer=1, peer_stage=1, payload="F"),
        Task(1, "RECV", 1, "0>1", 1, peer=0, peer_stage=0, payload="F"),
        Task(2, "F", 2, "compute", 2),
        Task(3, "SEND", 0, "0>2", 0, peer=2, peer_stage=2, payload="F"),
        Task(4, "RECV", 2, "0>2", 2, peer=0, peer_stage=0, payload="F", waits=(2,)),
        Task(5, "SEND", 1, "1>2", 1, peer=2, peer_stage=2, payload="F"),
        Task(6, "RECV", 2, "1>2", 2, peer=1, peer_stage=1, payload="F"),
    ]
    result = simulate(make_plan(tasks, devices=3), TableCosts(F=1, link=(0, 4)))
    assert [result.end[i] for i in (0, 3, 5)] == [4, 8, 4]


def test_collective_waits_for_all_members() -> None:
    tasks = [
        Task(0, "F", 0, "compute", 0),
        Task(1, "REDUCE", 0, "reduce", bucket=0, group=(0, 1), waits=(0,)),
        Task(2, "REDUCE", 1, "reduce", bucket=0, group=(0, 1)),
        Task(3, "UPDATE", 1, "compute", 1, waits=(2,)),
    ]
    result = simulate(make_plan(tasks, devices=2), TableCosts(F=3, REDUCE=2, UPDATE=1))
    assert result.end == [3, 5, 5, 6]
    assert result.start[2] == 0
    assert result.exposed == [2, 5]
    assert result.busy == [3, 1]
    assert result.idle == [3, 5]
    assert result.bubble == pytest.approx(1 - 4 / 12)


def test_exposed_counts_what_is_under_way_only() -> None:
    """Device 1 idles 3 while device 0 computes (not exposed) and 1.5 while the data is on its way (exposed)."""
    tasks = [
        Task(0, "F", 0, "compute", 0, mb=0),
        Task(1, "SEND", 0, "x", 0, mb=0, peer=1, peer_stage=1, payload="F", waits=(0,)),
        Task(2, "RECV", 1, "x", 1, mb=0, peer=0, peer_stage=0, payload="F"),
        Task(3, "F", 1, "compute", 1, mb=0, waits=(2,)),
    ]
    result = simulate(make_plan(tasks, devices=2), TableCosts(F=3, link=(0.5, 1)))
    assert result.idle == [4.5, 4.5]
    assert result.exposed == [0, 1.5]


def test_memory_over_time() -> None:
    """1000 persistent; saved 100 from F to B; a received 10 from its posting (0) to B's end; 1 of workspace in B."""
    buffers = [
        Buffer(0, "parameter", 1, 1000),
        Buffer(1, "saved", 1, 100),
        Buffer(2, "received", 1, 10),
        Buffer(3, "workspace", 1, 1),
        Buffer(4, "activation", 0, 10),
    ]
    tasks = [
        Task(0, "F", 0, "compute", 0, mb=0, writes=(4,)),
        Task(1, "SEND", 0, "x", 0, mb=0, peer=1, peer_stage=1, payload="F", waits=(0,), reads=(4,), frees=(4,)),
        Task(2, "RECV", 1, "x", 1, mb=0, peer=0, peer_stage=0, payload="F", writes=(2,)),
        Task(3, "F", 1, "compute", 1, mb=0, waits=(2,), reads=(0, 2), writes=(1,)),
        Task(4, "B", 1, "compute", 1, mb=0, reads=(0, 1, 2), writes=(3,), frees=(1, 2, 3)),
    ]
    result = simulate(make_plan(tasks, devices=2, buffers=buffers), TableCosts(F=3, B=4, link=(0, 1)))
    assert result.memory(1) == [(0.0, 1000), (0.0, 1010), (4.0, 1110), (7.0, 1111), (11.0, 1000)]
    assert result.memory(0) == [(0.0, 0), (0.0, 10), (4.0, 0)]
    assert result.peak_bytes == [10, 1111]
    assert result.peak_inflight == [1, 1]


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved"])
def test_memory_agrees_with_the_trace_of_the_same_times(name: str) -> None:
    """Peaks and ends against the trace's own accounting; each device ends as it began."""
    v = 2 if name == "interleaved" else 1
    plan = lower(build(name, devices=3, microbatches=6, stages_per_device=v, replicas=2), uniform_model(3 * v))
    result = simulate(plan, AnalyticCosts(flops_per_s=1.0, bandwidth=8.0, latency=0.125))
    for device in range(plan.devices):
        assert max(n for _, n in result.memory(device)) == result.peak_bytes[device]
        assert max(n for _, n in trace_memory(plan, result, device)) == result.peak_bytes[device]
        assert result.memory(device)[-1][1] == result.memory(device)[0][1]


def test_in_flight_bytes_follow_the_counts() -> None:
    """1F1B at p = 4 holds p - r saved activations of 1000 bytes, beside small change."""
    model = uniform_model(4, hidden_bytes=4, param_bytes=4, saved_bytes=1000)
    plan = lower(build("1f1b", devices=4, microbatches=8), model)
    assert [n // 1000 for n in simulate(plan, UnitCosts()).peak_bytes] == [4, 3, 2, 1]


def test_deadlock_names_the_stuck_tasks() -> None:
    """Each device waits for the other's data before it sends its own."""
    tasks = [
        Task(0, "RECV", 0, "b", 0, mb=0, peer=1, peer_stage=1, payload="B"),
        Task(1, "F", 0, "compute", 0, mb=0, waits=(0,)),
        Task(2, "SEND", 0, "f", 0, mb=0, peer=1, peer_stage=1, payload="F", waits=(1,)),
        Task(3, "RECV", 1, "f", 1, mb=0, peer=0, peer_stage=0, payload="F"),
        Task(4, "F", 1, "compute", 1, mb=0, waits=(3,)),
        Task(5, "SEND", 1, "b", 1, mb=0, peer=0, peer_stage=0, payload="B", waits=(4,)),
    ]
    with pytest.raises(InputError, match=r"6 tasks never end.*device 0: 0F0 waits for 0<1B0") as error:
        simulate(make_plan(tasks, devices=2), TableCosts(F=1))
    assert "device 1: 1F0 waits for 1<0F0" in str(error.value)
    assert "device 0: 0<1B0 waits for its other end" in str(error.value)


def test_lonely_communication_is_named() -> None:
    send = Task(0, "SEND", 0, "x", 0, mb=0, peer=1, peer_stage=1, payload="F")
    with pytest.raises(InputError, match="channel 0 to 1 on stream x: 1 sends, 0 receives"):
        simulate(make_plan([send], devices=2), TableCosts())
    reduce = Task(0, "REDUCE", 0, "reduce", bucket=0, group=(0, 1))
    with pytest.raises(InputError, match=r"device 0: R0 waits for the other members \[0, 1\]"):
        simulate(make_plan([reduce], devices=2), TableCosts())


def test_replicas_reduce_and_pay_for_it() -> None:
    """Two replicas, p = 1, one bucket of 8 bytes at 1 byte/s: a ring of two moves 8 bytes; 2 s of latency."""
    plan = lower(build("gpipe", devices=1, microbatches=2, replicas=2), uniform_model(1, param_bytes=8))
    result = simulate(plan, AnalyticCosts(flops_per_s=1.0, bandwidth=1.0, latency=1.0))
    assert result.makespan == 2 * 1 + 2 * 2 + 2 * 1.0 + 8
    assert result.exposed == [10, 10]


def test_an_empty_step_is_no_error() -> None:
    plan = make_plan([], devices=1)
    result = simulate(plan, UnitCosts())
    assert (result.makespan, result.bubble, result.peak_bytes) == (0.0, 0.0, [0])
