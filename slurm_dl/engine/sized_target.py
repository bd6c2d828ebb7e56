"""The jobs that would hold GPUs where some may change their size, and the size of each.

The policy says which size each job should have (`Order.size`). Or each has its least one, and what
is left over goes to the jobs that gain most by it (`Resizing.expand`). Sizes are given in the order
of the jobs, and no running job changes its own for less than its restart costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.engine.target import EVERYTHING, SLACK_GPUS, PartitionPool, Rows, to_serve
from slurm_dl.model.jobs import I32, PENDING, Bool
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW, Sizes, wanted_gpus
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.sizing import by_gain, jobs_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """Sizes of elastic jobs: where they change, and what a change has to save.

    Attributes:
        expand: Under policies that choose no sizes, too: each gets its least size in their order,
            and what is left over goes to the jobs that gain most by it, as in Optimus.
        steadiness: See `steady`.
    """

    expand: bool = False
    steadiness: float = 0.0


AS_SUBMITTED = Resizing()
"""Elastic jobs change size only where the policy says so."""


def choose_sizes(
    snap: Snapshot,
    ranked: Rows,
    pinned: Rows,
    size: I32 | None,
    *,
    skips: bool,
    barred: Bool | None = None,
    pool: PartitionPool = EVERYTHING[0],
    steadiness: float = 0.0,
) -> tuple[Rows, I32]:
    """The jobs of one pool that would hold GPUs, in the order they are served, and their sizes.

    Each has the size that is asked of it or, where that does not fit, the largest smaller one that
    does. Pinned jobs keep what they hold.

    Args:
        ranked: Managed live jobs, best first.
        pinned: Running jobs that cannot be moved; they are in whatever their rank.
        size: ``(n,)`` see `Order.size`; None: the least, and more of what is left over.
        skips: Whether jobs behind one that does not fit are served.
        barred: ``(n,)`` bool, waiting jobs that are not to start; None: nobody.
        pool: Whose GPUs are shared out.
        steadiness: See `steady`.

    Returns:
        ``(k,)`` rows, and ``(k,)`` indices into `Snapshot.sizes`, or `AS_ASKED`.
    """
    jobs, sizes = snap.jobs, snap.sizes
    assert sizes is not None  # noqa: S101 - callers ask first
    pinned = pinned[jobs.gpus[pinned] > 0]
    rows = to_serve(snap, ranked, pinned, barred)
    all_gpus = pool.gpus(snap)
    free_gpus = all_gpus - float(jobs.gpus[pinned].sum()) + SLACK_GPUS
    served, chosen = pinned.tolist(), [AS_ASKED] * len(pinned)
    wants = _least(sizes, len(jobs)) if size is None else size
    for row, asked in zip(rows.tolist(), wants[rows].tolist(), strict=True):
        if asked == NOT_NOW:
            continue
        got, gpus = _largest(sizes, row, asked, float(jobs.gpus[row]), free_gpus)
        if got == NOT_NOW:
            if not skips:
                break
            continue
        free_gpus -= gpus
        served.append(row)
        chosen.append(got)
    target, found = np.array(served, dtype=np.int64), np.array(chosen, dtype=np.int32)
    if size is None:
        found[len(pinned) :] = _grown(snap, target[len(pinned) :], found[len(pinned) :], free_gpus)
    if steadiness > 0:
        found = steady(snap, target, found, steadiness=steadiness, all_gpus=all_gpus)
    return target, found


def _least(sizes: Sizes, n: int) -> I32:
    """``(n,)`` the least size of each job."""
    least = np.full(n, AS_ASKED, dtype=np.int32)
    least[sizes.row] = sizes.first[:-1]
    return least


def _grown(snap: Snapshot, rows: Rows, chosen: I32, free_gpus: float) -> I32:
    """``(k,)`` sizes of the jobs at *rows* from *chosen* on, if they get what is left over."""
    jobs, places = jobs_at(snap, rows)
    gpus = wanted_gpus(snap.jobs.gpus[rows], snap.sizes, chosen)
    begin = [job.gpus.index(held) for job, held in zip(jobs, gpus.tolist(), strict=True)]
    ends = by_gain(jobs, begin, free_gpus)
    more = [
        mine[end] if end > at else old
        for mine, at, end, old in zip(places, begin, ends, chosen.tolist(), strict=True)
    ]
    return np.array(more, dtype=np.int32)


def _largest(
    sizes: Sizes, row: int, asked: int, holds: float, free_gpus: float
) -> tuple[int, float]:
    """The largest size up to *asked* that fits, and its GPUs; `NOT_NOW`: none."""
    if asked == AS_ASKED:
        return (AS_ASKED, holds) if holds <= free_gpus else (NOT_NOW, 0.0)
    for i in range(asked, sizes.of(row).start - 1, -1):
        if sizes.gpus[i] <= free_gpus:
            return i, float(sizes.gpus[i])
    return NOT_NOW, 0.0


def steady(snap: Snapshot, served: Rows, chosen: I32, *, steadiness: float, all_gpus: float) -> I32:
    """``(k,)`` *chosen*, except that no running job changes its size for too little.

    A job grows only if that saves it more than *steadiness* restarts. A job shrinks only as far as
    its GPUs are wanted, those first that lose least for each GPU.

    Args:
        served: ``(k,)`` rows of the jobs that are to hold GPUs.
        chosen: ``(k,)`` their sizes.
        all_gpus: GPUs of the pool.
    """
    jobs, sizes = snap.jobs, snap.sizes
    assert sizes is not None  # noqa: S101 - callers ask first
    holds = jobs.gpus[served]
    gpus = wanted_gpus(holds, sizes, chosen)
    runs = jobs.state[served] != PENDING
    free = all_gpus - float(holds[runs].sum()) - float(gpus[~runs].sum())
    out, shrinks = chosen.copy(), list[tuple[float, int, int, float]]()
    for at in (runs & (gpus != holds)).nonzero()[0].tolist():
        row, new = int(served[at]), int(chosen[at])
        more = float(gpus[at] - holds[at])
        old = sizes.held(row, float(holds[at]), int(jobs.n_nodes[row]))
        if old == AS_ASKED:
            free -= more
            continue
        restart_s = 0.0 if snap.setup_s is None else float(snap.setup_s[row])
        # Of endless time, too, equal speeds save nothing.
        part = float(1 / sizes.rate[old] - 1 / sizes.rate[new])
        saved_s = float(snap.left_s[row]) * part if part else 0.0
        if more < 0:
            shrinks.append(((restart_s - saved_s) / -more, at, old, -more))
        elif saved_s > steadiness * restart_s:
            free -= more
        else:
            out[at] = old
    for _, at, old, less in sorted(shrinks):
        if free >= -SLACK_GPUS:
            out[at] = old
        else:
            free += less
    return out
