"""Cheats on the harness: falling back, doing nothing, editing the judge, leaving, agreeing with everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cheats
import pytest

from pibroch.evals import judge as judging
from pibroch.evals.judge import judge
from pibroch.evals.ladder import Ladder
from pibroch.evals.models import load_workload
from pibroch.evals.sandbox import SandboxError, run_sandboxed
from pibroch.evals.setting import Setting
from pibroch.evals.speceval import rules
from pibroch.evals.speceval.session import LoadFailed, Session
from pibroch.evals.task import Task
from pibroch.runtime.directives import Order, Schedule, parse_schedule, schedule_from
from pibroch.runtime.errors import InputError, WorkerError
from pibroch.runtime.families import build
from pibroch.runtime.launch_local import LocalLauncher
from pibroch.specs.parse import parse_spec

TASK = Task(name="small", title="Small", model="mlp-tiny", devices=2, samples=8, intent="Fast.")
INCUMBENT = build("gpipe", devices=2, microbatches=4)
PROBE = parse_spec(
    "---\nspec: 1\nmodule: probes\nversion: 1\nsummary: One.\nguarantee: {exports: [probe]}\n---\n"
    "# Probes\n## Intent\nOne.\n```python\ndef probe(x: int) -> int:\n    ensures('P1', result == x)\n```\n"
)


@pytest.fixture(scope="module")
def ladder() -> Iterator[Ladder]:
    with Ladder(Setting(TASK, load_workload("mlp-tiny")), scores="simulated") as ladder:
        yield ladder


def test_an_honest_candidate_is_evaluated(ladder: Ladder) -> None:
    found = ladder.evaluate(build("zb-h1", devices=2, microbatches=4), INCUMBENT)
    assert found.verdict == "faster"
    assert schedule_from(run_sandboxed(_returns(INCUMBENT), call="schedule"), source="schedule()") == INCUMBENT


def _returns(schedule: Schedule, *, before: str = "") -> str:
    return (
        f"import json\n{before}\ndef schedule():\n    return json.loads({json.dumps(json.dumps(schedule.to_json()))})\n"
    )


# Bypass


def test_what_falls_back_to_the_baseline_has_done_nothing(ladder: Ladder) -> None:
    """A function that fails and returns what it was given: the plan is the incumbent's, and is not measured."""
    source = "def schedule(given):\n    try:\n        return fast(given)\n    except Exception:\n        return given\n"
    value = run_sandboxed(source, call="schedule", args=[INCUMBENT.to_json()])
    found = ladder.evaluate(schedule_from(value, source="schedule()"), INCUMBENT)
    assert found.verdict == "same"
    assert not found.accepted
    assert found.pairs == 0


def test_other_words_for_the_incumbents_plan_are_the_same(ladder: Ladder) -> None:
    """Without its order rows GPipe is the default order; and directives have no order among themselves."""
    bare = Schedule(directives=[d for d in INCUMBENT.directives if not isinstance(d, Order)])
    turned = Schedule(directives=list(reversed(INCUMBENT.directives)))
    for disguise in (bare, turned):
        assert disguise != INCUMBENT
        assert ladder.evaluate(disguise, INCUMBENT).verdict == "same"


def test_a_refused_candidate_is_not_replaced_by_the_incumbent_in_silence(ladder: Ladder) -> None:
    wrong = Schedule(directives=[d for d in INCUMBENT.directives if d.op != "place"])
    assert ladder.evaluate(wrong, INCUMBENT).verdict == "invalid"
    trainer = cheats.CheatingTrainer(load_workload("mlp-tiny"), wrong, launcher="local")
    with pytest.raises(InputError):
        trainer.prepare()


@pytest.mark.parametrize(
    "fallback",
    ["from pibroch.generated import modules", "import generated.modules.anomaly_trigger", "import importlib"],
)
def test_a_module_that_falls_back_to_another_implementation(fallback: str) -> None:
    source = (
        "def probe(x: int) -> int:\n    try:\n        return fast(x)\n    except Exception:\n"
        f"        {fallback}\n        return x\n"
    )
    assert "imports" in {f.clause for f in rules.judge(source, PROBE, 1).findings}
    with Session(source, PROBE) as session:  # and with the rules switched off there is nothing to import
        session.fresh("probes", [])
        assert "ImportError" in str(session.call("probe", [1]).error)


# The judge and its files


@pytest.mark.parametrize("name", ["evals/judge.py", "evals/timing.py", "generated/lock.json", "evals/tasks"])
@pytest.mark.parametrize(
    "attempt",
    ["open({0!r}, 'r+')", "open({0!r}, 'w')", "os.unlink({0!r})", "os.rename({0!r}, 'x')", "os.mkdir({0!r} + '/x')",
     "os.truncate({0!r}, 0)", "os.symlink({0!r}, 'x')", "os.link({0!r}, 'x')", "os.chmod({0!r}, 0)"],
)  # fmt: skip
def test_candidates_cannot_write_the_project(repository: Path, name: str, attempt: str) -> None:
    target = repository / name
    before = target.stat()
    with pytest.raises(SandboxError, match=r"PermissionError|NotADirectoryError|IsADirectoryError"):
        run_sandboxed(f"import os\ndef schedule():\n    {attempt.format(str(target))}\n", call="schedule")
    after = target.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns, after.st_mode) == (
        before.st_ino, before.st_size, before.st_mtime_ns, before.st_mode,
    )  # fmt: skip


