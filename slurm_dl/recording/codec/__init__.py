"""Values of the model as plain JSON and back, each the way its own type says.

A new field or a new action needs no edit here; a type that cannot be kept is refused when it is
first met. Numbers come back exactly: whole ones up to 64 bits, floats by their shortest exact
decimals, infinite ones and NaN as the words ``inf``, ``-inf`` and ``nan``, because JSON has none.
What is read may be hostile: every value is checked against its type, and an error names its place.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from slurm_dl.json_types import Json, JsonObject
from slurm_dl.recording.codec.arrays import array
from slurm_dl.recording.codec.protocol import Codec, FormError, refuse, wrong
from slurm_dl.recording.codec.scalars import SCALARS, enum, is_whole, literal

__all__ = [
    "Codec",
    "FormError",
    "Json",
    "JsonObject",
    "codec_of",
    "dataclass_codec",
    "from_plain",
    "to_plain",
    "tuple_codec",
]

_T = TypeVar("_T")

_KEY = re.compile(r"-?\d{1,19}")
_TAG = "is"
"""Which of several dataclasses an object is; no field can be called so."""


def to_plain(value: object, kind: object) -> Json:
    """*value*, which is of the type *kind*, as plain JSON values.

    Sets are sorted; mappings and sequences keep their order.

    Raises:
        TypeError: It is not of that type, or the type cannot be kept.
    """
    return codec_of(kind).write(value)


def from_plain(content: Json, kind: type[_T]) -> _T:
    """The value that `to_plain` wrote.

    Raises:
        FormError: *content* is no such value.
        TypeError: The type cannot be kept.
    """
    wanted: object = kind
    value = codec_of(wanted).read(content)
    assert isinstance(value, kind)  # noqa: S101 - narrows the type
    return value


@functools.cache
def codec_of(kind: object) -> Codec:
    """How values of the type *kind* are written and read.

    Raises:
        TypeError: There is no way to keep such values.
    """
    kind = _bare(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    build = _GENERIC.get(typing.get_origin(kind))
    if build is not None:
        return build(typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return enum(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return dataclass_codec(kind, {})
    msg = f"values of type {kind} cannot be saved"
    raise TypeError(msg)


def _bare(kind: object) -> object:
    """What *kind* is another name of; ``NDArray[...]`` is one from NumPy 2.5 on."""
    while True:
        alias: Any = typing.get_origin(kind)
        if isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif hasattr(alias, "__value__"):
            kind = alias.__value__[typing.get_args(kind)]
        else:
            return kind


def dataclass_codec(kind: type, others: Mapping[str, Codec]) -> Codec:
    """How instances of a dataclass are written and read.

    Args:
        others: Codecs of the fields whose types do not say how to keep them.

    Raises:
        TypeError: There is no way to keep another field.
    """
    hints = typing.get_type_hints(kind)
    known = dataclasses.fields(kind)
    codecs = {f.name: others.get(f.name) or codec_of(hints[f.name]) for f in known}
    required = [
        field.name
        for field in known
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]

    def write(value: object) -> Json:
        if type(value) is not kind:
            raise wrong(kind.__name__, value)
        return {name: codec.write(getattr(value, name)) for name, codec in codecs.items()}

    def read(content: Json) -> object:
        if not isinstance(content, dict):
            refuse("a mapping", content)
        values = _read_fields(codecs, content)
        for name in required:
            if name not in values:
                msg = "is missing (was it written by another slurm_dl?)"
                raise FormError(msg, name)
        try:
            return kind(**values)
        except (TypeError, ValueError) as err:
            raise FormError(str(err)) from None

    return Codec(write, read)


def _read_fields(codecs: Mapping[str, Codec], content: JsonObject) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, item in content.items():
        if name not in codecs:
            msg = "no such field (was it written by another slurm_dl?)"
            raise FormError(msg).within(name)
        try:
            values[name] = codecs[name].read(item)
        except FormError as err:
            raise err.within(name) from None
    return values


def _union(kinds: tuple[object, ...]) -> Codec:
    """Nothing or one kind, or one of several dataclasses, told apart by their names."""
    given = [kind for kind in kinds if kind is not type(None)]
    classes = [k for k in given if isinstance(k, type) and dataclasses.is_dataclass(k)]
    if len(given) > 1 and len(classes) < len(given):
        msg = f"values of one of the types {kinds} cannot be told apart when saved"
        raise TypeError(msg)
    inner = _tagged(classes) if len(given) > 1 else codec_of(given[0])
    if len(given) == len(kinds):
        return inner
    return Codec(
        lambda value: None if value is None else inner.write(value),
        lambda content: None if content is None else inner.read(content),
    )


def _tagged(kinds: list[type]) -> Codec:
    by_kind: Mapping[object, Codec] = {kind: dataclass_codec(kind, {}) for kind in kinds}
    by_name = {kind.__name__: by_kind[kind] for kind in kinds}
    words = f"one of {', '.join(by_name)}"

    def write(value: object) -> Json:
        kind = type(value)
        if kind not in by_kind:
            raise wrong(words, value)
        fields = by_kind[kind].write(value)
        assert isinstance(fields, dict)  # noqa: S101 - narrows the type
        return {_TAG: kind.__name__, **fields}

    def read(content: Json) -> object:
        if not isinstance(content, dict):
            refuse("a mapping", content)
        name = content.get(_TAG)
        if not isinstance(name, str) or name not in by_name:
            refuse(words, name, _TAG)
        return by_name[name].read({k: v for k, v in content.items() if k != _TAG})

    return Codec(write, read)


def _tuple(arguments: tuple[object, ...]) -> Codec:
    if arguments[1:] == (Ellipsis,):
        return tuple_codec(codec_of(arguments[0]))
    items, length = [codec_of(kind) for kind in arguments], len(arguments)

    def write(value: object) -> Json:
        if not isinstance(value, tuple | list) or len(value) != length:
            what = f"a tuple of {length}"
            raise wrong(what, value)
        return [item.write(v) for item, v in zip(items, value, strict=True)]

    def read(content: Json) -> object:
        if not isinstance(content, list) or len(content) != length:
            refuse(f"a list of {length}", content)
        values: list[object] = []
        for number, (item, value) in enumerate(zip(items, content, strict=True)):
            try:
                values.append(item.read(value))
            except FormError as err:
                raise err.within(str(number)) from None
        return tuple(values)

    return Codec(write, read)


def tuple_codec(item: Codec) -> Codec:
    """How tuples of any length are written and read, each of whose items is as *item* says."""

    def write(value: object) -> Json:
        if not isinstance(value, tuple | list):
            what = "a tuple"
            raise wrong(what, value)
        return [item.write(v) for v in value]

    return Codec(write, lambda content: tuple(_read_items(item, content)))


def _set(arguments: tuple[object, ...]) -> Codec:
    item = codec_of(arguments[0])

    def write(value: object) -> Json:
        if not isinstance(value, frozenset | set):
            what = "a set"
            raise wrong(what, value)
        return [item.write(v) for v in sorted(value)]

    return Codec(write, lambda content: frozenset(_read_items(item, content)))


def _read_items(item: Codec, content: Json) -> list[object]:
    if not isinstance(content, list):
        refuse("a list", content)
    items: list[object] = []
    for number, value in enumerate(content):
        try:
            items.append(item.read(value))
        except FormError as err:
            raise err.within(str(number)) from None
    return items


def _mapping(arguments: tuple[object, ...]) -> Codec:
    key_kind, item = _bare(arguments[0]), codec_of(arguments[1])
    if key_kind not in (int, str):
        msg = f"mappings by {key_kind} cannot be saved"
        raise TypeError(msg)
    key_of: Callable[[str], object] = _number if key_kind is int else str

    def write(value: object) -> Json:
        if not isinstance(value, Mapping):
            what = "a mapping"
            raise wrong(what, value)
        return {str(k): item.write(v) for k, v in value.items()}

    def read(content: Json) -> object:
        if not isinstance(content, dict):
            refuse("a mapping", content)
        found: dict[object, object] = {}
        for key, value in content.items():
            try:
                found[key_of(key)] = item.read(value)
            except FormError as err:
                raise err.within(key) from None
        return found

    return Codec(write, read)


def _number(key: str) -> int:
    if not _KEY.fullmatch(key) or not is_whole(int(key)):
        refuse("a whole number as key", key)
    return int(key)


_GENERIC: Mapping[object, Callable[[tuple[typing.Any, ...]], Codec]] = {
    typing.Literal: literal,
    typing.Union: _union,
    types.UnionType: _union,
    np.ndarray: lambda arguments: array(np.dtype(typing.get_args(arguments[1])[0])),
    tuple: _tuple,
    frozenset: _set,
    collections.abc.Mapping: _mapping,
    dict: _mapping,
}
