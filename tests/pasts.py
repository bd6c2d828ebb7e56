"""Small pasts for tests: jobs that are over, said in a line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from slurm_dl.model.completed_jobs import Past


class Over(NamedTuple):
    """A job that is over; it started when it was submitted."""

    user: str
    name: str
    gpus: float
    ran_s: float
    end_s: float = 1e9
    account: str = "all"
    tag: str = ""

    @property
    def submit_s(self) -> float:
        """When it was submitted, epoch seconds."""
        return self.end_s - self.ran_s


class Known:
    """A history that is there at once; see `HistoryCache`."""

    def __init__(self, past: Past) -> None:
        self.past = past

    def look(self, prepare: Callable[[Past], None] = lambda _: None) -> Past:
        """The past."""
        prepare(self.past)
        return self.past


def past_of(jobs: Sequence[Over]) -> Past:
    """*jobs* in the order in which they ended."""
    ended = sorted(jobs, key=lambda job: job.end_s)
    tables = [
        tuple(dict.fromkeys(getattr(job, what) for job in ended))
        for what in ("account", "user", "name", "tag")
    ]
    account, user, name, tag = (
        np.array([table.index(getattr(job, what)) for job in ended], dtype=np.int32)
        for what, table in zip(("account", "user", "name", "tag"), tables, strict=True)
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
        tag=tag,
        tags=tables[3],
    )


def past_columns(
    ran_s: ArrayLike,
    *,
    gpus: ArrayLike = 1.0,
    submit_s: ArrayLike = 0.0,
    start_s: ArrayLike | None = None,
    end_s: ArrayLike | None = None,
    account: ArrayLike = 0,
    accounts: tuple[str, ...] = ("a",),
    users: tuple[str, ...] = ("u",),
    names: tuple[str, ...] = ("",),
) -> Past:
    """A job that is over for each of *ran_s*, of the first user and the first name."""
    ran = np.array(ran_s, dtype=np.float64)

    def column(value: ArrayLike) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.broadcast_to(np.array(value, dtype=np.float64), ran.shape).copy()

    return Past(
        account=column(account).astype(np.int32),
        user=np.zeros(len(ran), dtype=np.int32),
        name=np.zeros(len(ran), dtype=np.int32),
        gpus=column(gpus),
        submit_s=column(submit_s),
        start_s=column(submit_s if start_s is None else start_s),
        end_s=column(np.arange(len(ran)) if end_s is None else end_s),
        ran_s=ran,
        accounts=accounts,
        users=users,
        names=names,
    )
