"""What all codecs share: the JSON they write, both directions, and an error with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from slurm_dl.json_types import Json

_LONGEST = 40
_NAMES = {dict: "a mapping", list: "a list", str: "text", type(None): "null"}


class FormError(ValueError):
    """A value that is not what its type asks for; the message begins with its place."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(f"{place}: {text}" if place else text)
        self._text = text
        self._place = place

    def within(self, name: str) -> FormError:
        """The same error, seen from what holds the value as *name*."""
        name = name[:_LONGEST]
        return FormError(self._text, f"{name}.{self._place}" if self._place else name)


@dataclass(frozen=True, slots=True)
class Codec:
    """Both directions for one type. *read* raises `FormError`, *write* `TypeError`."""

    write: Callable[[object], Json]
    read: Callable[[Json], object]


@contextmanager
def at(name: str) -> Iterator[None]:
    """Errors within are about what is held as *name*."""
    try:
        yield
    except FormError as err:
        raise err.within(name) from None


def refuse(wanted: str, got: Json, place: str = "") -> NoReturn:
    """End the reading of a value that is not what was *wanted*.

    Raises:
        FormError: Always.
    """
    name = _NAMES.get(type(got)) or repr(got)[:_LONGEST]
    msg = f"{wanted} was expected (got {name})"
    raise FormError(msg, place)


def wrong(wanted: str, got: object) -> TypeError:
    """The error for a value that is written as another type than it is of."""
    return TypeError(f"{wanted} was expected (got {type(got).__name__})")
