"""What the simulator says, by group: whom the policy helps, whom it hurts, and by how much."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64, Bool
from slurm_dl.shadow.counterfactual import Cast, Effects

SIZES: Final = ((1, "1"), (4, "2-4"), (8, "5-8"), (16, "9-16"), (64, "17-64"))
LARGEST: Final = "65 and more"
_GPU_H: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What the simulator says about one group; *helped*, *hurt* and *same* are all its jobs.

    Attributes:
        plain_wait_s, policy_wait_s: Mean wait, seconds.
        plain_jct_s, policy_jct_s: Mean time from arrival to the end, seconds.
        worst_s: Seconds that the job that is hurt most ends later; 0 if none is.
    """

    group: str
    jobs: int
    helped: int
    hurt: int
    same: int
    plain_wait_s: float
    policy_wait_s: float
    plain_jct_s: float
    policy_jct_s: float
    worst_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The counterfactual.

    Attributes:
        total: All jobs whose end is known.
        by: Groups by ``user``, ``account`` and ``size``, the most jobs first; sizes by size.
        real_wait_s: Mean wait in reality of the jobs that came or waited; NaN if there is none.
        model_wait_s: The same jobs' mean wait under the simulated plain Slurm.
        preemptions: How often jobs were stopped.
        lost_gpu_h: GPU-hours without progress, more than under plain Slurm.
        open_ended, never_ran, unfit: See `Effects` and `Cast`.
        jobs_taken, jobs_in_all: Jobs that took part, and those there were; fewer in a sample.
        gpus, gpus_in_all: GPUs that were simulated, and those there are.
    """

    total: Balance
    by: Mapping[str, tuple[Balance, ...]]
    real_wait_s: float
    model_wait_s: float
    preemptions: int
    lost_gpu_h: float
    open_ended: int
    never_ran: int
    unfit: int
    jobs_taken: int
    jobs_in_all: int
    gpus: float
    gpus_in_all: float

    @property
    def is_sample(self) -> bool:
        """Whether the nodes were a share of those there are."""
        return self.gpus < self.gpus_in_all


def size_of(gpus: float) -> str:
    """The class of jobs that *gpus* belongs to."""
    return next((name for most, name in SIZES if gpus <= most), LARGEST)


def size_rank(name: str) -> int:
    """The place of a class of `size_of` among them."""
    names = [known for _, known in SIZES]
    return names.index(name) if name in names else len(names)


def simulated_of(
    effects: Effects,
    cast: Cast,
    name_of: Callable[[int], str],
    *,
    jobs_in_all: int,
    gpus: float,
    gpus_in_all: float,
) -> Simulated:
    """What the simulator says, by user, account and size; see `Simulated`."""
    players = effects.players
    everybody = np.ones(len(players), dtype=np.bool_)

    def by(group_of: Sequence[str]) -> list[Balance]:
        column = np.array(group_of, dtype=object)
        found = [_balance(effects, column == name, name) for name in dict.fromkeys(group_of)]
        return sorted(found, key=lambda b: (-b.jobs, b.group))

    sizes = by([size_of(p.gpus) for p in players])
    real = np.array([p.real_wait_s for p in players], dtype=np.float64)
    came = ~np.isnan(real)
    return Simulated(
        total=_balance(effects, everybody, "all"),
        by={
            "user": tuple(by([name_of(p.uid) for p in players])),
            "account": tuple(by([p.account or "-" for p in players])),
            "size": tuple(sorted(sizes, key=lambda b: size_rank(b.group))),
        },
        real_wait_s=_mean(real[came]),
        model_wait_s=_mean(effects.plain_wait_s[came]),
        preemptions=effects.preemptions,
        lost_gpu_h=effects.lost_gpu_s / _GPU_H,
        open_ended=effects.open_ended,
        never_ran=cast.never_ran,
        unfit=cast.unfit,
        jobs_taken=len(cast.players),
        jobs_in_all=jobs_in_all,
        gpus=gpus,
        gpus_in_all=gpus_in_all,
    )


def _balance(effects: Effects, mask: Bool, group: str) -> Balance:
    later_s = (effects.policy_jct_s - effects.plain_jct_s)[mask]
    jobs = int(mask.sum())
    helped, hurt = int(effects.helped[mask].sum()), int(effects.hurt[mask].sum())
    return Balance(
        group=group,
        jobs=jobs,
        helped=helped,
        hurt=hurt,
        same=jobs - helped - hurt,
        plain_wait_s=_mean(effects.plain_wait_s[mask]),
        policy_wait_s=_mean(effects.policy_wait_s[mask]),
        plain_jct_s=_mean(effects.plain_jct_s[mask]),
        policy_jct_s=_mean(effects.policy_jct_s[mask]),
        worst_s=float(later_s.max(initial=0.0)) if hurt else 0.0,
    )


def _mean(values: F64) -> float:
    return float(values.mean()) if len(values) else math.nan
