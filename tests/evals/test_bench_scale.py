"""The scale table on cases that take no time; what it reports, not how fast."""

from __future__ import annotations

from pibroch.evals.bench_scale import CASES, Case, measure, report, run


def test_a_row_counts_tasks_and_keeps_the_makespan() -> None:
    """1F1B, p = 2, m = 4: 16 chunks, 8 sends and 8 receives, an update per stage, on each of 2 replicas; a reduction
    per stage and replica."""
    row = measure(Case("1f1b", 2, 4, 2, seconds=1e9, gigabytes=1e9))
    assert row["tasks"] == 2 * (16 + 16 + 2 + 2)
    assert (row["devices"], row["makespan"], row["violations"], row["ok"]) == (4, 15, 0, True)


def test_a_limit_passed_is_reported() -> None:
    row = measure(Case("gpipe", 2, 2, seconds=0.0))
    assert not row["ok"]
    assert measure(Case("gpipe", 2, 2, gigabytes=1e-6))["ok"] is False
    assert report({"rows": [row], "growth": {}}).startswith("FAIL gpipe")


def test_table_runs_each_case_in_its_own_process() -> None:
    said: list[str] = []
    result = run([Case("zb-h1", 2, 4)], progress=said.append)
    assert [row["makespan"] for row in result["rows"]] == [13]
    assert result["growth"] == {"zb-h1": 1.0}
    assert result["ok"]
    assert len(said) == 1


def test_the_stated_limits_are_in_the_table() -> None:
    for family in ("1f1b", "zb-h1"):
        assert Case(family, 8, 64, 8, seconds=2.0) in CASES
        assert Case(family, 64, 512, seconds=60.0, gigabytes=4.0) in CASES
