"""Tiresias' discretised 2D-Gittins as its public simulator has it, for comparison with it.

The queues are those of `list_las`; inside a queue the larger index goes first. Its index is not
the one of the theory: the expected service counts whole sizes, not what is left of them, and is cut
to whole seconds.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from slurm_dl.model.jobs import F64
from slurm_dl.model.parameter_bounds import Bound, NotNegative, OneOrMore
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, in_tiers
from slurm_dl.policies.list_las import ListLas, list_keys, one_step_down

_Sizes = Annotated[
    tuple[float, ...],
    Bound(
        "one or more finite numbers, 1 or more",
        lambda sizes: sizes and all(1 <= s < math.inf for s in sizes),
        got="",
    ),
]
_Unused = Annotated[
    NotNegative, Bound("0: nobody is promoted under this policy", lambda knob: knob == 0, got="")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGittins(ListLas):
    """Queues by attained service, inside each by the published simulator's index.

    Attributes:
        thresholds_gpu_s: Service at which a job moves to the next queue, GPU-seconds.
        promote_knob: Must be 0: that simulator has no promotion under this policy.
        dimensions: 2: service is GPUs x seconds. 1: seconds alone.
        late_demotion: Check a job's service (threshold - run time) / GPUs later, as `list_las`.
        demotion_step_s: Check it at multiples of this of its run time, seconds, as `list_las`.
        sizes_gpu_s: Sizes of finished jobs, GPU-seconds, 1 or more each; one at least.
        quantum_gpu_s: Service over which the chance of finishing is taken, GPU-seconds, 1 or more.
    """

    name = "list_gittins"
    source = "Tiresias, NSDI 2019, 2D-Gittins as in its public simulator"
    about = About(
        row="A1",
        level="W2",
        formula="K queues by attained service; inside, the index of the public simulator",
        needs=("history",),
        fallback="without sizes of finished jobs: the order of the queue",
        starves="jobs of the last queue, while new ones come",
    )

    promote_knob: _Unused = 0.0
    sizes_gpu_s: _Sizes = (1.0,)
    quantum_gpu_s: OneOrMore = 3250.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        service = self.service(snap)
        ages, index = _table(self.sizes_gpu_s, self.quantum_gpu_s)
        tier = one_step_down(snap, service, self.thresholds_gpu_s)
        # Equal indices: who was eligible earlier, then the place in the list.
        tie = np.empty(len(service))
        tie[np.lexsort((list_keys(snap, tier), snap.memory.queued_s))] = np.arange(len(tie))
        key = -index[ages.searchsorted(service, side="right")]
        return in_tiers(tier, key, self.tiers, tie)


@functools.lru_cache(maxsize=8)
def _table(sizes: tuple[float, ...], quantum: float) -> tuple[F64, F64]:
    """Sizes, increasing, and the index for ages below each; one more, 0, for ages beyond."""
    column = np.sort(np.array(sizes, dtype=np.float64))
    n = len(column)
    index = [_index(column, size - 1, quantum) for size in column.tolist()]
    return column, np.array([*index, 0.0]) if n else np.zeros(1)


def _index(sizes: F64, age: float, quantum: float) -> float:
    first = int(sizes.searchsorted(age, side="right"))
    last = int(sizes.searchsorted(age + quantum, side="right"))
    left = len(sizes) - first
    if not left:
        return 0.0
    chance = round((last - first) / left, 5)
    spent = (math.fsum(sizes[first:last]) + quantum * (len(sizes) - last)) // left
    return round(chance * 1_000_000 / spent, 4)
