"""Values of the model as JSON and back, each the way its own type says.

Pydantic does the work. What is added: numbers come back exactly, infinite ones and NaN as words,
because JSON has none; whole ones have 64 bits; sets are sorted; schemes and rules of placement are
kept by their names. What is read may be hostile: an error is one sentence that begins with its
place.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError, SchemaSerializer, SchemaValidator

from slurm_dl.error_text import sentence
from slurm_dl.json_types import Json
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.json_marks import FLOAT_WORDS
from slurm_dl.placement.rule import Rule
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
