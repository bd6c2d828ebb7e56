"""How long jobs that are due can wait, each by itself and all together.

A job alone must start at due - needs. Several that are due need the GPUs one after another: with
W(D) the GPU-seconds that all jobs due by D need, they have to use all GPUs from D - W(D) / GPUs on.
The latest start of a job is the earliest of its own and of these, over all D not before its due
time. It is the demand bound of earliest-deadline-first scheduling, for GPUs that can be divided.

Source: Baruah, Rosier and Howell, "Algorithms and complexity concerning the preemptive scheduling
of periodic, real-time tasks on one processor", Real-Time Systems 2, 1990 (processor demand).
"""

from __future__ import annotations

import numpy as np

from slurm_dl.model.jobs import F64, Bool


def latest_start(
    due_s: F64,
    needs_s: F64,
    gpus: F64,
    *,
    room: float,
    now_s: float,
    running: Bool | None = None,
) -> F64:
    """``(k,)`` when each job must start at the latest; before now if it is too late.

    Args:
        due_s: ``(k,)`` when each is to be done, not decreasing.
        needs_s: ``(k,)`` seconds each still runs, finite.
        gpus: ``(k,)`` GPUs of each.
        room: GPUs there are for all of them; with none each counts by itself.
        now_s: The present.
        running: ``(k,)`` bool, jobs that run from now on: what they need falls, and so the instant
            comes later. None: none.
    """
    together_s = np.full(len(due_s), np.inf)
    if room > 0:
        together_s = due_s - np.cumsum(needs_s * gpus) / room
        if running is not None:
            pace = 1.0 - np.cumsum(np.where(running, gpus, 0.0)) / room
            ahead = together_s > now_s
            gap_s = np.where(ahead, together_s - now_s, 0.0)
            later_s = np.divide(gap_s, pace, out=np.full(len(due_s), np.inf), where=pace > 0)
            together_s = np.where(ahead, now_s + later_s, together_s)
    latest_s: F64 = np.minimum(due_s - needs_s, np.minimum.accumulate(together_s[::-1])[::-1])
    return latest_s
