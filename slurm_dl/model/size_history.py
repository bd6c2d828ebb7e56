"""What an elastic job did in the sizes it had: an entry of the book for each that was resized.

`decide` writes the entries, and estimates of speed read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_dl.json_types import JsonObject
from slurm_dl.model.booking import Entry, of_kind
from slurm_dl.model.ids import JobId
from slurm_dl.model.shape import Shape

SIZE: Final = "size"
"""Kind of the entries, by job id."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Time and progress of a job in one size."""

    ran_s: float  # Seconds run
    progress: float  # Share of its whole work done meanwhile, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeHistory:
    """The sizes of one job so far.

    Attributes:
        now: Size of the run under way, or of the last one; None before the first.
        since: `Spent` in all when *now* began.
        spent: Of each earlier size.
        written: Size that was last written while it waited; None once it has started.
        refused: Sizes that Slurm did not give it.
        resized_s: When it began to run in another size than before, within a day, epoch seconds.
    """

    now: Shape | None = None
    since: Spent = Spent(0.0, 0.0)
    spent: Mapping[Shape, Spent] = field(default_factory=dict)
    written: Shape | None = None
    refused: frozenset[Shape] = frozenset()
    resized_s: tuple[float, ...] = ()

    def body(self) -> JsonObject:
        """All of it as JSON; `size_histories` reads it."""
        return {
            "now": None if self.now is None else str(self.now),
            "since": [self.since.ran_s, self.since.progress],
            "spent": {str(k): [s.ran_s, s.progress] for k, s in sorted(self.spent.items())},
            "written": None if self.written is None else str(self.written),
            "refused": [str(shape) for shape in sorted(self.refused)],
            "resized_s": list(self.resized_s),
        }


NO_HISTORY: Final = SizeHistory()


def size_histories(booked: Iterable[Entry]) -> dict[JobId, SizeHistory]:
    """Histories by job id; a damaged entry is passed over."""
    found = {}
    for key, body in of_kind(booked, SIZE).items():
        try:
            found[JobId(int(key))] = _history(body)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


def _history(body: Any) -> SizeHistory:  # noqa: ANN401 - JSON
    return SizeHistory(
        now=None if body["now"] is None else Shape.of(body["now"]),
        since=Spent(*map(float, body["since"])),
        spent={Shape.of(k): Spent(*map(float, s)) for k, s in body["spent"].items()},
        written=None if body["written"] is None else Shape.of(body["written"]),
        refused=frozenset(map(Shape.of, body["refused"])),
        resized_s=tuple(map(float, body["resized_s"])),
    )
