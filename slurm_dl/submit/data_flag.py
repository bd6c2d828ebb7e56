"""The flag of jobs whose data is still being copied: such a job holds no GPUs meanwhile.

``dlsubmit --wait-for-data`` writes it into the job's comment, and ``dlsubmit --data-ready JOB``
takes it out, by hand or as the last command of the job that copies. dlschedd puts the job off as
long as the flag is there, and the job has no place in the queue. No file is looked at.
"""

from __future__ import annotations

import re
from typing import Final

from slurm_dl.job.controller import comment_of_ours, with_key
from slurm_dl.model.errors import ConfigError
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit.job_comment import DATA_KEY, KEY
from slurm_dl.text import shown

FIRST_LOOK_S: Final = 60.0
"""So long the job is put off at first, seconds: dlschedd looks at it before. Without dlschedd it
starts then."""

_JOB = re.compile(r"[1-9]\d{0,9}", re.ASCII)


def say_ready(job: str, slurm: Slurm) -> bool:
    """Take the flag out of *job*'s comment; False: it has none, and nothing is done.

    Raises:
        ConfigError: It is no job id, or the job does not wait any more.
        ClusterError: Slurm refused.
    """
    if _JOB.fullmatch(job) is None:
        msg = f"--data-ready: {shown(job)} is no job id"
        raise ConfigError(msg)
    state, _, comment = (
        slurm.run("squeue", "--noheader", f"--jobs={job}", "--format=%T %k")
        .rstrip("\n")
        .partition(" ")
    )
    if state != "PENDING":
        msg = f"--data-ready: job {job} does not wait any more ({shown(state) or 'it is over'})"
        raise ConfigError(msg)
    ours = comment_of_ours(comment)
    if ours is None or DATA_KEY not in ours[KEY]:
        return False
    changed = with_key(comment, DATA_KEY, None)
    slurm.run("scontrol", "update", f"JobId={job}", f"Comment={changed}")
    return True
