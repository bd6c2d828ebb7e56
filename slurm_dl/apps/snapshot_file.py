"""A snapshot as JSON and back: what a bug report carries and a replay starts from.

The types of the model say how; a new column needs no edit here. Numbers survive exactly, infinite
ones as the words ``inf`` and ``-inf``, because JSON has none.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np

from slurm_dl.apps.wire import Json, JsonObject
from slurm_dl.model.snapshot import Snapshot

FORMAT = 1


def encode(snapshot: Snapshot) -> JsonObject:
    """*snapshot* as plain JSON values."""
    return {"format": FORMAT, "snapshot": _plain(snapshot)}


def decode(content: JsonObject) -> Snapshot:
    """The snapshot that `encode` wrote.

    Raises:
        ValueError: It is of another format, or not a snapshot.
    """
    if content.get("format") != FORMAT:
        msg = f"a saved snapshot of format {FORMAT} was expected (got {content.get('format')!r})"
        raise ValueError(msg)
    try:
        snapshot = _typed(content.get("snapshot"), Snapshot)
    except (TypeError, KeyError, AttributeError) as err:
        msg = f"not a saved snapshot: {err}"
        raise ValueError(msg) from err
    assert isinstance(snapshot, Snapshot)  # noqa: S101 - narrows the type
    return snapshot


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        msg = f"a mapping was expected (got {type(value).__name__})"
        raise TypeError(msg)
    return value


def _plain(value: object) -> Json:  # noqa: PLR0911 - one return for each kind of value
    match value:
        case np.ndarray():
            return {"dtype": value.dtype.str, "values": [_plain(v) for v in value.tolist()]}
        case Enum():
            return _plain(value.value)
        case float():
            return value if math.isfinite(value) else str(value)
        case bool() | int() | str() | None:
            return value
        case Mapping():
            return {str(k): _plain(v) for k, v in value.items()}
        case Sequence():
            return [_plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    msg = f"a {type(value).__name__} cannot be saved"
    raise TypeError(msg)


def _typed(value: object, kind: object) -> object:
    """*value* as the annotation *kind* says."""
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        given = [a for a in arguments if a is not type(None)]
        return None if value is None else _typed(value, given[0])
    if origin is np.ndarray or kind is np.ndarray:
        return _array(value)
    if origin is tuple:
        if not isinstance(value, list):
            msg = f"a list was expected (got {type(value).__name__})"
            raise TypeError(msg)
        return tuple(_typed(v, arguments[0]) for v in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        pairs = _mapping(value).items()
        return {_typed(k, arguments[0]): _typed(v, arguments[1]) for k, v in pairs}
    if isinstance(kind, type):
        return _instance(value, kind)
    return value


def _instance(value: object, kind: type) -> object:
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _typed(v, hints[name]) for name, v in _mapping(value).items()})
    if kind is int or kind is float:
        if not isinstance(value, int | float | str):
            msg = f"a number was expected (got {type(value).__name__})"
            raise TypeError(msg)
        return kind(value)
    return kind(value) if issubclass(kind, Enum) else value


def _array(value: object) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    column = _mapping(value)
    return np.array(column["values"], dtype=np.dtype(str(column["dtype"])))
