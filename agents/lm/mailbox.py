"""A folder as a language model: requests are Markdown files, replies come from people or coding agents.

    requests/<seq>-<role>-<subject>-p<phase>-a<attempt>.md    one self-contained request each; ids are never reused
    claims/<id>.json                                          who answers it, and until when (O_EXCL, with a lease)
    replies/<id>.md                                           a validated reply, written elsewhere and renamed
    replies/<id>.error.md                                     why the last reply was refused; the id stays open
    late/<id>-<n>.md                                          a reply past the deadline, kept and not used
    state/<id>.json                                           key, deadline and status, for resuming

A run that stopped is resumed by running it again: replies that it has had are handed out again, and a request that is
still open is waited for again. Past the deadline `Paused` is raised, and the resumed run asks anew under a new id.
`finish()` ends a run, so that the next one starts afresh. Times are seconds of the epoch: the
folder may be shared by processes, and outlives them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pibroch.agents.lm.base import (
    MAX_REPLY_BYTES,
    LMError,
    Paused,
    Reply,
    ReplyError,
    Request,
    Usage,
    digest,
    fenced_block,
)
from pibroch.runtime.errors import InputError
from pibroch.runtime.files import write_atomically

DEADLINE_S = 4 * 3600.0
LEASE_S = 1800.0
LOCK_S = 30.0  # the lock is held for milliseconds, unless its holder is stopped
MAILBOX_VERSION = 1
_FOLDERS = ("requests", "claims", "replies", "late", "state")


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a mailbox. `status`: open, claimed, answered or expired; `left_s` until its deadline."""

    id: str
    role: str
    subject: str
    phase: int
    attempt: int
    status: str
    left_s: float
    claimed_by: str | None
    path: Path


class MailboxModel:
    """`mailbox:DIR`. `poll_s` is how often the reply is looked for."""

    def __init__(self, folder: Path, *, deadline_s: float = DEADLINE_S, poll_s: float = 0.25) -> None:
        self.folder, self.deadline_s, self.poll_s = folder, deadline_s, poll_s
        self.name = "mailbox"
        self._handed: list[str] = []
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)

    def complete(self, request: Request) -> Reply:
        """Raises `Paused` past the deadline."""
        started = time.monotonic()
        ident, until = self._ask(request)
        while True:
            reply = _take_reply(self.folder, ident)
            if reply is not None:
                text, who = reply
                self._handed.append(ident)
                tokens = Usage(sum(len(m.content) for m in request.messages) // 4, len(text) // 4)
                return Reply(text, tokens, self.name, time.monotonic() - started, who=who)
            if time.time() >= until:
                raise Paused(
                    f"mailbox: nobody answered {self.folder / 'requests' / ident}.md in time; no attempt was spent. "
                    "Run the same command again to go on from here"
                )
            time.sleep(min(self.poll_s, max(0.0, until - time.time())) or 0.001)

    def finish(self) -> None:
        """The run is over: its replies are not handed out again."""
        for ident in self._handed:
            _write_state(self.folder, ident, {**_state(self.folder, ident), "closed": True})
        self._handed.clear()

    def _ask(self, request: Request) -> tuple[str, float]:
        key = digest([request.key, request.prompt_hash])
        for ident, state in _states(self.folder):
            answered = (self.folder / "replies" / f"{ident}.md").exists()
            if state["key"] == key and not state["closed"] and (answered or time.time() < state["until"]):
                return ident, float(state["until"])
        until = time.time() + self.deadline_s
        stem = "-".join(_slug(part) for part in (request.role, request.subject))
        ident = _new_id(self.folder, f"{stem}-p{request.phase}-a{request.attempt}")
        state = {
            "version": MAILBOX_VERSION, "key": key, "until": until, "blocks": list(request.blocks), "closed": False,
            "role": request.role, "subject": request.subject, "phase": request.phase, "attempt": request.attempt,
        }  # fmt: skip
        write_atomically(self.folder / "requests" / f"{ident}.md", render(request, ident, until, self.folder))
        _write_state(self.folder, ident, state)  # last: what is listed can be read
        return ident, until


def render(request: Request, ident: str, until: float, folder: Path) -> str:
    """The request as one Markdown file that needs nothing else."""
    blocks = " or ".join(request.blocks)
    ends = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(until))
    head = [
        f"# {ident}",
        "",
        f"- Task: {request.role}, {request.subject}, phase {request.phase}, attempt {request.attempt}",
        f"- Reply: text of your own if you like, and exactly one fenced block, of {blocks}; only the block counts",
        f"- How: `pibroch mailbox reply {folder} {ident} FILE` (without FILE: standard input)",
        f"- Deadline: {ends}",
        "",
        "---",
        "",
    ]
    return "\n".join(head) + "\n\n".join(m.content.strip() for m in request.messages) + "\n"


