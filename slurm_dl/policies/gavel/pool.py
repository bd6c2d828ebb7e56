"""What all Gavel policies have in common: who takes part, and how shares become an order.

Running jobs take part, and the waiting jobs that were eligible first, up to a window; later ones
have no share yet. Each runs on one GPU type at a time, on all its GPUs, where it has a rate and
where the type has that many.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads", OSDI 2020, sections 3.1 (shares), 4 (policies) and 5 (rounds).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from slurm_dl.model.jobs import F64, I64, PENDING
from slurm_dl.model.parameter_bounds import Count, Figures, Positive, Table, above_0
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.arithmetic.dominant_shares import weights_of
from slurm_dl.policies.arithmetic.lp_solver import interior_solver
from slurm_dl.policies.arithmetic.supply_and_demand import (
    contenders,
    gpus_by_type,
    rates_of,
    tenants,
)
from slurm_dl.policies.base import About, Order, PolicyDefaults, by_share

LEAST_LEFT_S = 60.0  # A job that should be over by now is still expected to run for a minute

about_gavel = functools.partial(About, row="A6", level="W3")  # What is said of a policy of Gavel's

ByName = Annotated[
    Table,
    Figures(
        above_0,
        wrong="{name}[{key}] must be a finite number above 0 (got {value})",
        twice="{name} must name everybody once (got {keys})",
    ),
]
"""A figure above 0 by name; 1 for those that are not named."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entrants:
    """The jobs that take part, by job id.

    Attributes:
        rows: ``(k,)`` their rows in the snapshot.
        pool: The same jobs and the GPUs there are.
        rates: ``(k, t)`` their speeds, 0 where they may not run.
        arrival: ``(k,)`` place of each, first eligible first, then job id; 0 is first.
    """

    rows: I64
    pool: linear_programs.Pool
    rates: F64
    arrival: I64

    @property
    def normal(self) -> F64:
        """``(k,)`` throughput under the proportional split; 1 for jobs that can run nowhere."""
        found: F64 = (self.rates * linear_programs.proportional(self.pool)).sum(axis=1)
        return np.where(found > 0, found, 1.0)


def entrants(snap: Snapshot, window: int) -> Entrants:
    """The running jobs and the first *window* waiting ones, of those that can run at all."""
    jobs = snap.jobs
    rates = np.nan_to_num(rates_of(snap), nan=0.0, posinf=0.0, neginf=0.0)
    capacity = gpus_by_type(snap)
    rows = contenders(snap).nonzero()[0]
    rows = rows[
        linear_programs.pool(jobs.job_id[rows], jobs.gpus[rows], rates[rows], capacity).may.any(
            axis=1
        )
    ]
    rows = rows[np.lexsort((jobs.job_id[rows], snap.memory.queued_s[rows]))]
    waits = jobs.state[rows] == PENDING
    rows = rows[~waits | (waits.cumsum() <= window)]
    by_id = jobs.job_id[rows].argsort(kind="stable")
    found = linear_programs.pool(
        jobs.job_id[rows[by_id]], jobs.gpus[rows[by_id]], rates[rows[by_id]], capacity
    )
    return Entrants(
        rows=rows[by_id],
        pool=found,
        rates=np.where(found.may, rates[rows[by_id]], 0.0),
        arrival=by_id,
    )


def left_of(snap: Snapshot, rows: I64) -> F64:
    """``(len(rows),)`` seconds left at rate 1, at least a minute; inf where nothing is known."""
    left: F64 = snap.left_s[rows]
    return np.maximum(np.where(np.isnan(left), math.inf, left), LEAST_LEFT_S)


