"""Jobs that are over, as policies learn from them: how long they ran, whose they were.

On a cluster they come from Slurm's accounting, in a simulation from the simulation itself; a policy
sees no difference.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_dl.model.jobs import F64, I32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Past:
    """Jobs that are over, in the order in which they ended, as columns of length k."""

    account: I32  # ``(k,)`` int32, index into `accounts`
    user: I32  # ``(k,)`` int32, index into `users`
    name: I32  # ``(k,)`` int32, index into `names`; what `JobText.name` said
    gpus: F64  # ``(k,)`` GPUs each held
    submit_s: F64  # ``(k,)`` first submission, epoch seconds
    start_s: F64  # ``(k,)`` first start, epoch seconds
    end_s: F64  # ``(k,)`` end of the last run, epoch seconds, not decreasing
    ran_s: F64  # ``(k,)`` seconds over all runs, above 0
    accounts: tuple[str, ...]  # Names of accounts
    users: tuple[str, ...]  # Names of users
    names: tuple[str, ...]  # Names of jobs

    def __post_init__(self) -> None:
        columns = {
            f.name: column
            for f in dataclasses.fields(self)
            if isinstance(column := getattr(self, f.name), np.ndarray)
        }
        if len({len(column) for column in columns.values()}) > 1:
            lengths = {name: len(column) for name, column in columns.items()}
            msg = f"columns of the past differ in length: {lengths}"
            raise ValueError(msg)
        for column in columns.values():
            column.setflags(write=False)

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def size_gpu_s(self) -> F64:
        """``(k,)`` GPU-seconds of each."""
        return self.gpus * self.ran_s

    def since(self, when_s: float) -> Past:
        """Those that ended at *when_s* or later; the name tables stay as they are."""
        return self.part(slice(int(self.end_s.searchsorted(when_s)), None))

    def until(self, when_s: float) -> Past:
        """Those that had ended by *when_s*; the name tables stay as they are."""
        return self.part(slice(0, int(self.end_s.searchsorted(when_s, side="right"))))

    def then(self, later: Past) -> Past:
        """These jobs and *later* ones, of which the name tables are taken."""
        columns: dict[str, Any] = {
            f.name: np.concatenate([ours, getattr(later, f.name)])
            for f in dataclasses.fields(self)
            if isinstance(ours := getattr(self, f.name), np.ndarray)
        }
        return dataclasses.replace(later, **columns)

    def part(self, rows: slice) -> Past:
        """Those at *rows*; the name tables stay as they are."""
        return dataclasses.replace(
            self,
            account=self.account[rows],
            user=self.user[rows],
            name=self.name[rows],
            gpus=self.gpus[rows],
            submit_s=self.submit_s[rows],
            start_s=self.start_s[rows],
            end_s=self.end_s[rows],
            ran_s=self.ran_s[rows],
        )


_NOBODY = np.zeros(0, dtype=np.int32)
_NOTHING = np.zeros(0)

NO_PAST = Past(
    account=_NOBODY,
    user=_NOBODY,
    name=_NOBODY,
    gpus=_NOTHING,
    submit_s=_NOTHING,
    start_s=_NOTHING,
    end_s=_NOTHING,
    ran_s=_NOTHING,
    accounts=(),
    users=(),
    names=(),
)
"""Nothing is known."""
