"""What a policy that orders jobs has to say, and nothing more.

A new published system is one file beside this one, named in `registry`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from slurm_dl.model.booking import Entry
from slurm_dl.model.jobs import COMPLETING, F64, I16, I32, Bool
from slurm_dl.model.pair_rates import PairRule
from slurm_dl.model.parameter_bounds import Bounded
from slurm_dl.model.snapshot import Snapshot

Preempts = Literal["never", "tier", "rank"]
"""Jobs that a waiting job may take GPUs from.

A job *should hold GPUs* if the GPUs suffice for it and for all that are served before it.

- ``never``: nobody. All running jobs are served before all waiting ones.
- ``tier``: jobs of a worse tier. In each tier running jobs are served before waiting ones. With a
  single tier it means ``never``: no job is of a worse one.
- ``rank``: any job that ranks below it. Running and waiting jobs are served in one order.

*The papers' ideal cluster*: exactly that, at once. *Slurm, simulated or real, external mode*: the
waiting job should hold GPUs, and displaces running jobs that should not or, with ``tier``, are of a
worse tier; under all limits of `engine.settings.Preemption`. An overdue job
(`engine.settings.Overdue`) is served before all others of its PriorityTier, whatever its tier: so
with ``rank``, or ``tier`` and several tiers, it may displace jobs of its own or a better tier.
A higher PriorityTier likewise. *Native mode*: Slurm compares the SiteFactors of tiers (``rank``: of
levels) alone, so a job displaces those of a worse tier or level.

