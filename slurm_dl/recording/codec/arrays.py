"""NumPy columns and matrices: ``{"dtype": "<f8", "values": [...]}``.

Hot: a snapshot of 100,000 jobs has some three million values. There is one pass in C over a column
for the types of its values and one for the values, and no Python for each.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from slurm_dl.json_types import Json, JsonObject
from slurm_dl.recording.codec.protocol import Codec, FormError, at, refuse, wrong
from slurm_dl.recording.codec.scalars import WORDS, read_int, read_str, write_float

_Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"
_Dtype: TypeAlias = "np.dtype[np.generic]"

_WIDEST_BYTES = 8
_TYPE_NAME = re.compile(r"[<>|=]?[biuf][1-8]")
_MATRIX = 2

_ELEMENTS: Mapping[str, frozenset[type]] = {
    "b": frozenset({bool}),
    "i": frozenset({int}),
    "u": frozenset({int}),
    "f": frozenset({float, int, str}),
}


def array(wanted: _Dtype) -> Codec:
    """Arrays of one or two dimensions whose elements are of the kind of *wanted*.

    Raises:
        TypeError: There is no way to keep such elements.
    """
    if wanted.kind not in _ELEMENTS:
        msg = f"columns of {wanted} cannot be saved"
        raise TypeError(msg)
    return Codec(lambda value: _write(value, wanted), lambda content: _read(content, wanted))


def _write(value: object, wanted: _Dtype) -> Json:
    if not isinstance(value, np.ndarray) or value.dtype.kind != wanted.kind:
        what = f"an array like {wanted}"
        raise wrong(what, value)
    values = value.tolist()
    if wanted.kind == "f" and not np.isfinite(value).all():
        values = _with_words(values)
    column: JsonObject = {"dtype": value.dtype.str, "values": values}
    if value.ndim > 1 and not value.size:
        column["shape"] = list(value.shape)  # Lists in lists cannot tell it.
    return column


def _read(content: Json, wanted: _Dtype) -> _Array:
    if not isinstance(content, dict) or not content.keys() <= {"dtype", "values", "shape"}:
        refuse("a column (dtype, values)", content)
    with at("dtype"):
        dtype = _dtype(content.get("dtype"), wanted)
    with at("values"):
        values, shape = _flat(content.get("values"))
        _check_types(values, wanted)
        if not values and "shape" in content:
            shape = _shape(content["shape"])
        try:
            column = np.array(values, dtype=dtype).reshape(shape)
        except (ValueError, OverflowError) as err:
            raise FormError(str(err)) from None
        if wanted.kind == "f" and str not in set(map(type, values)):
            _check_finite(column)
    return column


def _check_types(values: list[Json], wanted: _Dtype) -> None:
    found = set(map(type, values))
    if not found <= _ELEMENTS[wanted.kind]:
        msg = f"values like {wanted} were expected"
        raise FormError(msg)
    if str in found and not {v for v in values if isinstance(v, str)} <= WORDS:
        msg = f"numbers, or one of {', '.join(sorted(WORDS))}, were expected"
        raise FormError(msg)


def _check_finite(column: _Array) -> None:
    if not np.isfinite(column.astype(np.float64)).all():
        msg = "a number is too large"
        raise FormError(msg)


def _dtype(content: Json, wanted: _Dtype) -> _Dtype:
    name = read_str(content)
    # NumPy's own language of types is large; these are the ones that are written.
    if not _TYPE_NAME.fullmatch(name):
        refuse("the name of a type of numbers", content)
    try:
        dtype: _Dtype = np.dtype(name)
    except TypeError:
        refuse("the name of a type of numbers", content)
    if dtype.kind != wanted.kind or dtype.itemsize > _WIDEST_BYTES:
        msg = f"a type like {wanted} was expected (got {dtype})"
        raise FormError(msg)
    return dtype


def _flat(content: Json) -> tuple[list[Json], tuple[int, ...]]:
    """The values of a column, or of a matrix row by row, and the shape."""
    if not isinstance(content, list):
        refuse("a list", content)
    if not content or not isinstance(content[0], list):
        return content, (len(content),)
    rows = [row for row in content if isinstance(row, list)]
    if len(rows) < len(content) or len({len(row) for row in rows}) > 1:
        msg = "rows of one length were expected"
        raise FormError(msg)
    return list(itertools.chain.from_iterable(rows)), (len(rows), len(rows[0]))


def _shape(content: Json) -> tuple[int, ...]:
    if not isinstance(content, list) or len(content) != _MATRIX:
        refuse("two lengths", content)
    return tuple(max(0, read_int(length)) for length in content)


def _with_words(values: list[Any]) -> list[Json]:
    return [_with_words(v) if isinstance(v, list) else write_float(v) for v in values]
