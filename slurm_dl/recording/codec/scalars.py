"""Single values: numbers, claims, text, and words out of a closed list."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum

import numpy as np

from slurm_dl.json_types import Json
from slurm_dl.recording.codec.protocol import Codec, refuse, wrong

WORDS = frozenset({"inf", "-inf", "nan"})
"""Floats that JSON has no number for."""

_WHOLE_END = 2**63


def is_whole(content: Json) -> bool:
    """Whether it is a whole number of 64 bits with its sign."""
    # True is a number to Python.
    return (
        isinstance(content, int)
        and not isinstance(content, bool)
        and -_WHOLE_END <= content < _WHOLE_END
    )


def write_float(value: object) -> Json:
    """A float as itself, or as its word."""
    if not isinstance(value, float | int | np.floating | np.integer):
        what = "a number"
        raise wrong(what, value)
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _read_float(content: Json) -> float:
    is_word = isinstance(content, str) and content in WORDS
    is_finite = isinstance(content, float) and math.isfinite(content)
    if not (is_word or is_finite or is_whole(content)):
        refuse("a number", content)
    return float(content)  # type: ignore[arg-type] # a number or a word by then


def _write_int(value: object) -> Json:
    if not isinstance(value, int | np.integer):
        what = "a whole number"
        raise wrong(what, value)
    return int(value)


def read_int(content: Json) -> int:
    """A whole number of 64 bits."""
    if not is_whole(content):
        refuse("a whole number of 64 bits", content)
    return int(content)  # type: ignore[arg-type] # a number by then


def _write_bool(value: object) -> Json:
    if not isinstance(value, bool | np.bool_):
        what = "true or false"
        raise wrong(what, value)
    return bool(value)


def _read_bool(content: Json) -> bool:
    if not isinstance(content, bool):
        refuse("true or false", content)
    return content


def _write_str(value: object) -> Json:
    if not isinstance(value, str):
        what = "text"
        raise wrong(what, value)
    return str(value)


def read_str(content: Json) -> str:
    """A text."""
    if not isinstance(content, str):
        refuse("text", content)
    return content


SCALARS: Mapping[object, Codec] = {
    float: Codec(write_float, _read_float),
    int: Codec(_write_int, read_int),
    bool: Codec(_write_bool, _read_bool),
    str: Codec(_write_str, read_str),
}


def enum(kind: type[Enum]) -> Codec:
    """Members by their values, which are whole numbers or texts."""
    members: dict[object, Enum] = {member.value: member for member in kind}

    def write(value: object) -> Json:
        if not isinstance(value, kind):
            raise wrong(kind.__name__, value)
        plain: Json = value.value
        return plain

    def read(content: Json) -> object:
        # True is 1 as a key of a dict, and 1.0 is too.
        plain = isinstance(content, int | str) and not isinstance(content, bool)
        if not plain or content not in members:
            refuse(f"one of {', '.join(map(str, members))}", content)
        return members[content]

    return Codec(write, read)


def literal(values: tuple[object, ...]) -> Codec:
    """One of these texts or numbers."""
    words = f"one of {', '.join(map(str, values))}"
    # With their types: 1 is True and 1.0 to Python.
    allowed = {(type(value), value) for value in values}

    def write(value: object) -> Json:
        if not isinstance(value, str | int) or (type(value), value) not in allowed:
            raise wrong(words, value)
        return value

    def read(content: Json) -> object:
        if not isinstance(content, str | int) or (type(content), content) not in allowed:
            refuse(words, content)
        return content

    return Codec(write, read)
