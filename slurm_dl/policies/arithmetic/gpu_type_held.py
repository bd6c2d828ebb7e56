"""On which type of GPUs each job runs."""

from __future__ import annotations

import numpy as np

from slurm_dl.model.jobs import COMPLETING, I16, PENDING, Bool
from slurm_dl.model.snapshot import Observed


def type_held(seen: Observed, held: I16 | None = None) -> I16:
    """``(n,)`` type of the GPUs that each running job holds; -1 for the others.

    The one of which it holds most, if they are of several; of equals the first type. Where no type
    has a name all are of type 0.

    Args:
        held: ``(n,)`` as a cluster without nodes tells it, see `Snapshot.on_type`.
    """
    jobs = seen.jobs
    if held is None:
        by_type = seen.held.gpus_by_type(seen.nodes, len(seen.gpu_types))
        job, n = seen.held.job, len(jobs)
        holds = np.array([np.bincount(job, gpus, n) for gpus in by_type]).T
        held = np.where(holds.any(axis=1), holds.argmax(axis=1), -1).astype(np.int16)
    runs: Bool = (jobs.state > PENDING) & (jobs.state < COMPLETING)
    found: I16 = np.where(runs, held, np.int16(-1)).astype(np.int16)
    return found
