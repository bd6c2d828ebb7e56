"""Mean, median and tail of a column, for all rows or for each group of them at once.

Grouped figures come from one sort, ``O(n log n)`` whatever the number of groups: a trace may have
as many users as jobs. NaN says that a row has no such figure, and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool

NAN = float("nan")
"""What a mean over nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How values are spread; all but the count are NaN if there are none.

    Percentiles are by nearest rank: the smallest value that at least so many percent of all do not
    exceed, so each is the value of one of the jobs.
    """

    count: int  # Values
    mean: float  # Arithmetic mean
    median: float  # The middle one; of an even number the mean of the middle two
    p95: float  # 95th percentile
    p99: float  # 99th percentile
    max: float  # The largest


def spread(values: F64) -> Spread:
    """The spread of *values*, ``(n,)``."""
    return spreads(values, np.zeros(len(values), dtype=np.int64), groups=1)[0]


def spreads(values: F64, group: I64, *, groups: int) -> tuple[Spread, ...]:
    """The spread of each group's values.

    Args:
        values: ``(n,)``; NaN where there is none.
        group: ``(n,)`` from 0 to *groups* - 1.

    Returns:
        One for each group, in their order.
    """
    known = ~np.isnan(values)
    values, group = values[known], group[known]
    order = np.lexsort((values, group))
    ordered = values[order]
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    full = count > 0

    def at(rank: I64) -> F64:
        """Value of this rank, 0 is the smallest, in each group."""
        return _where(full, ordered, first + rank)

    half = 0.5 * (at((count - 1) // 2) + at(count // 2))
    total = np.zeros(groups)
    if full.any():
        # In sorted order, so that the sum does not depend on how the jobs were listed.
        total[full] = np.add.reduceat(ordered, first[full])
    mean = np.divide(total, count, out=np.full(groups, NAN), where=full)
    columns = (mean, half, at(_rank(count, 95)), at(_rank(count, 99)), at(count - 1))
    return tuple(
        Spread(count=n, mean=m, median=h, p95=p, p99=q, max=top)
        for n, m, h, p, q, top in zip(
            count.tolist(), *(column.tolist() for column in columns), strict=True
        )
    )


def _rank(count: I64, percent: int) -> I64:
    """Nearest rank, 0 is the smallest; in whole numbers, as 0.95 x 20 is not quite 19."""
    rank: I64 = -(-count * percent // 100) - 1
    return rank


def _where(full: Bool, values: F64, index: I64) -> F64:
    """``values[index]`` for the groups that have any, else NaN."""
    found = np.full(len(full), NAN)
    found[full] = values[index[full]]
    return found
