"""A policy that remembers: it bars each job for a while after the decision that saw it first."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_dl.model.booking import entry, of_kind
from slurm_dl.model.jobs import COMPLETED, F64, PENDING, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, Preempts, one_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """First submission first, each job *wait_s* after it was seen; without a book it bars for ever.

    Kind ``seen`` has the time of each live job, kind ``count`` how many those are: two entries that
    are only right together.
    """

    name: ClassVar[str] = "patient"
    source: ClassVar[str] = ""
    interpretation: ClassVar[str] = ""
    about: ClassVar[About] = About(row="", level="W3", formula="", idles="each job waits a while")
    preempts: ClassVar[Preempts] = "never"
    skips: ClassVar[bool] = True

    wait_s: float = 40.0

    @property
    def tiers(self) -> int:
        """One."""
        return 1

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        seen = of_kind(snap.booked, "seen")
        live = {str(j) for j in snap.jobs.job_id[snap.jobs.state < COMPLETED].tolist()}
        news = [entry("seen", job, {"at_s": snap.now_s}) for job in sorted(live - seen.keys())]
        gone = [entry("seen", job, None) for job in sorted(seen.keys() - live)]
        late = self._until_s(snap) > snap.now_s
        return dataclasses.replace(
            one_tier(snap.memory.first_submit_s),
            barred=(snap.jobs.state == PENDING) & late,
            book=(*news, *gone, entry("count", "", {"n": len(live)})),
        )

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """The end of the first wait; see `Policy`."""
        until_s = self._until_s(snap)
        return float(until_s[until_s > snap.now_s].min(initial=math.inf))

    def _until_s(self, snap: Snapshot) -> F64:
        seen = of_kind(snap.booked, "seen")
        at_s = [seen.get(str(j), {"at_s": snap.now_s})["at_s"] for j in snap.jobs.job_id.tolist()]
        return np.array(at_s, dtype=np.float64) + self.wait_s
