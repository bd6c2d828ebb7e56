"""A snapshot as JSON and back: what a bug report carries.

Values have the form of their own type, by Pydantic. What is added: numbers come back exactly,
infinite ones and NaN as words, because JSON has none; whole ones have 64 bits; sets are sorted;
schemes and rules of placement are kept by their names. What is read may be hostile: an error is one
sentence that begins with its place.

Around them are a frame with the number of its format, and the check that the parts of a snapshot
fit each other, which decisions take for granted. Indices that point nowhere and columns of
different lengths are not found by types, and would end a decision half way.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError, SchemaSerializer, SchemaValidator

from slurm_dl.error_text import sentence
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.json_marks import FLOAT_WORDS
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.placement.candidate_nodes import Rule
from slurm_dl.placement.scheme import Scheme
from slurm_dl.placement.scheme_registry import find_rule, find_scheme
from slurm_dl.text import safe

_T = TypeVar("_T")
_Schema: TypeAlias = "dict[str, Any]"

_CONFIG: Final = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
_BY_NAME: Final[Mapping[object, Callable[[str], type[object]]]] = {
    Scheme: find_scheme,
    Rule: find_rule,
}
_PLAIN: Final[_Schema] = {"type": "function-plain"}
_LARGE: Final = frozenset({"dataclass", "definition-ref"})
_LONGEST = 40


class FormError(ValueError):
    """A value that is not what its type asks for; the message begins with its place."""

    def __init__(self, text: str, *place: int | str) -> None:
        at = ".".join(safe(str(key), _LONGEST) for key in place)
        super().__init__(f"{at}: {text}" if at else text)
        self._text, self._place = text, place

    def within(self, *above: int | str) -> FormError:
        """The same error, seen from what holds the value at *above*."""
        return FormError(self._text, *above, *self._place)


def to_bytes(value: object, kind: object) -> bytes:
    """*value*, which is of the type *kind*, as JSON on one line.

    Mappings and sequences keep their order.

    Raises:
        TypeError: It is not of that type, or the type cannot be kept.
    """
    return cast("bytes", _written(kind, "to_json", value))


def from_bytes(content: bytes, kind: type[_T], *place: str) -> _T:
    """The value that `to_bytes` wrote; *place* is where it stands, for errors.

    Raises:
        FormError: *content* is no such value.
        TypeError: The type cannot be kept.
    """
    try:
        return cast("_T", _codec(cast("Hashable", kind))[0].validate_json(content))
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
    found = first.get("ctx", {}).get("error")
    if not isinstance(found, FormError):
        text = f"not JSON: {found}" if first["type"] == "json_invalid" else sentence(first)
        found = FormError(str(found) if isinstance(found, ValueError) else text)
    raise found.within(*place, *first["loc"])


def to_plain(value: object, kind: object) -> Any:  # noqa: ANN401 - any JSON
    """What `to_bytes` writes, as plain values."""
    return _written(kind, "to_python", value, mode="json")


def from_plain(content: Json, kind: type[_T], *place: str) -> _T:
    """The value that `to_plain` wrote; otherwise like `from_bytes`."""
    return from_bytes(json.dumps(content).encode("ascii"), kind, *place)


def _written(kind: object, how: str, value: object, **more: str) -> Any:  # noqa: ANN401
    numbers = operator.methodcaller("item")  # NumPy's.
    try:
        return getattr(_codec(kind)[1], how)(value, warnings=False, fallback=numbers, **more)
    except (AttributeError, ValueError) as err:
        msg = f"not to be saved as {kind}: {err}"
        raise TypeError(msg) from None


@functools.cache
def _codec(kind: object) -> tuple[SchemaValidator, SchemaSerializer]:
    try:
        # Pydantic takes no configuration for a dataclass by itself.
        adapter = TypeAdapter(tuple[kind], config=_CONFIG)  # type: ignore[valid-type]
    except (PydanticUserError, SchemaError) as err:
        msg = f"values of type {kind} cannot be saved: {err}"
        raise TypeError(msg) from None
    schema: _Schema = _exact(adapter.core_schema)
    in_tuple = schema.get("schema", schema)
    if in_tuple is schema:
        schema = in_tuple["items_schema"][0]
    else:
        schema = {**schema, "schema": in_tuple["items_schema"][0]}
    return SchemaValidator(schema), SchemaSerializer(schema)


def _exact(schema: Any, *, is_key: bool = False) -> Any:  # noqa: ANN401 - of any part of it
    """*schema* without pydantic's conversions, and with what JSON lacks."""
    if isinstance(schema, list):
        return [_exact(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: _exact(one, is_key=name == "keys_schema") for name, one in schema.items()}
    more: _Schema = {}
    match schema.get("type"):
        case "int":  # Text in JSON if it is a key.
            more = {"ge": -(2**63), "le": 2**63 - 1, **schema, "strict": not is_key}
        case "str" | "bool":
            more = {"strict": True}
        case "float":
            return _with_words(schema)
        case "frozenset":
            items = {"type": "list", "items_schema": schema["items_schema"]}
            more = {"serialization": {**_PLAIN, "function": sorted, "return_schema": items}}
        case "dict":
            values, inner = schema.get("values_schema", {}), schema
            if values.get("type") in _LARGE:
                wrap = {"type": "function-wrap", "function": _one, "schema": values}
                inner = {**schema, "values_schema": {**values, "serialization": wrap}}
            # Not each mapping is a dict.
            more = {"serialization": {**_PLAIN, "function": dict, "return_schema": inner}}
        case "is-instance" if schema["cls"] in _BY_NAME:
            return _by_name(_BY_NAME[schema["cls"]])
    return {**schema, **more}


def _with_words(schema: _Schema) -> _Schema:
    word = {"type": "literal", "expected": sorted(FLOAT_WORDS)}
    number = {**schema, "strict": True, "allow_inf_nan": False}
    return {
        "type": "union",
        "mode": "left_to_right",
        "choices": [number, {"type": "chain", "steps": [word, schema]}],
        "custom_error_type": "float_type",
        "serialization": {**_PLAIN, "function": _word},
    }


def _word(value: float) -> Json:
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _one(value: object, write: Callable[[object], Json]) -> Json:
    """An entry of a mapping; being Python, it lets the daemon's other threads run in between."""
    return write(value)


def _by_name(find: Callable[[str], type[object]]) -> _Schema:
    """What *find* finds: its name and its parameters."""

    def write(value: object) -> Json:
        name: str = value.name  # type: ignore[attr-defined] # see `Scheme`
        return {"name": name, "parameters": to_plain(value, type(value))}

    def read(content: dict[str, Any]) -> object:
        try:
            kind = find(content["name"])
            return from_plain(content["parameters"], kind, "parameters")
        except (ConfigError, TypeError) as err:
            raise FormError(str(err), "name") from None

    fields = {
        name: {"type": "typed-dict-field", "schema": schema}
        for name, schema in (("name", {"type": "str", "strict": True}), ("parameters", _ANY))
    }
    return {
        "type": "function-after",
        "function": {"type": "no-info", "function": read},
        "schema": {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"},
        "serialization": {**_PLAIN, "function": write},
    }


_ANY: Final[_Schema] = {"type": "any"}


FORMAT: Final = 4  # What is written

OLDEST: Final = 1
"""What is still read: up to format 3 without places in the queue, before that without sizes, and in
the first format with a mask for each job."""


def encode(snapshot: Snapshot) -> JsonObject:
    """*snapshot* as plain JSON values."""
    return {"format": FORMAT, "snapshot": to_plain(snapshot, Snapshot)}


def decode(content: JsonObject) -> Snapshot:
    """The snapshot that `encode` wrote, now or in an older release.

    Raises:
        ValueError: It is of another format, or not a snapshot.
    """
    found = content.get("format")
    if type(found) is not int or not OLDEST <= found <= FORMAT:
        msg = f"a saved snapshot of format {OLDEST} to {FORMAT} was expected (got {found!r})"
        raise ValueError(msg)
    try:
        snapshot = from_plain(content.get("snapshot"), Snapshot)
        check(snapshot)
    except FormError as err:
        msg = f"not a saved snapshot: {err}"
        raise ValueError(msg) from err
    return snapshot


BY_TYPE = ("rates", "credit_s")
"""Fields of a snapshot that have a value for each job on each GPU type."""

_LABEL = re.compile(r"[0-9]{1,18}(?:_|\+[^_]*$|$)", re.ASCII)


def check(snap: Snapshot, *at: str) -> None:
    """Refuse a snapshot whose parts do not fit each other; it stands at *at*.

    Raises:
        FormError: Names the place of the first thing that is wrong.
    """
    for place, fits, text in _claims(snap):
        if not fits:
            raise FormError(text, *at, place)


def _claims(snap: Snapshot) -> Iterator[tuple[str, bool, str]]:
    """What must hold, in an order in which each may rely on those before: place, claim, words."""
    seen = snap.seen
    yield "seen.now_s", bool(np.isfinite(seen.now_s)), "an instant was expected"
    for place, group in (
        ("seen.jobs", seen.jobs),
        ("seen.nodes", seen.nodes),
        ("seen.held", seen.held),
        ("memory", snap.memory),
    ):
        for field in dataclasses.fields(group):
            column = getattr(group, field.name)
            if isinstance(column, np.ndarray):
                fits = column.ndim == 1
                if field.name == "by_type":
                    rows = len(seen.nodes if group is seen.nodes else seen.held)
                    fits = column.shape == (len(seen.gpu_types), rows)
                yield f"{place}.{field.name}", fits, "one value a row was expected"
    n, m, parts = len(seen.jobs), len(seen.nodes), len(seen.partitions)
    yield "memory", len(snap.memory.attained_gpu_s) == n, f"{n} rows were expected, one a job"
    for field in dataclasses.fields(snap):
        column = getattr(snap, field.name)
        if field.name in BY_TYPE and column is not None:
            kinds = max(1, len(seen.gpu_types))
            yield field.name, column.shape == (n, kinds), f"{n} x {kinds} values were expected"
        elif isinstance(column, np.ndarray):
            rows = parts if field.name == "managed" else n
            yield field.name, column.shape == (rows,), f"{rows} values were expected"
    yield "seen.node_in", seen.node_in.shape == (parts, m), f"{parts} x {m} values were expected"
    for field in dataclasses.fields(snap.memory):
        finite = bool(np.isfinite(getattr(snap.memory, field.name)).all())
        yield f"memory.{field.name}", finite, "finite numbers were expected"
    yield "left_s", not np.isnan(snap.left_s).any(), "numbers were expected"
    yield from _estimates(snap)
    yield from _jobs(seen)
    yield from _nodes(seen)
    yield from _steers(snap)
    yield from _breakers(snap)


def _estimates(snap: Snapshot) -> Iterator[tuple[str, bool, str]]:
    kinds = max(1, len(snap.seen.gpu_types))
    for name in BY_TYPE:
        matrix = getattr(snap, name)
        known = matrix is None or bool(np.isfinite(matrix).all())
        yield name, known, "finite numbers were expected"
    yield "rates", snap.rates is None or bool((snap.rates >= 0).all()), "0 or more was expected"
    if snap.sizes is not None:
        yield "sizes", snap.sizes.fits(n=len(snap.seen.jobs), types=kinds), "no such sizes"
    yield "due_s", snap.due_s is None or not np.isnan(snap.due_s).any(), "numbers were expected"
    yield "on_type", snap.on_type is None or _within(snap.on_type, -1, kinds), "no such GPU type"
    past = snap.past
    for index, names in (("account", "accounts"), ("user", "users"), ("name", "names")):
        fits = _within(getattr(past, index), 0, len(getattr(past, names)))
        yield f"past.{index}", fits, "no such name"
    for name in ("gpus", "submit_s", "start_s", "end_s", "ran_s"):
        known = bool(np.isfinite(getattr(past, name)).all())
        yield f"past.{name}", known, "finite numbers were expected"


def _jobs(seen: Observed) -> Iterator[tuple[str, bool, str]]:
    jobs, parts = seen.jobs, len(seen.partitions)
    unique = len(np.unique(jobs.job_id)) == len(jobs)
    yield "seen.jobs.job_id", unique, "a job is listed twice"
    yield "seen.jobs.state", bool(np.isin(jobs.state, list(JobState)).all()), "no such state"
    yield "seen.jobs.held", bool(np.isin(jobs.held, list(Held)).all()), "no such reason"
    # Slurm has at least one partition; -1 is one that it does not tell of.
    in_parts = _within(jobs.partition, -1, parts) and (parts > 0 or not len(jobs))
    yield "seen.jobs.partition", in_parts, "no such partition"
    yield "seen.jobs.gpu_type", _within(jobs.gpu_type, -1, len(seen.gpu_types)), "no such GPU type"
    for name in ("gpus", "submit_s", "start_s", "end_s"):
        known = bool(np.isfinite(getattr(jobs, name)).all())
        yield f"seen.jobs.{name}", known, "finite numbers were expected"
    yield "seen.jobs.limit_s", not np.isnan(jobs.limit_s).any(), "numbers were expected"
    listed = set(jobs.job_id.tolist())
    yield "seen.reserved", listed >= seen.reserved.keys(), "a job that is not listed"
    others = [p for also in seen.also_in.values() for p in also]
    yield "seen.also_in", all(0 <= p < parts for p in others), "no such partition"


def _nodes(seen: Observed) -> Iterator[tuple[str, bool, str]]:
    nodes, held, m = seen.nodes, seen.held, len(seen.nodes)
    yield "seen.nodes.name", len(set(nodes.name)) == m, "a node is listed twice"
    types_known = _within(nodes.gpu_type, -1, len(seen.gpu_types))
    yield "seen.nodes.gpu_type", types_known, "no such GPU type"
    yield "seen.nodes.gpus", bool(np.isfinite(nodes.gpus).all()), "finite numbers were expected"
    yield "seen.held.job", _within(held.job, 0, len(seen.jobs)), "no such row among the jobs"
    yield "seen.held.job", bool((np.diff(held.job) >= 0).all()), "ascending rows were expected"
    yield "seen.held.node", _within(held.node, 0, m), "no such row among the nodes"
    yield "seen.held.gpus", bool(np.isfinite(held.gpus).all()), "finite numbers were expected"
    for one in seen.blocked:
        yield "seen.blocked", one.nodes.shape == (m,), f"{m} values were expected"
        known = not (math.isnan(one.start_s) or math.isnan(one.end_s))
        yield "seen.blocked", known, "times were expected"
    for place, masks in (("seen.choices", seen.choices), ("seen.excluded", seen.excluded)):
        shapes = all(mask.shape == (m,) for mask in masks.values())
        yield place, shapes, f"{m} values a job were expected"
    sharable = seen.sharable is None or seen.sharable.shape == (m,)
    yield "seen.sharable", sharable, f"{m} values were expected"
    for gpu in seen.shared:
        yield "seen.shared", 0 <= gpu.node < m, "no such row among the nodes"
        shares = all(math.isfinite(share) and share > 0 for share in gpu.shares)
        yield "seen.shared", shares, "shares above 0 were expected"


def _steers(snap: Snapshot) -> Iterator[tuple[str, bool, str]]:
    own = all(job_id == steer.job_id for job_id, steer in snap.steers.items())
    yield "steers", own, "the steer of another job"
    times = [(s.since_s, s.until_s, s.not_before_s) for s in snap.steers.values()]
    yield (
        "steers",
        not any(math.isnan(t) for three in times for t in three),
        "numbers were expected",
    )
    if snap.steers:
        # Tasks are found by their labels, which begin with the number of the array.
        labels = (text.label for text in snap.seen.texts.values())
        yield "seen.texts", all(map(_LABEL.match, labels)), "a job's number was expected as label"


def _breakers(snap: Snapshot) -> Iterator[tuple[str, bool, str]]:
    for place, records in (
        ("taken", snap.taken),
        ("restarts", snap.restarts),
        ("breakers", snap.breakers),
    ):
        numbers = [v for r in records for v in dataclasses.astuple(r) if isinstance(v, float)]
        yield place, all(map(math.isfinite, numbers)), "finite numbers were expected"


def _within(column: npt.NDArray[np.signedinteger], first: int, end: int) -> bool:
    return bool(((column >= first) & (column < end)).all())
