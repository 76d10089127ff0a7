"""Schedules as users write them: a list of directives, validated field by field.

A schedule file is `{"version": 1, "directives": [...]}` or a bare list of directives. A *filter* maps a tag to an
index, to `"*"` (any index) or to null (untagged); an absent tag matches all. `PASS` is F, B, BI or BW.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pibroch.runtime.errors import InputError

PASSES = ("F", "B", "BI", "BW")
SCHEDULE_VERSION = 1


def _check_filter(value: dict[str, int | str | None]) -> dict[str, int | str | None]:
    for tag, index in value.items():
        if tag == "PASS":
            if index not in (*PASSES, "*"):
                raise ValueError(f"PASS is one of {', '.join(PASSES)} or '*', not {index!r}")
        elif isinstance(index, str) and index != "*":
            raise ValueError(f"{tag} is an index, '*' or null, not {index!r}")
        elif isinstance(index, int) and index < 0:
            raise ValueError(f"{tag} is an index from 0, not {index}")
    return value


Filter = Annotated[dict[str, int | str | None], AfterValidator(_check_filter)]
Devices = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Directive(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Place(Directive):
    """The regions run on these devices; several devices are data parallelism."""

    op: Literal["place"] = "place"
    filter: Filter = Field(default_factory=dict)
    devices: Devices
    stream: str | None = None


class Replicate(Directive):
    """Gradients are averaged over the devices, which equal the place's. `bucket_size` is in MB."""

    op: Literal["replicate"] = "replicate"
    filter: Filter = Field(default_factory=dict)
    devices: Devices
    reduce_stream: str = "reduce"
    bucket_size: float | None = Field(default=None, gt=0)


class Split(Directive):
    """The batch of each replica is cut along dimension 0 into microbatches, named by `dim_name` in filters."""

    op: Literal["split"] = "split"
    filter: Filter = Field(default_factory=dict)
    dim_name: str = "MB"
    num_microbatches: int = Field(ge=1)


class Order(Directive):
    """Groups of chunks that follow each other on one device set; two filters of one group may overlap."""

    op: Literal["order"] = "order"
    filters: list[Filter | Annotated[list[Filter], Field(min_length=1, max_length=2)]] = Field(min_length=2)

    def groups(self) -> list[list[dict[str, int | str | None]]]:
        """Each group as a list of one or two filters."""
        return [group if isinstance(group, list) else [group] for group in self.filters]


class Cut(Directive):
    """Stage boundaries by layer: stage i + 1 starts at layer `at[i]`."""

    op: Literal["cut"] = "cut"
    at: list[Annotated[int, Field(ge=1)]] = Field(min_length=1)


class Recompute(Directive):
    """The matched layers drop what forward saved and recompute it in backward."""

    op: Literal["recompute"] = "recompute"
    filter: Filter = Field(default_factory=dict)


AnyDirective = Annotated[Place | Replicate | Split | Order | Cut | Recompute, Field(discriminator="op")]
_LIST: TypeAdapter[list[AnyDirective]] = TypeAdapter(list[AnyDirective])


class Schedule(BaseModel):
    """A list of directives with its format version."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    version: Literal[1] = 1
    directives: list[AnyDirective]

    def to_json(self) -> dict[str, Any]:
        """Plain data; fields at their defaults are left out, but for a `reduce_stream` that was asked for."""
        rows = []
        for d in self.directives:
            row = {"op": d.op, **d.model_dump(exclude_defaults=True)}
            if isinstance(d, Replicate) and "reduce_stream" in d.model_fields_set:
                row["reduce_stream"] = d.reduce_stream
            rows.append(row)
        return {"version": SCHEDULE_VERSION, "directives": rows}


def schedule_text(schedule: Schedule) -> str:
    """The schedule as a file that people read: one directive per line, one line per group of an `order`."""
    rows = []
    for row in schedule.to_json()["directives"]:
        if row["op"] == "order":
            groups = ",\n      ".join(json.dumps(group) for group in row["filters"])
            rows.append(f'    {{"op": "order", "filters": [\n      {groups}\n    ]}}')
        else:
            rows.append(f"    {json.dumps(row)}")
    return f'{{\n  "version": {SCHEDULE_VERSION},\n  "directives": [\n' + ",\n".join(rows) + "\n  ]\n}\n"


def parse_schedule(text: str, *, source: str = "schedule") -> Schedule:
    """Read a schedule from JSON text. Raises `InputError` that names `source` and the directive and field at fault."""
    try:
        data = json.loads(text, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise InputError(f"{source}: not valid JSON: {error}") from error
    return schedule_from(data, source=source)


def schedule_from(data: Any, *, source: str = "schedule") -> Schedule:
    """The same from already decoded JSON."""
    try:
        if isinstance(data, list):
            return Schedule(directives=_LIST.validate_python(data))
        return Schedule.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{source}: {_explain(error)}") from error


def load_schedule(path: str | Path) -> Schedule:
    """Read a schedule file. Raises `InputError`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path}: cannot read the schedule: {reason}") from error
    return parse_schedule(text, source=str(path))


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} appears twice in one object")
    return result


_MODELS: dict[str, type[BaseModel]] = {
    model.model_fields["op"].default: model for model in (Place, Replicate, Split, Order, Cut, Recompute)
}


def _explain(error: ValidationError) -> str:
    """The first mistake in the file's words. Each branch of a union reports an error: the most specific one counts."""
    found: dict[tuple[Any, ...], Any] = {}
    for row in error.errors():
        loc = _location(row)
        kept = found.get(loc)
        if kept is None or _SHAPES.get(kept["type"]):
            found[loc] = row
    places = [a for a in found if not any(len(b) > len(a) and b[: len(a)] == a for b in found)]
    loc = places[0]
    named = [f"directive {loc[0]}", *loc[1:]] if loc and isinstance(loc[0], int) else loc
    place = ", ".join(map(str, named))
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    return f"{place + ': ' if place else ''}{_message(found[loc], loc)}{more}"


_SHAPES = {"dict_type": True, "list_type": True}  # what a union's other branches say of a value that one of them takes


def _location(row: Any) -> tuple[Any, ...]:
    """Where in the file: without the names of the branches of unions and of validators."""
    parts = [part for part in row["loc"] if part != "directives" and not (isinstance(part, str) and "[" in part)]
    if len(parts) > 1 and (row["type"], parts[-1]) in (("int_type", "int"), ("string_type", "str")):
        parts.pop()
    return tuple(parts)


def _message(row: Any, loc: tuple[Any, ...]) -> str:
    kind = row["type"]
    if not loc:
        return "a schedule is a list of directives, or an object with version and directives"
    if kind == "model_attributes_type":
        return f"a directive is an object with an op, not {row['input']!r}"
    if kind == "value_error":
        return str(row["ctx"]["error"])
    if kind == "extra_forbidden":
        owner = loc[1] if len(loc) > 2 else None
        fields = (_MODELS[owner] if owner else Schedule).model_fields
        return f"unknown field; {owner or 'a schedule'} has {', '.join(name for name in fields if name != 'op')}"
    if kind == "union_tag_invalid":
        return f"unknown op {row['ctx']['tag']!r}; there are {', '.join(_MODELS)}"
    if kind == "union_tag_not_found":
        return f"the op is missing: one of {', '.join(_MODELS)}"
    if loc[1:3] == ("order", "filters") and kind in _SHAPES:
        return "a group is a filter or a list of two"
    if kind in ("int_type", "string_type") and {"filter", "filters"} & set(loc[2:-1]):
        return f"an index, '*' or null, not {row['input']!r}"
    return str(row["msg"])
