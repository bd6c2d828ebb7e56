"""2D-LAS with queues by arrival, in which an earlier job also displaces a later one of its queue.

Pollux' and Lucid's simulators read Tiresias so. In `discrete_las` a running job keeps its GPUs
against waiting ones of its own queue, as in the paper.

Source: Qiao et al., "Pollux", OSDI 2021, and Hu et al., "Lucid", ASPLOS 2023: the Tiresias they
compare with.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_dl.policies.base import About
from slurm_dl.policies.discrete_las import DiscreteLas


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalLas(DiscreteLas):
    """K queues by attained GPU-seconds, strictly first eligible first inside each."""

    name = "arrival_las"
    source = "Tiresias as compared with in Pollux (OSDI 2021), Lucid (ASPLOS 2023)"
    about = About(
        row="A1",
        level="W1",
        formula="K queues by attained service, updated when a job comes or goes",
        starves="jobs of the last queue, while new ones come",
    )
    interpretation = (
        "The rule follows the descriptions of their simulators. It was not compared with runs of "
        "them."
    )
    preempts = "rank"
