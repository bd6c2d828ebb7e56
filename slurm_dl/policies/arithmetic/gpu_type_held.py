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
        kinds = max(1, len(seen.gpu_types))
        kind = seen.nodes.gpu_type[seen.held.node].astype(np.int64)
        kind = kind if seen.gpu_types else np.maximum(kind, 0)
        typed = kind >= 0
        holds = np.zeros((len(jobs), kinds))
        np.add.at(holds, (seen.held.job[typed], kind[typed]), seen.held.gpus[typed])
        held = np.where(holds.any(axis=1), holds.argmax(axis=1), -1).astype(np.int16)
    runs: Bool = (jobs.state > PENDING) & (jobs.state < COMPLETING)
    found: I16 = np.where(runs, held, np.int16(-1)).astype(np.int16)
    return found
