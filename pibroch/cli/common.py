"""Options that several commands share, and how a command speaks: progress to stderr, its result to stdout."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pibroch.runtime.errors import InputError
from pibroch.runtime.files import explain

Json = Annotated[bool, typer.Option("--json", help="End with one JSON object on the last line of stdout.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="A shipped model (gpt-tiny, …) or your own module:function.", show_default=False),
]
ScheduleFile = Annotated[Path, typer.Argument(help="A schedule file (JSON).", show_default=False)]
MemoryLimit = Annotated[
    str | None,
    typer.Option("--memory-limit", help="Bound on each device's peak, as 512MB or 8GB (rule V7).", show_default=False),
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", help="Costs of a shipped profile or of a profile file.", show_default=False),
]
Lm = Annotated[
    str | None,
    typer.Option(
        "--lm",
        help="Language model: openai[:MODEL], local[:FILE], mailbox:DIR or replay:DIR. Without: the planner.",
        show_default=False,
    ),
]
Deadline = Annotated[
    float, typer.Option("--deadline", min=0.1, help="Seconds that one call to the workers may take.", show_default=True)
]
LauncherName = Annotated[
    Literal["ray", "local"], typer.Option("--launcher", help="ray, or local (processes without Ray).")
]
Address = Annotated[
    str | None, typer.Option("--address", help="Join the Ray cluster at this address.", show_default=False)
]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device", help="auto takes CUDA where it is.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Where the workers meet; 0 takes a free port.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the initial weights.")]
Emulate = Annotated[
    str | None,
    typer.Option(
        "--emulate", help="Take the durations of this profile: equal-8, llama3-8b-a100-25g, a file.", show_default=False
    ),
]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def say(message: str) -> None:
    """One line of progress, on stderr."""
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[dim]·[/dim] {_plain(message)}")


def out(lines: str | Sequence[str]) -> None:
    """The result, on stdout. Raises `InputError` where it cannot be written (a full disk)."""
    try:
        print(lines if isinstance(lines, str) else "\n".join(lines), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"standard output: {explain(error)}") from error


def finish(
    result: Mapping[str, Any],
    lines: str | Sequence[str],
    *,
    as_json: bool,
    problems: Sequence[str] = (),
    failure: int = 1,
) -> None:
    """Print a command's result: for people, or as one JSON object with `--json`, which holds the problems already.

    `problems` go to stderr, as every error does. Leaves with exit code `failure` where the result says `"ok": False`.
    """
    if as_json:
        out(json.dumps(_plain_numbers(result), allow_nan=False, default=_jsonable))
    else:
        if lines:
            out(lines)
        if problems:
            print("pibroch: " + "\n".join(problems), file=sys.stderr, flush=True)
    if result.get("ok") is False:
        raise typer.Exit(failure)


def parse_bytes(text: str | None, *, option: str = "--memory-limit") -> int | None:
    """`"1.5GB"` as bytes (KB, MB, GB are powers of ten; KiB, MiB, GiB of two). Raises `InputError`."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _UNITS:
        raise InputError(f"{option} {text!r}: write a number and a unit, such as 512MB or 8GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def show_bytes(count: float) -> str:
    """`1500000` as `1.5 MB`."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def show_seconds(seconds: float) -> str:
    """`0.0213` as `21.3 ms`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def _plain_numbers(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(item) for item in value]
    return value


def _jsonable(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    raise TypeError(f"not JSON: {type(value).__name__}")
