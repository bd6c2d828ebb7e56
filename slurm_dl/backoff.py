"""Ever longer pauses between tries that fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Each pause is *factor* times the one before, up to the longest."""

    first_s: float  # The pause after the first failure, seconds
    factor: float
    longest_s: float  # No pause is longer, seconds

    def pause_s(self, failures: int) -> float:
        """The pause after *failures* in a row, at least 1, seconds."""
        return min(self.longest_s, self.first_s * self.factor ** min(failures - 1, 64))
