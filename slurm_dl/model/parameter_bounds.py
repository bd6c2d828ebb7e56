"""Bounds of parameters, written beside their types and checked when the object is made."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

Table = tuple[tuple[str, float], ...]  # Figures by name


@dataclass(frozen=True, slots=True)
class Bound:
    """One thing that a value must be."""

    words: str  # It in words, behind "must be"
    holds: Callable[[Any], bool]  # Whether a value is so
    got: str = " (got {value})"  # How the refused value is said; empty where it may be long

    def check(self, name: str, value: object) -> None:
        """Raise if *value* is not so.

        Raises:
            ValueError: It names the field and says the value.
        """
        if not self.holds(value):
            shown = list(value) if isinstance(value, tuple) else value
            msg = f"{name} must be {self.words}{self.got.format(value=shown)}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a table of figures by name must be."""

    holds: Callable[[Any], bool]  # Whether a figure is right
    wrong: str  # What is said of one that is not: of its *key* and *value* in the field *name*
    twice: str = ""  # What is said of a key that stands there more than once, among all *keys*

    def check(self, name: str, table: Mapping[str, float] | Table) -> None:
        """Raise if a figure of *table* is wrong, or a key stands there twice.

        Raises:
            ValueError: It names the field and the key.
        """
        pairs = tuple(table.items()) if isinstance(table, Mapping) else table
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            twice = min(key for key in keys if keys.count(key) > 1)
            raise ValueError(self.twice.format(name=name, keys=keys, key=twice))
        for key, value in pairs:
            if not self.holds(value):
                raise ValueError(self.wrong.format(name=name, key=key, value=value))


def above_0(value: float) -> bool:
    """It is finite and above 0."""
    return 0 < value < math.inf


def from_0(value: float) -> bool:
    """It is finite, 0 or more."""
    return 0 <= value < math.inf


Positive = Annotated[float, Bound("a finite number above 0", above_0)]
NotNegative = Annotated[float, Bound("a finite number, 0 or more", from_0)]
OneOrMore = Annotated[float, Bound("a finite number, 1 or more", lambda x: 1 <= x < math.inf)]
Count = Annotated[int, Bound("1 or more", lambda n: n >= 1)]
Part = Annotated[float, Bound("from 0 to 1", lambda x: 0 <= x <= 1)]
Sizes = Annotated[
    tuple[float, ...],
    Bound("finite numbers above 0", lambda sizes: all(map(above_0, sizes)), got=""),
]
Weights = Annotated[
    Table,
    Figures(
        above_0,
        wrong="{name} must be finite numbers above 0 (got {value} for {key})",
        twice="{name} must name each account once (got {keys})",
    ),
]
"""Weights by account; 1 for accounts that are not named."""


class Bounded:
    """A dataclass whose fields have `Bound` or `Figures` in their annotations."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check the fields, in their order.

        Raises:
            ValueError: A value is out of its bounds; says which.
        """
        kind: Any = type(self)
        for name, bound in _bounds_of(kind):
            bound.check(name, getattr(self, name))


@functools.cache
def _bounds_of(kind: type[object]) -> tuple[tuple[str, Bound | Figures], ...]:
    return tuple(
        (name, bound)
        for name, hint in typing.get_type_hints(kind, include_extras=True).items()
        for bound in getattr(hint, "__metadata__", ())
        if isinstance(bound, Bound | Figures)
    )
