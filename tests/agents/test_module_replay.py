"""All shipped modules, rebuilt from their specs and the recorded conversations alone, judged anew from end to end.

The conversations are with a capable model that saw only its requests. Recorded through
`pibroch regenerate NAME --lm mailbox:DIR --record conversations/modules`.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cli_helper import Said, fresh

from pibroch.agents.lm.base import fenced_block
from pibroch.agents.lm.replay import ReplayModel
from pibroch.agents.regenerate import Shelf, regenerate
from pibroch.evals.speceval.mutants import mutants
from pibroch.specs.model import Spec
from pibroch.specs.store import closure, load_all, order

MODULES = Path(__file__).parent / "conversations" / "modules"
ROOT = Path(__file__).parents[2]
SPECS = load_all([ROOT / "specs"])


def _halves() -> tuple[list[str], list[str]]:
    """Two lists of modules, to be built at the same time: each after what it relies on."""
    linked = [n for n in SPECS if SPECS[n].relies or any(n in closure(SPECS, [m]) for m in SPECS if m != n)]
    rest = sorted(set(SPECS) - set(linked), key=lambda n: (SPECS[n].phases, n))
    first = [name for name in order(SPECS) if name in {*linked, *rest[::2]}]
    return first, [name for name in rest if name not in first]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_tree_without_generated_files_is_rebuilt_from_the_conversations(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "specs", tmp_path / "specs", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pibroch.toml").write_text('[project]\nname = "rebuilt"\n')

    def build(names: list[str]) -> Said:
        return fresh("regenerate", *names, "--lm", f"replay:{MODULES}", "--json", cwd=tmp_path, timeout=1100)

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(build, _halves()))
    assert [s.code for s in said] == [0, 0], "\n".join(s.err[-2000:] for s in said)
    built = {row["module"]: row for s in said for row in s.json["modules"]}
    assert set(built) == set(SPECS)
    for name, row in built.items():
        phases = {track["phase"] for track in row["phases"]}
        assert phases == set(SPECS[name].phases), name
        assert all(track["passed"] for track in row["phases"]), name
        assert set(SPECS[name].clauses) <= {*row["verdicts"], *_duties(SPECS[name])}, name
        assert "refuted" not in row["verdicts"].values(), name
    for key in json.loads((ROOT / "generated" / "lock.json").read_text())["entries"]:
        shipped, again = (folder / "generated" / f"{key}.py" for folder in (ROOT, tmp_path))
        assert shipped.read_bytes() == again.read_bytes(), key


def _duties(spec: Spec) -> set[str]:
    """Clauses that bind the caller, not the module."""
    return {c.id for c in spec.clauses.values() if c.kind in ("requires", "when")}


@pytest.mark.parametrize("name", sorted(SPECS))
def test_one_corrupted_reply_is_refused(name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    folder = tmp_path / "replies"
    shutil.copytree(MODULES, folder)
    _corrupt(folder, name)
    shelf = Shelf(tmp_path / "generated", [tmp_path / "generated", ROOT / "generated"])
    done = regenerate(spec, ReplayModel(folder), specs=SPECS, shelf=shelf, attempts=1, review=False)
    assert not done.ok
    told = [finding for track in done.written.tracks for rows in track.feedback for finding in rows]
    assert told, "refused by the judge, with feedback"
    assert not list((tmp_path / "generated").glob("**/*.py"))


def _corrupt(folder: Path, name: str) -> None:
    """Change the code of the first writer's first reply by one operator."""
    for path in sorted(folder.glob("writer-p1-a1-*.json")):
        data: dict[str, Any] = json.loads(path.read_text())
        if data["subject"] == name and data["key"]["sample"] == 0:
            _, code = fenced_block(data["reply"])
            data["reply"] = f"```python\n{mutants(code)[0].source}\n```\n"
            path.write_text(json.dumps(data))
            return
    raise AssertionError(f"no conversation about {name}")
