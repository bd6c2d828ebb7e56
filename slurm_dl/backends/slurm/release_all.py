"""Give the cluster back to plain Slurm: what ``dlctl release-all`` does.

It needs squeue, sprio and scontrol and nothing of ours: no daemon, no ledger, no configuration
beyond the names of the managed partitions. It may be run any number of times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from slurm_dl.backends.slurm.act import unseal, update_job
from slurm_dl.backends.slurm.command import Slurm
from slurm_dl.backends.slurm.read_jobs import SQUEUE_OPTIONS
from slurm_dl.backends.slurm.read_nodes import read_reservations
from slurm_dl.backends.slurm.records import new_nonce, output_format, split_records
from slurm_dl.backends.slurm.words import job_state
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState

_FIELDS = ("JobID", "JobArrayID", "State", "Partition", "Reservation")
_UNFINISHED = frozenset(JobState) - {JobState.COMPLETED, JobState.FAILED}
