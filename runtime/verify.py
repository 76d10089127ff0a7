"""The plan's rules, checked before anything runs, over all devices at once.

    V1  every chunk of every microbatch and replica runs exactly once, on its device; one optimizer step per stage
    V2  every chunk comes after what it needs, F before BI before BW, and reads the buffers that carry it
    V3  sends and receives pair up per channel, first in first out, with equal contents
    V4  collectives are launched in one order on all members, also across communicators that share devices
    V5  nothing waits for ever
    V6  no buffer is read before it is written, used after it is freed, accessed unordered, or leaked
    V7  peak bytes stay within the device's bound
    V8  each microbatch's gradient reaches every owner once, with weight 1 / (microbatches x replicas)

(V9, a directive that matches nothing or claims what another has, is raised by lowering: a plan no longer shows it.)

Order between tasks of one device is what its own streams and waits establish: an order that only a round trip through
another device would give is not relied on, since a send's end is not seen at its receiver. Where V1, V3 or V5 fail,
what builds on them (V2, V6, most of V8) is not checked, so the report stays with the cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan
from pibroch.runtime.verify_data import check_chunks, check_data
from pibroch.runtime.verify_gradients import check_flow, check_weights
from pibroch.runtime.verify_index import build_index
from pibroch.runtime.verify_order import Order
from pibroch.runtime.verify_pairs import check_collectives, check_launches, check_transfers
from pibroch.runtime.verify_report import Report, Violation
from pibroch.runtime.verify_run import Run

__all__ = ["Violation", "verify"]


def verify(
    plan: Plan,
    *,
    model: ModelSpec | None = None,
    memory_limit: int | Sequence[int] | None = None,
    peak_bytes: Sequence[int] | None = None,
) -> list[Violation]:
    """All violations of a plan, in order of rules; an empty list for a sound plan. Never raises on a malformed one.

    `model` adds a comparison of the transfers with the model's values. `memory_limit` (bytes, for all devices or one
    per device) is compared with `peak_bytes` (bytes per device, as simulated). At most 20 violations per rule are
    written out. Takes time linear in the plan's tasks.
    """
    report = Report(plan)
    if memory_limit is not None and peak_bytes is not None:
        _check_memory(report, memory_limit, peak_bytes)
    index = build_index(plan, report)
    if index is None:
        return report.result()
    check_chunks(index)
    check_transfers(index, model)
    check_collectives(index)
    check_weights(index)
    run = Run(index)
    if not run.execute():
        run.report()
    if not report.counts.keys() & {"V1", "V3", "V5"}:
        order = Order(index)
        order.run(run.order)
        check_launches(index, order.compute_before())
        check_data(index, order, model)
        check_flow(index, order)
    return report.result()


def _check_memory(report: Report, limit: int | Sequence[int], peak_bytes: Sequence[int]) -> None:
    limits = [limit] * len(peak_bytes) if isinstance(limit, int) else list(limit)
    for device, peak in enumerate(peak_bytes):
        if device < len(limits) and peak > limits[device]:
            report.add("V7", f"needs {peak} bytes at its peak; its bound is {limits[device]}", device=device)
