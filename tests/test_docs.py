"""What the documents show works: examples parse and lower, commands exist, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from cli_helper import fresh, here

from pibroch.agents.evolve.catalogue import catalogue
from pibroch.cli.app import app
from pibroch.runtime.directives import parse_schedule, schedule_text
from pibroch.runtime.families import build
from pibroch.runtime.lower import lower
from pibroch.runtime.model import uniform_model
from pibroch.runtime.verify import verify

TOP = Path(__file__).resolve().parent.parent
PAGES = sorted([*TOP.glob("*.md"), *TOP.glob("docs/*.md")])
OPS = ("place", "replicate", "split", "order", "cut", "recompute")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.S | re.M)


def sections(page: Path) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", page.read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("op", OPS)
def test_each_directive_has_an_example_that_keeps_the_rules(op: str) -> None:
    text = sections(TOP / "docs/directives.md")[op]
    examples = re.findall(r"^```json\n(.*?)^```", text, flags=re.S | re.M)
    assert examples
    model = uniform_model(8)
    for example in examples:
        assert op in {row["op"] for row in json.loads(example)}
        plan = lower(parse_schedule(example), model)
        assert verify(plan, model=model) == []


def test_every_op_is_documented() -> None:
    from pibroch.runtime import directives

    ops = {c.model_fields["op"].default for c in directives.Directive.__subclasses__()}
    assert ops == set(OPS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_anchors_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    targets += re.findall(r'(?:src|srcset|href)="([^"]+)"', page.read_text())
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.M)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    group = typer.main.get_command(app)
    spoken = [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    spoken += re.findall(r"`(pibroch [^`…|]+)`", page.read_text())
    for line in spoken:
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if len(words) < 2 or words[0] != "pibroch":
                continue
            command = group
            for word in words[1:]:
                children = getattr(command, "commands", {})
                if children and not word.startswith("-"):
                    assert word in children, f"{page.name}: {line}"
                    command = children[word]
                elif word.startswith("--"):
                    known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
                    assert word in known, f"{page.name}: {line}: {word}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (TOP / "Makefile").read_text(), flags=re.M))
    for page in PAGES:
        spoken = re.findall(r"(?:^\$ |`)make ([a-z]+)", page.read_text(), flags=re.M)
        assert set(spoken) <= targets, page.name


def test_own_model_example_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = blocks(TOP / "docs/annotating.md", "python")
    assert code.startswith("# my_job.py\n")
    (tmp_path / "my_job.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    sentence = "1F1B over 2 stages, 4 microbatches"
    written = here(capsys, "generate", sentence, "--model", "my_job:workload", "-o", "mine.json", "--json")
    assert written.code == 0, written.err
    ran = fresh(
        "run", "mine.json", "--model", "my_job:workload", "--steps", "2", "--launcher", "local", "--json", cwd=tmp_path
    )
    assert ran.code == 0, ran.err
    assert ran.json["equivalence"]["bitwise"] is True


def test_quickstart_script_trains(tmp_path: Path) -> None:
    (code,) = blocks(TOP / "docs/quickstart.md", "python")
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(losses) == 5
    assert losses[-1] < losses[0]


def test_readme_and_trainer_scripts_train(tmp_path: Path) -> None:
    (readme,) = blocks(TOP / "README.md", "python")
    small = readme.replace("gpt-tiny", "mlp-tiny").replace('("mine.json"))', '("mine.json"), launcher="local")')
    assert small.count("mlp-tiny") == small.count('launcher="local")') == 1
    usual, weights = blocks(TOP / "docs/trainer.md", "python")
    saved = "import torch\ntorch.save(torch.nn.Linear(8, 8).state_dict(), 'weights.pt')\n"
    (tmp_path / "mine.json").write_text(schedule_text(build("1f1b", devices=2, microbatches=2)))
    for code in (small, usual, saved + weights + "model()\n"):
        (tmp_path / "script.py").write_text(code)
        done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr


def test_readme_python_uses_public_names_only() -> None:
    import pibroch

    for page in PAGES:
        for block in blocks(page, "python"):
            for names in re.findall(r"^from pibroch import (.+)$", block, flags=re.M):
                assert set(names.split(", ")) <= set(pibroch.__all__), page.name


def test_the_edits_are_those_that_there_are() -> None:
    assert catalogue() in [text.rstrip("\n") for text in blocks(TOP / "docs/evolve.md", "text")]
