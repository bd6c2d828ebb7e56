"""On which type of GPUs each job runs."""

from __future__ import annotations

import numpy as np

from slurm_dl.model.jobs import COMPLETING, I16, PENDING, Bool
from slurm_dl.model.snapshot import Observed


def type_held(seen: Observed, held: I16 | None = None) -> I16:
    """``(n,)`` type of the GPUs that each running job holds; -1 for the others.

    That of the first of its nodes, if they are of several. Where no type has a name all are of
    type 0.

    Args:
        held: ``(n,)`` as a cluster without nodes tells it, see `Snapshot.on_type`.
    """
    jobs = seen.jobs
    if held is None:
        held = np.full(len(jobs), -1, dtype=np.int16)
        rows = seen.held.job[::-1]
        kind = seen.nodes.gpu_type[seen.held.node[::-1]]
        held[rows] = kind if seen.gpu_types else np.maximum(kind, 0)
    runs: Bool = (jobs.state > PENDING) & (jobs.state < COMPLETING)
    found: I16 = np.where(runs, held, np.int16(-1)).astype(np.int16)
    return found
