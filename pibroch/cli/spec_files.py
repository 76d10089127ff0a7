"""Where commands find specs: in the project's `specs/` and the shipped ones, by path, or in a commit."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pibroch.runtime.errors import InputError
from pibroch.specs import store
from pibroch.specs.errors import SpecError
from pibroch.specs.model import Spec
from pibroch.specs.parse import SUFFIX, load_spec, parse_spec


def folders() -> list[Path]:
    """Where specs lie, the project's own first."""
    from pibroch.project import find_project

    return find_project().layers("specs")


def files() -> dict[str, Path]:
    """All spec files by module name, relative to the current folder where they lie in it. Raises `SpecError`."""
    here = Path.cwd()
    found = store.files(folders())
    return {n: p.relative_to(here) if p.is_relative_to(here) else p for n, p in found.items()}


def load_all() -> dict[str, Spec]:
    """Every spec, checked against its relies. Raises `SpecError`."""
    specs, errors = store.load_each(files())
    if errors:
        raise errors[0]
    store.check_relies(specs)
    return {name: specs[name] for name in store.order(specs)}


def is_path(name: str) -> bool:
    """Whether a name on the command line is a file's."""
    return name.endswith(SUFFIX) or "/" in name


def pick(specs: Mapping[str, Spec], names: Sequence[str]) -> dict[str, Spec]:
    """The named specs and what they rely on; all where none is named. Raises `InputError` for an unknown name."""
    for name in names:
        if name not in specs:
            raise unknown(name, specs)
    chosen = store.closure(specs, names) if names else list(specs)
    return {name: spec for name, spec in specs.items() if name in chosen}


def unknown(name: str, known: Mapping[str, object]) -> InputError:
    """The error for a module without a spec."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return InputError(f"{name}: no spec of this name in specs/, and no file{hint}")


def load_some(names: Sequence[str]) -> tuple[dict[str, Spec], list[str], list[SpecError]]:
    """All specs that can be read; the sound ones of those asked for, each after what it relies on; and what is wrong
    with the others and with what they rely on.

    `names` are modules or files; none means all. Raises `InputError` for an unknown name.
    """
    paths = files()
    own: dict[str, Spec] = {}
    errors: list[SpecError] = []
    asked: list[str] = []
    for name in names:
        if is_path(name):
            try:
                spec = load_spec(name)
            except SpecError as error:
                errors.append(error)
                continue
            own[spec.module] = spec
            asked.append(spec.module)
        elif name in paths:
            asked.append(name)
        else:
            raise unknown(name, paths)
    read, unread = store.load_each({name: path for name, path in paths.items() if name not in own})
    specs = {**read, **own}
    module_of = {path: name for name, path in paths.items()}
    broken = {module_of[error.path]: error for error in unread}
    needed = {rely.module for n in store.closure(specs, asked) for rely in specs[n].relies} | set(asked)
    errors += [error for name, error in broken.items() if not names or name in needed]
    sound: list[str] = []
    for name in asked if names else specs:
        if name in broken:
            continue
        try:
            store.check_relies(specs, [name], broken=broken)
        except SpecError as error:
            errors.append(error)
            continue
        if not {rely.module for n in store.closure(specs, [name]) for rely in specs[n].relies} & set(broken):
            sound.append(name)
    near = {n: specs[n] for n in store.closure(specs, sound)}
    return specs, [name for name in store.order(near) if name in sound], errors


def read_version(text: str) -> Spec:
    """A spec by path, by module name, or as `REV:FILE` of the git repository here. Raises `InputError`, `SpecError`."""
    path = Path(text)
    if path.is_file():
        return load_spec(path)
    if ":" in text:
        return parse_spec(_from_git(text), text)
    known = files()
    if text in known:
        return load_spec(known[text])
    raise unknown(text, known)


def _from_git(text: str) -> str:
    revision, _, name = text.partition(":")
    try:
        done = subprocess.run(["git", "show", f"{revision}:./{name}"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{text}: git cannot be asked: {error}") from error
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise InputError(f"{text}: {reason}")
    return done.stdout.decode("utf-8", errors="replace")