def test_candidates_have_no_judge_to_patch() -> None:
    source = (
        "import gc, sys\ndef schedule():\n"
        "    names = [n for n in sys.modules if n.startswith('pibroch')]\n"
        "    for name in names:\n        sys.modules[name].__dict__.update(judge=lambda *a, **k: True)\n"
        "    try:\n        import pibroch.evals.judge\n"
        "    except (ImportError, OSError):\n        names.append('no judge')\n"
        "    return names\n"
    )
    judge_before, error_before = judging.judge, judging.relative_error
    names = run_sandboxed(source, call="schedule")
    assert "no judge" in names
    assert set(names) - {"no judge"} <= {
        "pibroch", "pibroch.evals", "pibroch.evals.lockup", "pibroch.evals.sandbox_child",
    }  # fmt: skip
    assert judging.judge is judge_before
    assert judging.relative_error is error_before


@pytest.mark.parametrize("field", ["tolerance", "steps", "seconds", "verified", "loss", "samples"])
def test_a_schedule_says_nothing_of_its_own_judgement(field: str) -> None:
    data = {**INCUMBENT.to_json(), field: 0}
    with pytest.raises(InputError, match=field):
        parse_schedule(json.dumps(data), source="a schedule")


# Leaving


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)", "raise SystemExit(0)", "os.abort()", "quit()"])
def test_a_candidate_that_leaves_is_no_success(leave: str) -> None:
    with pytest.raises(SandboxError):
        run_sandboxed(f"import os, sys\ndef schedule():\n    {leave}\n", call="schedule")
    with pytest.raises(SandboxError):
        run_sandboxed(f"import os, sys\n{leave}\n", call="schedule")
    source = f"import os, sys\ndef probe(x: int) -> int:\n    {leave}\n"
    assert rules.judge(source, PROBE, 1).findings


def test_a_rank_that_runs_out_of_memory_is_named_and_not_left_out() -> None:
    with LocalLauncher(worker="echo_worker:EchoWorker") as launcher:
        launcher.start(2, deadline=60)
        with pytest.raises(WorkerError, match=r"^rank 1: MemoryError"):
            launcher.call("apply", [(len, "fine"), (bytearray, 1 << 62)], deadline=60)


def test_a_worker_that_leaves_is_no_success() -> None:
    schedule = build("1f1b", devices=1, microbatches=2)
    with cheats.CheatingTrainer(load_workload("mlp-tiny"), schedule, launcher="local", deadline=30) as trainer:
        trainer.optimizer = cheats.Leaves
        with pytest.raises(WorkerError, match=r"rank 0 died \(exit status 0\) during step"):
            judge(trainer, peak=False)


def test_a_workload_that_leaves_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaves_when_asked.py").write_text("import sys\ndef workload():\n    sys.exit(0)\n")
    (tmp_path / "leaves_on_import.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("leaves_when_asked", "leaves_on_import"):
        with pytest.raises(InputError, match="SystemExit"):
            load_workload(f"{name}:workload")


# Agreeing with everything


def test_a_schedule_that_is_equal_to_everything_arrives_as_plain_data() -> None:
    before = "class Any_(dict):\n    def __eq__(self, other):\n        return True\n    __ne__ = __hash__ = None\n"
    source = _returns(INCUMBENT, before=before).replace("return json.loads", "return Any_(json.loads").rstrip() + ")\n"
    value = run_sandboxed(source, call="schedule")
    assert type(value) is dict
    assert value != {}
    assert schedule_from(value, source="schedule()") == INCUMBENT


def test_a_module_whose_result_is_equal_to_everything() -> None:
    source = (
        "class Any_(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "def probe(x: int) -> int:\n    return Any_(7)\n"
    )
    try:
        with Session(source, PROBE) as session:
            session.fresh("probes", [])
            seen = session.call("probe", [1])
    except LoadFailed:
        return
    assert seen.value != 1 or seen.error or seen.fault


# Another batch


@pytest.mark.parametrize("schedule", [
    build("gpipe", devices=2, microbatches=3), build("gpipe", devices=1, microbatches=3, replicas=2),
    build("gpipe", devices=2, microbatches=16),
], ids=["3", "2 x 3", "16"])  # fmt: skip
def test_another_batch_size_is_invalid(ladder: Ladder, schedule: Schedule) -> None:
    found = ladder.evaluate(schedule, INCUMBENT)
    assert found.verdict == "invalid"
    assert "8 samples" in found.reason


def test_more_devices_than_the_task_has_are_invalid(ladder: Ladder) -> None:
    found = ladder.evaluate(build("gpipe", devices=4, microbatches=4), INCUMBENT)
    assert found.verdict == "invalid"
    assert "2 devices" in found.reason


def test_a_batch_of_another_size_is_the_judges_to_refuse() -> None:
    work = load_workload("mlp-tiny")

    def smaller(size: int, step: int) -> Any:
        return work.batch(size // 2, step)

    with pytest.raises(InputError, match=r"batch\(8, 5\) returned 4 samples"):
        judging.fresh_batches(replace(work, batch=smaller), 8, 1, seed=5)
