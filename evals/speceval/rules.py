"""Rules on a candidate's syntax tree, checked before any of its code runs. All violations are reported at once.

The rules keep a module plain: no way round the sandbox or the judge, no state outside its units, no code that only an
interpreter's internals explain. `rules_shape.py` holds what the spec says of names, signatures and locks.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType

from pibroch.evals.speceval import child_load
from pibroch.evals.speceval.rules_shape import shape_findings
from pibroch.evals.speceval.rules_tables import display_parts, misuses, table_name
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.specs.model import Spec

MAX_LINES, MAX_CHARACTERS, MAX_DEPTH = 600, 30_000, 60
ALWAYS = ("__future__", "typing")
PURE = child_load.PURE | {"threading", "__future__"}  # `threading` is phase 2's
_BANNED = {
    **dict.fromkeys(("exec", "eval", "compile", "__import__"), "code is not made at run time"),
    **dict.fromkeys(("open", "input", "print", "breakpoint", "help", "exit", "quit"), "a module has no files"),
    **dict.fromkeys(("globals", "locals", "vars", "dir"), "no view into the interpreter's name spaces"),
    **dict.fromkeys(("delattr", "memoryview", "super", "classmethod", "property"), "not needed in a plain module"),
    **dict.fromkeys(("id", "hash"), "its value differs from run to run"),
    **dict.fromkeys(("BaseException", "SystemExit", "KeyboardInterrupt", "GeneratorExit"), "not a module's to handle"),
}  # fmt: skip
_FRAMES = {"tb_frame", "tb_next", "gi_frame", "cr_frame", "ag_frame", "f_back", "f_globals", "f_locals", "f_builtins",
           "f_code", "gi_code", "cr_code", "func_globals", "mro", "with_traceback", "format_map", "attrgetter",
           "methodcaller", "getcontext", "setcontext", "localcontext"}  # fmt: skip
_BASES = {"NamedTuple", "Enum", "IntEnum", "object", "Exception", "ValueError", "KeyError", "RuntimeError",
          "IndexError", "LookupError", "TypeError"}  # fmt: skip
MODULE = "the module"
_DECORATORS = {"staticmethod", "dataclass", "dataclasses.dataclass"}


def judge(source: str, spec: Spec, phase: int) -> StageReport:
    """Check `source` as a module of `spec` in phase 1 or 2; findings are ordered by the candidate's line."""
    report, started = StageReport("rules"), time.monotonic()
    tree = _parse(source, report.findings)
    if tree is not None:
        walker = _Walker(spec, phase)
        walker.module(tree)
        report.findings += sorted([*walker.findings, *shape_findings(tree, spec, phase)], key=_order)
    report.evidence = {"lines": source.count("\n") + 1, "findings": len(report.findings)}
    report.seconds = time.monotonic() - started
    return report


def _order(finding: Finding) -> tuple[int, str, str]:
    return (finding.code_lines or (0,))[0], finding.clause, finding.message


def _parse(source: str, findings: list[Finding]) -> ast.Module | None:
    lines = source.count("\n") + 1
    if lines > MAX_LINES or len(source) > MAX_CHARACTERS:
        message = f"{lines} lines and {len(source)} characters; a module has at most {MAX_LINES} and {MAX_CHARACTERS}"
        findings.append(Finding("rules", "size", message))
        return None
    try:
        tree = ast.parse(source)
        compile(source, "candidate", "exec", dont_inherit=True)
    except SyntaxError as error:
        message = f"the code does not parse: {error.msg}: {(error.text or '').strip()[:80]!r}"
        findings.append(Finding("rules", "syntax", message, code_lines=(error.lineno or 1,)))
        return None
    except (ValueError, RecursionError, MemoryError) as error:
        findings.append(Finding("rules", "syntax", f"the code does not parse: {error}"))
        return None
    if _deep(tree):
        findings.append(Finding("rules", "size", f"code is nested more than {MAX_DEPTH} levels deep"))
        return None
    return tree


def _deep(tree: ast.AST) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


@cache
def public_names(module: str) -> frozenset[str]:
    """What code may take from a pure module: its public names, without the modules that it imported itself."""
    loaded = import_module(module)
    names = getattr(loaded, "__all__", None) or [n for n in vars(loaded) if not n.startswith("_")]
    return frozenset(n for n in names if not isinstance(getattr(loaded, n, None), ModuleType))