def mailbox_list(folder: Path, *, everything: bool = False) -> list[Entry]:
    """Requests in the order asked; those answered or expired only with `everything`. Raises `InputError`."""
    _require(folder)
    rows = []
    for ident, state in _states(folder):
        claim = _claim(folder, ident)
        if (folder / "replies" / f"{ident}.md").exists():
            status = "answered"
        elif time.time() >= state["until"]:
            status = "expired"
        else:
            status = "claimed" if claim else "open"
        if everything or status in ("open", "claimed"):
            rows.append(
                Entry(
                    ident, state["role"], state["subject"], state["phase"], state["attempt"], status,
                    state["until"] - time.time(), claim["who"] if claim else None, folder / "requests" / f"{ident}.md",
                )
            )  # fmt: skip
    return rows


def mailbox_show(folder: Path, ident: str) -> str:
    """The text of a request, with the reason of its last refused reply under it."""
    ident = find_id(folder, ident)
    text = (folder / "requests" / f"{ident}.md").read_text(encoding="utf-8")
    error = folder / "replies" / f"{ident}.error.md"
    return text + (f"\n---\n\n{error.read_text(encoding='utf-8')}" if error.exists() else "")


def mailbox_reply(folder: Path, ident: str, text: str, *, who: str = "", lease_s: float = LEASE_S) -> Path:
    """Claim, validate and file a reply; `who` is recorded with it. Raises `InputError` where it is malformed, late, or
    somebody else's."""
    ident = find_id(folder, ident)
    with claimed(folder, ident, who=who or f"pid {os.getpid()}", lease_s=lease_s):
        return file_reply(folder, ident, text, who=who)


def file_reply(folder: Path, ident: str, text: str, *, who: str) -> Path:
    """The same for a caller that holds the claim."""
    state = _state(folder, ident)
    target = folder / "replies" / f"{ident}.md"
    if target.exists():
        raise InputError(f"mailbox: {ident} is answered already")
    if time.time() >= state["until"]:
        kept = _free_name(folder / "late", ident)
        write_atomically(kept, text)
        raise InputError(f"mailbox: the deadline of {ident} has passed; the reply is kept unused as {kept}")
    try:
        fenced_block(text, tuple(state["blocks"]))
    except ReplyError as error:
        _refuse(folder, ident, error)
        raise InputError(f"mailbox: the reply to {ident} was refused: {error}; the request stays open") from error
    _write_state(folder, ident, {**state, "who": who})
    temporary = _free_name(folder / "replies", f".{ident}")
    write_atomically(temporary, text)
    try:
        os.link(temporary, target)  # unlike a rename, this never replaces a reply
    except FileExistsError as error:
        raise InputError(f"mailbox: {ident} is answered already") from error
    finally:
        temporary.unlink()
    (folder / "replies" / f"{ident}.error.md").unlink(missing_ok=True)
    return target


