"""The application: one module per command, and the only place where an error becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import typer

from pibroch.cli import (
    bench,
    check,
    demo,
    doctor,
    evolve,
    evolve_export,
    evolve_prompts,
    generate,
    init,
    lower,
    mailbox,
    playbook,
    regenerate,
    run,
    simulate,
    spec,
    view,
)
from pibroch.runtime.errors import AnnotationWarning, InputError, PibrochError, WorkerError
from pibroch.specs.errors import SpecError

app = typer.Typer(
    name="pibroch",
    help="From a sentence to a distributed-training schedule: written, proved, run and measured.",
    epilog="Exit codes: 0 done, 1 wrong input or failed check, 2 usage, 3 something is missing here, "
    "4 a worker died or a deadline passed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (
    generate, regenerate, check, simulate, run, view, lower, evolve, evolve_prompts, evolve_export, bench, demo,
    doctor, init,
)  # fmt: skip
for module in _COMMANDS:
    app.command(module.NAME)(module.command)
app.add_typer(mailbox.app, name="mailbox")
app.add_typer(spec.app, name="spec")
app.add_typer(playbook.app, name="playbook")


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from pibroch import __version__

        typer.echo(__version__)
        raise typer.Exit
    from pibroch.project import find_project

    with contextlib.suppress(InputError):  # a command that needs the project says what is wrong with it
        find_project().use_generated()


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with one of the documented codes."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)  # all as Ctrl-C: workers and temporary files go before we do
    sys.exit(run_cli(list(sys.argv[1:] if args is None else args)))


def run_cli(args: list[str]) -> int:
    """Run one command. Returns its exit code; every error is one message on stderr (one JSON object with `--json`)."""
    try:
        with _warnings():
            code = typer.main.get_command(app).main(args=args, prog_name="pibroch", standalone_mode=False)
        if _received:  # typer made an exit code of the exception
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        _drop_stdout()  # the reader of our output has gone (`pibroch … | head`): nothing is left to say to it
        return 0
    except (Exception, KeyboardInterrupt) as error:
        kind, message, code = explain(error)
        if os.environ.get("PIBROCH_DEBUG"):
            traceback.print_exception(error)
            print(getattr(error, "detail", ""), file=sys.stderr)
        if "--json" in args:
            try:
                print(json.dumps({"ok": False, "error": {"kind": kind, "message": message}}), flush=True)
            except OSError:
                _drop_stdout()  # it may be what failed; the message below is said in any case
        print(f"pibroch: {message}", file=sys.stderr, flush=True)
        return code


@contextlib.contextmanager
def _warnings() -> Iterator[None]:
    """Each doubt about a model's tags is one line on stderr, said once."""
    said: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def ours(
            message: Warning | str, category: type[Warning], filename: str, lineno: int,
            file: TextIO | None = None, line: str | None = None,
        ) -> None:  # fmt: skip
            if category is not AnnotationWarning:
                show(message, category, filename, lineno, file, line)
            elif str(message) not in said:
                said.add(str(message))
                print(f"pibroch: warning: {message}", file=sys.stderr, flush=True)

        warnings.showwarning = ours
        warnings.simplefilter("always", AnnotationWarning)
        yield


def _drop_stdout() -> None:
    """Send what is left in the buffer nowhere: the interpreter would fail on it at its end."""
    with contextlib.suppress(OSError, ValueError):  # a stdout without a descriptor needs none of this
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_received: list[int] = []  # the signals that asked us to end


def _interrupt(number: int, frame: object) -> None:
    _received.append(number)
    raise KeyboardInterrupt


def explain(error: BaseException) -> tuple[str, str, int]:
    """The kind, the message and the exit code of an error that ends a command."""
    if isinstance(error, typer.TyperException):
        context: Any = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        return "usage", error.format_message().replace("Value error, ", "") + hint, error.exit_code
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        number = _received[0] if _received else signal.SIGINT
        return "interrupted", f"interrupted by {signal.Signals(number).name}", 128 + number
    if isinstance(error, SpecError):
        return "input", str(error), 1
    if isinstance(error, PibrochError):
        advice = f" (advice: {error.advice})" if isinstance(error, WorkerError) and error.advice else ""
        return _KINDS.get(error.exit_code, "input"), f"{error}{advice}", error.exit_code
    if isinstance(error, OSError) and error.errno in _OS_REASONS:
        where = f"{error.filename}: " if error.filename else ""
        return "input", f"{where}{error.strerror}: {_OS_REASONS[error.errno]}", 1
    text = " ".join(str(error).split())
    message = f"{type(error).__name__}: {text}; this is a bug in pibroch (PIBROCH_DEBUG=1 shows where)"
    return "bug", message, 1


_KINDS = {1: "input", 3: "missing", 4: "worker"}
_OS_REASONS = {
    errno.ENOSPC: "free some space, or write somewhere else",
    errno.EDQUOT: "free some space, or write somewhere else",
    errno.EACCES: "choose a place that you may read and write",
    errno.EPERM: "choose a place that you may read and write",
    errno.EROFS: "choose a place that you may read and write",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file, not a folder",
    errno.EADDRINUSE: "stop what uses the port, or choose another",
}
