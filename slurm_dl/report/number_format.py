"""How figures and names are written for people, in tables and in plots alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit of time: its sign, and what it is in seconds."""

    sign: str
    in_s: float


SECONDS: Final = TimeUnit("s", 1.0)
UNITS: Final = (TimeUnit("d", 86400.0), TimeUnit("h", 3600.0), TimeUnit("min", 60.0), SECONDS)
_NEARLY: Final = 1.999
"""A unit is used from twice itself on, rounding apart: 1.5 h are 90 min."""

NONE: Final = "-"
"""Written where there is no figure."""

_EXACT: Final = 2**53


def unit_of(times_s: Iterable[float]) -> TimeUnit:
    """The one unit that suits these times: the largest that their geometric mean fills."""
    logs = [math.log(t) for t in times_s if t > 0 and math.isfinite(t)]
    middle_s = math.exp(math.fsum(logs) / len(logs)) if logs else 0.0
    return next((unit for unit in UNITS if middle_s > _NEARLY * unit.in_s), SECONDS)


def number(value: float) -> str:
    """*value* with three digits that count, or all of its digits before the point."""
    if not math.isfinite(value):
        return NONE
    size = abs(value)
    digits = next((d for limit, d in ((99.95, 0), (9.995, 1), (0.9995, 2)) if size >= limit), 3)
    return f"{value:,.{digits}f}" if value else "0"


def duration(time_s: float) -> str:
    """*time_s* in the unit that suits it."""
    unit = unit_of([time_s])
    return f"{number(time_s / unit.in_s)} {unit.sign}" if math.isfinite(time_s) else NONE


def percent(share: float) -> str:
    """*share* of 1 as a percentage."""
    return f"{100 * share:.1f}%" if math.isfinite(share) else NONE


def plain_number(value: float) -> str:
    """*value* for a machine: digits alone if it is whole, else what reads back as the same.

    NaN, where there is no figure, is empty.
    """
    if math.isnan(value):
        return ""
    if float(value).is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return repr(float(value))
