"""The environment that sbatch gets: the user's, without what would change the job behind its back.

sbatch reads an option from ``SBATCH_*`` whenever the command line does not give it, and that beats
the script's own ``#SBATCH`` lines. And a job submitted from inside another job inherits that
job's variables: measured on Slurm 22.05.8, a first run then saw the outer job's
``SLURM_RESTART_COUNT`` and ``SLURM_ARRAY_JOB_ID``, because Slurm sets these only when they apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ALSO_SBATCH_INPUT = frozenset({"SLURM_CLUSTERS", "SLURM_CONTAINER", "SLURM_HINT"})

_NEVER_KEPT = frozenset(
    {
        "SBATCH_ARRAY_INX",
        "SBATCH_BATCH",
        "SBATCH_CLUSTERS",
        "SBATCH_CONTAINER",
        "SBATCH_GPUS",
        "SBATCH_GPUS_PER_NODE",
        "SBATCH_GPUS_PER_SOCKET",
        "SBATCH_GPUS_PER_TASK",
        "SBATCH_GRES",
        "SBATCH_JOB_NAME",
        "SBATCH_NO_REQUEUE",
        "SBATCH_OPEN_MODE",
        "SBATCH_OUTPUT",
        "SBATCH_REQUEUE",
        "SBATCH_SIGNAL",
        "SBATCH_WAIT",
        "SLURM_CLUSTERS",
        "SLURM_CONTAINER",
    }
)
"""Options that dlsubmit sets itself or refuses on its command line."""

_SLURM_KEPT = frozenset({"SLURM_CONF", "SLURM_DEBUG_FLAGS", "SLURM_JWT", "SLURM_TIME_FORMAT"})
"""About the cluster and the user, not about a job."""

_SET_ONLY_WHERE_THEY_APPLY = ("SLURM_ARRAY_", "SLURM_RESTART_COUNT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """An environment for sbatch."""

    environ: dict[str, str]  # What sbatch gets
    ignored: tuple[str, ...]  # Input variables of sbatch that were left out, sorted


def clean(environ: Mapping[str, str], *, keep_sbatch: bool) -> Cleaned:
    """Leave out what would override the job.

    Args:
        environ: The user's environment.
        keep_sbatch: Keep those ``SBATCH_*`` variables that set nothing dlsubmit sets.
    """
    inside_job = "SLURM_JOB_ID" in environ or "SLURM_JOBID" in environ
    kept: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in environ.items():
        if name.startswith("SBATCH_") or name in _ALSO_SBATCH_INPUT:
            if keep_sbatch and name not in _NEVER_KEPT:
                kept[name] = value
            else:
                ignored.append(name)
        elif not _is_of_a_job(name, inside_job=inside_job):
            kept[name] = value
    return Cleaned(environ=kept, ignored=tuple(sorted(ignored)))


def of_a_script(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a user's own script: sbatch's input variables count as sbatch has it."""
    inside_job = "SLURM_JOB_ID" in environ or "SLURM_JOBID" in environ
    return {k: v for k, v in environ.items() if not _is_of_a_job(k, inside_job=inside_job)}


def _is_of_a_job(name: str, *, inside_job: bool) -> bool:
    """The variable tells of the job that we run in, or of one that somebody ran in."""
    if name.startswith(_SET_ONLY_WHERE_THEY_APPLY):
        return True
    return inside_job and name.startswith(("SLURM_", "SLURMD_")) and name not in _SLURM_KEPT
