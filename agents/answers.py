"""A reply's one JSON block as a pydantic model."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from pibroch.agents.lm.base import ReplyError, fenced_block

M = TypeVar("M", bound=BaseModel)


def answer_of(text: str, model: type[M]) -> M:
    """Raises `ReplyError` that says what is wrong: the block, its JSON, or a field."""
    _, body = fenced_block(text, ("json",))
    try:
        return model.model_validate(json.loads(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the object"
        raise ReplyError(f"{where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ReplyError(f"not JSON: {error}") from error
