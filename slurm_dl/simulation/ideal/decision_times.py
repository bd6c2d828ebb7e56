"""When a simulated cluster decides; times are counted from the first submission."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

INSTANT_S: Final = 1e-6
"""Shortest step of time that a policy can ask for: below it its sums are rounding errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTimes:
    """Instants of decisions, besides arrivals and completions.

    Attributes:
        tick_s: What the policy asks for in between happens at whole multiples of this, seconds;
            0: exactly when it asks.
        round_s: Decisions are only made at whole multiples of this, seconds; 0: at every event.

    Raises:
        ValueError: A parameter is negative or not finite.
    """

    tick_s: float = 0.0
    round_s: float = 0.0
    phase_s: float = 0.0  # And so much later, seconds

    def __post_init__(self) -> None:
        for name in ("tick_s", "round_s", "phase_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                msg = f"{name} must be a finite number, 0 or more (got {value})"
                raise ValueError(msg)

    def wake_s(self, now_s: float, asked_s: float) -> float:
        """When a policy that asks at *now_s* to be asked again at *asked_s* is."""
        if self.tick_s and asked_s < math.inf:
            asked_s = math.ceil(asked_s / self.tick_s - INSTANT_S) * self.tick_s
        return max(asked_s, now_s + INSTANT_S)

    def turn_s(self, now_s: float) -> float:
        """The first instant from *now_s* on at which a decision may be made."""
        if not self.round_s:
            return now_s
        turns = math.ceil((now_s - self.phase_s) / self.round_s - INSTANT_S)
        turn_s = turns * self.round_s + self.phase_s
        # Sums of many rounds are a little off.
        return turn_s if turn_s > now_s + INSTANT_S else now_s


AT_EVENTS: Final = DecisionTimes()
"""Decide whenever anything happens, and exactly when the policy asks for it."""
