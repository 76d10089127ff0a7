"""`pibroch regenerate` in a small project, with a scripted model and judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cli_helper import Said, here
from scripted_judge import ScriptedCompare, ScriptedJudge, write_specs
from scripted_lm import ScriptedModel, block

from pibroch.agents import lm as lm_module
from pibroch.agents import module_writer
from pibroch.agents.lm.replay import Recorder
from pibroch.evals.speceval.verdict import StageReport
from pibroch.runtime.generated import VARIABLE, load_generated

PASS = block({"verdict": "pass", "findings": []})
Run = Callable[..., Said]


def code(text: str) -> str:
    return block(text, "python")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of three specs, and no shipped ones."""
    write_specs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pibroch.project._SHIPPED", tmp_path / "shipped")
    monkeypatch.setenv(VARIABLE, "")  # the command sets it; it is put back afterwards
    return tmp_path


@pytest.fixture
def run(project: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*args: str, answers: list[str] | None = None, compose: bool = False) -> Said:
        judge, compare = ScriptedJudge(), ScriptedCompare()

        def judged(*positional: object, **named: object) -> object:
            return judge(*positional, **named)  # type: ignore[arg-type]

        def opened(spec: str | None, *, record: Path | None = None) -> object:
            model = ScriptedModel(list(answers or []))
            return Recorder(model, record) if record else model

        patches: list[Any] = [
            mock.patch("pibroch.evals.speceval.pipeline.judge_module", judged),
            mock.patch.object(module_writer, "default_compare", compare),
            mock.patch("pibroch.agents.regenerate.default_compare", compare),
        ]
        if not compose:  # mypy and z3 take seconds
            patches.append(mock.patch("pibroch.evals.speceval.rely.judge", return_value=StageReport("rely")))
        if answers is not None:
            patches.append(mock.patch.object(lm_module, "open_lm", opened))
        for patch in patches:
            patch.start()
        try:
            return here(capsys, "regenerate", *args)
        finally:
            mock.patch.stopall()

    return run


SOURCE = [code("def take(n):\n    return n"), code("def take(n):\n    return n + 0"), PASS]
USER = [code("import source"), code("import source  # two"), PASS]
COUNTER = [code("n = 1"), code("n = 2"), code("bad = 3"), code("n = 4"), PASS]


def test_one_module_as_json(run: Run, project: Path) -> None:
    said = run("counter", "--lm", "openai", "--json", answers=COUNTER)
    assert said.code == 0, said.err
    got = said.json
    assert got["module"] == "counter"
    assert [(p["phase"], p["sample"], p["attempts"]) for p in got["phases"]] == [(1, 0, 1), (1, 1, 1), (2, 0, 2)]
    assert got["phases"][2]["feedback"] == [
        {
            "attempt": 1, "stage": "contract", "clause": "P2", "line": 30, "calls": ["Counter(2)", "up()"],
            "values": {"result": "7"}, "message": "does not hold", "code_lines": [1],
        }
    ]  # fmt: skip
    assert got["phases"][2]["evidence"] == {"contract": {"acceptance": {"up": 0.5}}}
    assert got["phases"][0]["seconds"] == {"contract": 0.25}
    assert got["verdicts"] == dict.fromkeys(["A0", "P0", "P1", "P2"], "held")
    assert got["lock"]["attempts"]["phase 2, sample 0"] == 2
    assert got["review"] == "passed"
    text = (project / "generated" / "modules" / "counter.py").read_text()
    assert text == "# Generated from counter.spec.md, version 1. Edit the spec, not this file.\nn = 4\n"
    lock = json.loads((project / "generated" / "lock.json").read_text())
    assert lock["entries"]["modules/counter"] == got["lock"]
    assert run("counter", "--check").code == 0
    assert load_generated("counter").n == 4  # the project's own folder is looked into first


def test_all_goes_in_the_order_of_relies_and_writes_what_drifted(run: Run, project: Path) -> None:
    said = run("--all", "--lm", "openai", "--json", answers=[*COUNTER, *SOURCE, *USER])
    assert said.code == 0, said.err
    assert [m["module"] for m in said.json["modules"]] == ["counter", "source", "user"]
    assert run("--all", "--lm", "openai", "--json", answers=[]).json == {"ok": True, "modules": []}
    path = project / "specs" / "modules" / "source.spec.md"
    path.write_text(path.read_text().replace("result >= n", "result == n"))
    said = run("--all", "--lm", "openai", answers=SOURCE)
    assert said.code == 0
    assert "module     source" in said.out
    assert "user" not in said.out
    said = run("--all", "--force", "--lm", "openai", "--json", answers=[*COUNTER, *SOURCE, *USER])
    assert len(said.json["modules"]) == 3


def test_the_old_module_stays_until_its_successor_passes(run: Run, project: Path) -> None:
    assert run("source", "--lm", "openai", answers=SOURCE).code == 0
    before = {p: p.read_bytes() for p in (project / "generated").rglob("*") if p.is_file()}
    said = run("source", "--lm", "openai", "--attempts", "1", "--json", answers=[code("bad = 1")])
    assert said.code == 1
    assert said.json["file"] is None
    assert said.json["lock"] is None
    assert "no candidate" in said.json["problem"]
    said = run("source", "--lm", "openai", "--attempts", "1", answers=[code("bad = 1")])
    assert said.err.count("pibroch: ") == 1
    assert "nothing was written" in said.err
    assert {p: p.read_bytes() for p in (project / "generated").rglob("*") if p.is_file()} == before
    said = run("source", "--lm", "openai", answers=[code("n = 5"), code("n = 6"), PASS])
    assert "-def take(n):" in said.out
    assert "+n = 5" in said.out
    assert "up 50%" in said.out
    said = run("source", "--lm", "openai", "--no-diff", "--no-review", answers=[code("n = 7"), code("n = 6")])
    assert "+n = 7" not in said.out
    assert "reviewer: not reviewed" in said.out


