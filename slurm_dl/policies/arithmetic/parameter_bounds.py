"""Bounds of parameters: what a policy says of a value that it cannot work with."""

from __future__ import annotations

import math


def positive(name: str, value: float) -> None:
    """Raise if *value* is not a finite number above 0.

    Raises:
        ValueError: It names the field and the value.
    """
    if not (math.isfinite(value) and value > 0):
        msg = f"{name} must be a finite number above 0 (got {value})"
        raise ValueError(msg)


def not_negative(name: str, value: float) -> None:
    """Raise if *value* is not a finite number, 0 or more.

    Raises:
        ValueError: It names the field and the value.
    """
    if not (math.isfinite(value) and value >= 0):
        msg = f"{name} must be a finite number, 0 or more (got {value})"
        raise ValueError(msg)


def at_least_one(name: str, value: int) -> None:
    """Raise if *value* is below 1.

    Raises:
        ValueError: It names the field and the value.
    """
    if value < 1:
        msg = f"{name} must be 1 or more (got {value})"
        raise ValueError(msg)
