"""What the benches compute and print around their measurements, and a smoke run of the one with peers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pibroch.evals import bench_emulate, bench_equivalence, bench_pipelining, bench_reload
from pibroch.evals.bench_pipelining import Claim
from pibroch.runtime.lower import lower
from pibroch.runtime.model import uniform_model
from pibroch.runtime.profile import load_profile


def emulated(family: str, step: float, simulated: float) -> dict[str, Any]:
    return {
        "profile": "p", "family": family, "step_s": step, "simulated_s": simulated,
        "step_over_simulated": step / simulated, "passed": True,
    }  # fmt: skip


def test_orders_are_judged_where_the_simulator_tells_families_apart() -> None:
    rows = [emulated("gpipe", 1.06, 1.0), emulated("1f1b", 1.0, 1.0), emulated("zb-h1", 1.02, 0.9)]
    orders = bench_emulate.compare_order(rows)
    # gpipe and 1f1b tie; zb-h1 must beat both, and did not beat 1f1b.
    assert [(o["faster"], o["slower"], o["passed"]) for o in orders] == [
        ("zb-h1", "gpipe", True),
        ("zb-h1", "1f1b", False),
    ]
    text = bench_emulate.report({"devices": 8, "microbatches": 16, "rows": rows, "order": orders, "ok": False})
    assert "FAIL p: zb-h1 should be faster than 1f1b" in text
    assert "1 of 2 orders as simulated" in text
    assert all("emulated" in line for line in text.splitlines()[:4])


def test_one_time_scale_suits_all_families() -> None:
    schedules = [bench_emulate.schedule_of(f, devices=8, microbatches=16) for f in ("1f1b", "interleaved", "zb-h1")]
    profile = bench_emulate.one_scale(load_profile("equal-8"), schedules)
    shortest = [
        min(profile.costs().compute(plan, task) for task in plan.tasks if task.op in ("F", "B", "BI", "BW"))
        for plan in (lower(s, uniform_model(16)) for s in schedules)
    ]
    assert min(shortest) == pytest.approx(0.02)
    assert shortest[0] == pytest.approx(0.04)  # 1F1B's chunks are twice interleaved's


def test_reload_cases_come_back_to_known_groups_after_new_ones() -> None:
    names = [(name, new) for name, _, new in bench_reload.cases()]
    assert [new for _, new in names] == [False, False, False, True, True, False, False]
    row = {"case": "x", "new_topology": True, "seconds": 0.5, "bound": 1.5, "passed": True}
    text = bench_reload.report({"workload": "w", "launcher": "ray", "cold_s": 5.0, "cases": [row]})
    assert "pass x (new topology): runs after 0.500 s, must be < 1.5 s" in text


def test_the_equivalence_report_names_failures_and_reasons() -> None:
    row = {
        "cell": "1f1b S=2", "reference": "replay", "ok": False, "bitwise": False, "max_rel_grad_err": "inf",
        "max_rel_weight_err": 0.0, "worst": "w, rank 0, step 0",
    }  # fmt: skip
    result = {
        "cells": [row, {**row, "ok": True, "bitwise": True, "max_rel_grad_err": 0.0}],
        "excluded": [{"cell": "zb-h1 S=9", "reason": "why not"}],
        "negative_control": {"mlp-tiny, replay": False},
        "ok": False,
        "seconds": 1.0,
    }
    text = bench_equivalence.report(result)
    assert "1 of 2 cells equal, 1 bitwise; largest gradient error inf" in text
    assert "DIFFERS 1f1b S=2: gradients inf, worst w, rank 0, step 0" in text
    assert "PASSED: judge is blind" in text
    assert "excluded (1 cells, such as zb-h1 S=9): why not" in text


@pytest.mark.slow
def test_the_peer_bench_end_to_end_on_a_small_model() -> None:
    claim = Claim("interleaved", "interleaved", 4, 0.01, "ratio")
    result = bench_pipelining.run(
        workload="gpt-tiny", claims=[claim], table_peers=["zbv"], table_microbatches=[4], pairs=3, table_pairs=3,
        keep_noisy=True,
    )  # fmt: skip
    row, table = result["claims"][0], result["table"][0]
    assert row["passed"]
    assert row["equal"]
    assert row["peer_gradient_error"] < 1e-4
    assert row["peer_lost_gradients"] == table["peer_lost_gradients"] == ""
    assert row["memory_passed"]
    assert row["simulated_s"] > 0
    json.dumps(result)
    assert "pass interleaved m=4 against their interleaved" in bench_pipelining.report(result)
