"""Counts tokens of every spec, of its block alone, and of the code generated from it; prints a table in Markdown.

The tokenizer is cl100k_base, from the file that litellm (a part of DSPy) brings along: no network is needed. Comments,
blank lines and docstrings of specs count as they stand; of a generated file its first line, which says where it comes
from, does not.

    python scripts/spec_tokens.py
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pibroch.generated
import pibroch.specs
from pibroch.specs.store import load_all, order

if TYPE_CHECKING:
    from tiktoken import Encoding

TOKENIZER = "cl100k_base"


def encoder() -> Encoding:
    """The tokenizer, from litellm's copy; litellm itself is not imported, for it asks the network at once."""
    found = find_spec("litellm")
    assert found is not None, "pip install litellm"
    assert found.origin is not None
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(found.origin).parent / "litellm_core_utils" / "tokenizers")
    import tiktoken

    return tiktoken.get_encoding(TOKENIZER)


def main() -> None:
    """Print the table, in the order of generation, and the sums."""
    made = encoder()
    specs = load_all([Path(folder) for folder in pibroch.specs.__path__])
    files = {path.stem: path for folder in pibroch.generated.__path__ for path in Path(folder).glob("*/*.py")}
    print("| module | spec | its block alone | code | block / code |\n|---|---|---|---|---|")
    sums = [0, 0, 0]
    for name in order(specs):
        spec = specs[name]
        code = files[name].read_text(encoding="utf-8").split("\n", 1)[1] if name in files else ""
        counts = [len(made.encode(text)) for text in (spec.text, spec.block, code)]
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
        print(_row(f"`{name}`", counts))
    print(_row("all", sums))


def _row(name: str, counts: list[int]) -> str:
    whole, block, code = counts
    share = f"{block / code:.2f}" if code else "no code"
    return f"| {name} | {whole:,} | {block:,} | {code:,} | {share} |"


if __name__ == "__main__":
    main()
