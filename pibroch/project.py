"""A user's project: a folder with `pibroch.toml` whose rooms overlay the shipped ones.

    pibroch.toml            [project] name, model (default of --model), lm (default of --lm)
    specs/ generated/ playbooks/ tasks/     looked into before the shipped folder of the same name
    prompts/                                prompts that stand before the shipped ones, by file name

An installed package is never written to: what a command writes goes into the project, or where the user says.
"""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from pibroch.runtime.errors import InputError
from pibroch.runtime.generated import VARIABLE

FILE = "pibroch.toml"
ROOMS = ("specs", "generated", "playbooks", "tasks")
_SHIPPED_AT = {"tasks": "evals/tasks"}  # where that is not the room's own name
SETTINGS = ("name", "model", "lm")
_SHIPPED = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Project:
    """`root` is None outside of any project; `settings` are the texts of pibroch.toml's [project]."""

    root: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)

    def layers(self, room: str) -> list[Path]:
        """The folders of a room that exist, the project's own first. No folder appears twice."""
        assert room in ROOMS, room
        candidates = [self.root / room] if self.root else []
        candidates.append((_SHIPPED / _SHIPPED_AT.get(room, room)).resolve())
        return list(dict.fromkeys(path for path in candidates if path.is_dir()))

    def find(self, room: str, name: str) -> Path | None:
        """The first file of that relative name in the room's layers."""
        return next((path / name for path in self.layers(room) if (path / name).is_file()), None)

    def names(self, room: str, pattern: str) -> list[str]:
        """Relative names in all layers of a room that match a glob pattern, sorted."""
        return sorted({str(file.relative_to(path)) for path in self.layers(room) for file in path.glob(pattern)})

    def prompts(self) -> dict[str, str]:
        """The project's own prompts by name (`prompts/*.md`), which stand before the shipped ones."""
        files = sorted((self.root / "prompts").glob("*.md")) if self.root else []
        return {file.stem: file.read_text(encoding="utf-8") for file in files}

    def make_importable(self) -> None:
        """Let `module:function` name the user's own modules, here and in the worker processes.

        Workers inherit `PYTHONPATH`; the project's root (or the current folder) is put first.
        """
        root = str(self.root or Path.cwd())
        if root not in sys.path:
            sys.path.insert(0, root)
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if root not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])

    def use_generated(self) -> None:
        """Let the runtime, here and in the worker processes, look into the project's own `generated/` first."""
        if self.root is not None and (self.root / "generated").is_dir():
            os.environ[VARIABLE] = str(self.root / "generated")


def find_project(start: Path | None = None) -> Project:
    """The project that `start` (default: the current folder) lies in, else one without a root. Raises `InputError`."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / FILE).is_file():
            return Project(folder, _read(folder / FILE))
    return Project()


def find_schedule(name: str | Path, project: Project) -> Path:
    """A schedule by path, or by its name in `generated/schedules/`. Raises `InputError`."""
    path = Path(name)
    if path.exists():
        return path
    for candidate in (str(name), f"{name}.json"):
        if found := project.find("generated", f"schedules/{candidate}"):
            return found
    known = [Path(row).stem for row in project.names("generated", "schedules/*.json")]
    hint = f"; known by name: {', '.join(known)}" if known else ""
    raise InputError(f"{name}: no such schedule file (`pibroch generate` writes one{hint})")


def model_name(given: str | None, project: Project) -> str:
    """The model that `--model` or pibroch.toml names. Raises `InputError` where neither does."""
    name = given or project.settings.get("model")
    if not name:
        raise InputError(f"no model: name one with --model gpt-tiny or --model module:function, or set it in {FILE}")
    return name


def _read(path: Path) -> dict[str, str]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as TOML: {error}") from error
    for table in data:
        if table != "project":
            raise InputError(f"{path}: unknown entry {table!r}; the one table is [project]")
    settings: dict[str, str] = data.get("project", {})
    for key, value in settings.items():
        if key not in SETTINGS:
            raise InputError(f"{path}: [project] has no {key!r}; it has {', '.join(SETTINGS)}")
        if not isinstance(value, str):
            raise InputError(f"{path}: [project] {key} is a text in quotes, not {value!r}")
    return settings
