"""The report of what each stream began last, and the dispatcher's order among streams that become ready together."""

from __future__ import annotations

import threading
import time

import pytest
import tiny_models
import torch

from pibroch.runtime import flight
from pibroch.runtime.capture import capture
from pibroch.runtime.dispatch import Dispatch
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.flight import FlightLog, named
from pibroch.runtime.generated import load_generated
from pibroch.runtime.lower import lower
from pibroch.runtime.program import Program, program_of
from pibroch.runtime.progress import Progress


def program(*, replicas: int = 1) -> Program:
    work = tiny_models.workload()
    schedule = build("1f1b", devices=2, microbatches=2, replicas=replicas)
    return program_of(lower(schedule, capture(work.model(), work.loss, work.batch(1, 0), name="tiny").spec), 0)


def progress() -> Progress:
    return Progress(deadline=30.0, device=torch.device("cpu"))


def test_a_report_names_what_each_stream_began_last_and_what_has_not_ended() -> None:
    first = program()
    done = progress()
    log = FlightLog(first, done, deadline=30.0)
    compute = first.streams["compute"]
    record = log.recorder("compute")
    for task in compute[:4]:
        record(task)
    for task in compute[:3]:
        done.end(task)
    names = [str(first.tasks[i]) for i in compute]
    rows = log.report().splitlines()
    assert rows[0] == "tasks begun last on device 0:"
    shown = f"{names[1]}, {names[2]}, {names[3]} (not ended)"
    assert f"  compute: {shown}; next {names[4]} (4 of {len(compute)} begun)" in rows
    (send,) = (name for name, ids in first.streams.items() if first.tasks[ids[0]].op == "SEND")
    assert f"  {send}: none; next 0>1F0 (0 of 2 begun)" in rows


def test_a_failure_carries_the_report() -> None:
    failed = progress()
    error = RuntimeError("no")
    with FlightLog(program(), failed, deadline=30.0):
        failed.fail(error)
    assert error.__notes__[0].startswith("tasks begun last on device 0:")


def test_the_log_fails_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise InputError(name)

    monkeypatch.setattr(flight, "load_generated", missing)
    failed = progress()
    error = RuntimeError("no")
    with FlightLog(program(), failed, deadline=30.0) as log:
        log.recorder("compute")(3)
        failed.fail(error)
    assert not hasattr(error, "__notes__")


def test_an_error_of_a_generated_module_names_it() -> None:
    with pytest.raises(KeyError) as caught:
        load_generated("activation_store").ActivationStore().release(3)
    assert str(named(caught.value)) == "generated module activation_store: KeyError: 3"
    own = ValueError("x")
    assert named(own) is own


def test_a_reduction_that_becomes_ready_with_a_send_goes_after_it() -> None:
    first = program(replicas=2)
    done = progress()
    dispatch = Dispatch(first, done)
    kinds = {first.tasks[ids[0]].op: name for name, ids in first.streams.items()}
    send, reduce = dispatch.stream(kinds["SEND"]), dispatch.stream(kinds["REDUCE"])
    may_send = threading.Event()
    launched: list[str] = []

    def sender() -> None:
        done.wait((7,), send.announce)
        may_send.wait(30)
        launched.append("send")  # a send is never held back, so nothing stands between this and its launch
        send.launch()

    def reducer() -> None:
        done.wait((7,), reduce.announce)
        reduce.launch()
        launched.append("reduce")

    threads = [threading.Thread(target=run, daemon=True) for run in (sender, reducer)]
    for thread in threads:
        thread.start()
    while len(done._gates.get(7, ())) < 2:
        time.sleep(0)  # until both wait
    done.end(7)
    assert not launched
    may_send.set()
    for thread in threads:
        thread.join(30)
    assert launched == ["send", "reduce"]


def test_the_receive_window_holds_back_receives_alone() -> None:
    first = program(replicas=2)
    dispatch = Dispatch(first, progress())
    kinds = {first.tasks[ids[0]].op: name for name, ids in first.streams.items()}
    receive, reduce = dispatch.stream(kinds["RECV"]), dispatch.stream(kinds["REDUCE"])
    posted = 0
    while receive.room:
        receive.announce()
        receive.launch()
        posted += 1
    assert posted == first.recv_window + 1
    receive.announce()
    reduce.announce()
    reduce.launch()  # does not wait for the receive, which has no room
    receive.land()
    assert receive.room
    receive.launch()