@contextlib.contextmanager
def claimed(folder: Path, ident: str, *, who: str, lease_s: float = LEASE_S) -> Iterator[None]:
    """Hold the claim on a request. Raises `InputError` where somebody holds it and the lease has not run out."""
    path = folder / "claims" / f"{ident}.json"
    token = digest([who, os.getpid(), threading.get_ident(), time.time_ns()])
    with _locked(folder):
        old = _claim(folder, ident, expired=True)
        if old is not None and old["until"] <= time.time():
            path.unlink()  # the lease has run out; the lock keeps a second taker from removing the first one's claim
        if path.exists():
            holder = (old or {"who": "somebody"})["who"]
            raise InputError(f"mailbox: {ident} is claimed by {holder}; its lease frees it in time")
        write_atomically(path, json.dumps({"who": who, "until": time.time() + lease_s, "token": token}))
    try:
        yield
    finally:
        with _locked(folder):
            mine = _claim(folder, ident, expired=True)
            if mine and mine.get("token") == token:
                path.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A short lock over the claims; it goes with its process."""
    fd = os.open(folder / "claims" / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        ends = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= ends:
                    raise LMError(f"mailbox: {folder / 'claims' / '.lock'} was held for {LOCK_S:g} s") from None
                time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def find_id(folder: Path, ident: str) -> str:
    """The full id for an id, its number or its file name. Raises `InputError`."""
    _require(folder)
    name = Path(ident).name.removesuffix(".md")
    rows = [known for known, _ in _states(folder)]
    hits = [known for known in rows if known == name]
    if not hits and name.isdigit():
        hits = [known for known in rows if int(known.split("-", 1)[0]) == int(name)]
    if len(hits) != 1:
        raise InputError(f"mailbox: {folder} has no request {ident!r} (pibroch mailbox list shows them)")
    return hits[0]


def _take_reply(folder: Path, ident: str) -> tuple[str, str] | None:
    """A reply that is there, validated again: a file may have been put there by hand."""
    path = folder / "replies" / f"{ident}.md"
    state = _state(folder, ident)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        if len(raw) > MAX_REPLY_BYTES:
            raise ReplyError(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
        text = raw.decode("utf-8")
        fenced_block(text, tuple(state["blocks"]))
    except (ReplyError, UnicodeDecodeError) as error:
        os.replace(path, _free_name(folder / "replies", f".refused-{ident}"))
        _refuse(folder, ident, error)
        return None
    if path.stat().st_mtime >= state["until"]:
        os.replace(path, _free_name(folder / "late", ident))
        return None
    return text, str(state.get("who", ""))


def _refuse(folder: Path, ident: str, error: Exception) -> None:
    text = f"# The last reply to {ident} was refused\n\n{error}\n"
    write_atomically(folder / "replies" / f"{ident}.error.md", text)


def _new_id(folder: Path, stem: str) -> str:
    """Take the next number for ever: its state file is created with O_EXCL and never removed."""
    while True:
        taken = [int(p.name.split("-", 1)[0]) for p in (folder / "state").glob("[0-9]*") if "-" in p.name]
        number = f"{max(taken, default=0) + 1:04d}"
        try:
            os.close(os.open(folder / "state" / f"{number}-.taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            continue
        return f"{number}-{stem}"


def _write_state(folder: Path, ident: str, state: dict[str, Any]) -> None:
    write_atomically(folder / "state" / f"{ident}.json", json.dumps(state, sort_keys=True) + "\n")


def _state(folder: Path, ident: str) -> dict[str, Any]:
    path = folder / "state" / f"{ident}.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a mailbox state: {error}") from error
    if not isinstance(data, dict) or data.get("version") != MAILBOX_VERSION:
        raise InputError(f"{path}: this pibroch reads mailboxes of version {MAILBOX_VERSION}")
    return data


def _states(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    names = sorted(p.stem for p in (folder / "state").glob("[0-9]*.json"))
    return [(name, _state(folder, name)) for name in names]


def _claim(folder: Path, ident: str, *, expired: bool = False) -> dict[str, Any] | None:
    try:
        data = json.loads((folder / "claims" / f"{ident}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and (expired or data["until"] > time.time()) else None


def _free_name(folder: Path, stem: str) -> Path:
    n = 1
    while (path := folder / f"{stem}-{n}.md").exists():
        n += 1
    return path


def _require(folder: Path) -> None:
    if not (folder / "state").is_dir():
        raise InputError(f"mailbox: {folder} is no mailbox (a run with --lm mailbox:{folder} makes one)")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40] or "x"
