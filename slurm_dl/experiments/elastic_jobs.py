"""A share of a trace's jobs that can change size, as if they had been written for it.

A job that asks for g GPUs runs on half, one, one and a half or two times as many, where these are
whole and the cluster has them. A job that asks for more than the cluster has stays as it is. The
speed on g GPUs is ``1 / (s + (1 - s) / g)``, with a serial part s of 0 to 0.1 that is drawn for
each job: at most 10, and 4.7 on 8 GPUs.

Source: Amdahl, "Validity of the single processor approach to achieving large scale computing
capabilities", AFIPS 1967. The range of s is ours.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.job_knowledge import JobSizes

LARGEST_SERIAL: Final = 0.1
TIMES: Final = (0.5, 1.0, 1.5, 2.0)


def drawn(
    trace: Trace, share: float, shape: ClusterShape, seed: int
) -> tuple[JobSizes | None, ...]:
    """The sizes of each job of *trace*; None for those that keep their size.

    Args:
        share: Part of the jobs that is elastic, 0 to 1, drawn job by job.
    """
    random = np.random.default_rng([seed, 3])
    elastic = random.random(len(trace)) < share
    serial = random.uniform(0.0, LARGEST_SERIAL, len(trace))
    nodes = shape.nodes()
    all_gpus, node_gpus = float(nodes.gpus.sum()), float(nodes.gpus.max(initial=1.0))
    found: list[JobSizes | None] = []
    for asked, s, is_elastic in zip(trace.gpus.tolist(), serial, elastic, strict=True):
        gpus = np.array([n * asked for n in TIMES])
        gpus = gpus[(gpus == np.round(gpus)) & (gpus >= 1) & (gpus <= all_gpus)]
        if not is_elastic or len(gpus) == 1 or asked not in gpus:
            found.append(None)
            continue
        rate = speed(gpus, s) / speed(np.array([asked]), s)
        found.append(
            JobSizes(
                gpus=gpus,
                nodes=np.array([math.ceil(n / node_gpus) for n in gpus], dtype=np.float64),
                rate=rate,
                asked=int(gpus.searchsorted(asked)),
            )
        )
    return tuple(found)


def speed(gpus: F64, serial: float) -> F64:
    """``(k,)`` speed on so many GPUs each; 1 on one."""
    found: F64 = 1 / (serial + (1 - serial) / gpus)
    return found
