"""From a `*.spec.md` to a `Spec`: YAML front matter, prose sections, and one `python` block: parsed, never run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pibroch.specs.block import read_block
from pibroch.specs.errors import SpecError
from pibroch.specs.front import read_front
from pibroch.specs.links import check_links
from pibroch.specs.model import Spec
from pibroch.specs.names import check_names, check_types
from pibroch.specs.whitelist import check_trees

SUFFIX = ".spec.md"
_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^```(\w*)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_HIDDEN = re.compile(r"^```.*?^```[ \t]*$|(<!--.*?(?:-->|\Z))", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^##[ \t]+(.+?)[ \t]*$", re.MULTILINE)
SECTIONS = ("intent", "functionality", "algorithm", "concurrency")


def load_spec(path: str | Path) -> Spec:
    """Read and parse one file. Raises `SpecError` with the line."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SpecError(path, 0, f"cannot be read: {reason}") from error
    return parse_spec(text, path)


def parse_spec(text: str, path: str | Path = "spec") -> Spec:
    """Parse a spec's text; `path` is for messages. Raises `SpecError` with the line."""
    path = Path(path)
    try:
        return _parse(text, path)
    except RecursionError as error:
        raise SpecError(path, 0, "something in it is nested too deeply") from error


def _parse(text: str, path: Path) -> Spec:
    match = _FRONT.match(text)
    if not match:
        raise SpecError(path, 1, "a spec opens with YAML front matter between two lines of `---`")
    front, lines = read_front(path, match[1], 2)
    shown = text[: match.end()] + _HIDDEN.sub(_blank_comment, text[match.end() :])
    fences = [f for f in _FENCE.finditer(shown, match.end()) if f[1] == "python"]
    if len(fences) != 1:
        at = fences[1].start() if fences else match.end()
        raise SpecError(path, _line(text, at), f"a spec has one ```python block, this one has {len(fences)}")
    fence = fences[0]
    sections = _sections(path, shown, match.end(), lines)
    relies, units, helpers = read_block(path, front, fence[2], _line(text, fence.start(2)), lines)
    spec = Spec(path, front, relies, units, helpers, sections, fence[2], text, lines)
    check_links(spec)
    check_trees(spec)
    check_types(spec)
    if not front.library:  # names of a library are known to the evaluator alone
        check_names(spec)
    return spec


def _blank(match: re.Match[str]) -> str:
    """Only the line breaks are left."""
    return re.sub(r"[^\n]", " ", match[0])


def _blank_comment(match: re.Match[str]) -> str:
    """Comments go, code stays."""
    return match[0] if match[1] is None else _blank(match)


def prose_lines(spec: Spec) -> Iterator[tuple[int, str, str]]:
    """Line, section and text of every line of prose: no headings, code or comments."""
    match = _FRONT.match(spec.text)
    assert match, "a parsed spec has front matter"
    shown = re.sub(r"[^\n]", " ", match[0]) + _HIDDEN.sub(_blank, spec.text[match.end() :])
    section = ""
    for number, row in enumerate(shown.split("\n"), 1):
        head = _HEADING.match(row)
        if head:
            section = head[1].lower()
        elif section and row.strip():
            yield number, section, row


def _sections(path: Path, text: str, start: int, lines: dict[str, int]) -> dict[str, str]:
    hidden = _FENCE.sub(lambda f: re.sub(r"[^\n]", " ", f[0]), text)  # a `##` in code opens no section
    heads = list(_HEADING.finditer(hidden, start))
    found: dict[str, str] = {}
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        name = head[1].lower()
        if name not in SECTIONS:
            titles = ", ".join(s.capitalize() for s in SECTIONS)
            raise SpecError(path, _line(text, head.start()), f"unknown section {head[1]!r}; the sections are {titles}")
        if name in found:
            raise SpecError(path, _line(text, head.start()), f"section {head[1]!r} stands twice")
        lines[f"section.{name}"] = _line(text, head.start())
        body = text[head.end() : following.start() if following else len(text)]
        found[name] = _FENCE.sub("", body).strip()
    if not found.get("intent"):
        at = lines.get("section.intent", _line(text, start))
        raise SpecError(path, at, "section 'Intent' is missing or empty: say what the module is for")
    return found


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