def test_a_failure_leaves_the_other_modules_alone(run: Run, project: Path) -> None:
    said = run("source", "user", "--lm", "openai", "--attempts", "1", "--json", answers=[code("bad = 1"), *USER])
    assert said.code == 1
    assert [m["ok"] for m in said.json["modules"]] == [False, True]
    assert (project / "generated" / "modules" / "user.py").exists()
    assert not (project / "generated" / "modules" / "source.py").exists()


def test_a_weaker_promise_is_blocked_until_the_rely_is_edited(run: Run, project: Path) -> None:
    user, source = (project / "specs" / "modules" / f"{name}.spec.md" for name in ("user", "source"))
    source.write_text(source.read_text().replace("exports: [take]}", "exports: [take], clauses: [S2]}"))
    rely = '    requires: ["n >= 0"]\n    ensures: ["result >= n"]\n'
    user.write_text(user.read_text().replace('    requires: ["n >= 0"]\n', rely))
    said = run("source", "--lm", "openai", "--json", answers=SOURCE, compose=True)
    assert said.code == 0, said.err
    source.write_text(source.read_text().replace("result >= n", "result >= 0"))
    said = run("source", "--lm", "openai", "--json", answers=SOURCE, compose=True)
    assert said.code == 1
    assert "user.spec.md:10: " in said.json["problem"]
    assert said.json["phases"] == []
    user.write_text(user.read_text().replace(rely, '    requires: ["n >= 0"]\n'))
    assert run("source", "--lm", "openai", answers=SOURCE, compose=True).code == 0


def test_record_and_replay_make_the_same_files(run: Run, project: Path) -> None:
    folder = project / "conversations"
    said = run("--all", "--lm", "openai", "--record", str(folder), answers=[*COUNTER, *SOURCE, *USER])
    assert said.code == 0, said.err
    files = {p.name: p.read_bytes() for p in (project / "generated").rglob("*") if p.is_file()}
    for path in (project / "generated").rglob("*.*"):
        path.unlink()
    said = run("--all", "--lm", f"replay:{folder}", "--json")
    assert said.code == 0, said.err
    assert {p.name: p.read_bytes() for p in (project / "generated").rglob("*") if p.is_file()} == files
    for path in folder.glob("writer-p1-a1-*.json"):
        data = json.loads(path.read_text())
        if data["subject"] == "source":
            data["reply"] = "```python\nbad = 1\n```\n"
            path.write_text(json.dumps(data))
    said = run("source", "--lm", f"replay:{folder}")
    assert said.code == 1
    assert "the recorded reply of phase 1, sample 0 does not pass" in said.err
    assert {p.name: p.read_bytes() for p in (project / "generated").rglob("*") if p.is_file()} == files
    (project / "empty").mkdir()
    said = run("source", "--lm", f"replay:{project / 'empty'}")
    assert said.code == 1
    assert "has no reply for writer source" in said.err


def test_check_names_drift(run: Run, project: Path) -> None:
    said = run("--check", "--json")
    assert said.code == 1
    assert {row["kind"] for row in said.json["drift"]} == {"missing"}
    assert run("--all", "--lm", "openai", answers=[*COUNTER, *SOURCE, *USER]).code == 0
    said = run("--check")
    assert said.code == 0
    assert "fits its spec" in said.out
    path = project / "generated" / "modules" / "user.py"
    path.write_text(path.read_text() + "\n")
    write_specs(project, version=2)
    said = run("--check")
    assert said.code == 1
    assert "modules/user.py was edited by hand" in said.err
    assert "counter.py was made from version 1" in said.err
    assert run("source", "--check").code == 0
    assert not any((project / "generated").rglob("*.part"))


def test_prompt_drift_warns(run: Run, project: Path) -> None:
    assert run("source", "--lm", "openai", answers=SOURCE).code == 0
    path = project / "generated" / "lock.json"
    data = json.loads(path.read_text())
    data["entries"]["modules/source"]["prompts"]["review"] = "0"
    path.write_text(json.dumps(data))
    said = run("source", "--check")
    assert said.code == 0
    assert "warning: " in said.out
    assert "review" in said.out


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, "name a module, or say --all"),
        (("source", "--all"), 2, "not both"),
        (("sauce", "--lm", "openai"), 1, "sauce: no spec of that name (known: counter, source, user)"),
        (("source",), 1, "--lm mailbox:DIR"),
        (("source", "--lm", "replay:nowhere"), 1, "nowhere"),
        (("sauce", "--check"), 1, "no spec of that name"),
    ],
)
def test_wrong_use_is_one_message(run: Run, args: tuple[str, ...], code: int, says: str) -> None:
    said = run(*args)
    assert said.code == code
    assert says in said.err
    assert said.err.strip().count("\n") == 0


def test_outside_of_a_project_nothing_is_written(run: Run, project: Path) -> None:
    (project / "pibroch.toml").unlink()
    (project / "specs").rename(project / "shipped")
    (project / "shipped" / "specs").mkdir()
    (project / "shipped" / "modules").rename(project / "shipped" / "specs" / "modules")
    said = run("source", "--lm", "openai", answers=SOURCE)
    assert said.code == 1
    assert "pibroch init" in said.err


def test_a_spec_that_is_wrong_is_named_with_its_line(run: Run, project: Path) -> None:
    path = project / "specs" / "modules" / "source.spec.md"
    path.write_text(path.read_text().replace("result >= n", "result >="))
    said = run("source", "--lm", "openai", answers=SOURCE)
    assert said.code == 1
    assert "source.spec.md:" in said.err
