"""The playbook's vocabulary: bullets, and the deltas that change them.

Terms
    bullet      one learned item: text, when it applies, the edit that it names, and counters.
    counters    `shown` to a writer, `cited` by one, `tested`: its edit was applied (or reverted) alone and measured;
                `helpful` and `harmful` move only with such a test, so helpful + harmful <= tested.
    delta       one small change; a playbook changes by deltas only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SECTIONS = ("schedules", "communication", "memory", "measuring", "pitfalls")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Bullet(_Frozen):
    """`applies_when` maps a fact of a task (`playbooks/retrieve.py`) to a condition such as ">=4", "true" or "a|b".
    `edit` is the edit that it names, as plain data that the schedule operators understand. `evidence` says where the
    figures behind it are."""

    id: str = Field(pattern=r"^[a-z]{2,12}-\d{5}$")
    section: str
    text: str = Field(min_length=1, max_length=600)
    applies_when: dict[str, str] = {}
    edit: dict[str, Any] | None = None
    shown: int = Field(default=0, ge=0)
    cited: int = Field(default=0, ge=0)
    tested: int = Field(default=0, ge=0)
    helpful: int = Field(default=0, ge=0)
    harmful: int = Field(default=0, ge=0)
    evidence: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _counters(self) -> Bullet:
        if self.helpful + self.harmful > self.tested:
            raise ValueError(f"{self.id}: helpful + harmful exceed tested")
        return self

    @property
    def number(self) -> int:
        """The part of the id that no other bullet of the playbook has."""
        return int(self.id.rpartition("-")[2])


class Add(_Frozen):
    """A new bullet; the store gives it its id."""

    op: Literal["ADD"] = "ADD"
    section: str
    text: str
    applies_when: dict[str, str] = {}
    edit: dict[str, Any] | None = None
    evidence: tuple[str, ...] = ()


class Update(_Frozen):
    """Other words, conditions or edit; None leaves a field as it is, and an empty edit takes it away. Counters stay
    unless conditions or edit change."""

    op: Literal["UPDATE"] = "UPDATE"
    id: str
    text: str | None = None
    section: str | None = None
    applies_when: dict[str, str] | None = None
    edit: dict[str, Any] | None = None
    evidence: tuple[str, ...] | None = None


class Tag(_Frozen):
    """Counters go up. `helpful` and `harmful` need `tested`."""

    op: Literal["TAG"] = "TAG"
    id: str
    shown: int = Field(default=0, ge=0)
    cited: int = Field(default=0, ge=0)
    tested: int = Field(default=0, ge=0)
    helpful: int = Field(default=0, ge=0)
    harmful: int = Field(default=0, ge=0)
    evidence: tuple[str, ...] = ()


class Merge(_Frozen):
    """Several bullets become the first; counters add up. `text` replaces its words."""

    op: Literal["MERGE"] = "MERGE"
    ids: tuple[str, ...] = Field(min_length=2)
    text: str | None = None


class Remove(_Frozen):
    """A bullet goes; history keeps it."""

    op: Literal["REMOVE"] = "REMOVE"
    id: str
    why: str = ""


Delta = Annotated[Add | Update | Tag | Merge | Remove, Field(discriminator="op")]


class Outcome(_Frozen):
    """What became of one delta: `done` is added, updated, tagged, merged, removed, or refused with a reason.
    `id` is the bullet that it made or changed; an ADD that was merged into a near twin names that one."""

    op: str
    done: Literal["added", "updated", "tagged", "merged", "removed", "refused"]
    id: str = ""
    reason: str = ""


class Playbook(_Frozen):
    """Bullets in the order in which they came. `next_id` never goes back, so ids are never used twice."""

    version: Literal[1] = 1
    next_id: int = Field(default=1, ge=1)
    bullets: tuple[Bullet, ...] = ()

    @model_validator(mode="after")
    def _ids(self) -> Playbook:
        numbers = [b.number for b in self.bullets]
        if len(set(numbers)) < len(numbers):
            raise ValueError("two bullets have the same number")
        if numbers and max(numbers) >= self.next_id:
            raise ValueError(f"next_id {self.next_id} is not above the number of every bullet")
        return self

    def get(self, id: str) -> Bullet | None:
        """The bullet of that id."""
        return next((b for b in self.bullets if b.id == id), None)
