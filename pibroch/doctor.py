"""What this machine has, and what each part enables. Looks without starting anything but a probe of the sandbox.

Nothing heavy is imported with this module; `examine` imports torch, and asks of other packages their version only.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pibroch.runtime.errors import PibrochError

LANDLOCK_CREATE_RULESET = 444  # system call, the same on every architecture
LANDLOCK_VERSION = 1  # its flag that asks for the version of the interface
PR_GET_SECCOMP = 21
COLUMNS = 110  # width of the report


@dataclass(frozen=True, slots=True)
class Finding:
    """One part: whether it is here, what was found (or what to do), and what it enables. `needed` parts must be ok."""

    name: str
    ok: bool
    detail: str
    enables: str
    needed: bool = False


def examine() -> list[Finding]:
    """One finding per part, in a fixed order; a part whose examination fails is a finding, too."""
    return [_guarded(name, enables, needed, look) for name, enables, needed, look in PARTS]


def as_data(findings: Sequence[Finding]) -> dict[str, Any]:
    """The JSON of `pibroch doctor`; `ok` is whether all needed parts are here."""
    return {"ok": all(f.ok for f in findings if f.needed), "findings": [asdict(finding) for finding in findings]}


def report(findings: Sequence[Finding]) -> list[str]:
    """Lines for people; the last ones say what it comes to."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        mark = "ok     " if finding.ok else "MISSING" if finding.needed else "absent "
        lines += _wrapped(f"{mark} {finding.name:<{width}}  ", finding.detail)
        if not finding.ok:
            lines += _wrapped(" " * (width + 10), f"enables: {finding.enables}")
    missing = [finding.name for finding in findings if finding.needed and not finding.ok]
    without = dict.fromkeys(finding.enables for finding in findings if not finding.needed and not finding.ok)
    if missing:
        return [*lines, f"not ready: {', '.join(missing)} must be here"]
    lines.append("ready: schedules are written (planner, or --lm mailbox:DIR), checked, simulated, run and viewed")
    return [*lines, *(_wrapped("without: ", "; ".join(without)) if without else [])]


def _wrapped(head: str, text: str) -> list[str]:
    """`text` behind `head`, continued below itself."""
    wrap = textwrap.TextWrapper(COLUMNS - len(head), break_long_words=False, break_on_hyphens=False)
    first, *more = wrap.wrap(text) or [""]
    return [head + first, *(" " * len(head) + line for line in more)]


Look = Callable[[], tuple[bool, str]]


def _guarded(name: str, enables: str, needed: bool, look: Look) -> Finding:
    try:
        ok, detail = look()
    except PibrochError as error:
        ok, detail = False, str(error)
    except Exception as error:  # whatever a broken installation raises: the other findings still help
        ok, detail = False, f"{type(error).__name__}: {error}"
    return Finding(name, ok, detail, enables, needed)


def _python() -> tuple[bool, str]:
    return sys.version_info >= (3, 11), f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def _torch() -> tuple[bool, str]:
    if importlib.util.find_spec("torch") is None:
        return False, "not installed: pip install torch"
    import torch

    return True, f"{torch.__version__}, {os.cpu_count()} CPUs"


def _gloo() -> tuple[bool, str]:
    import torch.distributed

    here = torch.distributed.is_available() and torch.distributed.is_gloo_available()
    return here, "in torch" if here else "this build of torch has no gloo"


def _cuda() -> tuple[bool, str]:
    import torch

    if not torch.cuda.is_available():
        return False, "no CUDA device" if torch.version.cuda else "this build of torch is for CPUs"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return True, f"{len(names)} devices: {', '.join(sorted(set(names)))}"


def _nccl() -> tuple[bool, str]:
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return False, "this build of torch has no NCCL"
    version: Any = torch.cuda.nccl.version  # untyped in torch
    return True, ".".join(str(part) for part in version())


def _package(name: str, otherwise: str) -> Look:
    def look() -> tuple[bool, str]:
        if importlib.util.find_spec(name) is None:
            return False, f"not installed: {otherwise}"
        return True, importlib.metadata.version(name)

    return look


def _disk() -> tuple[bool, str]:
    from pibroch.runtime.ray_session import FREE_DISK

    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    enough = free >= FREE_DISK
    return enough, f"{free / 1e9:.1f} GB free in {folder}" + ("" if enough else f"; {FREE_DISK >> 20} MiB are needed")


def _landlock() -> tuple[bool, str]:
    version = _system().syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_VERSION)
    return (True, f"interface {version}") if version > 0 else (False, _refusal("Linux 5.13 or later has it"))


def _seccomp() -> tuple[bool, str]:
    mode = _system().prctl(PR_GET_SECCOMP, 0, 0, 0, 0)
    if mode < 0:
        return False, _refusal("a Linux kernel with CONFIG_SECCOMP_FILTER has it")
    return True, "available" if mode == 0 else "available (this process is filtered already)"


def _system() -> ctypes.CDLL:
    if not sys.platform.startswith("linux"):
        raise OSError(f"{sys.platform} has none")
    return ctypes.CDLL(None, use_errno=True)


def _refusal(remedy: str) -> str:
    return f"{os.strerror(ctypes.get_errno())}; {remedy}"


def _sandbox() -> tuple[bool, str]:
    from pibroch.evals.sandbox import require_sandbox

    require_sandbox()
    return True, "a probe was locked up as it should be"


def _program(names: Sequence[str], otherwise: str) -> Look:
    def look() -> tuple[bool, str]:
        found = next(filter(None, map(shutil.which, names)), None)
        return (True, found) if found else (False, otherwise)

    return look


def _endpoint() -> tuple[bool, str]:
    from pibroch.agents.lm.openai_api import DEFAULT_URL, resolve_base_url, shown

    url = resolve_base_url()
    if os.environ.get("OPENAI_API_KEY", "").strip():
        return True, f"OPENAI_API_KEY is set, for {shown(url)} (not asked)"
    if url != DEFAULT_URL:
        return True, f"{shown(url)}, without a key (not asked)"
    return False, "OPENAI_API_KEY is not set, nor another endpoint in OPENAI_BASE_URL"


def _weights() -> tuple[bool, str]:
    from pibroch.agents.lm.local import find_model

    return True, str(find_model())


PARTS: tuple[tuple[str, str, bool, Look], ...] = (
    ("python", "everything", True, _python),
    ("torch", "everything but init, mailbox and simulate without a model", True, _torch),
    ("gloo", "runs on CPUs", True, _gloo),
    ("cuda", "runs on GPUs", False, _cuda),
    ("nccl", "direct communication among GPUs", False, _nccl),
    ("ray", "--launcher ray (the default) and clusters", False, _package("ray", "pip install ray")),
    ("disk", "--launcher ray: its sockets, logs and spilled objects", False, _disk),
    ("landlock", "the sandbox", False, _landlock),
    ("seccomp", "the sandbox", False, _seccomp),
    ("sandbox", "pibroch regenerate and evolve: generated code runs in it only", False, _sandbox),
    ("openai", "--lm openai", False, _package("openai", "pip install openai")),
    ("endpoint", "--lm openai", False, _endpoint),
    ("xllamacpp", "--lm local", False, _package("xllamacpp", "pip install 'pibroch[local]'")),
    ("weights", "--lm local", False, _weights),
    (
        "chromium",
        "tests of the timeline page in a real browser",
        False,
        _program(["chromium", "chromium-browser", "google-chrome"], "no Chromium on PATH"),
    ),
)
