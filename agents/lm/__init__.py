"""Language models behind one small protocol (`base.LanguageModel`)."""

from __future__ import annotations

from pathlib import Path

from pibroch.agents.lm.base import LanguageModel, LMError, Message, Paused, Reply, ReplyError, Request, Usage
from pibroch.runtime.errors import InputError

__all__ = ["LMError", "LanguageModel", "Message", "Paused", "Reply", "ReplyError", "Request", "Usage", "open_lm"]

SPECS = "openai[:MODEL], local[:FILE.gguf], mailbox:DIR, replay:DIR or none"


def open_lm(
    spec: str | None, *, record: str | Path | None = None, mailbox_deadline_s: float | None = None
) -> LanguageModel | None:
    """The model that `spec` names, or None for "none". `record` is a folder that conversations are written to.

    Raises `InputError` for a wrong spec and `MissingError` where the environment lacks what it needs.
    """
    kind, _, rest = (spec or "none").partition(":")
    lm: LanguageModel
    if kind == "none" and not rest:
        return None
    if kind == "openai":
        from pibroch.agents.lm.openai_api import OpenAIModel

        lm = OpenAIModel(rest or None)
    elif kind == "local":
        from pibroch.agents.lm.local import LocalModel

        lm = LocalModel(Path(rest) if rest else None)
    elif kind == "mailbox" and rest:
        from pibroch.agents.lm.mailbox import DEADLINE_S, MailboxModel

        lm = MailboxModel(Path(rest), deadline_s=DEADLINE_S if mailbox_deadline_s is None else mailbox_deadline_s)
    elif kind == "replay" and rest:
        from pibroch.agents.lm.replay import ReplayModel

        lm = ReplayModel(Path(rest))
    else:
        raise InputError(f"--lm {spec!r} names no language model: use {SPECS}")
    if record is not None:
        from pibroch.agents.lm.replay import Recorder

        lm = Recorder(lm, Path(record))
    return lm
