"""Parts of traces, for tests that need not all of one."""

from __future__ import annotations

import dataclasses

import numpy as np

from slurm_dl.model.trace import Trace


def first_jobs(trace: Trace, n: int) -> Trace:
    """The first *n* jobs of *trace*."""
    columns = {
        f.name: getattr(trace, f.name)[:n]
        for f in dataclasses.fields(trace)
        if isinstance(getattr(trace, f.name), np.ndarray)
    }
    return dataclasses.replace(trace, job_id=trace.job_id[:n], **columns)
