"""For training scripts: save when asked to, say so, and resume. Standard library only.

It imports nothing else of slurm_dl and needs only Python 3.8, because the Python of a training
environment is not the administrator's. Outside `dlrun` every call here does nothing.
"""

from __future__ import annotations

from slurm_dl.job.checkpoint import (
    EXIT_REQUEUE,
    checkpoint_saved,
    exit_for_requeue,
    install,
    resume_from,
    should_checkpoint,
)
from slurm_dl.job.ddp_options import ddp_arguments
from slurm_dl.job.progress import report
from slurm_dl.job.run_files import mark_import, restart_count, run_dir
from slurm_dl.job.step_loop import loop

__all__ = [
    "EXIT_REQUEUE",
    "checkpoint_saved",
    "ddp_arguments",
    "exit_for_requeue",
    "install",
    "loop",
    "report",
    "restart_count",
    "resume_from",
    "run_dir",
    "should_checkpoint",
]

mark_import()
