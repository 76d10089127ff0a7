"""Recorded conversations, found by what was asked and not by how it was worded.

One versioned JSON file per reply. The prompt's hash is stored beside the reply: where the wording has changed since,
the reply is used and marked `stale`. A replay tests the loop and the judge; it never supports a success rate.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pibroch.agents.lm.base import LanguageModel, Reply, Request, Usage, digest, finish
from pibroch.runtime.errors import InputError, PibrochError
from pibroch.runtime.files import write_atomically

RECORD_VERSION = 1


class ReplayMiss(PibrochError):
    """No reply was recorded for this request."""

    exit_code = 1


def record_path(folder: Path, request: Request) -> Path:
    """Where a request's reply is recorded."""
    return folder / f"{request.role}-p{request.phase}-a{request.attempt}-{digest(request.key)}.json"


class Recorder:
    """Passes requests on and writes each conversation to `folder`."""

    def __init__(self, lm: LanguageModel, folder: Path) -> None:
        self.lm, self.name, self.folder = lm, lm.name, folder

    def complete(self, request: Request) -> Reply:
        """Write the record after the reply has come; a failed call leaves none."""
        reply = self.lm.complete(request)
        data = {
            "version": RECORD_VERSION,
            "key": request.key,
            "subject": request.subject,
            "prompt_hash": request.prompt_hash,
            "messages": [asdict(m) for m in request.messages],
            "reply": reply.text,
            "model": reply.model,
            "who": reply.who,
            "usage": asdict(reply.usage),
        }
        write_atomically(record_path(self.folder, request), json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        return reply

    def finish(self) -> None:
        """Pass it on."""
        finish(self.lm)


class ReplayModel:
    """`replay:DIR`. `stale` counts the replies whose prompt has changed since they were recorded."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"replay: {folder} is not a folder of recorded replies")
        self.folder, self.name, self.stale = folder, "replay", 0

    def complete(self, request: Request) -> Reply:
        """Raises `ReplayMiss` where nothing was recorded and `InputError` where the record is damaged."""
        path = record_path(self.folder, request)
        try:
            data: Any = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ReplayMiss(
                f"replay: {self.folder} has no reply for {request.role} {request.subject}, phase {request.phase}, "
                f"attempt {request.attempt}: the task or an earlier candidate differs from the recording"
            ) from error
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: not a recorded reply: {error}") from error
        if not isinstance(data, dict) or data.get("version") != RECORD_VERSION or data.get("key") != request.key:
            raise InputError(f"{path}: no recorded reply of version {RECORD_VERSION} to this request; record it anew")
        reply = Reply(str(data["reply"]), Usage(**data["usage"]), str(data["model"]), who=str(data["who"]))
        if data["prompt_hash"] != request.prompt_hash:
            self.stale += 1
            reply = replace(reply, stale=True)
        return reply
