"""Pairs of jobs without a program: jobs that join others in a queue, and Gandiva's groups.

Source: stanford-futuredata/gavel, commit c4fa400, scheduler/policies/fifo.py and gandiva.py, the
latter after Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64
from slurm_dl.model.pair_rates import PairRates
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.arithmetic.lp_pairs import PairShares
from slurm_dl.policies.gavel.objectives import READING, SOURCE
from slurm_dl.policies.gavel.pool import Entrants, Sharing, about_gavel, entrants

_JOINS_FROM: Final = 1.5  # packing_threshold of Gavel's fifo.py
_KEPT_FROM: Final = 1.0

Couples = frozenset[tuple[JobId, JobId]]
"""Pairs of jobs, the lower id first."""

Draw = Callable[[Sequence[JobId], int], Sequence[JobId]]
"""So many different ones of a sequence at random, as `random.Random.sample`."""


def join_tail(who: Entrants, share: F64, tail: I64) -> linear_programs.Solved:
    """The shares after the jobs of *tail*, in turn, have joined jobs that run alone.

    Each joins the one beside which both speeds, relative to alone, add up to most; the first that
    finds no sum above 1.5 ends it.

    Args:
        share: ``(k, t)`` 1 where a job runs.
        tail: Jobs that have no GPUs, by turn.
    """
    rates, gpus = who.pool.pairs, who.pool.gpus
    if rates is None:
        return linear_programs.Solved(share, "solved")
    share = share.copy()
    alone, on = (row.tolist() for row in share.nonzero())
    # In Gavel's code the sums are looked at in this order, and only a larger one is taken.
    turn = who.arrival[alone].argsort()
    hosts = [(alone[at], on[at]) for at in turn.tolist()]
    pairs: list[tuple[int, int, int]] = []
    sums = rates.sums()
    for guest in tail.tolist():
        best, most = None, _JOINS_FROM
        for host, kind in hosts:
            a, b = rates.kind[host], rates.kind[guest]
            total = sums[a, b, kind] if gpus[host] == gpus[guest] and min(a, b) >= 0 else 0.0
            if total > most:
                best, most = (host, kind), total
        if best is None:
            break
        hosts.remove(best)
        host, kind = best
        share[guest, kind] = 1.0
        pairs.append((host, guest, kind))
    first, second, kinds = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
    paired = PairShares(first=first, second=second, kind=kinds, share=np.ones(len(pairs)))
    return linear_programs.Solved(share, "solved", paired)


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelGandiva(Sharing):
    """An equal part for each job, or for each of the pairs that are formed at random."""

    name = "gavel_gandiva"
    source = f"{SOURCE}, section 7 (its re-implementation of Gandiva, OSDI 2018)"
    interpretation = (
        f"{READING} An order on Slurm is that of single jobs. In dlsim a pair is parted when it "
        "does not fit on some type, or one of its jobs has ended."
    )
    about = about_gavel(
        formula=(
            "X = GPUs of the type / (groups x GPUs of the job), at most 1 over all types; groups "
            "are single jobs while all fit, then pairs of as many GPUs"
        ),
        idles=(
            "a job with few GPUs has no more than its whole time, and none on types where it "
            "cannot run; the rest is in no job's share"
        ),
    )

    @property
    def packs(self) -> bool:
        """See `Sharing`."""
        return True

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:  # noqa: ARG002
        """See `Sharing`."""
        share = np.where(who.pool.may, _equal(who, len(who.rows)), 0.0)
        return linear_programs.Solved(share, "solved")

    def regrouped(
        self, snap: Snapshot, before: Couples, draw: Draw
    ) -> tuple[linear_programs.Solved, Couples]:
        """The shares with pairs, and the pairs: those of *before* that are kept, and new ones.

        New pairs are drawn only where the jobs ask for more GPUs than there are.
        """
        who = self.with_pairs(snap, entrants(snap, self.window))
        ids, gpus = snap.jobs.job_id[who.rows].tolist(), who.pool.gpus
        row = {JobId(job): at for at, job in enumerate(ids)}
        whole = self.solved(snap)
        rates = who.pool.pairs
        if rates is None:
            return whole, before
        kept = {two for two in before if set(two) <= row.keys() and _is_good(rates, two, row)}
        if gpus.sum() <= who.pool.capacity.sum():
            return whole, frozenset(kept)
        grouped = {job for two in kept for job in two}
        free = [job for job in row if job not in grouped]
        for _ in range(len(free)):
            if len(free) < 2:  # noqa: PLR2004 - a pair
                break
            one, other = draw(free, 2)
            if gpus[row[one]] == gpus[row[other]]:
                free.remove(one)
                free.remove(other)
                kept.add((min(one, other), max(one, other)))
        ends = [[row[a], row[b]] for a, b in sorted(kept)]
        first, second = np.array(ends, dtype=np.int64).reshape(-1, 2).T
        share = _equal(who, len(free) + len(kept))
        kinds = len(who.pool.capacity)
        paired = PairShares(
            first=np.repeat(first, kinds), second=np.repeat(second, kinds),
            kind=np.tile(np.arange(kinds), len(first)), share=share[first].reshape(-1),
        ).at(who.rows)  # fmt: skip
        time = np.zeros_like(whole.share)
        time[who.rows] = share
        return linear_programs.Solved(time, "solved", paired), frozenset(kept)


def _equal(who: Entrants, groups: int) -> F64:
    """``(k, t)`` the part of one of so many *groups*, for each job as if it were one alone.

    The operations are those of Gavel's code, one by one, since rounding decides between equals; it
    adds up the types of its clusters from the last to the first.
    """
    share = who.pool.capacity / groups / who.pool.gpus[:, None]
    whole: F64 = np.maximum(1.0, share[:, ::-1].sum(axis=1))[:, None]
    return share / whole


def _is_good(rates: PairRates, two: tuple[JobId, JobId], row: dict[JobId, int]) -> bool:
    """True if both fit on every type, and their speeds on all types add up to 1 or more."""
    a, b = (rates.kind[row[job]] for job in two)
    sums = rates.sums()[a, b] if min(a, b) >= 0 else np.zeros(1)
    return bool(sums.min() > 0 and sums.sum() >= _KEPT_FROM)
