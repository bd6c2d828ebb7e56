"""Who asks for GPUs: the jobs that take part, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, NOT_HELD, PENDING, Bool
from slurm_dl.model.snapshot import Snapshot


def contenders(snap: Snapshot) -> Bool:
    """``(n,)`` bool: managed jobs that hold GPUs, or wait for room and nothing else."""
    jobs = snap.jobs
    mask: Bool = (jobs.state < COMPLETING) & (jobs.gpus > 0) & snap.managed_jobs
    mask &= (jobs.state != PENDING) | (jobs.held == NOT_HELD)
    return mask


@dataclass(frozen=True, slots=True, eq=False)
class Tenants:
    """Whose each job is.

    Attributes:
        of: ``(n,)`` index into *names*.
        names: Slurm accounts, sorted; user ids as text where a cluster tells no accounts.
    """

    of: npt.NDArray[np.int64]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


def tenants(snap: Snapshot) -> Tenants:
    """The tenants of all jobs: their accounts; users where the cluster knows no accounts."""
    texts = snap.seen.texts
    if not texts:
        whose = [str(uid) for uid in snap.jobs.uid.tolist()]
    else:
        found = (texts.get(JobId(j)) for j in snap.jobs.job_id.tolist())
        whose = ["" if text is None else text.account for text in found]
    if not whose:
        return Tenants(np.zeros(0, dtype=np.int64), ())
    names, of = np.unique(np.array(whose, dtype=object), return_inverse=True)
    return Tenants(of.reshape(-1), tuple(names.tolist()))
