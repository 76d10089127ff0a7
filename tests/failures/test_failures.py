"""What a user sees when something goes wrong: one message, the documented exit code, no process and no file left.

Each case runs `python -m pibroch` in a process of its own. The cases that were selected run two at a time.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_run import Act, Run, run_command, signal_driver, signal_worker

from pibroch.runtime.directives import schedule_text
from pibroch.runtime.families import build

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find processes")

RUN = ["run", "s.json", "--model", "mlp-tiny", "--no-judge", "--steps", "1"]
LOCAL = [*RUN, "--launcher", "local"]
CHECK = ["check", "s.json", "--model"]
MID_STEP = "training 1 step "  # the last word before the step; under emulation the step lasts minutes
SLOW = ["--emulate", "slow.json"]

PROFILE = {
    "version": 1, "name": "slow", "source": "this test", "derivation": [], "cut": [1],
    "latency": 0.0, "bandwidth": 1e9, "collective_latency": 0.0, "collective_bandwidth": 1e9,
    # Emulation scales the shortest chunk to 20 ms: those of the second stage take 10,000 times as long.
    "layers": [
        {"name": name, "count": 1, "forward": t, "backward_input": t, "backward_weight": t, "parameter_bytes": 4,
         "saved_bytes": 4, "weight_saved_bytes": 4, "boundary_bytes": 4}
        for name, t in (("short", 1e-4), ("long", 1.0))
    ],
}  # fmt: skip

MODULE = """
from functools import partial
import torch
from torch import nn
from pibroch import Workload, annotate

class Net(nn.Module):
    def __init__(self, annotated=True):
        super().__init__()
        self.annotated = annotated
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 1)

    def forward(self, x):
        if not self.annotated:
            return self.head(self.embed(x))
        with annotate("LAYER"):
            x = self.embed(x)
        with annotate("LAYER"):
            return self.head(x)

def loss(model, batch):
    return model(batch).square().mean()

def batch(size, step, *, largest=7):
    return torch.full((size,), largest if step else 0)

def bad_batch(size, step):  # the capture sees step 0
    return batch(size, step, largest=8)

def workload(**changes):
    given = dict(name="net", model=Net, loss=loss, optimizer=partial(torch.optim.SGD, lr=0.1), batch=batch)
    return Workload(**{**given, **changes})