def weight_of(snap: Snapshot, rows: I64, weights: Table) -> F64:
    """``(len(rows),)`` weight of each job's account; 1 for accounts that stand in no table."""
    if not weights:
        return np.ones(len(rows))
    whose = tenants(snap)
    found: F64 = weights_of(weights, whose.names)[whose.of[rows]]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing(PolicyDefaults):
    """A policy that says which share of the time each job deserves on each GPU type.

    Attributes:
        lease_s: How long a job keeps its GPUs once it has them, seconds.
        window: Most waiting jobs that get shares; running jobs always do.
    """

    lease_s: Positive = 1200.0
    window: Count = 3000

    @property
    def packs(self) -> bool:
        """True if it wants pairs of jobs on the same GPUs, where their speeds are known."""
        return False

    def order(self, snap: Snapshot, /) -> Order:
        """The shares of all jobs; see `Policy`."""
        return by_share(self.solved(snap).share)

    def solved(self, snap: Snapshot) -> linear_programs.Solved:
        """``(n, t)`` the shares of all jobs, how they were found, and which are those of pairs."""
        share = np.zeros((len(snap.jobs), max(1, len(snap.seen.gpu_types))))
        found = entrants(snap, self.window)
        if not len(found.rows):
            return linear_programs.Solved(share, "solved")
        these = self.shares(snap, self.with_pairs(snap, found))
        share[found.rows] = these.share
        return linear_programs.Solved(share, these.how, these.paired.at(found.rows))

    def with_pairs(self, snap: Snapshot, who: Entrants) -> Entrants:
        """*who*, with the speeds of their pairs if it packs and they are known."""
        if not self.packs or snap.pair_rates is None:
            return who
        pool = dataclasses.replace(who.pool, pairs=snap.pair_rates.at(who.rows))
        return dataclasses.replace(who, pool=pool)

    @abc.abstractmethod
    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """The shares of the jobs of *who*, of which there is at least one, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solving(Sharing):
    """A sharing policy that solves programs.

    Attributes:
        split_above: Most classes of equal jobs in one program; more are divided into parts.
        limit_s: Seconds that one program may take.
    """

    split_above: Count = linear_programs.SPLIT_ABOVE
    limit_s: Positive = linear_programs.LIMIT_S

    def solve(
        self, who: Entrants, program: Callable[..., linear_programs.Solved], *columns: F64
    ) -> linear_programs.Solved:
        """The shares by *program*, a part of the pool at a time; see `linear_programs.by_classes`.

        Args:
            program: Takes a pool, its part of each column, and ``limit_s``.
            columns: A row for each entrant.
        """
        return linear_programs.by_classes(
            who.pool,
            columns,
            lambda pool, parts: program(pool, *parts, limit_s=self.limit_s),
            split_above=self.split_above,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing(Solving):
    """A solving policy whose program has many optimal shares.

    Attributes:
        interior: Take shares near the analytic centre of the optimal ones, as Gavel's own solver
            does (needs clarabel). Capacity that they leave is given to nobody, pools are not
            split, and programs with deadlines are answered as without it.
        packed: Two jobs that ask for as many GPUs may run on the same ones, where their speeds
            beside each other are known.
    """

    interior: bool = False
    packed: bool = False

    @property
    def packs(self) -> bool:
        """See `Sharing`."""
        return self.packed

    def __post_init__(self) -> None:
        Solving.__post_init__(self)
        if self.interior:
            interior_solver()

    def centre(self, pool: linear_programs.Pool, gain: F64) -> linear_programs.Solved:
        """Shares near the centre of those whose least gain is the highest; see `highest`."""
        found = self.highest(pool, gain)
        if found is None:
            return linear_programs.Solved(linear_programs.proportional(pool), "proportional")
        return found.solved

    def highest(self, pool: linear_programs.Pool, gain: F64) -> linear_programs.ShareLevel | None:
        """The highest least gain, and shares near the centre of those that have it.

        Args:
            gain: ``(k, t)``, above 0 somewhere for each job.
        """
        return linear_programs.raise_level(
            pool, gain, floor=np.zeros(len(pool)), rise=np.ones(len(pool)),
            limit_s=self.limit_s, interior=True,
        )  # fmt: skip
