"""The sizes that elastic jobs may have, and how fast each is in them: sparse columns beside `Jobs`.

A job that is not elastic has no entry, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

import numpy as np

from slurm_dl.json_types import JsonObject
from slurm_dl.model.booking import Entry, of_kind
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I8, I16, I32, I64, Jobs, Origin, is_in
from slurm_dl.model.shape import Shape
from slurm_dl.model.step_report import StepTime

AS_ASKED: Final = -1
"""The size that the job has, or asks for: the only one of a job that is not elastic."""

NOT_NOW: Final = -2  # No size: the job is to hold no GPUs now


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """k sizes of e elastic jobs; those of one job stand together, fewest GPUs first.

    Attributes:
        rate: ``(k,)`` speed, above 0; 1 is that of the size asked for. `Snapshot.left_s` divided by
            it is the time left in that size, seconds.
        on_type: ``(k, t)`` the same on GPUs of each of the `Observed.gpu_types`; 0 where the job
            cannot have that size. None: types are alike.
    """

    row: I64  # ``(e,)`` rows of the elastic jobs, increasing
    first: I64  # ``(e + 1,)`` index of the first size of each, and k
    gpus: F64  # ``(k,)`` GPUs in all
    nodes: I32  # ``(k,)`` nodes, with the same number of GPUs on each
    rate: F64
    origin: I8  # ``(k,)`` int8, an `Origin`: where *rate* is from
    asked: I64  # ``(e,)`` index of the size that each was submitted with
    on_type: F64 | None = None
    gpu_type: I16 | None = None  # Of recordings of older releases, which have -1 throughout

    def fits(self, *, n: int, types: int) -> bool:
        """True if they are those of n jobs on so many GPU types, and their parts fit each other."""
        k, first = len(self.gpus), self.first
        columns = (self.nodes, self.rate, self.origin)
        if len(first) != len(self.row) + 1 or any(column.shape != (k,) for column in columns):
            return False
        falls = 1 + (self.gpus[1:] < self.gpus[:-1]).nonzero()[0]
        inside = self.asked.shape == self.row.shape and first[0] == 0 and first[-1] == k
        return bool(
            inside
            and (np.diff(first) > 0).all()
            and (np.diff(self.row, append=n) > 0).all()
            and (self.row >= 0).all()
            and ((first[:-1] <= self.asked) & (self.asked < first[1:])).all()
            and np.isfinite(self.gpus).all()
            and (self.gpus > 0).all()
            and (self.nodes > 0).all()
            and is_in(self.origin, tuple(Origin)).all()
            and is_in(falls, first).all()
            and np.isfinite(self.rate).all()
            and (self.rate > 0).all()
            and (self.on_type is None or _are_rates(self.on_type, (k, types)))
        )

    def of(self, row: int) -> range:
        """Indices of the sizes of the job at *row*; none if it is not elastic."""
        at = int(self.row.searchsorted(row))
        if at == len(self.row) or self.row[at] != row:
            return range(0)
        return range(int(self.first[at]), int(self.first[at + 1]))

    def down_from(self, row: int, size: int, bound: int = NOT_NOW) -> range:
        """Sizes of the job at *row* up to *size*, largest first; `AS_ASKED` alone if it is that.

        The least size alone if *size* is below it.

        Args:
            bound: A size; smaller ones do not count.
        """
        least = size if size == AS_ASKED else self.of(row).start
        return range(max(size, least), max(least, bound) - 1, -1)

    def held(self, row: int, gpus: float, nodes: int = 0) -> int:
        """Index of the size with so many GPUs, on so many nodes if one is; `AS_ASKED`: none."""
        like = [i for i in self.of(row) if self.gpus[i] == gpus]
        exact = [i for i in like if self.nodes[i] == nodes]
        return next(iter(exact + like), AS_ASKED)


def _are_rates(on_type: F64, shape: tuple[int, int]) -> bool:
    return on_type.shape == shape and bool((np.isfinite(on_type) & (on_type >= 0)).all())


def wanted_gpus(gpus: F64, sizes: Sizes | None, size: I32 | None) -> F64:
    """``(n,)`` GPUs of each job in the size it is to have.

    Args:
        gpus: ``(n,)`` GPUs that each holds, or asks for.
        size: ``(n,)`` indices into *sizes*, or `AS_ASKED`; None: `AS_ASKED` for all.
    """
    if sizes is None or size is None or not len(sizes.gpus):
        return gpus
    wanted, rows = gpus.copy(), (size >= 0).nonzero()[0]
    wanted[rows] = sizes.gpus[size[rows]]
    return wanted


def are_sizes(size: I32, sizes: Sizes | None) -> bool:
    """True if each job has a size of its own, `AS_ASKED` or `NOT_NOW`."""
    rows = (size >= 0).nonzero()[0]
    if size.min(initial=NOT_NOW) < NOT_NOW or (len(rows) and sizes is None):
        return False
    if sizes is None:
        return True
    owner = np.repeat(sizes.row, np.diff(sizes.first))
    inside = bool((size[rows] < len(owner)).all())
    return inside and bool((owner[size[rows]] == rows).all())


SIZE: Final = "size"  # Kind of the entries, by job id
_PARAMETERS: Final = 7  # Of `estimates.goodput.Throughput`; b_g and gamma are above 0


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
        shrunk: It gave nodes back while it ran, and no size was written since: once it waits, its
            record has the size with which that run began.
        resized_s: When it began to run in another size than before, within a day, epoch seconds.
        steps: Steps that it reported, the latest last.
        throughput: Parameters that were fitted to them, see `estimates.goodput`; empty: none.
    """

    asked: Shape | None = None
    now: Shape | None = None  # Size of the run under way, or of the last one; None before the first
    since: Spent = NOTHING  # `Spent` in all when *now* began
    spent: Mapping[Shape, Spent] = field(default_factory=dict)  # Of each earlier size
    written: Shape | None = None
    written_s: float = 0.0  # When that was decided, epoch seconds
    doubtful: bool = False
    refused: frozenset[Shape] = frozenset()  # Sizes that Slurm did not give it
    shrunk: bool = False
    requeues: int = 0  # How often we have requeued it for another size
    resized_s: tuple[float, ...] = ()
    steps: tuple[StepTime, ...] = ()
    throughput: tuple[float, ...] = ()

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
            **({"shrunk": True} if self.shrunk else {}),
            **({"steps": [list(astuple(s)) for s in self.steps]} if self.steps else {}),
            **({"throughput": list(self.throughput)} if self.throughput else {}),
        }


