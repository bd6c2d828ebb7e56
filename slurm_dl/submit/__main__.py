"""``python -m slurm_dl.submit BASE [--array]``: the command of a job that an `Executor` submits."""

from __future__ import annotations

import os
import sys

from slurm_dl.submit.pickled_call import run

if __name__ == "__main__":
    # Not wherever the variable is set: a job that submits another passes it on.
    task = os.environ["SLURM_ARRAY_TASK_ID"] if sys.argv[2:] == ["--array"] else "0"
    sys.exit(run(f"{sys.argv[1]}_{task}"))
