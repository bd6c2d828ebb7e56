"""Time and progress of elastic jobs in each size, also as seconds in the asked size."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, PENDING
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import AS_ASKED, SizeHistory, Sizes, Spent, size_histories, size_of
from slurm_dl.model.snapshot import Snapshot


def run_began(snap: Snapshot, row: int, history: SizeHistory) -> Spent:
    """Time and progress of the running job at *row* in all when its run began.

    Its progress then is the one it reports now: of a run that was just seen for the first time.
    """
    ran_s, start_s = float(snap.memory.ran_s[row]), float(snap.jobs.start_s[row])
    run_s = max(snap.now_s - start_s, 0.0) if start_s > 0 else 0.0
    return Spent(max(ran_s - run_s, 0.0), _progress(snap, row, history))


def spent_by_size(snap: Snapshot, row: int, history: SizeHistory) -> Mapping[Shape, Spent]:
    """Time and progress of the job at *row* in each size, its present run included.

    A run in a size that is not written down yet counts in that size.
    """
    held = size_of(snap.jobs, row) if _runs(snap, row) else None
    if held not in (None, history.now):
        history = history.begun(held, run_began(snap, row, history))
    if history.now is None:
        return history.spent
    now = Spent(float(snap.memory.ran_s[row]), _progress(snap, row, history))
    return history.begun(history.now, now).spent


def asked_seconds(snap: Snapshot, ran_s: F64, run_s: F64) -> tuple[F64, F64]:
    """Seconds that elastic jobs would have taken in the asked size for what they ran.

    A second in a size counts as its `Sizes.rate`. One before the first size that is known counts
    as 1, and so do all of a job of which nothing is written down: it has the size it asked for.

    Args:
        ran_s: ``(n,)`` seconds that each job ran in all.
        run_s: ``(n,)`` seconds of its present run.

    Returns:
        Both, in seconds of the asked size; of jobs that are not elastic as they were.
    """
    sizes = snap.sizes
    histories = {} if sizes is None else size_histories(snap.booked)
    if sizes is None or not histories:
        return ran_s, run_s
    work_s, run_work_s = ran_s.copy(), run_s.copy()
    for row in sizes.row.tolist():
        history = histories.get(JobId(int(snap.jobs.job_id[row])))
        if history is None:
            continue
        for shape, spent in spent_by_size(snap, row, history).items():
            work_s[row] += spent.ran_s * (_rate_in(sizes, row, shape) - 1.0)
        held = size_of(snap.jobs, row)
        run_work_s[row] *= 1.0 if held is None else _rate_in(sizes, row, held)
    return np.maximum(work_s, 0.0), run_work_s


def _rate_in(sizes: Sizes, row: int, shape: Shape) -> float:
    """Speed in *shape*; of one that is none of its sizes by its GPUs, between those next to it.

    With fewer than the least has, in proportion; with more than the largest has, as fast as that:
    a job that names fewer sizes has not got more done.
    """
    at = sizes.held(row, shape.gpus, shape.nodes)
    if at != AS_ASKED:
        return float(sizes.rate[at])
    own = list(sizes.of(row))
    return float(np.interp(shape.gpus, [0.0, *sizes.gpus[own]], [0.0, *sizes.rate[own]]))


def _runs(snap: Snapshot, row: int) -> bool:
    return PENDING < int(snap.jobs.state[row]) < COMPLETING


def _progress(snap: Snapshot, row: int, history: SizeHistory) -> float:
    """As it reports, else as it last did."""
    said = snap.seen.claim(JobId(int(snap.jobs.job_id[row]))).progress
    return history.since.progress if said is None else said
