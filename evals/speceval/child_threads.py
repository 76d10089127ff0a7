"""The threads of a session: made before the child is locked up, parked between runs. Standard library only.

`child.py` loads this module where the judge asked for threads; the command is `threads.runs`. What a run is, and
its log, is in `child_run.py`.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pibroch.evals.speceval.child_run import Run, Task
from pibroch.evals.speceval.child_shim import WouldBlock
from pibroch.evals.speceval.child_sync import KINDS, Condition, Here, threading
from pibroch.evals.speceval.child_watch import Tracer, watch

if TYPE_CHECKING:
    from pibroch.evals.speceval.child import Child


class Threads:
    """The threads of this process, made once and parked between runs."""

    def __init__(self, child: Child, count: int) -> None:
        self.child = child
        self.run: Run | None = None
        self.tracer: Tracer | None = None
        self.tracers: dict[tuple[Any, ...], Tracer] = {}
        self.keeping = False
        self.finished = _thread.allocate_lock()
        self.finished.acquire()
        self.tasks = [Task(i) for i in range(count)]
        for task in self.tasks:
            _thread.start_new_thread(self._serve, (task,))
            self.finished.acquire()
        self.keeper = Task(-1)
        _thread.start_new_thread(self._keep, ())
        self.finished.acquire()

    def runs(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Answer one request of the judge: the log of each of `runs`, in order.

        `unit`, `is_class`, `view`, `init`, `before` and `threads` are the scenario (packed arguments); `mode` is `sync`
        or `opcodes`; `detail` asks for the lines; `fields` and `variables` name what is worth a point or a log.
        """
        mode = (request["unit"], request["mode"] == "opcodes", bool(request["detail"]),
                frozenset(request["fields"]), frozenset(request["variables"]))  # fmt: skip
        if mode not in self.tracers:
            self.tracers[mode] = Tracer(*mode)
        self.tracer = self.tracers[mode] if mode[1] or mode[2] or mode[4] else None
        if self.keeping is not (self.tracer is not None):
            self.keeper.gate.release()
            self.finished.acquire()
        return [self._one(request, plan, i) for i, plan in enumerate(request["runs"])]

    def _serve(self, task: Task) -> None:
        self.finished.release()
        while True:
            task.gate.acquire()
            if self.run is not None:
                self.run.work(task)

    def _keep(self) -> None:
        """A thread that only holds a trace function while runs are traced.

        CPython rewrites all code when the first thread sets one and when the last drops it, and 3.12 crashes where a
        thread stands in a trace function at that time. So that happens here, when no thread is in a run.
        """
        self.finished.release()
        while True:
            self.keeper.gate.acquire()
            self.keeping = not self.keeping
            sys._getframe().f_trace_opcodes = True  # 3.12 must know before `settrace` that some frame will ask
            sys.settrace((lambda *_: None) if self.keeping else None)
            self.finished.release()

    def _one(self, request: dict[str, Any], plan: dict[str, Any], number: int) -> dict[str, Any]:
        Here.run, Here.made = None, 0
        unpack = self.child.unpack
        try:
            scope = self.child.load()
            for made in scope.values():
                watch(made, request["unit"])
            unit = scope[request["unit"]](*unpack(request["init"])) if request["is_class"] else None
            operation = scope.__getitem__ if unit is None else lambda name: getattr(unit, name)
            for name, args in request["before"]:
                with suppress(Exception):  # one that the spec allows; the judge makes these calls elsewhere too
                    operation(name)(*unpack(args))
        except (Exception, WouldBlock) as error:
            nothing: dict[str, Any] = {"choices": [], "events": [], "waiting": [], "locks": []}
            return {"end": "failed", "error": self.child.describe(error), **nothing}
        tasks = self.tasks[: len(request["threads"])]
        for task, calls in zip(tasks, request["threads"], strict=True):
            task.reset([(name, unpack(args)) for name, args in calls])
        locks = _locks(request["unit"], scope if unit is None else getattr(unit, "__dict__", {}))
        run = self.run = Here.run = Run(self, tasks, plan, operation, number)
        first = run.choose()
        if first is None:
            run.end = run.end or "done"
        else:
            run.current = first
            first.gate.release()
            self.finished.acquire()
        log: dict[str, Any] = {"end": run.end, "choices": run.choices, "events": run.events, "locks": locks}
        log["waiting"] = [_waiting(t) for t in tasks if not t.done and t.ready is not None]
        if request.get("view") and run.end in ("done", "stuck"):
            run.alone, run.current = Task(-1), None
            try:
                log["view"] = self.child.pack(operation("view")())
            except (Exception, WouldBlock) as error:
                log["unseen"] = self.child.describe(error)
        run.stopping, run.alone = True, None
        for task in tasks:
            if not task.done:
                run.current = task
                task.gate.release()
                self.finished.acquire()
        self.run = Here.run = None
        return log


def _waiting(task: Task) -> list[Any]:
    kind, what, line = task.why
    lock = what.lock if isinstance(what, Condition) else what
    owner = getattr(lock, "owner", None)
    return [task.index, task.at, kind, what.number, line, owner.index if isinstance(owner, Task) else -1]


def _locks(unit: str, fields: dict[str, Any]) -> list[list[Any]]:
    found = []
    for name, value in fields.items():
        many = value if type(value) in (list, tuple) else [value]
        for i, each in enumerate(many):
            if type(each) in KINDS:
                label = f"{unit}.{name}" + (f"[{i}]" if many is value else "")
                lock = each.lock if isinstance(each, Condition) else each
                found.append([each.number, label, each.kind, each.made_at, lock.number])
    return found


# What `child.py` uses


def make_threading(child: Child) -> ModuleType:
    """The candidate's `threading`."""
    return threading()


def start(child: Child, count: int) -> None:
    """Make the threads; returns when all of them run."""
    global _threads
    _threads = Threads(child, count)


def handle(child: Child, command: str, payload: dict[str, Any]) -> Any:
    """`threads.runs`: see `Threads.runs`."""
    assert _threads is not None
    if command != "threads.runs":
        raise ValueError(f"unknown command {command}")
    child.around_ask = _around_ask
    return _threads.runs(payload)


_threads: Threads | None = None


def _around_ask(name: str, args: list[Any], answer: Callable[[], Any]) -> Any:
    return answer() if Here.run is None else Here.run.ask(name, args, answer)
