"""Jobs whose run time somebody wants to know, as columns: what their owner told Slurm of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, Jobs
from slurm_dl.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobFeatures:
    """Jobs as columns of length n."""

    user: tuple[str, ...]  # Whose each is
    name: tuple[str, ...]  # What its owner calls it
    gpus: F64  # ``(n,)`` GPUs it asks for
    submit_s: F64  # ``(n,)`` its first submission, epoch seconds

    def __len__(self) -> int:
        return len(self.gpus)


def as_submitted(snap: Snapshot) -> Jobs:
    """The jobs with the nodes and GPUs that they were submitted with, in whatever size they are."""
    jobs, sizes = snap.jobs, snap.sizes
    if sizes is None:
        return jobs
    gpus, n_nodes = jobs.gpus.copy(), jobs.n_nodes.copy()
    gpus[sizes.row], n_nodes[sizes.row] = sizes.gpus[sizes.asked], sizes.nodes[sizes.asked]
    return replace(jobs, gpus=gpus, n_nodes=n_nodes)


def asked(snap: Snapshot, rows: I64) -> JobFeatures:
    """The jobs at *rows*; a user id as text, and no name, where the cluster tells no more."""
    texts = snap.seen.texts
    ids = snap.jobs.job_id[rows].tolist()
    found = [texts.get(JobId(job_id)) for job_id in ids]
    uids = snap.jobs.uid[rows].tolist()
    return JobFeatures(
        user=tuple(
            str(uid) if text is None else text.user for text, uid in zip(found, uids, strict=True)
        ),
        name=tuple("" if text is None else text.name for text in found),
        gpus=as_submitted(snap).gpus[rows],
        submit_s=snap.memory.first_submit_s[rows],
    )


def asked_of(past: Past, rows: I64) -> JobFeatures:
    """The jobs at *rows* of *past*, as they were when they were submitted."""
    return JobFeatures(
        user=tuple(past.users[i] for i in past.user[rows].tolist()),
        name=tuple(past.names[i] for i in past.name[rows].tolist()),
        gpus=past.gpus[rows],
        submit_s=np.asarray(past.submit_s[rows], dtype=np.float64),
    )
