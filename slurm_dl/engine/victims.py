"""Which running jobs to stop so that one pending job can start: all that it takes, or nobody.

Least lost work first, and jobs the policy wants to run last. Choosing the cheapest set exactly is
a covering problem; this walks the nodes from cheapest to clear upwards and then puts back every
victim that turned out not to be needed, so no proper subset of the result would do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slurm_dl.engine.room import Need, Room
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot


def choose_victims(
    snap: Snapshot,
    room: Room,
    need: Need,
    *,
    candidates: Sequence[int],
    reluctance_gpu_s: Mapping[int, float],
    within: Bool,
) -> tuple[int, ...] | None:
    """Rows of the jobs to stop so that *need* fits into *room*; None if even all are not enough.

    Args:
        room: What is free now; left as it was.
        candidates: Rows of jobs that may be stopped, most dispensable first.
        reluctance_gpu_s: What stopping each of them costs, see `reluctance_gpu_s`, at least 0.
        within: ``(m,)`` bool, nodes the job may be placed on.
    """
    place_of = {row: place for place, row in enumerate(candidates)}
    on_node: dict[int, list[int]] = {}
    for row in candidates:
        for node in snap.seen.held.nodes_of(row).tolist():
            on_node.setdefault(node, []).append(row)

    usable = need.allowed & within
    trial = room.copy()
    fits = trial.fits_on(need) & usable
    chosen: list[int] = []
    open_nodes = [n for n in on_node if usable[n] and not fits[n]]
    while int(np.count_nonzero(fits)) < need.n_nodes:
        best: tuple[float, int, int, list[int]] | None = None
        for node in open_nodes:
            if fits[node]:
                continue
            clear = _clear_node(
                snap,
                trial,
                need,
                node=node,
                jobs_here=on_node[node],
                chosen=chosen,
                reluctance_gpu_s=reluctance_gpu_s,
            )
            if clear is None:
                continue
            offer = (
                sum(reluctance_gpu_s[row] for row in clear),
                sum(place_of[row] for row in clear),
                node,
                clear,
            )
            if best is None or offer < best:
                best = offer
        if best is None:
            return None
        for row in best[3]:
            trial.release(snap, row)
            chosen.append(row)
        fits = trial.fits_on(need) & usable
    return tuple(
        _without_surplus(
            snap, room, need, chosen=chosen, reluctance_gpu_s=reluctance_gpu_s, usable=usable
        )
    )


def _clear_node(
    snap: Snapshot,
    room: Room,
    need: Need,
    *,
    node: int,
    jobs_here: Sequence[int],
    chosen: Sequence[int],
    reluctance_gpu_s: Mapping[int, float],
) -> list[int] | None:
    """The cheap jobs whose end would make *need* fit on *node*; None if it can't be."""
    free = [room.gpus[node], room.cpus[node], room.mem_mb[node], -room.jobs_on[node]]
    wanted = [need.gpus, need.cpus, need.mem_mb, 0 if need.exclusive else -np.inf]

    def enough() -> bool:
        return all(f >= w for f, w in zip(free, wanted, strict=True))

    taken: list[int] = []
    for row in sorted((r for r in jobs_here if r not in chosen), key=lambda r: reluctance_gpu_s[r]):
        if enough():
            break
        free = [f + s for f, s in zip(free, _share(snap, row, node), strict=True)]
        taken.append(row)
    if not enough():
        return None
    for row in sorted(taken, key=lambda r: -reluctance_gpu_s[r]):
        less = [f - s for f, s in zip(free, _share(snap, row, node), strict=True)]
        if all(f >= w for f, w in zip(less, wanted, strict=True)):
            free = less
            taken.remove(row)
    return taken


def _share(snap: Snapshot, row: int, node: int) -> tuple[float, int, int, int]:
    held = snap.seen.held
    lo, hi = np.searchsorted(held.job, [row, row + 1])
    at = lo + int(np.flatnonzero(held.node[lo:hi] == node)[0])
    return float(held.gpus[at]), int(held.cpus[at]), int(held.mem_mb[at]), 1


def _without_surplus(
    snap: Snapshot,
    room: Room,
    need: Need,
    *,
    chosen: Sequence[int],
    reluctance_gpu_s: Mapping[int, float],
    usable: Bool,
) -> list[int]:
    """*chosen* without the jobs, dearest first, that *need* can do without."""
    keep = list(chosen)
    for row in sorted(chosen, key=lambda r: -reluctance_gpu_s[r]):
        rest = [r for r in keep if r != row]
        trial = room.copy()
        for other in rest:
            trial.release(snap, other)
        if int(np.count_nonzero(trial.fits_on(need) & usable)) >= need.n_nodes:
            keep = rest
    return keep


def reluctance_gpu_s(
    snap: Snapshot, rows: Sequence[int], target: frozenset[JobId], checkpoint_cost_s: float
) -> dict[int, float]:
    """What stopping each job costs, GPU-seconds: its GPUs for the time of a save and a restore.

    Stopping a job that the policy wants to run is dearer than stopping any number of others: it
    would only ask for its GPUs back.
    """
    lost = {row: float(snap.jobs.gpus[row]) * checkpoint_cost_s for row in rows}
    dearer = sum(lost.values()) + 1.0
    job_id = snap.jobs.job_id
    return {row: lost[row] + dearer * (int(job_id[row]) in target) for row in rows}
