"""The mailbox protocol, answered by threads, by hand and by a command."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_lm import block

from pibroch.agents.lm.base import Message, Paused, Request
from pibroch.agents.lm.mailbox import MailboxModel, claimed, mailbox_list, mailbox_reply, mailbox_show
from pibroch.agents.lm.mailbox_serve import mailbox_serve
from pibroch.agents.schedule_writer import write_schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.model import uniform_model

REQUEST = Request("writer", "gpt tiny/2", 1, 1, (Message("system", "Do this."), Message("user", "With that.")))
GOOD = block([1])


def mailbox(folder: Path, deadline_s: float = 60.0) -> MailboxModel:
    return MailboxModel(folder, deadline_s=deadline_s, poll_s=0.01)


def asked(folder: Path, request: Request = REQUEST) -> str:
    """Ask and let the deadline pass at once; the request stays for inspection."""
    with pytest.raises(Paused):
        mailbox(folder, 0.0).complete(request)
    return mailbox_list(folder, everything=True)[-1].id


def open_request(folder: Path) -> str:
    """A request that stays open although nobody waits for it any more."""
    ident, _ = mailbox(folder)._ask(REQUEST)
    return ident


def test_a_request_is_answered(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(mailbox(tmp_path).complete, REQUEST)
        while not (tmp_path / "state").is_dir() or not mailbox_list(tmp_path):
            time.sleep(0.005)
        entry = mailbox_list(tmp_path)[0]
        assert entry.id == "0001-writer-gpt_tiny_2-p1-a1"
        assert entry.status == "open"
        text = mailbox_show(tmp_path, "1")
        assert text == entry.path.read_text()
        for part in ("Do this.", "With that.", "exactly one fenced block", "Deadline", "of json or python"):
            assert part in text
        mailbox_reply(tmp_path, entry.id, GOOD, who="me")
        reply = answer.result(timeout=30)
    assert (reply.text, reply.who) == (GOOD, "me")
    assert mailbox_list(tmp_path) == []
    assert list((tmp_path / "claims").glob("*.json")) == []


def test_the_deadline_pauses_and_ids_are_never_reused(tmp_path: Path) -> None:
    first = asked(tmp_path)
    second = asked(tmp_path)
    assert (first[:4], second[:4]) == ("0001", "0002")
    (tmp_path / "requests" / f"{second}.md").unlink()
    (tmp_path / "state" / f"{second}.json").unlink()
    assert asked(tmp_path)[:4] == "0003"
    assert Paused.exit_code == 4


def test_ids_are_unique_across_threads(tmp_path: Path) -> None:
    box = mailbox(tmp_path)
    requests = [replace(REQUEST, sample=i) for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda r: box._ask(r)[0], requests))
    assert len({ident[:4] for ident in ids}) == 16


def test_a_late_reply_is_kept_and_not_used(tmp_path: Path) -> None:
    ident = asked(tmp_path)
    with pytest.raises(InputError, match="deadline"):
        mailbox_reply(tmp_path, ident, GOOD)
    assert [p.read_text() for p in (tmp_path / "late").iterdir()] == [GOOD]
    assert list((tmp_path / "replies").iterdir()) == []


def test_a_malformed_reply_gets_an_error_file_and_the_id_stays_open(tmp_path: Path) -> None:
    ident = open_request(tmp_path)
    with pytest.raises(InputError, match="no fenced block"):
        mailbox_reply(tmp_path, ident, "I would rather not")
    error = tmp_path / "replies" / f"{ident}.error.md"
    assert "no fenced block" in error.read_text()
    assert "no fenced block" in mailbox_show(tmp_path, ident)
    assert [e.status for e in mailbox_list(tmp_path)] == ["open"]
    mailbox_reply(tmp_path, ident, GOOD)
    assert not error.exists()
    assert mailbox(tmp_path).complete(REQUEST).text == GOOD


def test_a_malformed_file_put_there_by_hand_is_refused_too(tmp_path: Path) -> None:
    ident = open_request(tmp_path)
    (tmp_path / "replies" / f"{ident}.md").write_bytes(b"\xff\xfe")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(mailbox(tmp_path).complete, REQUEST)
        while not (tmp_path / "replies" / f"{ident}.error.md").exists():
            time.sleep(0.005)
        mailbox_reply(tmp_path, ident, GOOD)
        assert answer.result(timeout=30).text == GOOD


def test_nobody_answers_twice(tmp_path: Path) -> None:
    ident = open_request(tmp_path)
    mailbox_reply(tmp_path, ident, GOOD)
    with pytest.raises(InputError, match="answered already"):
        mailbox_reply(tmp_path, ident, block([2]))
    assert mailbox(tmp_path).complete(REQUEST).text == GOOD


def test_claims_are_exclusive_until_their_lease_ends(tmp_path: Path) -> None:
    ident = open_request(tmp_path)
    with claimed(tmp_path, ident, who="me"):
        assert [(e.status, e.claimed_by) for e in mailbox_list(tmp_path)] == [("claimed", "me")]
        with pytest.raises(InputError, match="claimed by me"):
            mailbox_reply(tmp_path, ident, GOOD, who="you")
    with claimed(tmp_path, ident, who="me", lease_s=0.0):
        mailbox_reply(tmp_path, ident, GOOD, who="you")  # the lease has run out: taken over
    assert mailbox(tmp_path).complete(REQUEST).who == "you"


def test_one_of_many_takes_an_expired_claim_over(tmp_path: Path) -> None:
    ident = open_request(tmp_path)
    start = threading.Barrier(8)
    won: list[int] = []
    lost = threading.Semaphore(0)

    def take(i: int) -> None:
        start.wait()
        try:
            with claimed(tmp_path, ident, who=str(i)):
                won.append(i)
                for _ in range(7):  # hold the claim until all others have tried
                    assert lost.acquire(timeout=10)
        except InputError:
            lost.release()

    with claimed(tmp_path, ident, who="gone", lease_s=0.0), ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(8)))
    assert len(won) == 1


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    ident = open_request(tmp_path)  # asked by a process that has ended since
    mailbox_reply(tmp_path, ident, GOOD)
    box = mailbox(tmp_path)
    assert box.complete(REQUEST).text == GOOD
    assert mailbox(tmp_path).complete(REQUEST).text == GOOD  # still the same run: handed out again
    box.finish()
    with pytest.raises(Paused):  # a new run asks anew
        mailbox(tmp_path, 0.0).complete(REQUEST)
    assert [e.id[:4] for e in mailbox_list(tmp_path, everything=True)] == ["0001", "0002"]


def test_a_command_serves(tmp_path: Path) -> None:
    open_request(tmp_path)
    (tmp_path / "reply.txt").write_text(GOOD)
    assert mailbox_serve(tmp_path, f"grep -q 'With that' && cat {tmp_path}/reply.txt", once=True) == 1
    reply = mailbox(tmp_path).complete(REQUEST)
    assert reply.text == GOOD
    assert reply.who == "grep"


@pytest.mark.parametrize(
    ("command", "says"),
    [("exit 3", "exit status 3"), ("echo nothing", "no fenced block"), ("sleep 60", "was killed")],
)
def test_a_command_that_fails_is_given_up_after_three_tries(tmp_path: Path, command: str, says: str) -> None:
    open_request(tmp_path)
    lines: list[str] = []
    assert mailbox_serve(tmp_path, command, once=True, timeout_s=0.3, say=lines.append) == 0
    assert len(lines) == 3
    assert says in lines[0]
    assert [e.status for e in mailbox_list(tmp_path)] == ["open"]


def test_unknown_ids_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no mailbox"):
        mailbox_list(tmp_path / "absent")
    open_request(tmp_path)
    with pytest.raises(InputError, match="no request '7'"):
        mailbox_show(tmp_path, "7")


def test_a_paused_writer_resumes_without_asking_again(tmp_path: Path) -> None:
    model = uniform_model(4)
    sentence = "1F1B over 2 stages, 2 microbatches"
    places = [{"op": "place", "filter": {"PP": s}, "devices": [s]} for s in (0, 1)]
    first = [{"op": "split", "num_microbatches": 2}, *places]
    rows = [
        {"op": "order", "filters": [{"PP": s, "MB": i, "PASS": p} for p, i in order]}
        for s, order in ((0, [("F", 0), ("F", 1), ("B", 0), ("B", 1)]), (1, [("F", 0), ("B", 0), ("F", 1), ("B", 1)]))
    ]
    folder = tmp_path / "box"
    with pytest.raises(Paused):
        write_schedule(sentence, model, lm=mailbox(folder, 0.0))
    ident = open_ident(folder, sentence, model)
    mailbox_reply(folder, ident, block(first))
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write_schedule, sentence, model, lm=mailbox(folder))
        while not [e for e in mailbox_list(folder) if e.phase == 2]:
            assert not written.done()
            time.sleep(0.01)
        mailbox_reply(folder, mailbox_list(folder)[0].id, block(first + rows))
        assert written.result(timeout=60).verified
    statuses = [(e.phase, e.status) for e in mailbox_list(folder, everything=True)]
    assert statuses == [(1, "expired"), (1, "answered"), (2, "answered")]


def open_ident(folder: Path, sentence: str, model: object) -> str:
    """Ask as the writer does, with time to answer, and stop waiting at once."""

    class Stop(Exception):
        pass

    class Impatient(MailboxModel):
        def complete(self, request: Request) -> object:  # type: ignore[override]
            self._ask(request)
            raise Stop

    with pytest.raises(Stop):
        write_schedule(sentence, model, lm=Impatient(folder))  # type: ignore[arg-type]
    return mailbox_list(folder)[-1].id
