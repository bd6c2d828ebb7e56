"""What sbatch inherits must not change the job behind its back."""

from __future__ import annotations

from slurm_dl.submit.job_environment import clean

SHELL = {"PATH": "/usr/bin", "HOME": "/home/ann", "SLURM_CONF": "/etc/slurm.conf"}


def test_sbatch_variables_are_left_out_and_named() -> None:
    """SBATCH_* would override the script, so they go, and the user learns which."""
    cleaned = clean(SHELL | {"SBATCH_QOS": "x", "SLURM_CLUSTERS": "y"}, keep_sbatch=False)

    assert cleaned.environ == SHELL
    assert cleaned.ignored == ("SBATCH_QOS", "SLURM_CLUSTERS")


def test_kept_variables_never_touch_what_dlsubmit_sets() -> None:
    """Even on request, what would break the contract is left out."""
    cleaned = clean(
        SHELL | {"SBATCH_QOS": "x", "SBATCH_NO_REQUEUE": "1", "SBATCH_SIGNAL": "KILL"},
        keep_sbatch=True,
    )

    assert cleaned.environ == SHELL | {"SBATCH_QOS": "x"}
    assert cleaned.ignored == ("SBATCH_NO_REQUEUE", "SBATCH_SIGNAL")


def test_a_job_submitted_from_a_job_starts_afresh() -> None:
    """Nothing of the outer job reaches the new one; the cluster's own variables do."""
    outer = {
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": "3",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURMD_NODENAME": "n1",
        "SLURM_DL_RUN_DIR": "/runs/7",
        "SLURM_DL_ATTEMPT": "1",
    }

    assert clean(SHELL | outer, keep_sbatch=False).environ == SHELL


def test_outside_a_job_the_users_slurm_variables_stay() -> None:
    """Settings of srun stay; counts of a job that is not there go all the same."""
    settings = {"SLURM_CPU_BIND": "none", "SLURM_DL_ACK_WAIT": "30"}
    stale = {"SLURM_RESTART_COUNT": "3", "SLURM_ARRAY_JOB_ID": "1"}

    assert clean(SHELL | settings | stale, keep_sbatch=False).environ == SHELL | settings