class _Walker:
    def __init__(self, spec: Spec, phase: int) -> None:
        self.spec, self.phase = spec, phase
        self.findings: list[Finding] = []
        self.tree = ast.Module([], [])
        self.relied = {rely.module for rely in spec.relies}
        declared = set(spec.front.imports) | set(ALWAYS)
        self.allowed = declared - ({"threading"} if phase == 1 else set())
        self.modules: dict[str, str] = {}  # a name of the code to the module that it stands for
        self.params = {p.name for u in spec.units for o in u.operations.values() for p in o.params}
        self.stateful = any(not u.is_class and u.view for u in spec.units)

    def say(self, node: ast.AST, rule: str, message: str) -> None:
        self.findings.append(Finding("rules", rule, message, code_lines=(int(getattr(node, "lineno", 1)),)))

    def module(self, tree: ast.Module) -> None:
        top = set(map(id, tree.body))
        owners = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        own = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports(node, id(node) in top)
        for node in ast.walk(tree):
            self.names(node, owners)
            self.attributes(node, own)
            self.control(node)
            self.definitions(node)
        self.tree = tree
        self.state(tree.body, MODULE, self.stateful)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.state(node.body, node.name, False)

    # Imports

    def imports(self, node: ast.Import | ast.ImportFrom, at_top: bool) -> None:
        if not at_top:
            self.say(node, "imports", "imports stand at the top of the module, once")
        for alias in node.names:
            module = alias.name if isinstance(node, ast.Import) else ("." * node.level + (node.module or ""))
            if module not in self.allowed:
                why = "phase 1 is sequential code" if module == "threading" and self.phase == 1 else self._known()
                self.say(node, "imports", f"import of {module}: {why}")
            elif module not in PURE and module not in self.relied:
                known = ", ".join(sorted(PURE))
                self.say(node, "imports", f"import of {module}: neither relied upon nor a pure module ({known})")
            elif isinstance(node, ast.Import):
                self.modules[alias.asname or module] = module
                if module in (*self.relied, "threading") and alias.asname:
                    self.say(node, "imports", f"import {module} under its own name")
            elif module in (*self.relied, "threading"):
                self.say(node, "imports", f"write `import {module}` and `{module}.{alias.name}`")
            elif module != "__future__" and (alias.name not in public_names(module) or alias.name in _FRAMES):
                self.say(node, "imports", f"from {module} import {alias.name}: not for a module")

    def _known(self) -> str:
        return f"the spec declares {', '.join(sorted(self.allowed - set(ALWAYS))) or 'no imports'}"

    # Names and attributes

    def names(self, node: ast.AST, called: set[int]) -> None:
        if isinstance(node, ast.Name):
            self.name(node, called)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name, args = node.func.id, node.args
            if name in ("getattr", "setattr", "hasattr"):
                literal = len(args) > 1 and isinstance(args[1], ast.Constant) and isinstance(args[1].value, str)
                if not literal or str(getattr(args[1], "value", "")).startswith("_"):
                    self.say(node, "names", f"{name}: the attribute is a literal that does not begin with _")
            elif name == "type" and len(args) != 1:
                self.say(node, "names", "type() with three arguments makes classes at run time")

    def name(self, node: ast.Name, called: set[int]) -> None:
        name, stored = node.id, not isinstance(node.ctx, ast.Load)
        if name in _BANNED and name not in self.params:
            self.say(node, "names", f"{name}: {_BANNED[name]}")
        elif name.startswith("__") and not (stored and name in ("__slots__", "__all__")):
            self.say(node, "names", f"{name}: names with two underscores belong to the interpreter")
        elif name in ("getattr", "setattr", "hasattr") and id(node) not in called:
            self.say(node, "names", f"{name} is only called, with a literal attribute")
        elif stored and name in self.modules:
            self.say(node, "names", f"{name} is an imported module and is not assigned to")

    def attributes(self, node: ast.AST, own: set[str]) -> None:
        if not isinstance(node, ast.Attribute):
            return
        base = node.value.id if isinstance(node.value, ast.Name) else ""
        module = self.modules.get(base, "")
        if node.attr.startswith("__") or node.attr in _FRAMES:
            self.say(node, "attributes", f"attribute {node.attr}: the interpreter's internals are out of bounds")
        elif not isinstance(node.ctx, ast.Load) and (module or base in own):
            self.say(node, "state", f"{base}.{node.attr} is assigned: state lives in the fields of `self`")
        elif module in self.relied:
            known = sorted(r.function.name for r in self.spec.relies if r.module == module)
            if node.attr not in known:
                self.say(node, "imports", f"{module}.{node.attr}: the spec relies on {', '.join(known)} only")
        elif module in PURE and module != "__future__" and node.attr not in public_names(module):
            self.say(node, "attributes", f"{module}.{node.attr}: not a public function or constant of {module}")

    # Statements

    def control(self, node: ast.AST) -> None:
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            self.say(node, "control", "no async code")
        elif isinstance(node, ast.TryStar):
            self.say(node, "control", "no except*")
        elif isinstance(node, ast.ExceptHandler):
            types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            caught = [ast.unparse(t) for t in types if t]
            if not caught or "Exception" in caught:
                self.say(node, "control", "name the exception that is expected here: not all of them")
        elif isinstance(node, ast.Try):
            for inner in (n for s in node.finalbody for n in ast.walk(s)):
                if isinstance(inner, ast.Return | ast.Break | ast.Continue):
                    self.say(inner, "control", "return, break or continue in `finally` swallows an exception")
        elif isinstance(node, ast.Global):
            if not self.stateful:
                self.say(node, "state", f"global {', '.join(node.names)}: state lives in the fields of `self`")
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    self.say(node, "state", f"del {ast.unparse(target)}: fields exist as long as their object")

    def definitions(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("__") and node.name != "__init__":
            self.say(node, "names", f"{node.name} is not defined here: of the special methods only __init__ is")
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]:
                if not _constant(default):
                    self.say(default, "state", f"default {ast.unparse(default)}: a default is a constant")
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
                if name not in _DECORATORS:
                    self.say(decorator, "names", f"decorator {name}: only staticmethod and dataclass")
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if ast.unparse(base).rpartition(".")[2] not in _BASES:
                    known = ", ".join(sorted(_BASES))
                    self.say(node, "names", f"class {node.name}({ast.unparse(base)}): bases are {known}")
            if node.keywords:
                self.say(node, "names", f"class {node.name}: no metaclass and no class arguments")

    # State

    def state(self, body: list[ast.stmt], where: str, stateful: bool) -> None:
        for node in body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                if node.value is None or stateful or _constant(node.value) or self.table(node, where):
                    continue
                self.say(node, "state", f"{ast.unparse(node)[:60]}: {where} holds constants only (numbers, texts, "
                                        "tables that are only read); state lives in the fields of `self`")  # fmt: skip
            elif isinstance(node, ast.Expr):
                if not isinstance(node.value, ast.Constant):
                    self.say(node, "state", f"{ast.unparse(node)[:60]}: nothing runs while {where} is loaded")
            elif not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Pass):
                self.say(node, "state", f"{type(node).__name__} in the body of {where}: only definitions and constants")


    def table(self, node: ast.Assign | ast.AnnAssign, where: str) -> bool:
        """Whether this is a table at the top; what changes it is said."""
        name = table_name(node)
        if name is None or where != MODULE or node.value is None or not all(map(_constant, display_parts(node.value))):
            return False
        for use, problem in misuses(self.tree, name):
            self.say(use, "state", f"{name} {problem}")
        return True


def _constant(node: ast.expr) -> bool:
    """Immutable and without calls: numbers, texts, tuples and frozensets of them, types."""
    return all(_harmless(inner) for inner in _parts(node))


def _parts(node: ast.expr) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("field", "dataclasses.field"):
        return  # of a private dataclass: made anew for every object
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "float" and all(isinstance(a, ast.Constant) for a in node.args):
            return
        if node.func.id == "frozenset" and len(node.args) <= 1:
            for arg in node.args:
                yield from (n for e in getattr(arg, "elts", [arg]) for n in _parts(e))
            return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _parts(child) if isinstance(child, ast.expr) else [child]


def _harmless(node: ast.AST) -> bool:
    kinds = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.Name, ast.Attribute, ast.Subscript, ast.operator,
             ast.unaryop, ast.expr_context)  # fmt: skip
    return isinstance(node, kinds)
