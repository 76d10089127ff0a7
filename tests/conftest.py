"""Shared set-up of all tests: helper modules, quiet workers, and no second copy of any room."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PIBROCH_CHECK", "1")  # every pass asserts what it promises
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

TESTS = Path(__file__).resolve().parent
ROOMS = ("agents", "evals", "generated", "playbooks", "runtime", "specs")
sys.path.insert(0, str(TESTS / "support"))
# Workers that tests start find helper modules (worker classes, tiny models) in the same place.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS / "support"), os.environ.get("PYTHONPATH")]))

import pytest  # noqa: E402


@pytest.fixture(autouse=True, scope="session")
def _one_copy_of_each_room() -> Iterator[None]:
    """A bare `import runtime` would make a second copy of every class."""
    yield
    bare = [room for room in ROOMS if room in sys.modules]
    assert not bare, f"import these as pibroch.NAME: {', '.join(bare)}"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top of the checkout."""
    return TESTS.parent
