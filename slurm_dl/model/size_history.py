"""History of an elastic job by size: an entry of the book for each that was resized.

`decide` writes the entries, and estimates of speed read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from slurm_dl.json_types import JsonObject
from slurm_dl.model.booking import Entry, of_kind
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Jobs
from slurm_dl.model.shape import Shape

SIZE: Final = "size"
"""Kind of the entries, by job id."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Time and progress of a job in one size."""

    ran_s: float  # Seconds run
    progress: float  # Share of its whole work done meanwhile, 0 to 1

    def more_than(self, other: Spent) -> Spent:
        """By how much it exceeds *other*, at least 0."""
        ran_s, progress = self.ran_s - other.ran_s, self.progress - other.progress
        return Spent(max(ran_s, 0.0), max(progress, 0.0))

    def and_also(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(self.ran_s + other.ran_s, self.progress + other.progress)


NOTHING: Final = Spent(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeHistory:
    """The sizes of one job so far.

    Attributes:
        asked: Size that it was submitted with, as its record showed before we wrote another; None
            if that was not noted.
        written: Size that was last written while it waited; None once it has started.
        doubtful: It once started in another size about when one was written: maybe just before.
        resized_s: When it began to run in another size than before, within a day, epoch seconds.
    """

    asked: Shape | None = None
    now: Shape | None = None  # Size of the run under way, or of the last one; None before the first
    since: Spent = NOTHING  # `Spent` in all when *now* began
    spent: Mapping[Shape, Spent] = field(default_factory=dict)  # Of each earlier size
    written: Shape | None = None
    written_s: float = 0.0  # When that was decided, epoch seconds
    doubtful: bool = False
    refused: frozenset[Shape] = frozenset()  # Sizes that Slurm did not give it
    requeues: int = 0  # How often we have requeued it for another size
    resized_s: tuple[float, ...] = ()

    def begun(self, shape: Shape, at: Spent) -> SizeHistory:
        """The history once a run in *shape* has begun, up to which *at* was spent in all.

        What was spent since *now* began was spent in *now*; before the first run in no known size.
        """
        spent = dict(self.spent)
        if self.now is not None:
            spent[self.now] = at.more_than(self.since).and_also(spent.get(self.now, NOTHING))
        return replace(self, now=shape, since=at, spent=spent)

    def body(self) -> JsonObject:
        """All of it as JSON; `size_histories` reads it."""
        return {
            "asked": None if self.asked is None else str(self.asked),
            "now": None if self.now is None else str(self.now),
            "since": [self.since.ran_s, self.since.progress],
            "spent": {str(k): [s.ran_s, s.progress] for k, s in sorted(self.spent.items())},
            "written": None if self.written is None else str(self.written),
            "written_s": self.written_s,
            "doubtful": self.doubtful,
            "requeues": self.requeues,
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
    asked = body.get("asked")
    return SizeHistory(
        asked=None if asked is None else Shape.of(asked),
        now=None if body["now"] is None else Shape.of(body["now"]),
        since=Spent(*map(float, body["since"])),
        spent={Shape.of(k): Spent(*map(float, s)) for k, s in body["spent"].items()},
        written=None if body["written"] is None else Shape.of(body["written"]),
        written_s=float(body["written_s"]),
        doubtful=bool(body["doubtful"]),
        requeues=int(body["requeues"]),
        refused=frozenset(map(Shape.of, body["refused"])),
        resized_s=tuple(map(float, body["resized_s"])),
    )


def size_of(jobs: Jobs, row: int) -> Shape | None:
    """Size that the job at *row* holds or asks for; None if its GPUs are not even on its nodes."""
    nodes = int(jobs.n_nodes[row])
    per_node, rest = divmod(float(jobs.gpus[row]), nodes)
    return None if rest or per_node < 1 else Shape(nodes, int(per_node))
