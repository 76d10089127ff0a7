"""The store: nothing is lost between writers or torn by a kill, undo is the inverse, the project overlays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from playbook_deltas import deltas_for

from pibroch.playbooks.model import Add, Delta, Playbook, Remove, Tag, Update
from pibroch.playbooks.store import SHIPPED, Store, digest, dumps, of_project, open_store, read, standing
from pibroch.runtime.errors import InputError

WRITER = Path(__file__).resolve().parent.parent / "support" / "playbook_writer.py"


def add(text: str) -> Add:
    return Add(section="schedules", text=text)


def writer(file: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), str(file), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_four_writers_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "playbook.json"
    writers = [writer(file, name, 25) for name in "abcd"]
    said = [w.communicate(timeout=120) for w in writers]
    assert [w.returncode for w in writers] == [0, 0, 0, 0], said
    ids = [id for out, _ in said for id in out.split()]
    playbook = Store(file).load()
    assert sorted(ids) == sorted(b.id for b in playbook.bullets)
    assert len(set(ids)) == 100
    entries = Store(file).history()
    assert [e.seq for e in entries] == list(range(1, 101))
    assert all(one.after == two.before for one, two in pairwise(entries))


@pytest.mark.parametrize("seed", range(4))
def test_killed_writer_leaves_a_whole_store(tmp_path: Path, seed: int) -> None:
    """Killed after a random number of commits, at a random moment of the next one."""
    file = tmp_path / "playbook.json"
    process = writer(file, "a", 1000)
    assert process.stdout is not None
    wait = random.Random(seed)
    said = [process.stdout.readline().strip() for _ in range(wait.randint(1, 12))]
    for _ in range(wait.randint(0, 40_000)):  # some of a commit's time
        pass
    os.kill(process.pid, signal.SIGKILL)
    said += process.stdout.read().split()
    process.wait(timeout=30)
    before = Store(file).load()
    assert set(said) <= {b.id for b in before.bullets} | {e.outcomes[0].id for e in Store(file).history()}
    (outcome,) = Store(file).commit([add("The next writer goes on")], why="after the kill")
    playbook, entries = Store(file).load(), Store(file).history()
    assert outcome.done == "added"
    assert set(said) <= {b.id for b in playbook.bullets}
    assert [e.outcomes[0].id for e in entries] == [b.id for b in playbook.bullets]
    assert digest(playbook) == entries[-1].after
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part") and p.stat().st_size == 0]


def test_commit_that_was_killed_before_the_replace_is_completed(tmp_path: Path) -> None:
    store = Store(tmp_path / "playbook.json")
    store.commit([add("Recompute the first layers")], why="one")
    before = store.path.read_text()
    store.commit([add("Raise bucket_size")], why="two")
    after = store.load()
    store.path.write_text(before)  # as if the process had died between its line and the replace
    assert len(store.load().bullets) == 1
    (outcome,) = store.commit([Tag(id=after.bullets[1].id, shown=1)], why="three")
    assert outcome.done == "tagged"
    assert [b.text for b in store.load().bullets] == ["Recompute the first layers", "Raise bucket_size"]
    assert store.load().next_id == after.next_id


def test_torn_last_line_is_no_entry_and_is_cut_off(tmp_path: Path) -> None:
    store = Store(tmp_path / "playbook.json")
    store.commit([add("Recompute the first layers")], why="one")
    with open(store.log, "a") as log:
        log.write('{"seq": 2, "why": "tw')
    assert [e.why for e in store.history()] == ["one"]
    store.commit([add("Raise bucket_size")], why="two")
    assert [e.why for e in store.history()] == ["one", "two"]
    assert [e.seq for e in store.history()] == [1, 2]


def test_foreign_line_of_the_history_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "playbook.json")
    store.commit([add("Recompute the first layers")], why="one")
    with open(store.log, "a") as log:
        log.write("nonsense\n")
    with pytest.raises(InputError, match="line 2"):
        store.history()


def test_undo_goes_back_one_commit_at_a_time(tmp_path: Path) -> None:
    store = Store(tmp_path / "playbook.json")
    states = [store.load()]
    steps: tuple[list[Delta], ...] = (
        [add("Recompute the first layers"), add("Raise bucket_size"), add("Measure on an idle machine")],
        [Update(id="sched-00002", text="Lower bucket_size"), Tag(id="sched-00001", shown=2)],
        [Remove(id="sched-00001"), add("Use fewer stages")],
    )
    for deltas in steps:
        store.commit(deltas, why="step")
        states.append(store.load())
    for state in reversed(states[:-1]):
        store.undo()
        assert store.load().bullets == state.bullets
        assert store.load().next_id == states[-1].next_id, "an id that was given stays used"
    with pytest.raises(InputError, match="nothing is left to undo"):
        store.undo()
    (outcome,) = store.commit([add("A new start")], why="again")
    assert outcome.id == "sched-00005"
    store.undo()
    assert store.load().bullets == ()
    assert standing(store.history()) == []


def test_undo_refuses_after_a_change_by_hand(tmp_path: Path) -> None:
    store = Store(tmp_path / "playbook.json")
    store.commit([add("Raise bucket_size")], why="one")
    playbook = store.load()
    (bullet,) = playbook.bullets
    mine = Playbook(next_id=2, bullets=(bullet.model_copy(update={"text": "Mine"}),))
    store.path.write_text(dumps(mine))
    with pytest.raises(InputError, match="by hand"):
        store.undo()
    assert store.load() == mine
    store.commit([add("Use fewer stages")], why="on top of mine")
    store.undo()
    assert store.load().bullets == mine.bullets


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=deltas_for(commits=3))
def test_undo_is_the_inverse_of_any_commit(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[dict[str, object]]]
) -> None:
    store = Store(tmp_path_factory.mktemp("undo") / "playbook.json")
    states = [store.load()]
    for batch in batches:
        store.commit(batch, why="any")
        if store.load().bullets != states[-1].bullets:
            states.append(store.load())
    for state in reversed(states[:-1]):
        store.undo()
        assert store.load().bullets == state.bullets


def test_refused_deltas_stand_in_the_history_and_change_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "playbook.json")
    store.commit([add("Raise bucket_size")], why="one")
    before = store.path.read_bytes()
    (outcome,) = store.commit([Remove(id="sched-00009")], why="two")
    assert outcome.done == "refused"
    assert store.path.read_bytes() == before
    assert store.history()[-1].outcomes == (outcome,)
    assert store.undo().why == "one", "a commit that changed nothing is nothing to undo"


def test_project_reads_the_shipped_playbook_until_its_first_commit(tmp_path: Path) -> None:
    base = tmp_path / "shipped.json"
    Store(base).commit([add("Shipped wisdom of stages")], why="made")
    raw = base.read_bytes()
    store = Store(tmp_path / "playbooks" / "playbook.json", base=base)
    assert [b.text for b in store.load().bullets] == ["Shipped wisdom of stages"]
    assert not store.path.exists()
    store.commit([add("Raise bucket_size")], why="mine")
    assert [b.id for b in read(store.path).bullets] == ["sched-00001", "sched-00002"]
    assert base.read_bytes() == raw
    store.undo()
    assert [b.text for b in store.load().bullets] == ["Shipped wisdom of stages"]


def test_stores_of_a_project(tmp_path: Path) -> None:
    assert of_project(tmp_path).path == tmp_path / "playbooks" / "playbook.json"
    assert of_project(tmp_path).load() == read(SHIPPED)
    assert open_store([tmp_path, SHIPPED.parent]).path == tmp_path / "playbook.json"
    assert open_store([]).load() == read(SHIPPED)


def test_two_stores_of_one_folder_keep_their_own_history(tmp_path: Path) -> None:
    one, two = Store(tmp_path / "playbook.json"), Store(tmp_path / "other.json")
    one.commit([add("Raise bucket_size")], why="one")
    two.commit([add("Raise bucket_size")], why="two")
    assert [e.why for e in one.history()] == ["one"]
    assert [e.why for e in two.history()] == ["two"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a playbook"),
        ('{"version": 2, "bullets": []}', "version"),
        (
            json.dumps(
                {"next_id": 3, "bullets": [{"id": f"{p}-00001", "section": "s", "text": "t"} for p in ("aa", "bb")]}
            ),
            "same number",
        ),
        (json.dumps({"next_id": 1, "bullets": [{"id": "aa-00001", "section": "s", "text": "t"}]}), "next_id"),
        (
            json.dumps(
                {"next_id": 2, "bullets": [{"id": "aa-00001", "section": "s", "text": "t", "tested": 1, "helpful": 2}]}
            ),
            "exceed tested",
        ),
    ],
)
def test_broken_file_is_named_with_the_reason(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "playbook.json"
    file.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        Store(file).load()
    assert str(file) in str(caught.value)
    with pytest.raises(InputError, match=words):
        Store(file).commit([add("x")], why="no")
    assert file.read_text() == text


def test_place_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Store(tmp_path / "file" / "playbook.json").commit([add("x")], why="no")


def test_shipped_playbook_is_whole() -> None:
    playbook = read(SHIPPED)
    assert all(b.evidence for b in playbook.bullets), "a shipped bullet says where its figures are"
