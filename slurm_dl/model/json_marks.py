"""How columns and unions of dataclasses stand in JSON: marks that pydantic reads.

Pydantic asks an annotation for its schema, which is a plain dict: nothing of it is imported here.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np

_Array: TypeAlias = "np.ndarray[Any, Any]"
_Schema: TypeAlias = "dict[str, Any]"

_SIZES: Final = {"b": "1", "i": "[1248]", "u": "[1248]", "f": "[248]"}
"""Bytes of an element, by the kind of its dtype."""

_ELEMENTS: Final[Mapping[str, set[type]]] = {
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {float, int, str},
}
_TAG: Final = "is"

FLOAT_WORDS: Final = frozenset({"inf", "-inf", "nan"})  # Floats that JSON has no number for


def _calls(kind: str, function: object, **more: object) -> _Schema:
    return {"type": kind, "function": {"type": "no-info", "function": function}, **more}


def _fields(**schemas: _Schema) -> _Schema:
    fields = {
        name: {"type": "typed-dict-field", "schema": schema, "required": name != "shape"}
        for name, schema in schemas.items()
    }
    return {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"}


class Column:
    """An array of one or two dimensions: ``{"dtype": "<f8", "values": [...]}``.

    Args:
        kind: That of its dtype, as `numpy.dtype.kind`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> _Schema:
        length = {"type": "int", "ge": 0}
        content = _fields(
            dtype={"type": "str", "pattern": f"^[<>|=]?{self.kind}{_SIZES[self.kind]}$"},
            values={"type": "list"},
            shape={"type": "list", "items_schema": length, "min_length": 2, "max_length": 2},
        )
        write = {"type": "function-plain", "function": self._write}
        return _calls("function-after", self._read, schema=content, serialization=write)

    def _write(self, value: _Array) -> dict[str, Any]:
        if value.dtype.kind != self.kind:
            msg = f"a column of the kind {self.kind} was expected (got {value.dtype})"
            raise ValueError(msg)
        values = value.tolist()
        if self.kind == "f" and not np.isfinite(value).all():
            values = np.where(np.isfinite(value), value, value.astype(str).astype(object)).tolist()
        column = {"dtype": value.dtype.str, "values": values}
        if value.ndim > 1 and not value.size:
            column["shape"] = list(value.shape)  # Lists in lists cannot tell it.
        return column

    def _read(self, content: Mapping[str, Any]) -> _Array:
        """Hot: no Python for each value."""
        values = content["values"]
        shape = tuple(content.get("shape", (0,))) if not values else (len(values),)
        if values and isinstance(values[0], list):
            if len({len(row) if isinstance(row, list) else -1 for row in values}) > 1:
                msg = "rows of one length were expected"
                raise ValueError(msg)
            shape = len(values), len(values[0])
            values = list(itertools.chain.from_iterable(values))
        types = set(map(type, values))
        words = {v for v in values if isinstance(v, str)} if str in types else set()
        if not types <= _ELEMENTS[self.kind] or not words <= FLOAT_WORDS:
            msg = f"values of the kind {self.kind} were expected"
            raise ValueError(msg)
        try:
            column = np.array(values, dtype=content["dtype"]).reshape(shape)
        except OverflowError as err:
            raise ValueError(str(err)) from None
        if self.kind == "f" and not words and not np.isfinite(column).all():
            msg = "a number is too large"
            raise ValueError(msg)
        return column


class SharedMasks:
    """Masks by job: ``{"masks": [mask, ...], "of": {job id: which of them}}``.

    Jobs that name the same nodes share one. A mask for each job is read as well.
    """

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> _Schema:  # noqa: ANN401
        each, (_, mask) = handler(source), typing.get_args(source)
        index = {"type": "dict", "keys_schema": {"type": "int"}, "values_schema": {"type": "int"}}
        masks = {"type": "list", "items_schema": handler.generate_schema(mask)}
        return {
            "type": "tagged-union",
            "discriminator": lambda content: (
                "shared" if isinstance(content, dict) and "masks" in content else "each"
            ),
            "choices": {
                "shared": _calls(
                    "function-after", self._read, schema=_fields(masks=masks, of=index)
                ),
                "each": each,
            },
            "serialization": {
                "type": "function-plain",
                "function": self._write,
                "return_schema": _fields(masks=masks, of=index),
            },
        }

    def _write(self, value: Mapping[int, _Array]) -> dict[str, Any]:
        # Another shape of the same bytes is another mask.
        keys = {job_id: (mask.shape, mask.tobytes()) for job_id, mask in value.items()}
        masks = {keys[job_id]: mask for job_id, mask in value.items()}
        number = {key: at for at, key in enumerate(masks)}
        of = {job_id: number[key] for job_id, key in keys.items()}
        return {"masks": list(masks.values()), "of": of}

    def _read(self, content: Mapping[str, Any]) -> dict[int, _Array]:
        masks = dict(enumerate(content["masks"]))
        for job_id in (job_id for job_id, at in content["of"].items() if at not in masks):
            msg = f"of.{job_id}: the number of a mask was expected"
            raise ValueError(msg)
        return {job_id: masks[at] for job_id, at in content["of"].items()}


class OneOf:
    """One of several dataclasses, told apart by its name as ``is``; no field can be called so."""

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> _Schema:  # noqa: ANN401
        return {
            "type": "tagged-union",
            "discriminator": lambda content: (
                content.get(_TAG) if isinstance(content, dict) else type(content).__name__
            ),
            "choices": {
                kind.__name__: self._choice(kind.__name__, handler.generate_schema(kind))
                for kind in typing.get_args(source)
            },
        }

    def _choice(self, name: str, inner: _Schema) -> _Schema:
        def write(value: object, fields: Any) -> dict[str, Any]:  # noqa: ANN401 - pydantic's
            return {_TAG: name, **fields(value)}

        def read(content: Mapping[str, Any]) -> dict[str, Any]:
            return {key: item for key, item in content.items() if key != _TAG}

        writing = {"type": "function-wrap", "function": write, "schema": inner}
        return _calls("function-before", read, schema=inner, serialization=writing)