NO_HISTORY: Final = SizeHistory()


def size_histories(booked: Iterable[Entry]) -> dict[JobId, SizeHistory]:
    """Histories by job id; a damaged entry is passed over."""
    found = {}
    for key, body in of_kind(booked, SIZE).items():
        try:
            found[JobId(int(key))] = _history(body)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
    return found


def _history(body: Any) -> SizeHistory:  # noqa: ANN401 - JSON
    asked = body.get("asked")
    steps = tuple(StepTime(*step) for step in body.get("steps", ()))
    throughput = tuple(map(float, body.get("throughput", ())))
    damaged = not all(0 <= value < np.inf for value in throughput) or 0 in throughput[1::5]
    if damaged or len(throughput) != (_PARAMETERS if steps else 0):
        msg = f"no parameters of a throughput: {throughput}"
        raise ValueError(msg)
    return SizeHistory(
        asked=None if asked is None else Shape.of(asked),
        now=None if body["now"] is None else Shape.of(body["now"]),
        since=Spent(*map(float, body["since"])),
        spent={Shape.of(k): Spent(*map(float, s)) for k, s in body["spent"].items()},
        written=None if body["written"] is None else Shape.of(body["written"]),
        written_s=float(body["written_s"]),
        doubtful=bool(body["doubtful"]),
        shrunk=bool(body.get("shrunk", False)),
        requeues=int(body["requeues"]),
        refused=frozenset(map(Shape.of, body["refused"])),
        resized_s=tuple(map(float, body["resized_s"])),
        steps=steps,
        throughput=throughput,
    )


def size_of(jobs: Jobs, row: int) -> Shape | None:
    """Size that the job at *row* holds or asks for; None if its GPUs are not even on its nodes."""
    nodes = int(jobs.n_nodes[row])
    per_node, rest = divmod(float(jobs.gpus[row]), nodes)
    return None if rest or per_node < 1 else Shape(nodes, int(per_node))
