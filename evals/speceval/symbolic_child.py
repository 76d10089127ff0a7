"""The inside of the symbolic stage: CrossHair on a candidate, in a process that locks itself up first.

CrossHair and z3 are imported, and once used, before the lock: later nothing of the environment can be read, no memory
made executable and no thread started (z3's timer thread stands by then). The wrapper lies in the work folder, which
can be read and not written. Whatever is printed is a proposal that the judge makes again outside.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from types import ModuleType
from typing import Any

from pibroch.evals.lockup import lock_up
from pibroch.evals.speceval import child_load

_WARM_UP = """\
from typing import List, Tuple
def check(a: int, calls: List[Tuple[int, int]]) -> None:
    assert len(calls) < 3
    total = sum(x for _, x in calls)
    assert total != 77 or a != 3
"""


def main() -> None:
    """Read the job, warm up, lock up, look, answer."""
    from crosshair.core_and_libs import analyze_function, run_checkables
    from crosshair.options import AnalysisKind, AnalysisOptionSet

    job = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)

    def look(function: Any, iterations: int) -> list[str]:
        options = AnalysisOptionSet(
            analysis_kind=[AnalysisKind.asserts], max_uninteresting_iterations=iterations,
            per_condition_timeout=float(job["seconds"]), per_path_timeout=float(job["seconds"]) / 2,
        )  # fmt: skip
        return [str(message.message) for message in run_checkables(analyze_function(function, options))]

    wrapper = _module("wrapper", "wrapper.py")
    look(_module("warm_up", "warm_up.py").check, 5)
    try:
        lock_up(job["limits"], write=False, new_code=False)
    except OSError as error:
        _answer(out, {"refused": f"the sandbox cannot be set up: {error}"})
    try:
        offered = child_load.make_builtins(child_load.make_modules(job["imports"], {}))
        code = compile(job["source"], child_load.FILE, "exec")
        wrapper.__dict__["CANDIDATE"] = lambda: child_load.run_source(code, offered)
        wrapper.__dict__["CANDIDATE"]()
        found = {name: look(getattr(wrapper, name), job["iterations"]) for name in job["functions"]}
        _answer(out, {"found": found})
    except BaseException as error:
        _answer(out, {"failed": f"{type(error).__name__}: {str(error)[:300]}"})


def warm_up() -> str:
    """What the parent writes as `warm_up.py` beside the wrapper."""
    return _WARM_UP


def _module(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _answer(out: int, data: dict[str, Any]) -> None:
    text = json.dumps(data).encode()
    while text:
        text = text[os.write(out, text) :]
    os._exit(0)
