"""Traces: causes of idle time, memory, the Perfetto file and reading it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hand_plan import hand_times, pipeline_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from pibroch.runtime.costs import AnalyticCosts
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.lower import lower
from pibroch.runtime.model import uniform_model
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.simulate import simulate
from pibroch.runtime.trace import (
    EXPOSED,
    Bubble,
    Event,
    Trace,
    bubbles,
    events_of,
    matches,
    memory,
    read_trace,
    to_perfetto,
    write_trace,
)


@pytest.fixture
def two_stages() -> Trace:
    """One microbatch over two stages, and a reduction of stage 0 before its update:

    seconds  0    1    2    3    4    5    6    7    8    9
    device 0 |0F0 |              ...         |0B0 |    .|U0|
    device 1      .    |1F0 |1B0      |
    """
    plan = Plan("two", 2, 1, 1, "mean", [], [[0], [1]], [], [], [], {})
    rows: list[tuple[str, int, str, int, float, float, dict[str, Any]]] = [
        # op, device, stream, stage, start, end, fields
        ("F", 0, "compute", 0, 0.0, 1.0, {}),
        ("SEND", 0, "pp", 0, 1.0, 2.0, {"peer_stage": 1, "peer": 1, "payload": "F"}),
        ("RECV", 1, "pp", 1, 0.0, 2.0, {"peer_stage": 0, "peer": 0, "payload": "F"}),
        ("F", 1, "compute", 1, 2.0, 3.0, {"waits": (2,)}),
        ("B", 1, "compute", 1, 3.0, 5.0, {}),
        ("SEND", 1, "pp", 1, 5.0, 5.5, {"peer_stage": 0, "peer": 0, "payload": "B"}),
        ("RECV", 0, "pp", 0, 0.5, 5.5, {"peer_stage": 1, "peer": 1, "payload": "B"}),
        ("B", 0, "compute", 0, 6.0, 7.0, {"waits": (6,)}),
        ("REDUCE", 0, "reduce", -1, 7.0, 8.0, {"bucket": 0, "waits": (7,)}),
        ("UPDATE", 0, "compute", 0, 8.5, 9.0, {"waits": (8,)}),
    ]
    events = []
    for i, (op, device, stream, stage, start, end, fields) in enumerate(rows):
        plan.tasks.append(Task(i, op, device=device, stream=stream, stage=stage, mb=0, **fields))
        plan.streams.setdefault(device, {}).setdefault(stream, []).append(i)
        events.append(Event(i, device, stream, start, end))
    return Trace(plan, events)


def test_a_gap_is_cut_by_cause(two_stages: Trace) -> None:
    assert bubbles(two_stages) == [
        Bubble(0, 1.0, 5.0, "receive", 7, 6),
        Bubble(0, 5.0, 5.5, "transfer", 7, 6),
        Bubble(0, 5.5, 6.0, "dispatch", 7, 6),
        Bubble(0, 7.0, 8.0, "reduction", 9, 8),
        Bubble(0, 8.0, 8.5, "dispatch", 9, 8),
        Bubble(1, 0.0, 1.0, "warm-up", 3, 2),
        Bubble(1, 1.0, 2.0, "transfer", 3, 2),
        Bubble(1, 5.0, 9.0, "drain"),
    ]
    assert [b.seconds for b in bubbles(two_stages, min_seconds=0.5)] == [4.0, 1.0, 1.0, 1.0, 4.0]


def test_a_reduction_that_outlasts_all_compute_is_exposed(two_stages: Trace) -> None:
    without = Trace(two_stages.plan, [event for event in two_stages.events if event.task != 9])
    assert bubbles(without)[-3:] == [
        Bubble(1, 0.0, 1.0, "warm-up", 3, 2),
        Bubble(1, 1.0, 2.0, "transfer", 3, 2),
        Bubble(1, 5.0, 8.0, "drain"),
    ]
    assert Bubble(0, 7.0, 8.0, "reduction") in bubbles(without)


@settings(max_examples=20, deadline=None)
@given(
    devices=st.integers(1, 4), microbatches=st.integers(1, 6), replicas=st.integers(1, 2), split_backward=st.booleans()
)
def test_compute_and_bubbles_fill_the_step(
    devices: int, microbatches: int, replicas: int, split_backward: bool
) -> None:
    plan = pipeline_plan(devices, microbatches, replicas=replicas, split_backward=split_backward)
    times = hand_times(plan)
    found = bubbles((plan, times))
    for device in range(plan.devices):
        idle = sum(b.seconds for b in found if b.device == device)
        assert idle + times.busy[device] == pytest.approx(times.makespan)
        assert all(b.seconds > 0 for b in found)


@pytest.mark.parametrize(("family", "replicas"), [("1f1b", 2), ("gpipe", 1), ("zb-h1", 1)])
def test_exposed_time_and_memory_agree_with_the_simulator(family: str, replicas: int) -> None:
    model = uniform_model(3, hidden_bytes=1 << 20, param_bytes=1 << 22, saved_bytes=1 << 20)
    plan = lower(build(family, devices=3, microbatches=6, replicas=replicas), model)
    simulation = simulate(plan, AnalyticCosts(flops_per_s=100.0, bandwidth=1e9, latency=1e-3))
    found = bubbles((plan, simulation))
    for device in range(plan.devices):
        exposed = sum(b.seconds for b in found if b.device == device and b.cause in EXPOSED)
        assert exposed == pytest.approx(simulation.exposed[device])
        series = memory(plan, simulation, device)
        assert max(n for _, n in series) == simulation.peak_bytes[device]
        assert series[0] == simulation.memory(device)[0]
        assert series[-1][1] == series[0][1]


def test_matches_pair_each_send_with_its_receive() -> None:
    plan = pipeline_plan(3, 4, replicas=2)
    pairs = matches(plan)
    assert len(pairs) == 2 * 2 * 4 * 2  # replicas, boundaries, microbatches, directions
    for send, recv in pairs:
        one, other = plan.tasks[send], plan.tasks[recv]
        assert (one.device, one.peer, one.mb, one.payload) == (other.peer, other.device, other.mb, other.payload)


def test_perfetto_export_has_processes_threads_counters_and_arrows() -> None:
    plan = pipeline_plan(2, 3, replicas=2)
    times = hand_times(plan)
    data = json.loads(json.dumps(to_perfetto(plan, times)))
    rows = data["traceEvents"]
    names = {(r["pid"], r["name"]): r["args"] for r in rows if r["ph"] == "M" and r["name"].startswith("process_n")}
    assert names == {(d, "process_name"): {"name": f"device {d}"} for d in range(4)}
    threads = {(r["pid"], r["tid"]): r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    slices = [r for r in rows if r["ph"] == "X"]
    assert len(slices) == len(plan.tasks)
    for row in slices:
        task = plan.tasks[row["args"]["task"]]
        assert row["name"] == str(task)
        assert (row["pid"], threads[row["pid"], row["tid"]]) == (task.device, task.stream)
        assert row["ts"] == pytest.approx(times.start[task.id] * 1e6)
        assert row["dur"] == pytest.approx((times.end[task.id] - times.start[task.id]) * 1e6)
    tails, heads = ({r["id"]: r for r in rows if r["ph"] == phase} for phase in "sf")
    assert len(tails) == len(heads) == len(matches(plan))
    for number, (send, recv) in enumerate(matches(plan)):
        tail, head = tails[number], heads[number]
        assert head["bp"] == "e"
        assert tail["ts"] <= head["ts"]
        for row, task in ((tail, send), (head, recv)):
            assert row["pid"] == plan.tasks[task].device
            assert times.start[task] * 1e6 <= row["ts"] <= times.end[task] * 1e6
    counters = [(r["ts"], r["args"]["bytes"]) for r in rows if r["ph"] == "C" and r["pid"] == 0]
    assert counters == [(time * 1e6, nbytes) for time, nbytes in memory(plan, times, 0)]
    assert max(n for _, n in counters) == 800 + 2 * 100  # parameters and gradients, and 1F1B's two in flight


def test_a_trace_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = pipeline_plan(2, 2)
    trace = Trace(plan, events_of(plan, hand_times(plan, cost={"F": 0.1, "B": 1 / 3})), emulated=True)
    path = tmp_path / "step.json"
    path.write_text("what was there before")
    write_trace(path, trace)
    again = read_trace(path)
    assert again.events == trace.events
    assert again.emulated
    assert again.plan.hash() == plan.hash()
    assert again.makespan == trace.makespan
    assert [p.name for p in tmp_path.iterdir()] == ["step.json"]
    assert "device 0 (emulated)" in path.read_text()


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    plan = pipeline_plan(2, 1)
    path = tmp_path / "step.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        write_trace(path, Trace(plan, [Event(0, 0, "compute", 0.0, float("nan"))]))
    assert path.read_text() == "old"
    with pytest.raises(InputError, match=r"trace\.json: cannot be written, a part of the path is a file"):
        write_trace(path / "trace.json", Trace(plan, []))
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["step.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"otherData": {"format": "other"}, "traceEvents": []}', "\x00"])
def test_other_files_are_refused_with_their_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"other\.json: not a trace"):
        read_trace(path)
    with pytest.raises(InputError, match="cannot read the trace"):
        read_trace(tmp_path / "missing.json")
