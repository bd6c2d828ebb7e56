"""Small pasts for tests: jobs that are over, said in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slurm_dl.model.completed_jobs import Past


class Over(NamedTuple):
    """A job that is over; it started when it was submitted."""

    user: str
    name: str
    gpus: float
    ran_s: float
    end_s: float = 1e9
    account: str = "all"

    @property
    def submit_s(self) -> float:
        """When it was submitted, epoch seconds."""
        return self.end_s - self.ran_s


def past_of(jobs: Sequence[Over]) -> Past:
    """*jobs* in the order in which they ended."""
    ended = sorted(jobs, key=lambda job: job.end_s)
    tables = [
        tuple(dict.fromkeys(getattr(job, what) for job in ended))
        for what in ("account", "user", "name")
    ]
    account, user, name = (
        np.array([table.index(getattr(job, what)) for job in ended], dtype=np.int32)
        for what, table in zip(("account", "user", "name"), tables, strict=True)
    )

    def column(what: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([getattr(job, what) for job in ended], dtype=np.float64)

    return Past(
        account=account,
        user=user,
        name=name,
        gpus=column("gpus"),
        submit_s=column("submit_s"),
        start_s=column("submit_s"),
        end_s=column("end_s"),
        ran_s=column("ran_s"),
        accounts=tables[0],
        users=tables[1],
        names=tables[2],
    )
