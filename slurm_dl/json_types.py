"""The types of plain JSON values, and reading of those that may be of another type."""

from __future__ import annotations

from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = "dict[str, Json]"


def number(value: Json) -> float:
    """*value* if it is a number, else 0."""
    return float(value) if isinstance(value, int | float) else 0.0


def as_list(value: Json) -> list[Json]:
    """*value* if it is a list, else an empty list."""
    return value if isinstance(value, list) else []