def bare(): return workload(model=partial(Net, annotated=False))
def out_of_range(): return workload(batch=bad_batch)
def failing(): raise ValueError("no data here\\nand more")
"""


@dataclass(frozen=True)
class Case:
    """A command line, its exit code, and words of its message. `act` comes when a line of progress has `at`."""

    name: str
    args: list[str]
    code: int
    words: list[str]
    at: str = ""
    act: Act | None = None
    file_size: int | None = None
    out: str | None = None
    port: bool = False  # add --port with one that is in use

    def __str__(self) -> str:
        return self.name


def worker(name: str, args: list[str], number: signal.Signals, words: list[str]) -> Case:
    said = ["rank ", *words, "during step", "(advice: retry"]
    return Case(name, [*args, *SLOW], 4, said, MID_STEP, signal_worker(number))


def ended(name: str, args: list[str], number: signal.Signals) -> Case:
    return Case(name, [*args, *SLOW], 128 + number, ["interrupted", number.name], MID_STEP, signal_driver(number))


RAY = [*RUN, "--launcher", "ray"]
CASES = [
    # Workers
    worker("killed worker", LOCAL, signal.SIGKILL, ["died", "SIGKILL"]),
    worker("stopped worker", [*LOCAL, "--deadline", "5"], signal.SIGSTOP, ["stopped (SIGSTOP)", "within 5 s"]),
    worker("killed Ray worker", RAY, signal.SIGKILL, ["died"]),
    worker("stopped Ray worker", [*RAY, "--deadline", "5"], signal.SIGSTOP, ["stopped (SIGSTOP)", "within 5 s"]),
    Case("deadline", [*LOCAL, *SLOW, "--deadline", "5"], 4, ["ranks 0, 1 did not answer step within 5 s"]),
    Case("failing model", ["run", "s.json", "--model", "user_net:out_of_range", "--no-judge", "--launcher", "local",
                           "--steps", "2"], 4, ["rank 0: IndexError: index out of range"]),
    Case("port in use", LOCAL, 1, ["port", "cannot be opened", "--port"], port=True),
    Case("no cluster", [*RAY, "--address", "127.0.0.1:9"], 4, ["no Ray cluster answers at 127.0.0.1:9"]),
    # The driver
    ended("Ctrl-C", LOCAL, signal.SIGINT),
    ended("terminated", LOCAL, signal.SIGTERM),
    ended("Ctrl-C with Ray", RAY, signal.SIGINT),
    ended("terminated with Ray", RAY, signal.SIGTERM),
    # The disk
    Case("full disk under -o", ["generate", "1F1B over 2 stages", "--model", "mlp-tiny", "-o", "new/g.json"], 1,
         ["new/g.json", "cannot be written", "free some space"], file_size=0),
    Case("full disk under --trace", [*LOCAL, "--trace", "t.json"], 1, ["t.json", "free some space"], file_size=0),
    Case("disk full too late", ["view", "s.json", "--model", "mlp-tiny", "-o", "v.html"], 1,
         ["v.html", "free some space"], file_size=5000),
    Case("full stdout", [*CHECK, "mlp-tiny"], 1, ["standard output", "the disk is full"], out="/dev/full"),
    Case("full device", ["view", "s.json", "--model", "mlp-tiny", "-o", "/dev/full"], 1, ["/dev/full", "disk is full"]),
    Case("unwritable output", ["view", "s.json", "--model", "mlp-tiny", "-o", "s.json/v.html"], 1, ["s.json/v.html"]),
    Case("a folder as output", ["view", "s.json", "--model", "mlp-tiny", "-o", "."], 1, ["it is a folder"]),
    # Models
    Case("unknown model", [*CHECK, "gpt-huge"], 1, ["gpt-huge", "gpt-tiny"]),
    Case("no such module", [*CHECK, "nowhere:fn"], 1, ["nowhere"]),
    Case("module that raises", [*CHECK, "raising.py:fn"], 1, ["raising.py:fn", "RuntimeError: not today"]),
    Case("module that exits", [*CHECK, "exiting:fn"], 1, ["exiting:fn", "SystemExit"]),
    Case("syntax error", [*CHECK, "broken.py:fn"], 1, ["broken.py:fn", "SyntaxError", "line 1"]),
    Case("unreadable module", [*CHECK, "binary:fn"], 1, ["binary:fn"]),
    Case("function that raises", [*CHECK, "user_net:failing"], 1, ["failing()", "ValueError: no data here and more"]),
    Case("no annotations", [*LOCAL[:3], "user_net:bare", *LOCAL[4:]], 1, ["annotat"]),
    # Schedules and options
    Case("unknown tag", ["run", "tags.json", *LOCAL[2:]], 1, ["V9", "EXPERT"]),
    Case("batch that does not divide", [*LOCAL, "--batch", "7"], 1, ["7 samples", "3 microbatches", "multiple of 3"]),
    Case("malformed JSON", ["run", "malformed.json", *LOCAL[2:]], 1, ["malformed.json", "line 2"]),
    Case("unknown field", ["check", "field.json", "--model", "mlp-tiny"], 1, ["field.json", "directive 0", "colour"]),
    Case("unknown profile", [*CHECK, "mlp-tiny", "--profile", "warp"], 1, ["warp", "equal-8"]),
    Case("negative steps", [*LOCAL, "--steps", "-3"], 2, ["--steps", "greater than or equal to 1"]),
    Case("unknown option", [*CHECK, "mlp-tiny", "--fast"], 2, ["--fast"]),
    Case("unknown command", ["dance"], 2, ["dance"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("failures")
    schedule = build("1f1b", devices=2, microbatches=3)
    tagged = {"op": "place", "filter": {"EXPERT": 0}, "devices": [0]}
    files: dict[str, str | bytes] = {
        "s.json": schedule_text(schedule),
        "slow.json": json.dumps(PROFILE),
        "tags.json": json.dumps([*schedule.to_json()["directives"], tagged]),
        "malformed.json": '{"version": 1,\n "directives": [}',
        "field.json": json.dumps([{"op": "split", "dim_name": "MB", "num_microbatches": 2, "colour": "red"}]),
        "user_net.py": MODULE,
        "raising.py": "raise RuntimeError('not today')",
        "exiting.py": "import sys; sys.exit(3)",
        "broken.py": "def fn(:",
        "binary.py": b"\xff\xfe\x00x = 1",
    }
    for name, text in files.items():
        (here / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return here


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, folder: Path) -> Iterator[dict[str, Future[Run]]]:
    """All selected cases, two at a time."""
    selected = [item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(2) as pool, socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()

        def start(case: Case) -> Run:
            args = [*case.args, *(["--port", str(taken.getsockname()[1])] if case.port else []), "--json"]
            return run_command(
                args, cwd=folder, at=case.at, act=case.act, file_size=case.file_size, out=case.out,
                env={"PYTHONDONTWRITEBYTECODE": "1"},
            )  # fmt: skip

        yield {case.name: pool.submit(start, case) for case in selected if isinstance(case, Case)}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_message_its_code_and_nothing_left(case: Case, runs: dict[str, Future[Run]], folder: Path) -> None:
    done = runs[case.name].result()
    assert done.code == case.code, done.err
    assert len(done.messages) == 1, done.err
    message = done.messages[0].removeprefix("pibroch: ")
    assert message != done.messages[0]
    assert [word for word in case.words if word not in message] == [], message
    if case.out is None:
        assert done.last["ok"] is False
        assert done.last["error"]["message"] == message
    assert done.left == []


def test_no_file_is_left(runs: dict[str, Future[Run]], folder: Path) -> None:
    for run in runs.values():
        run.result()
    names = {path.name for path in folder.rglob("*") if path.name != "__pycache__"}
    assert {name for name in names if not name.endswith((".json", ".py"))} == set()
    assert "g.json" not in names
    assert "t.json" not in names
    assert "new" not in names


def test_a_file_under_a_path_is_a_users_module(folder: Path) -> None:
    """The control: the same kinds of names, without a mistake, work."""
    done = run_command(["check", "s.json", "--model", "user_net.py:workload", "--json"], cwd=folder)
    assert done.code == 0, done.err
    assert done.last["ok"] is True
