"""The sizes that elastic jobs may have, and how fast each is in them: sparse columns beside `Jobs`.

A job that is not elastic has no entry, and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.estimate_origin import I8, Origin
from slurm_dl.model.jobs import F64, I16, I32, I64
from slurm_dl.model.membership import is_in

AS_ASKED: Final = -1
"""The size that the job has, or asks for: the only one of a job that is not elastic."""

NOT_NOW: Final = -2
"""No size: the job is to hold no GPUs now."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """k sizes of e elastic jobs; those of one job stand together, fewest GPUs first.

    Attributes:
        rate: ``(k,)`` speed, above 0; 1 is that of the size asked for. `Snapshot.left_s` divided by
            it is the time left in that size, seconds.
    """

    row: I64  # ``(e,)`` rows of the elastic jobs, increasing
    first: I64  # ``(e + 1,)`` index of the first size of each, and k
    gpus: F64  # ``(k,)`` GPUs in all
    nodes: I32  # ``(k,)`` nodes, with the same number of GPUs on each
    gpu_type: I16  # ``(k,)`` type, an index into `Observed.gpu_types`; -1: any
    rate: F64
    origin: I8  # ``(k,)`` int8, an `Origin`: where *rate* is from
    asked: I64  # ``(e,)`` index of the size that each was submitted with

    def fits(self, *, n: int, types: int) -> bool:
        """True if they are those of n jobs on so many GPU types, and their parts fit each other."""
        k, first = len(self.gpus), self.first
        columns = (self.nodes, self.gpu_type, self.rate, self.origin)
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
            and ((self.gpu_type >= -1) & (self.gpu_type < types)).all()
        )

    def of(self, row: int) -> range:
        """Indices of the sizes of the job at *row*; none if it is not elastic."""
        at = int(self.row.searchsorted(row))
        if at == len(self.row) or self.row[at] != row:
            return range(0)
        return range(int(self.first[at]), int(self.first[at + 1]))

    def held(self, row: int, gpus: float, nodes: int = 0) -> int:
        """Index of the size with so many GPUs, on so many nodes if one is; `AS_ASKED`: none."""
        like = [i for i in self.of(row) if self.gpus[i] == gpus]
        exact = [i for i in like if self.nodes[i] == nodes]
        return next(iter(exact + like), AS_ASKED)


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
