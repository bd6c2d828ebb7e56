"""Gang-aware stride scheduling: GPU time in proportion to tickets, whole gangs at a time.

Every job has a pass. In each quantum jobs are taken by smallest pass; a job whose gang does not fit
into what is left is skipped and keeps its pass, so it comes first in a later quantum. A job that
runs pays for the GPUs it took::

    pass += gpus / tickets

so what is in proportion to tickets is GPU time, not the number of turns. A new job begins half of
that behind, which keeps what each has had within one quantum of its share from the first one on.

Source: Chaudhary et al., "Balancing Efficiency and Fairness in Heterogeneous GPU Clusters for Deep
Learning" (Gandiva_fair), EuroSys 2020, the section on gang-aware split stride; Waldspurger and
Weihl, "Stride scheduling", MIT LCS TM-528, 1995.
"""

from __future__ import annotations

import numpy as np

from slurm_dl.model.jobs import F64, Bool


def first_pass(gpus: F64, tickets: F64, others: float = 0.0) -> F64:
    """``(n,)`` passes of new jobs.

    Args:
        gpus: ``(n,)`` GPUs of each gang, above 0.
        tickets: ``(n,)`` tickets of each job, above 0.
        others: Smallest pass of the jobs that are there already.
    """
    return others + gpus / tickets / 2


def stride_turn(passes: F64, gpus: F64, tickets: F64, room: float) -> tuple[Bool, F64]:
    """One quantum: who runs, and everybody's pass after it.

    Args:
        passes: ``(n,)`` pass of each job, see `first_pass`.
        gpus: ``(n,)`` GPUs of each gang, above 0.
        tickets: ``(n,)`` tickets of each job, above 0.
        room: GPUs there are.

    Returns:
        ``(n,)`` bool who runs, and ``(n,)`` the passes after the quantum.
    """
    runs = np.zeros(len(passes), dtype=np.bool_)
    for job in np.argsort(passes, kind="stable").tolist():
        if gpus[job] <= room:
            runs[job] = True
            room -= float(gpus[job])
    after: F64 = passes + np.where(runs, gpus / tickets, 0.0)
    return runs, after
