"""Specs in folders: which file counts, who relies on whom, circles, and a hash of what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_texts import COUNTER, SOURCE, changed
from tiny_specs import line_of

from pibroch.specs.errors import SpecError
from pibroch.specs.graph import as_svg, as_text, edges
from pibroch.specs.parse import parse_spec
from pibroch.specs.store import check_relies, closure, dependents, files, load_all, load_each, order, semantic_hash


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.spec.md").write_text(text)
    return folder


def relying(name: str, *others: str) -> str:
    """A module with one function, which relies on the same function of others."""
    relies = "".join(f'\n  - module: {other}\n    uses: "def f(n: int) -> int"' for other in others)
    return f"""---
spec: 1
module: {name}
version: 1
summary: s
rely:{relies or " []"}
imports: [{", ".join(others)}]
guarantee: {{exports: [f]}}
---
## Intent
i
```python
def f(n: int) -> int:
    ensures("P1", result == n)
```
"""


def test_order_puts_what_is_relied_upon_first(tmp_path: Path) -> None:
    write(tmp_path / "modules", counter=COUNTER)
    write(tmp_path / "deeper" / "still", source=SOURCE)
    specs = load_all([tmp_path])
    assert list(specs) == ["source", "counter"]
    texts = {"a": relying("a", "d", "b"), "b": relying("b", "c"), "c": relying("c"), "d": relying("d", "c")}
    found = load_all([write(tmp_path / "x", **texts)])
    assert list(found) == ["c", "b", "d", "a"]
    assert closure(found, ["b"]) == ["b", "c"]
    assert dependents(found, "c") == ["a", "b", "d"]


def test_the_first_folder_with_a_module_counts(tmp_path: Path) -> None:
    own = write(tmp_path / "own", source=changed(("version: 1", "version: 7"), text=SOURCE))
    shipped = write(tmp_path / "shipped", source=SOURCE, counter=COUNTER)
    specs = load_all([own, shipped])
    assert {name: spec.front.version for name, spec in specs.items()} == {"source": 7, "counter": 1}
    write(own / "again", source=SOURCE)
    with pytest.raises(SpecError, match="a second spec of source"):
        files([own, shipped])


def test_a_file_bears_its_modules_name(tmp_path: Path) -> None:
    write(tmp_path, meter=COUNTER)
    with pytest.raises(SpecError, match=r"counter belongs into counter\.spec\.md, not meter\.spec\.md") as caught:
        load_all([tmp_path])
    assert caught.value.line == line_of(COUNTER, "module: counter")


def test_an_unknown_rely_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, counter=COUNTER)
    with pytest.raises(SpecError, match="relies on source, which has no spec") as caught:
        load_all([tmp_path])
    assert (caught.value.path.name, caught.value.line) == ("counter.spec.md", line_of(COUNTER, "- module: source"))
    write(tmp_path, source=changed(("newest", "latest"), text=SOURCE))
    with pytest.raises(SpecError, match=r"source\.newest, which source does not export; its functions are latest"):
        load_all([tmp_path])
    near = changed(("  - module: source", "  - module: sorce"), ("imports: [source]", "imports: [sorce]"),
                   ("source.newest", "sorce.newest"))  # fmt: skip
    write(tmp_path, counter=near)
    with pytest.raises(SpecError, match=r"relies on sorce, which has no spec; did you mean source\?"):
        load_all([tmp_path])


def test_a_circle_of_relies_is_shown(tmp_path: Path) -> None:
    write(tmp_path, a=relying("a", "b"), b=relying("b", "c"), c=relying("c", "b"), d=relying("d"))
    with pytest.raises(SpecError, match="relies in a circle: b -> c -> b") as caught:
        load_all([tmp_path])
    assert (caught.value.path.name, caught.value.line) == ("b.spec.md", line_of(relying("b", "c"), "- module: c"))
    specs, errors = load_each(files([tmp_path]))
    assert not errors
    check_relies(specs, ["d"])  # what has nothing to do with the circle is not blamed for it


def test_broken_specs_do_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path, counter=COUNTER, source="no spec", other=relying("other"))
    specs, errors = load_each(files([tmp_path]))
    assert sorted(specs) == ["counter", "other"]
    assert [error.path.name for error in errors] == ["source.spec.md"]
    check_relies(specs, broken=["source"])
    assert order(specs) == ["counter", "other"]


def test_the_hash_is_of_what_is_said() -> None:
    base = semantic_hash(parse_spec(COUNTER))
    same = [
        ("imports: [source]", "imports:\n  - source"),
        ("{limit: 1..3, step: 1..2,", "{step: 1..2,  limit: '1..3',"),
        ("min(step, room(old))", "min( step,room(old) )"),
        ("It counts up to `limit` and stays there.", "It counts up to `limit`\nand stays there."),
        ("An int.", "An int. <!-- for now -->"),
        ('"n >= 1"', '"(n >= 1)"'),
        ("requires: [", "requires:  ["),
    ]
    for old, new in same:
        assert semantic_hash(parse_spec(changed((old, new)))) == base, new
    other = [
        ("version: 1", "version: 2"),
        ("limit: 1..3", "limit: 1..4"),
        ("step >= 1", "step > 1"),
        ("1)\n        ensures(\"P1\"", "True)\n        ensures(\"P1\""),
        ("left -= 1", "left -= 2"),
        ("stays there", "stays here"),
        ("    value: int\n", "    value: int  # at most limit\n"),
        ("len(result) <= n", "len(result) < n"),
    ]
    for old, new in other:
        assert semantic_hash(parse_spec(changed((old, new)))) != base, new


def test_the_hash_stays_what_it_was() -> None:
    """Locks hold it: another hash for the same words would regenerate every module."""
    assert semantic_hash(parse_spec(SOURCE))[:16] == "b5d3b243c3a23311"


def test_the_map_of_relies(tmp_path: Path) -> None:
    alone = relying("<alone>".strip("<>"))
    specs = load_all([write(tmp_path, counter=COUNTER, source=SOURCE, alone=alone)])
    assert edges(specs) == [("counter", "source", ("newest",))]
    assert as_text(specs) == [
        "alone    v1  sequential",
        "source   v1  sequential  used by counter",
        "counter  v1  sequential  relies on source.newest",
    ]
    svg = as_svg(specs)
    assert (svg[:4], svg.count('class="arrow"'), svg.count("<rect")) == ("<svg", 1, 3)
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")  # self-contained
    import xml.etree.ElementTree as ElementTree

    ElementTree.fromstring(svg)
    assert as_text({}) == []
    ElementTree.fromstring(as_svg({}))