`displaces` has the value in force.
"""

Level = Literal["W1", "W2", "W3", "W4"]
"""What is shown: its formula, it in the simulator, it on Slurm, it with real training jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What people should know of a policy before they choose it.

    Attributes:
        row: Row of the published system in docs/evaluate/policies.md, say ``A1``.
        level: The highest level that tests show.
        formula: The rule in one or two lines of plain text.
        needs: What it uses beyond what Slurm says of every job: names of `Snapshot` fields, or
            ``profile``, ``history``, ``accounts``.
        fallback: What it does where that is missing.
        starves: Whose wait the policy does not bound, and when, in words; empty: every job gets
            GPUs at last, whoever else comes. On Slurm ``ranking.overdue_s`` bounds it, too.
        idles: Why it leaves GPUs free although a job that waits would fit; empty if it does not.
        trusts: What jobs say of themselves that can bring them forward; none, if it can be helped.
    """

    row: str
    level: Level
    formula: str
    needs: tuple[str, ...] = ()
    fallback: str = ""
    starves: str = ""
    idles: str = ""
    trusts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """Every job of a snapshot put in its place.

    Jobs are served by (tier, key, tie, `Remembered.queued_s`, job id), smaller first.

    Attributes:
        tier: ``(n,)`` int16, 0 is served first.
        key: ``(n,)`` float64, order inside the tier.
        promote: ``(n,)`` bool, jobs whose service so far is to be forgiven now.
        tiers: How many tiers there are; ``tier < tiers``.
        tie: ``(n,)`` float64, order among equal keys; None: the first eligible comes first.
        barred: ``(n,)`` bool, waiting jobs that are not to start now although they would fit. On
            Slurm they are put off by their begin time, so a job that may start as soon as it fits
            is not barred. None: no job.
        start_s: ``(n,)`` planned start of barred jobs, epoch seconds; inf where there is none.
            None: of no job.
        gpu_type: ``(n,)`` int16, the type of GPUs each job had best run on, an index into
            `Observed.gpu_types`; -1: any, or the one it runs on. None: -1 for all.
        share: ``(n, t)`` float64, the share of the time from now on that each job deserves on each
            of the t GPU types; 0 to 1, at most 1 over all types. Given, it decides: tier, key and
            gpu_type are then found from it and from what each job had so far.
        size: ``(n,)`` int32, the size that each job should have, an index into `Snapshot.sizes`;
            `AS_ASKED`: the one it has, or asks for; `NOT_NOW`: none, it is to hold no GPUs. None:
            `AS_ASKED` for all.
        least: ``(n,)`` int32, likewise, the size that each job needs now: a waiting one starts with
            no smaller one, and a running one grows to it though that saves too little. `AS_ASKED`:
            any. None: any for all.
        book: Entries that are to stand from now on, or to be struck out; see `booking`. An entry
            that is not named stays as it is.
        shielded: ``(n,)`` bool, running jobs that are not to be preempted. None: no job.
        pressing: ``(n,)`` bool, waiting jobs for which others may be preempted whoever may be a
            beneficiary, before overdue jobs. None: no job.
        running: ``(n,)`` int32, tasks of each pending array that may run at once, those that run
            counted, 1 or more; `FREE`: as many as its owner lets run. None: `FREE` for all. Only of
            a policy with a true attribute ``bounds_arrays``.
        pairs: Its own conditions on jobs that share GPUs; None: those of the site alone.
    """

    tier: I16
    key: F64
    promote: Bool
    tiers: int
    tie: F64 | None = None
    barred: Bool | None = None
    start_s: F64 | None = None
    gpu_type: I16 | None = None
    share: F64 | None = None
    size: I32 | None = None
    least: I32 | None = None
    book: tuple[Entry, ...] = ()
    shielded: Bool | None = None
    pressing: Bool | None = None
    running: I32 | None = None
    pairs: PairRule | None = None


def in_tiers(tier: I16, key: F64, tiers: int, tie: F64 | None = None) -> Order:
    """The order of a policy that promotes nobody."""
    promote = np.zeros(len(key), dtype=np.bool_)
    return Order(tier=tier, key=key, promote=promote, tiers=tiers, tie=tie)


def one_tier(key: F64, tie: F64 | None = None) -> Order:
    """The order of a policy whose key says it all; nobody is promoted."""
    return in_tiers(np.zeros(len(key), dtype=np.int16), key, 1, tie)


def by_share(share: F64) -> Order:
    """The order of a policy that says who deserves which share of the time, and no more.

    Args:
        share: ``(n, t)``, see `Order`.
    """
    return dataclasses.replace(one_tier(np.zeros(len(share))), share=share)


def quantum_end_s(snap: Snapshot, running: Bool, quantum_s: float) -> float:
    """When an order that moves all the time is asked for again: inf where no job takes turns.

    Args:
        running: ``(n,)`` bool, the jobs that hold GPUs from now on.
        quantum_s: Seconds from now, while some jobs run and others wait.
    """
    waiting = (snap.jobs.state < COMPLETING) & ~running
    return snap.now_s + quantum_s if waiting.any() and running.any() else math.inf


@runtime_checkable
class Leasing(Protocol):
    """A policy whose jobs keep their GPUs for a lease once they have them.

    Leases end together, at whole multiples of their length; only then may jobs be displaced.
    """

    @property
    def lease_s(self) -> float:
        """Length of a lease, seconds, above 0."""


class Policy(Protocol):
    """Orders jobs. A frozen dataclass; its fields are its parameters, with units in the names."""

    name: ClassVar[str]
    source: ClassVar[str]  # Paper and section the rule comes from
    interpretation: ClassVar[str]
    """Where it reads the source in its own way, in words; empty if nowhere."""
    about: ClassVar[About]
    preempts: ClassVar[Preempts]
    """Whom its waiting jobs may displace. Where they may not, running jobs keep their GPUs."""
    skips: ClassVar[bool]  # Whether jobs behind one that does not fit are served meanwhile

    @property
    def tiers(self) -> int:
        """How many tiers its orders have."""

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*.

        Must be pure: equal snapshots give equal orders, whatever order Slurm listed the jobs in.
        """

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """When its order of these jobs next changes by itself, if no job comes or goes.

        Args:
            order: What it has just said about *snap*.
            running: ``(n,)`` bool, the jobs that hold GPUs from now on; none without GPUs.

        Returns:
            Epoch seconds, not before now; inf if never.
        """


class PolicyDefaults(Bounded, Policy):
    """What most policies have in common; a policy need not be made from it.

    One tier; by rank; an order that changes as jobs come or go and not by itself.
    """

    interpretation: ClassVar[str] = ""
    preempts: ClassVar[Preempts] = "rank"
    skips: ClassVar[bool] = True
    counts_commitment: ClassVar[bool] = False

    @property
    def tiers(self) -> int:
        """One: the key says it all."""
        return 1

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """Never; see `Policy`."""
        return math.inf


def displaces(policy: Policy) -> Preempts:
    """The value of `Preempts` that is in force under *policy*."""
    alone = policy.preempts == "tier" and policy.tiers == 1
    return "never" if alone else policy.preempts
