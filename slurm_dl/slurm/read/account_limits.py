"""Limits of accounts and QOS, read as seldom as may be."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.quotas import Quotas
from slurm_dl.slurm.read.associations import barred, candidate
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.quota_counts import QuotaCounts
from slurm_dl.slurm.releases import Release
from slurm_dl.slurm.tool_runner import Slurm

_KEPT_S: Final = 60.0
_NESTS: Final = Release(23, 2, 0)


class AccountLimits:
    """Limits of accounts and QOS, asked about as seldom as may be: once a minute at most.

    Attributes:
        barred: Ids of the running jobs that were found to be barred.
    """

    def __init__(self, slurm: Slurm) -> None:
        """Read through *slurm*; nothing is known yet."""
        self.barred: set[JobId] = set()
        self._slurm = slurm
        self._text: str | None = None
        self._read_s = 0.0
        self._until_s = -math.inf

    def ask(
        self,
        jobs: Collection[JobId],
        table: JobTable,
        site: ClusterReading,
        words: Mapping[str, Mapping[str, str]],
        now_s: float,
    ) -> None:
        """Find out about *jobs* of *table*, for and from which GPUs are to be taken.

        Args:
            words: Of each partition, as `partition_values` has them.
            now_s: When the table was read, epoch seconds.
        """
        if not (site.config.enforced and site.config.accounting and jobs):
            return
        self._read(now_s)
        asked = {
            job: candidate(table, row, site.partitions[table.partition[row]], now_s)
            for row, job in enumerate(table.texts)
            if job in jobs and table.state[row] is JobState.RUNNING
        }
        self.barred |= barred(
            self._text or "",
            asked,
            enforced=site.config.enforced,
            partitions=words,
            # 22.05.8 admits the account alone (measured); of later releases nothing is concluded.
            nested=site.config.release >= _NESTS,
        )

    def quotas(self, counted: QuotaCounts, now_s: float) -> Quotas | None:
        """What limits leave to the jobs of *counted*, by limits that are no older than a minute."""
        found = counted.quotas(self._text, self._read_s)
        if found is not None and self._text is not None and self._read(now_s):
            found = counted.quotas(self._text, self._read_s)
        return found

    def _read(self, now_s: float) -> bool:
        """Read the limits if they are old; whether they were."""
        if time.monotonic() < self._until_s:
            return False
        self._until_s, self._text, self._read_s = time.monotonic() + _KEPT_S, "", now_s
        with suppress(ClusterError):  # Nothing follows from what may not be read.
            self._text = self._slurm.run("scontrol", "show", "assoc_mgr", "flags=assoc,qos")
        return True
