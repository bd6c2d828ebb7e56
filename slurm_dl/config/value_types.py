"""What the configuration is made of: sections, and kinds of values that are refused in our words.

They stand apart from the tree so that the tree reads as a list of keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from slurm_dl.text import shown
from slurm_dl.yaml_places import Loc

# A unix socket's path ends after 107 bytes; the names inside run_dir need some of them.
_RUN_DIR_BYTES = 80
_UID_END = 2**32 - 2

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}"
_USER = r"[A-Za-z_][A-Za-z0-9_.@+-]{0,63}\$?"
_OPTIONAL_NAME = rf"(?:{_NAME})?"

_T = TypeVar("_T")


class Section(BaseModel):
    """What all sections have in common: frozen, strict, no unknown keys, no infinite numbers."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        # pydantic's own text of an error is not read, and values may be long.
        hide_input_in_errors=True,
    )


@dataclass(frozen=True, slots=True)
class NumberUnit:
    """What a number counts, as the reference prints it."""

    name: str


def wrong(text: str, others: Sequence[Loc] = ()) -> PydanticCustomError:
    """An error in our own words; *others* are the keys that *text* is about besides its own."""
    return PydanticCustomError("wrong", "{text}", {"text": text, "others": tuple(others)})


def refuse(text: str, others: Sequence[Loc] = ()) -> NoReturn:
    """End the check of a value; see `wrong`."""
    raise wrong(text, others)


def refuse_all(details: list[InitErrorDetails]) -> NoReturn:
    """Errors further down than the value being checked."""
    title = "configuration"
    raise ValidationError.from_exception_data(title, details)


def refuse_key(key: str, value: object, text: str, others: Sequence[Loc]) -> NoReturn:
    """End the check of a section by an error of one of its keys; see `wrong`."""
    refuse_all([InitErrorDetails(type=wrong(text, others=others), loc=(key,), input=value)])


def _spelled(pattern: str, words: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            refuse(f"must be {words} (got {shown(value)})")
        return value

    return check


def distinct(values: tuple[_T, ...]) -> tuple[_T, ...]:
    """*values*, none of which may stand there twice."""
    for i, value in enumerate(values):
        if value in values[:i]:
            refuse(f"names {value} twice")
    return values


def absolute(path: Path) -> Path:
    """*path*, which must be absolute."""
    if not path.is_absolute() or ".." in path.parts or not str(path).isprintable():
        refuse(f"must be an absolute path without '..' (got {shown(str(path))})")
    return path


def _absolute_or_empty(text: str) -> str:
    return str(absolute(Path(text))) if text else text


def short(path: Path) -> Path:
    """*path*, in which the path of a unix socket must find room."""
    if len(os.fsencode(path)) > _RUN_DIR_BYTES:
        refuse(f"must be at most {_RUN_DIR_BYTES} bytes long, for the path of a unix socket")
    return path


def _whole(value: object) -> object:
    """1e7 is a number with a fraction to YAML, but not to an admin."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _admin(value: object) -> str | int:
    match value:
        case bool():
            pass
        case int() if 0 <= value < _UID_END:
            return value
        case str() if re.fullmatch(_USER, value):
            return value
        case _:
            pass
    refuse(f"must be a user name or a uid (got {shown(value)})")


PartitionName = Annotated[
    str,
    AfterValidator(_spelled(_NAME, "a partition's name: letters, digits and _ . + - only")),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"}),
]
AccountName = Annotated[
    str,
    AfterValidator(_spelled(_NAME, "an account's name: letters, digits and _ . + - only")),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"}),
]
ServiceName = Annotated[
    str,
    AfterValidator(_spelled(_NAME, "a service's name: letters, digits and _ . + - only")),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"}),
]
OptionalName = Annotated[
    str,
    AfterValidator(_spelled(_OPTIONAL_NAME, "a name: letters, digits and _ . + - only")),
    WithJsonSchema({"type": "string", "pattern": f"^{_OPTIONAL_NAME}$"}),
]
PathOrEmpty = Annotated[
    str,
    AfterValidator(_absolute_or_empty),
    WithJsonSchema({"type": "string", "pattern": "^(/.*)?$"}),
]
AbsolutePath = Annotated[
    Path,
    Field(strict=False),
    AfterValidator(absolute),
    WithJsonSchema({"type": "string", "pattern": "^/"}),
]
Admin = Annotated[
    str | int,
    PlainValidator(_admin),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": f"^{_USER}$"}, {"type": "integer", "minimum": 0}]}
    ),
]


@dataclass(frozen=True, slots=True, eq=False)
class FrozenMapping(Mapping[str, object]):
    """A mapping that cannot change, and that can be copied and pickled as part of a `Config`."""

    _entries: tuple[tuple[str, object], ...]

    def __getitem__(self, key: str) -> object:
        return dict(self._entries)[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._entries)

    def __len__(self) -> int:
        return len(self._entries)


Parameters = Annotated[
    Mapping[str, object],
    PlainSerializer(dict, return_type=dict[str, object]),
]


def _or_empty(value: object) -> object:
    """A name without anything behind it has no parameters of its own."""
    return {} if value is None else value


Rules = Annotated[
    Mapping[str, Annotated[Mapping[str, object], BeforeValidator(_or_empty)]],
    PlainSerializer(
        lambda rules: {name: dict(parameters) for name, parameters in rules.items()},
        return_type=dict[str, object],
    ),
]
"""Names of rules, each with its parameters."""


ByGpuType = Annotated[
    Mapping[str, Annotated[float, Field(gt=0)]],
    AfterValidator(lambda given: FrozenMapping(tuple(given.items()))),
    PlainSerializer(dict, return_type=dict[str, object]),
]
"""A figure above 0 by the GPU's type."""

Whole = Annotated[int, BeforeValidator(_whole)]
Seconds = Annotated[float, NumberUnit("seconds")]
