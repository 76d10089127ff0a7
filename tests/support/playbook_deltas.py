"""Random deltas, most of them valid, some not, over a handful of ids."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

WORDS = ("bucket_size", "microbatches", "stages", "replicas", "recompute", "layers", "streams", "transfers")
IDS = st.integers(1, 9).map(lambda n: f"sched-{n:05d}")
COUNTS = st.integers(0, 3)
TEXTS = st.one_of(
    st.tuples(st.sampled_from(("Raise", "Lower", "Keep", "Drop")), st.sampled_from(WORDS), st.integers(0, 4)).map(
        lambda row: f"{row[0]} {row[1]} by {row[2]} when it helps"
    ),
    st.text(max_size=30),
    st.just('[{"op": "order", "rows": []}]'),
)
CONDITIONS = st.dictionaries(
    st.sampled_from(("devices", "stages", "finding:exposed-reduce", "Not A Key")),
    st.sampled_from((">=4", "<8", "true", "2|4", ">=9,<2", "??")),
    max_size=2,
)
EDITS: st.SearchStrategy[dict[str, Any] | None] = st.one_of(
    st.none(), st.just({}), st.integers(1, 3).map(lambda n: {"op": "bucket_size", "mb": n})
)


def _rows() -> st.SearchStrategy[dict[str, Any]]:
    add = st.fixed_dictionaries(
        {
            "op": st.just("ADD"),
            "section": st.just("schedules"),
            "text": TEXTS,
            "applies_when": CONDITIONS,
            "edit": EDITS,
        }
    )
    update = st.fixed_dictionaries(
        {"op": st.just("UPDATE"), "id": IDS},
        optional={"text": TEXTS, "applies_when": CONDITIONS, "edit": EDITS, "section": st.just("memory")},
    )
    tag = st.fixed_dictionaries(
        {"op": st.just("TAG"), "id": IDS},
        optional=dict.fromkeys(("shown", "cited", "tested", "helpful", "harmful"), COUNTS),
    )
    merge = st.fixed_dictionaries(
        {"op": st.just("MERGE"), "ids": st.lists(IDS, min_size=1, max_size=3)}, optional={"text": TEXTS}
    )
    remove = st.fixed_dictionaries({"op": st.just("REMOVE"), "id": IDS})
    broken = st.sampled_from(({"op": "NONE"}, {"op": "ADD"}, {}, {"op": "TAG", "id": "sched-00001", "helpful": -1}))
    return st.one_of(add, add, add, update, tag, tag, merge, remove, broken)


def deltas(size: int = 12) -> st.SearchStrategy[list[dict[str, Any]]]:
    """One batch."""
    return st.lists(_rows(), max_size=size)


def deltas_for(*, commits: int) -> st.SearchStrategy[list[list[dict[str, Any]]]]:
    """Batches, one a commit; the first has something to work on."""
    return st.lists(deltas(6), min_size=1, max_size=commits)
