"""Captures cost a second or two each: tests of the command line that capture the same thing share it."""

from __future__ import annotations

from typing import Any

import pytest

import pibroch.runtime.trainer  # noqa: F401 - bound to the real capture before a test replaces the name
from pibroch.runtime import capture as capture_module
from pibroch.runtime.captured import Captured, flatten_batch

_original = capture_module.capture
_known: dict[Any, Captured] = {}


@pytest.fixture(autouse=True)
def _shared_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    def captured(model: Any, loss: Any, batch: Any, *, name: str) -> Captured:
        from pibroch.evals.models import WORKLOADS

        shapes = tuple((n, tuple(t.shape), t.dtype) for n, t in flatten_batch(batch).items())
        key = (name, model.training, shapes, *{p.dtype for p in model.parameters()})
        if name not in WORKLOADS:
            return _original(model, loss, batch, name=name)
        if key not in _known:
            _known[key] = _original(model, loss, batch, name=name)
        return _known[key]

    monkeypatch.setattr(capture_module, "capture", captured)
