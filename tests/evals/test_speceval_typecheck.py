"""Clauses under mypy: each fault is told with the spec's line; specs that have not changed are not looked at again."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_texts import COUNTER, SOURCE, changed
from tiny_specs import line_of

from pibroch.evals.speceval import mypy_run, typecheck
from pibroch.specs.parse import parse_spec


@pytest.fixture(autouse=True, scope="module")
def _own_results(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Results of these tests alone; what mypy knows of builtins is shared by them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


FAULTS = [
    ('"A2", step >= 1', '"A2", step', '"A2"', 'A2: gives "int", not a truth value: step'),
    ("min(step, room(old))", "room(step)", '"P1"', 'P1: Argument 1 to "room" has incompatible type "int"'),
    ('"P2", result == (step', '"P2", len(result) == (step', '"P2"', 'P2: Argument 1 to "len" has incompatible'),
    ('"INV1", 0 <= self', '"INV1", "" <= self', '"INV1"', "INV1: Unsupported operand types"),
    ("sum(source.newest(n))", "source.newest(n) + 1", '"P3"', "P3: No overload variant"),
    ("source.newest(n)", "source.newest(n, n)", '"P3"', 'P3: Too many arguments for "newest" of "source"'),
    ("when=n > self.limit", "when=self.limit", '"R1"', 'R1: gives "int", not a truth value'),
    ("        left -= 1\n", '        left -= "1"\n', "        left -=", 'room: Unsupported operand types for -'),
    ("    return left\n", "    return c\n", "    return c", "room: Incompatible return value type"),
    ('"len(result) <= n"', '"result <= n"', '"result <= n"', "rely.source.newest.ensures.0: Unsupported operand types"),
    ("step: 1..2", 'step: {draw: "self.value == 1 or []"}', "scope:", "scope.step: gives "),
    ("step: 1..2", 'step: {draw: "choose([self.limit, n])"}', "scope:", 'scope.step: Name "n" is not defined'),
    ("step: 1..2", 'step: {draw: "1 +"}', "scope:", "scope.step: invalid syntax"),
    ("imports: [source]", "imports: [source, os]", "imports:", "imports os, which is neither relied upon nor"),
    ("result == (step", 'step != "a" and result == (step', '"P2"', "P2: Non-overlapping equality check"),
]  # fmt: skip


def test_faults_have_the_specs_lines() -> None:
    texts = {f"counter{i}": changed(("module: counter", f"module: counter{i}"), (old, new))
             for i, (old, new, _, _) in enumerate(FAULTS)}  # fmt: skip
    errors = typecheck.check([parse_spec(text, f"{name}.spec.md") for name, text in texts.items()])
    found = {name: [(e.line, e.message) for e in errors if str(e.path) == f"{name}.spec.md"] for name in texts}
    for i, (_, _, at, message) in enumerate(FAULTS):
        rows, expected = found[f"counter{i}"], line_of(texts[f"counter{i}"], at)
        assert any(line == expected and text.startswith(message) for line, text in rows), (message, rows)


def test_sound_specs_and_what_was_seen_before(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [parse_spec(COUNTER), parse_spec(SOURCE)]
    bad = parse_spec(changed(("module: counter", "module: counted"), ('"A2", step >= 1', '"A2", step')), "bad.spec.md")
    assert [e.line for e in typecheck.check([*specs, bad])] == [bad.clauses["A2"].line]
    monkeypatch.setattr(mypy_run, "run", lambda sources: pytest.fail(f"asked again: {list(sources)}"))
    assert [str(e) for e in typecheck.check([bad, *specs])] == [
        f'bad.spec.md:{bad.clauses["A2"].line}: A2: gives "int", not a truth value: step'
    ]
    moved = parse_spec(changed(("An int.", "An int. More."), ("summary: A", "# a comment\nsummary: A")))
    assert typecheck.check([moved]) == []  # lines and prose may move


def test_the_stage_names_the_clause() -> None:
    spec = parse_spec(changed(('"A2", step >= 1', '"A2", step')), "counter.spec.md")
    report = typecheck.judge(spec, peers={"source": parse_spec(SOURCE)})
    (finding,) = report.findings
    assert (finding.stage, finding.clause, finding.line) == ("load", "A2", spec.clauses["A2"].line)
    assert str(Path("counter.spec.md")) not in finding.message
    alone = typecheck.judge(parse_spec(COUNTER), peers={})
    assert [f.message for f in alone.findings] == ["relies on source, which has no spec"]
    assert typecheck.judge(parse_spec(COUNTER), peers={"source": parse_spec(SOURCE)}).passed


def test_a_library_gives_names_and_types() -> None:
    library = ("guarantee:", "library: [pipeline]\nguarantee:")
    text = changed(library, ("result == (step", "finish([], 1, 1, step) == 0 and result == (step"))
    assert typecheck.check([parse_spec(text)]) == []
    wrong = parse_spec(changed(("finish([]", "finis([]"), text=text))
    (error,) = typecheck.check([wrong])
    assert "unknown name 'finis'" in error.message
    (error,) = typecheck.check([parse_spec(changed(("finish([]", "finish([1]"), text=text))])
    assert 'incompatible type "int"' in error.message
