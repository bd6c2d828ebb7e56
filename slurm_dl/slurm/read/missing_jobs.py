"""Jobs that a listing has left out though Slurm has them.

An answer of squeue without error may still lack jobs. Slurm lists an ended job for MinJobAge more
seconds, so a job that was not over at one look is seldom gone at the next, and asking about those
that are costs little.
"""

from __future__ import annotations

from collections.abc import Collection

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.read.record_parser import new_nonce, split_records
from slurm_dl.slurm.read.squeue_fields import MOST_NAMED, of_jobs, queue_arguments
from slurm_dl.slurm.tool_runner import Slurm


def check_gone(slurm: Slurm, job_ids: Collection[int]) -> None:
    """Ask about the first `MOST_NAMED` of *job_ids*, which a listing lacks; one RPC, if any.

    Raises:
        ClusterError: Slurm still has one of them, or is silent.
    """
    asked = sorted(job_ids)[:MOST_NAMED]
    if not asked:
        return
    nonce = new_nonce()
    text = slurm.run("squeue", *of_jobs(asked), *queue_arguments(("JobID", "State"), nonce))
    found = {job_id for job_id, _ in split_records(text, nonce, 2)[0]}
    left_out = next((job_id for job_id in asked if str(job_id) in found), None)
    if left_out is not None:
        msg = (
            f"squeue left out job {left_out}, which Slurm has when asked by id; this look is not "
            "used. If it goes on, compare squeue --all --states=all with slurmctld's log"
        )
        raise ClusterError(msg)
