"""Pairs of jobs that may share a GPU: by memory, labels and measured speeds of their models.

Pairs only, and only halves: a third job then finds no room on the device. Every condition must be
known to hold; of a job whose model nobody has measured nothing is known, and it is never packed.

Source: Lucid, ASPLOS 2023 (labels, binder); Salus, MLSys 2020 (memory of two jobs); Gavel, OSDI
2020, after Gandiva, OSDI 2018 (a pair is kept while its speeds add up to 1); AntMan, OSDI 2020
(bound on what the host may lose).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from slurm_dl.model.ids import JobId
from slurm_dl.model.nodes import SLACK
from slurm_dl.model.profile import Label, Load, Profile

HALF: Final = 0.5  # Share of a device from which on no third job fits beside two
MOST_LABELS: Final = 2  # Most that the labels of a pair may add up to (Lucid)

LEAST_SPEED: Final = 1.0
"""Least that the relative speeds of a pair may add up to: what they had taking turns (Gavel)."""

_FLOORS: Final[Mapping[Label, float]] = {0: 0.95, 1: 0.85, 2: HALF}
"""Speed of a neighbour that a label promises; a 2 promises nothing, taking turns gives half."""

Models = frozenset[str]  # Names of the models of a pair; one name where both are the same


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTenant:
    """A job that has a share of a GPU, or asks for one.

    Attributes:
        share: Part of one device, above 0 and below 1.
        profile: Its model's profile; None if it names none that there is.
    """

    job_id: JobId
    share: float
    profile: Profile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLimits:
    """Limits on a pair.

    Attributes:
        gpu_mem_mb: Memory of the device, MB; None if unknown: nobody is packed there.
        max_host_slowdown: Most that the job that was there first may lose of its speed, 0 to 1;
            what it loses must have been measured then. None: no such bound.
        lost: Pairs of models that were tried and lost.
    """

    gpu_mem_mb: float | None = None
    max_host_slowdown: float | None = None
    lost: frozenset[Models] = field(default_factory=frozenset)


def label_of(mean_speed: float) -> Label:
    """Label of a model beside which others run at *mean_speed* of their speed alone.

    Source: Lucid, ASPLOS 2023 (thresholds 0.95 and 0.85).

    Raises:
        ValueError: It is no relative speed.
    """
    if not (math.isfinite(mean_speed) and mean_speed >= 0):
        msg = f"a relative speed is 0 or more (got {mean_speed})"
        raise ValueError(msg)
    if mean_speed >= _FLOORS[0]:
        return 0
    return 1 if mean_speed >= _FLOORS[1] else 2


def memory_of_pair_mb(one: Load, other: Load) -> float | None:
    """Most GPU memory that both take together, MB; None if it is not known.

    What stays between iterations adds up. What is only needed inside one need not, where both
    profiles tell the two apart: the larger counts.

    Source: Salus, MLSys 2020 (a lane holds the largest of its jobs' ephemeral memory).
    """
    if one.gpu_mem_mb is None or other.gpu_mem_mb is None:
        return None
    if one.gpu_mem_kept_mb is None or other.gpu_mem_kept_mb is None:
        return one.gpu_mem_mb + other.gpu_mem_mb
    inside = (one.gpu_mem_mb - one.gpu_mem_kept_mb, other.gpu_mem_mb - other.gpu_mem_kept_mb)
    return one.gpu_mem_kept_mb + other.gpu_mem_kept_mb + max(0.0, *inside)


def why_apart(host: GpuTenant, guest: GpuTenant, bounds: PairLimits) -> str:
    """The reason why the two may not share a device; empty if they may.

    Args:
        host: The one that has its share already, if one of them has.
    """
    if host.profile is None or guest.profile is None:
        return "the model of one of them is not known"
    if min(host.share, guest.share) < HALF - SLACK:
        return "one asks for less than half a GPU: a third could join"
    if host.share + guest.share > 1.0 + SLACK:
        return "their shares do not fit on one GPU"
    one, other = host.profile, guest.profile
    return (
        _why_labels(one, other, bounds)
        or _why_memory(one.load, other.load, bounds.gpu_mem_mb)
        or _why_slow(one, other, bounds)
    )


def _why_labels(one: Profile, other: Profile, bounds: PairLimits) -> str:
    if one.label is None or other.label is None:
        return "one model has no label: it was never measured beside others"
    if one.label + other.label > MOST_LABELS:
        return f"their labels {one.label} and {other.label} add up to more than {MOST_LABELS}"
    if frozenset((one.name, other.name)) in bounds.lost:
        return f"{one.name} and {other.name} were tried together and lost"
    return ""


def _why_memory(one: Load, other: Load, gpu_mem_mb: float | None) -> str:
    together_mb = memory_of_pair_mb(one, other)
    if gpu_mem_mb is None:
        return "the memory of the GPU is not known"
    if together_mb is None:
        return "the GPU memory that one of them takes is not known"
    if together_mb > gpu_mem_mb:
        return f"they take {together_mb:.0f} MB of GPU memory, it has {gpu_mem_mb:.0f}"
    return ""


def _why_slow(host: Profile, guest: Profile, bounds: PairLimits) -> str:
    kept, had = host.beside.get(guest.name), guest.beside.get(host.name)
    if kept is not None and had is not None and kept + had < LEAST_SPEED:
        return f"together they reach {kept + had:.2f} of the speed of one alone"
    if bounds.max_host_slowdown is None:
        return ""
    if kept is None:
        return f"what {host.name} loses beside {guest.name} was not measured"
    if 1.0 - kept > bounds.max_host_slowdown + SLACK:
        return f"{host.name} would lose {1.0 - kept:.0%} of its speed"
    return ""


def speed_of_pair(one: Profile, other: Profile) -> float:
    """Sum of their relative speeds; one that was not measured is what the neighbour's label says.

    Raises:
        ValueError: A speed was not measured, and the neighbour has no label.
    """
    return _beside(one, other) + _beside(other, one)


def _beside(one: Profile, other: Profile) -> float:
    measured = one.beside.get(other.name)
    if measured is not None:
        return measured
    if other.label is None:
        msg = f"nothing says how fast {one.name} is beside {other.name}"
        raise ValueError(msg)
    return _FLOORS[other.label]


def rank_of(
    host: GpuTenant, guest: GpuTenant, bounds: PairLimits
) -> tuple[float, float, int] | None:
    """Rank of the pair, the least is best; None if they may not share.

    The best sum of speeds first, then the least memory left, then the lowest job id.
    """
    if why_apart(host, guest, bounds) or host.profile is None or guest.profile is None:
        return None
    together_mb = memory_of_pair_mb(host.profile.load, guest.profile.load)
    left_mb = (bounds.gpu_mem_mb or 0.0) - (together_mb or 0.0)
    return (-speed_of_pair(host.profile, guest.profile), left_mb, host.job_id)
