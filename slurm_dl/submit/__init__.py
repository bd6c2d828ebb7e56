"""dlsubmit: a few words from the user, a batch script and sbatch's arguments from us.

command line -> `sbatch_options` (divide) -> `job_request` (validate) -> `job_shape`
(nodes and GPUs) -> `job_extras` (CPUs, memory, switches) -> `batch_script` (template,
arguments) -> sbatch. Only the command line, `slurm_calls` and `job_extras` touch the world.

The names below are for scripts of users: an `Executor` runs dlsubmit for a call of a function.
They need Python 3.8 and the standard library alone, and so does all that is imported here.
"""

from __future__ import annotations

from slurm_dl.submit.executor import Executor
from slurm_dl.submit.function_job import Job
from slurm_dl.submit.pickled_call import DelayedSubmission, JobFailedError, SubmitError

__all__ = ["DelayedSubmission", "Executor", "Job", "JobFailedError", "SubmitError"]
