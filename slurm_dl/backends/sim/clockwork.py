"""When a simulated cluster decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

INSTANT_S: Final = 1e-6
"""Shortest step of time that a policy can ask for: below it its sums are rounding errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clockwork:
    """Instants of decisions, besides arrivals and completions.

    Attributes:
        tick_s: What the policy asks for in between happens at whole multiples of this, seconds;
            0: exactly when it asks.
        round_s: Decisions are only made at whole multiples of this after the first submission,
            seconds; 0: at every event.
    """

    tick_s: float = 0.0
    round_s: float = 0.0

    def wake_s(self, now_s: float, asked_s: float) -> float:
        """When a policy that asks at *now_s* to be asked again at *asked_s* is."""
        if self.tick_s and asked_s < math.inf:
            asked_s = math.ceil(asked_s / self.tick_s - INSTANT_S) * self.tick_s
        return max(asked_s, now_s + INSTANT_S)

    def turn_s(self, now_s: float, zero_s: float) -> float:
        """The first instant from *now_s* on at which a decision may be made.

        Args:
            zero_s: Where rounds are counted from.
        """
        if not self.round_s:
            return now_s
        return zero_s + math.ceil((now_s - zero_s) / self.round_s) * self.round_s


AT_EVENTS: Final = Clockwork()
"""Decide whenever anything happens, and exactly when the policy asks for it."""
