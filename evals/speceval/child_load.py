"""What a candidate gets: its builtins and its modules. Standard library only.

This keeps honest code within the spec and makes a cheat fail loudly; it is no wall. The wall is the sandbox.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, ModuleType
from typing import Any

FILE = "candidate"

# Not among them: open, eval, exec, compile, input, print, breakpoint, globals, locals, vars, dir (they reach out), and
# id (it differs from run to run).
FUNCTIONS = (
    "abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "classmethod", "complex",
    "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "hash", "hex", "int", "isinstance",
    "issubclass", "iter", "len", "list", "map", "max", "min", "next", "object", "oct", "ord", "pow", "property",
    "range", "repr", "reversed", "round", "set", "slice", "sorted", "staticmethod", "str", "sum", "super", "tuple",
    "type", "zip",
)  # fmt: skip
GUARDED = ("getattr", "setattr", "delattr", "hasattr")  # refuse names that begin with an underscore
CONSTANTS = ("None", "True", "False", "NotImplemented", "Ellipsis", "__debug__", "__build_class__")
ERRORS = tuple(
    name for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException) and not issubclass(value, Warning)
)  # fmt: skip
OFFERED = frozenset({*FUNCTIONS, *GUARDED, *CONSTANTS, *ERRORS})  # `__import__` comes with `make_builtins`

# Standard modules that a spec may list under `imports`: pure ones, without clock, chance, files or processes.
PURE = frozenset({
    "abc", "array", "bisect", "collections", "collections.abc", "copy", "dataclasses", "decimal", "enum", "fractions",
    "functools", "heapq", "itertools", "math", "numbers", "operator", "re", "statistics", "string", "typing",
})  # fmt: skip
ALWAYS = frozenset({"__future__", "typing"})
# Public names that run text as code.
_HIDDEN = {"typing": {"get_type_hints", "ForwardRef"}, "dataclasses": {"make_dataclass"}}


def facade(name: str) -> ModuleType:
    """A copy of a standard module with its public names and none of the modules that it imports."""
    real = importlib.import_module(name)
    names = getattr(real, "__all__", None) or [n for n in vars(real) if not n.startswith("_")]
    made = ModuleType(name)
    for each in names:
        value = getattr(real, each)
        if not isinstance(value, ModuleType) and each not in _HIDDEN.get(name, ()):
            setattr(made, each, value)
    return made


def make_modules(imports: Iterable[str], own: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    """Every module that the candidate may import, by name: `own` (shims and proxies) first, then pure standard ones."""
    made = {name: own[name] for name in imports if name in own}
    for name in sorted({*imports, *ALWAYS} - set(own)):
        if name in PURE or name in ALWAYS:
            made[name] = facade(name)
    if "collections" in made and "collections.abc" not in made:
        made["collections.abc"] = facade("collections.abc")
    for name, module in sorted(made.items()):
        package, _, last = name.rpartition(".")
        if package:
            setattr(made.setdefault(package, ModuleType(package)), last, module)
    return made


def make_builtins(modules: Mapping[str, ModuleType]) -> dict[str, Any]:
    """The builtins of a candidate; a fresh dict, so that patching it reaches nobody else."""
    made = {name: getattr(builtins, name) for name in (*FUNCTIONS, *CONSTANTS, *ERRORS)}
    for name in GUARDED:
        made[name] = _guarded(name)

    def load(
        name: str, globals: object = None, locals: object = None, fromlist: Iterable[str] = (), level: int = 0
    ) -> ModuleType:
        if level or name not in modules:
            raise ImportError(f"{name} is not among the spec's imports")
        return modules[name] if fromlist else modules[name.partition(".")[0]]

    made["__import__"] = load
    return made


def _guarded(name: str) -> Callable[..., Any]:
    real = getattr(builtins, name)

    def guarded(thing: Any, attribute: str, *rest: Any) -> Any:
        if type(attribute) is not str or attribute.startswith("_"):
            raise AttributeError(f"{name} of {attribute!r} is not allowed")
        return real(thing, attribute, *rest)

    guarded.__name__ = guarded.__qualname__ = name
    return guarded


def proxy(name: str, functions: Iterable[str], ask: Callable[[str, list[Any], dict[str, Any]], Any]) -> ModuleType:
    """A module that the candidate relies on: each call is asked of the judge."""
    module = ModuleType(name)

    def make(function: str) -> Callable[..., Any]:
        def asking(*args: Any, **kwargs: Any) -> Any:
            return ask(f"{name}.{function}", list(args), kwargs)

        asking.__name__ = asking.__qualname__ = function
        return asking

    for function in functions:
        setattr(module, function, make(function))
    return module


def run_source(code: CodeType, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Execute a candidate anew; its module scope."""
    module = ModuleType(FILE)
    sys.modules[FILE] = module  # where `dataclass` looks up annotations that are text
    scope = vars(module)
    scope["__builtins__"] = dict(offered)
    exec(code, scope)
    return scope
