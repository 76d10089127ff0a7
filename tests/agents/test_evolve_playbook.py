"""Does the playbook learn the truth? Planted advice: three true, three without effect, three harmful.

What the advice is worth on each task is known from outside of evolution: the simulated step with its edit alone over
the start's. The bullets themselves say nothing of it: they all read alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_tasks import run, session, small_task

from pibroch.agents.evolve.design import decode, encode
from pibroch.agents.evolve.edits import NotApplicable, apply_edit, parse_edit
from pibroch.agents.evolve.journal import read_journal
from pibroch.agents.evolve.start import starting_schedule
from pibroch.evals.setting import open_setting
from pibroch.playbooks.deltas import apply
from pibroch.playbooks.model import Bullet, Playbook
from pibroch.playbooks.verdict import verdict

# (edit, devices on which it is offered): the true ones one by one, as each changes what the others are worth.
TRUE = (
    ({"op": "reorder", "split": True}, "4"),
    ({"op": "family", "name": "zb-h1"}, "3"),
    ({"op": "stages_per_device", "by": 1, "layout": "v"}, "6"),
)
PLACEBO = (
    ({"op": "stream", "name": "side"}, ""),
    ({"op": "stream", "name": "elsewhere"}, ""),
    ({"op": "split_backward", "stage": 0, "on": True}, "6"),  # the first stage sends no gradient on
)
HARMFUL = (
    ({"op": "warm_up", "position": "all", "by": -2}, ""),
    ({"op": "shift_layers", "stage": 0, "to": "next", "layers": 2}, ""),
    ({"op": "recompute", "stage": "all", "on": True}, ""),
)
PLANTED: tuple[tuple[dict[str, Any], str], ...] = (*TRUE, *PLACEBO, *HARMFUL)
LABELS = ("helpful",) * 3 + ("placebo",) * 3 + ("harmful",) * 3
SIZES = ((4, 4), (4, 8), (3, 3), (3, 6), (6, 6), (6, 9), (6, 12), (6, 15))  # devices, samples


def planted() -> Playbook:
    bullets = [
        Bullet(
            id=f"sched-{i:05d}", section="schedules", text=f"Planted advice number {i}.", edit=edit,
            applies_when=conditions(edit, devices),
        )
        for i, (edit, devices) in enumerate(PLANTED, 1)
    ]  # fmt: skip
    return Playbook(next_id=10, bullets=tuple(bullets))


def conditions(edit: dict[str, Any], devices: str) -> dict[str, str]:
    """Where a bullet is offered. A second V makes things worse: that advice is for one stage per device."""
    where = {"devices": devices} if devices else {}
    return {**where, "stages": devices} if edit["op"] == "stages_per_device" else where


@pytest.mark.parametrize(("devices", "samples"), SIZES)
def test_the_advice_is_what_it_is_said_to_be(devices: int, samples: int) -> None:
    setting = open_setting(small_task(devices=devices, samples=samples))
    start = starting_schedule(setting)
    before = setting.simulate(setting.lower(start)).makespan
    for (edit, offered), what in zip(PLANTED, LABELS, strict=True):
        if offered in ("", str(devices)):
            try:
                design = apply_edit(parse_edit(edit), decode(start, setting), setting)
            except NotApplicable:
                continue
            gain = before / setting.simulate(setting.lower(encode(design))).makespan
            assert {"helpful": gain > 1.01, "placebo": abs(gain - 1) < 1e-6, "harmful": gain < 0.99}[what], (edit, gain)


def test_planted_bullets_end_rightly_labelled(tmp_path: Path) -> None:
    book = planted()
    for number, (devices, samples) in enumerate(SIZES):
        path = tmp_path / str(number)
        task = small_task(devices=devices, samples=samples)
        run(path, session(task=task, playbook=book, evaluations=9, seed=number))
        kept = learned(path, book).bullets
        book = Playbook(next_id=10, bullets=tuple(b for b in kept if planted().get(b.id)))  # what else it learned aside
    removed = {b.id for b in planted().bullets} - {b.id for b in book.bullets}
    found = {b.id: "harmful" if b.id in removed else verdict(book.get(b.id) or b) for b in planted().bullets}
    assert found == dict(zip((b.id for b in planted().bullets), LABELS, strict=True))


def learned(path: Path, book: Playbook) -> Playbook:
    """The playbook as the run left it."""
    for record in read_journal(path / "journal.jsonl"):
        if record["kind"] == "playbook":
            book, outcomes = apply(book, record["deltas"])
            assert [o.model_dump(mode="json") for o in outcomes] == record["outcomes"]
    return book
