"""Pairs of jobs that may share a GPU: by memory and by speeds, or labels, of their models.

Pairs only, and only halves: a third job then finds no room on the device. Every condition must be
known to hold; of a job whose model nobody has measured nothing is known. It starts alone, and may
be a host once it has measured itself; it is never a guest. What a job says of itself can only make
it less fit for a pair than its model's profile does.

Source: Lucid, ASPLOS 2023 (labels, binder); Salus, MLSys 2020 (memory of two jobs); Gavel, OSDI
2020, after Gandiva, OSDI 2018 (a pair is kept while its speeds add up to 1); AntMan, OSDI 2020
(bound on what the host may lose). docs/adr/0038-pairs-by-measured-speed.md has the thresholds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from slurm_dl.model.ids import JobId
from slurm_dl.model.nodes import SLACK
from slurm_dl.model.pair_rates import NO_RULE, PairRule
from slurm_dl.model.profile import Label, Load, Profile, SharingMode
from slurm_dl.placement.pair_speeds import TREES, expected_sum

HALF: Final = 0.5  # Share of a device from which on no third job fits beside two
MOST_LABELS: Final = 2  # Most that the labels of a pair may add up to (Lucid)

FORM_FROM: Final = 1.25
"""Least sum of relative speeds from which a pair is formed by default. On a trace of 16 GPUs every
mix of heavy and light jobs is best from 1.25 to 1.5; 1.0 harms where all jobs are heavy."""

PART_BELOW: Final = 1.0
"""Least sum that a pair must reach to stay: what they had taking turns (Gavel)."""

_PROMISED: Final[Mapping[Label, float]] = {0: 0.95, 1: 0.85, 2: HALF}
"""Speed of a neighbour that a label promises; a 2 promises nothing, taking turns gives half."""

Models = frozenset[str]  # Names of the models of a pair; one name where both are the same


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTenant:
    """A job that has a share of a GPU, or asks for one.

    Attributes:
        share: Part of one device, above 0 and below 1.
        devices: Devices of which it has such a part.
        profile: Its model's profile; None if it names none that there is.
        own: What it measured of itself; None if it has not, or on several GPUs.
        left_gpu_s: GPU-seconds that it is expected to run on; inf where nothing is known.
        start_s: When it started, epoch seconds; inf if it waits.
    """

    job_id: JobId
    share: float
    devices: int = 1
    profile: Profile | None = None
    own: Load | None = None
    left_gpu_s: float = math.inf
    start_s: float = math.inf

    @property
    def model(self) -> str | None:
        """Name of its model; None if it is not known."""
        return None if self.profile is None else self.profile.name

    def load(self, gpu_type: str, *, hosts: bool) -> Load | None:
        """Its load on a GPU of *gpu_type*, as far as it is known; None if nothing is.

        Of what its profile and it itself say the larger counts. What only it itself says counts of
        a host alone: that could but bring a neighbour upon it.
        """
        own = self.own
        if self.profile is None:
            return own if hosts else None
        load = self.profile.load
        util, known_mb = load.gpu_util, load.gpu_mem_mb
        if load.gpu_type not in ("", gpu_type):
            util = None
        if own is None:
            return load if util is load.gpu_util else dataclasses.replace(load, gpu_util=None)
        larger_mb = _larger(known_mb, own.gpu_mem_mb, hosts=hosts)
        return Load(
            gpu_util=_larger(util, own.gpu_util, hosts=hosts),
            gpu_mem_mb=larger_mb,
            gpu_mem_kept_mb=load.gpu_mem_kept_mb if larger_mb == known_mb else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLimits:
    """Limits on a pair.

    Attributes:
        gpu_mem_mb: Memory of the device, MB; None if unknown: nobody is packed there.
        least_speed: Least sum of both relative speeds, measured or expected.
        max_host_slowdown: Most that the job that was there first may lose of its speed, 0 to 1;
            what it loses must have been measured then. None: no such bound.
        labels: Label of each model there, by name; None for one that has none.
        lost: Pairs of models that were tried and lost.
    """

    gpu_type: str = ""  # Type of the device
    gpu_mem_mb: float | None = None
    mode: SharingMode = "slices"
    least_speed: float = FORM_FROM
    max_host_slowdown: float | None = None
    rule: PairRule = NO_RULE  # The policy's own conditions
    labels: Mapping[str, Label | None] = field(default_factory=dict)
    lost: frozenset[Models] = field(default_factory=frozenset)


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
    return (
        _why_shape(host, guest)
        or _why_unknown(host, guest)
        or _why_models(host, guest, bounds)
        or _why_memory(host, guest, bounds)
        or _why_slow(host, guest, bounds)
        or _why_long(host, guest, bounds.rule)
    )


def _why_shape(host: GpuTenant, guest: GpuTenant) -> str:
    if min(host.share, guest.share) < HALF - SLACK:
        return "one asks for less than half a GPU: a third could join"
    if host.share + guest.share > 1.0 + SLACK:
        return "their shares do not fit on one GPU"
    if host.devices != guest.devices:
        return f"one has parts of {host.devices} GPUs, the other of {guest.devices}"
    return ""


def _why_unknown(host: GpuTenant, guest: GpuTenant) -> str:
    if guest.profile is None:
        return "the model of the job that would join is not known"
    if host.profile is None and host.own is None:
        return "the model of the job that is there is not known, and it has not measured itself yet"
    return ""


def _why_models(host: GpuTenant, guest: GpuTenant, bounds: PairLimits) -> str:
    models = (host.model or "", guest.model or "")
    if frozenset(models) in bounds.lost:
        return f"{models[0]} and {models[1]} were tried together and lost"
    if not bounds.rule.by_labels:
        return ""
    one, other = bounds.labels.get(models[0]), bounds.labels.get(models[1])
    if one is None and host.own is not None:
        one = TREES[bounds.mode].label(host.own)
    if one is None or other is None:
        return "one model has no label: it was never measured"
    if one + other > MOST_LABELS:
        return f"their labels {one} and {other} add up to more than {MOST_LABELS}"
    return ""


def _why_memory(host: GpuTenant, guest: GpuTenant, bounds: PairLimits) -> str:
    if bounds.gpu_mem_mb is None:
        return "the memory of the GPU is not known"
    if 0.0 in (_measured(host, guest, bounds), _measured(guest, host, bounds)):
        return f"{host.model} and {guest.model} do not fit on one such GPU, as was measured"
    together_mb = _memory_mb(host, guest, bounds)
    if together_mb is None:
        return "the GPU memory that one of them takes is not known"
    if together_mb > bounds.gpu_mem_mb:
        return f"they take {together_mb:.0f} MB of GPU memory, it has {bounds.gpu_mem_mb:.0f}"
    return ""


def _why_slow(host: GpuTenant, guest: GpuTenant, bounds: PairLimits) -> str:
    if not bounds.rule.by_labels:
        together = speed_of_pair(host, guest, bounds)
        if together is None:
            return "nothing says how fast they are together"
        if together < bounds.least_speed:
            return (
                f"together they reach {together:.2f} of the speed of one alone, less than "
                f"{bounds.least_speed:.2f}"
            )
    if bounds.max_host_slowdown is None:
        return ""
    kept = _measured(host, guest, bounds)
    if kept is None:
        return f"what {host.model} loses beside {guest.model} was not measured"
    if 1.0 - kept > bounds.max_host_slowdown + SLACK:
        return f"{host.model} would lose {1.0 - kept:.0%} of its speed"
    return ""


def _why_long(host: GpuTenant, guest: GpuTenant, rule: PairRule) -> str:
    if rule.most_ratio is None:
        return ""
    if not math.isfinite(guest.left_gpu_s):
        return "nobody knows how long the job that would join runs"
    if guest.left_gpu_s > rule.most_ratio * host.left_gpu_s:
        return (
            f"the job that would join has {guest.left_gpu_s:.0f} GPU-s to run, more than "
            f"{rule.most_ratio:g} times the {host.left_gpu_s:.0f} that the other has left"
        )
    return ""


def _memory_mb(host: GpuTenant, guest: GpuTenant, bounds: PairLimits) -> float | None:
    one, other = _loads(host, guest, bounds)
    return None if one is None or other is None else memory_of_pair_mb(one, other)


def _loads(
    host: GpuTenant, guest: GpuTenant, bounds: PairLimits
) -> tuple[Load | None, Load | None]:
    return host.load(bounds.gpu_type, hosts=True), guest.load(bounds.gpu_type, hosts=False)


def speed_of_pair(host: GpuTenant, guest: GpuTenant, bounds: PairLimits) -> float | None:
    """Sum of their relative speeds on such a device; None if nothing tells it.

    As they were measured; else by how busy each is alone, see `expected_sum`; else by the labels
    that the admin gave both models, if they add up to 2 at most.
    """
    speeds = _measured(host, guest, bounds), _measured(guest, host, bounds)
    if speeds[0] is not None and speeds[1] is not None:
        return speeds[0] + speeds[1]
    loads = _loads(host, guest, bounds)
    busy = [load.gpu_util for load in loads if load is not None and load.gpu_util is not None]
    if len(busy) == len(loads):
        return expected_sum(bounds.mode, *busy)
    labels = [t.profile.label for t in (host, guest) if t.profile is not None]
    known = [label for label in labels if label is not None]
    if len(known) < len(loads) or bounds.mode != "slices" or sum(known) > MOST_LABELS:
        return None
    return sum(_PROMISED[label] for label in known)


def _measured(one: GpuTenant, other: GpuTenant, bounds: PairLimits) -> float | None:
    if one.profile is None or other.model is None:
        return None
    return one.profile.speed_beside(other.model, bounds.mode, bounds.gpu_type)


def _larger(known: float | None, own: float | None, *, hosts: bool) -> float | None:
    if known is None or own is None:
        return own if known is None and hosts else known
    return max(known, own)


def rank_of(host: GpuTenant, guest: GpuTenant, bounds: PairLimits) -> tuple[float, float, int]:
    """Rank of two that may share, the least is best.

    The best sum of speeds first, or the host that started first where the rule says so; then the
    least memory left, then the lowest job id.
    """
    left_mb = (bounds.gpu_mem_mb or 0.0) - (_memory_mb(host, guest, bounds) or 0.0)
    if bounds.rule.first_host:
        return (host.start_s, left_mb, host.job_id)
    return (-(speed_of_pair(host, guest, bounds) or 0.0), left_mb, host.job_id)
