"""How fast a model trains on so many GPUs of a type, from the best that is known of it.

In this order:

1. The speed in that shape on that type, as the model's profile has it.
2. A curve through its speeds on that type with two or more numbers of GPUs. Amdahl's law: the time
   for a piece of work on g GPUs is a + b / g, where a is what no further GPU shortens.
3. A speed that was measured elsewhere, on as few GPUs more or less as possible, carried over by the
   site's relative speeds of types and by Amdahl's law with the site's serial share s,

       speedup(g) = 1 / (s + (1 - s) / g).

4. The same, of a model of which nothing is known: one GPU of a type that the site says nothing of
   has speed 1.

All speeds here are of work done, in samples a second: a step on twice the GPUs holds twice the
samples. A profile that tells no batch is taken to have one sample on a GPU.

Source: Amdahl, "Validity of the single processor approach to achieving large scale computing
capabilities", AFIPS 1967; relative speeds of GPU types as in Narayanan et al., "Heterogeneity-Aware
Cluster Scheduling Policies for Deep Learning Workloads" (Gavel), OSDI 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from slurm_dl.estimates.similar_jobs import as_submitted
from slurm_dl.model.jobs import F64, I8, Jobs, Origin
from slurm_dl.model.profile import Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Snapshot

_ORIGIN = {
    "measured": Origin.MEASURED,
    "computed": Origin.FITTED,
    "published": Origin.FITTED,
    "declared": Origin.PRIOR,
}
"""Of a figure in a profile. A paper's own runs are a curve to us: its nodes are not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePriors:
    """What the admin says of GPUs as such.

    Attributes:
        gpu_speed: Relative speed by GPU type, above 0; 1 for a type that is not named.
    """

    gpu_speed: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    serial_share: float = 0.05  # Share of the work on one GPU that no further GPU shortens, 0 to 1

    def __post_init__(self) -> None:
        for kind, speed in self.gpu_speed.items():
            if not (math.isfinite(speed) and speed > 0):
                msg = f"gpu_speed: {kind} must be a finite number above 0 (got {speed})"
                raise ValueError(msg)
        if not 0 <= self.serial_share <= 1:
            msg = f"serial_share must be 0 to 1 (got {self.serial_share})"
            raise ValueError(msg)

    def of_type(self, gpu_type: str) -> float:
        """Relative speed of a type."""
        return self.gpu_speed.get(gpu_type, 1.0)

    def speedup(self, gpus: float) -> float:
        """Speed on *gpus* GPUs relative to one; a part of a GPU is so much of one."""
        if gpus <= 1:
            return gpus
        return 1.0 / (self.serial_share + (1.0 - self.serial_share) / gpus)


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """A speed, and where it is from."""

    samples_per_s: float  # Work done, above 0; see the module
    origin: Origin  # Its source


@dataclass(frozen=True, slots=True)
class AmdahlFit:
    """Time for a piece of work on g GPUs: serial_s + parallel_s / g."""

    serial_s: float  # What no further GPU shortens, at least 0
    parallel_s: float  # What all share, at least 0; one of both is above 0

    def speed(self, gpus: float) -> float:
        """Pieces of work a second on *gpus* GPUs."""
        return 1.0 / (self.serial_s + self.parallel_s / gpus)

    @property
    def serial_share(self) -> float:
        """Of the time on one GPU."""
        return self.serial_s / (self.serial_s + self.parallel_s)


def fit_amdahl(gpus: Sequence[float], speeds: Sequence[float]) -> AmdahlFit | None:
    """The curve through *speeds* on *gpus* GPUs with the least sum of squared relative errors.

    Neither part of the time is negative. None with fewer than two different numbers of GPUs.
    """
    if len(set(gpus)) < 2:  # noqa: PLR2004 - a curve of two coefficients
        return None
    # Time x speed is 1 where the curve is exact; its deviation is the relative error.
    speed = np.array(speeds, dtype=np.float64)
    serial, parallel = speed, speed / np.array(gpus, dtype=np.float64)
    system = np.column_stack([serial, parallel])
    (a, b), *_ = np.linalg.lstsq(system, np.ones(len(speed)), rcond=None)
    if b < 0:
        a, b = serial.sum() / (serial @ serial), 0.0
    elif a < 0:
        a, b = 0.0, parallel.sum() / (parallel @ parallel)
    return AmdahlFit(float(a), float(b))


def speed_of(
    profile: Profile | None, shape: Shape, gpu_type: str, site: SitePriors, *, gpus: float = 0.0
) -> SpeedEstimate:
    """How fast a model works in *shape* on GPUs of *gpu_type*.

    Answers about one model can be compared with each other; those about a model of which the
    profile has no speed are relative to one GPU of a type that the site says nothing of.

    Args:
        profile: What is known of the model; None: nothing.
        shape: Nodes and GPUs on each.
        gpu_type: Type of the GPUs.
        site: What the admin says.
        gpus: GPUs, where they are no whole number; 0: those of *shape*.
    """
    gpus = gpus or shape.gpus
    speeds = () if profile is None else profile.speeds
    if profile is None or not speeds:
        return SpeedEstimate(site.of_type(gpu_type) * site.speedup(gpus), Origin.PRIOR)
    own = [s for s in speeds if s.gpu_type == gpu_type]
    known = profile.speed(shape, gpu_type)
    if known is not None and known.gpu_type == gpu_type and gpus == shape.gpus:
        return SpeedEstimate(_samples_per_s(known), _ORIGIN[known.origin])
    best = _best_by_gpus(own)
    fit = fit_amdahl(list(best), list(best.values()))
    if fit is not None:
        return SpeedEstimate(
            fit.speed(gpus) * (profile.rate(shape, gpu_type) or 1.0), Origin.FITTED
        )
    return _carried_over(speeds, shape, gpus, gpu_type, site)


def _carried_over(
    speeds: Sequence[Speed], shape: Shape, gpus: float, gpu_type: str, site: SitePriors
) -> SpeedEstimate:
    """The nearest speed: of the same type, then of the same shape, then with about as many GPUs."""

    def far(speed: Speed) -> tuple[bool, bool, bool, float, str, Shape]:
        return (
            speed.gpu_type != gpu_type,
            speed.gpu_type != "",
            speed.shape != shape,
            abs(math.log(speed.shape.gpus / gpus)),
            speed.gpu_type,
            speed.shape,
        )

    nearest = min(speeds, key=far)
    # A speed on any type is one on a type that the site says nothing of.
    ratio = site.of_type(gpu_type) / site.of_type(nearest.gpu_type)
    grown = site.speedup(gpus) / site.speedup(nearest.shape.gpus)
    is_exact = ratio == grown == 1 and nearest.shape == shape and nearest.gpu_type == ""
    origin = _ORIGIN[nearest.origin] if is_exact else Origin.PRIOR
    return SpeedEstimate(_samples_per_s(nearest) * ratio * grown, origin)


def _samples_per_s(speed: Speed) -> float:
    return speed.steps_per_s * speed.shape.gpus * (speed.batch or 1)


def _best_by_gpus(speeds: Sequence[Speed]) -> dict[float, float]:
    best: dict[float, float] = {}
    for speed in sorted(speeds, key=lambda s: s.shape):
        gpus = float(speed.shape.gpus)
        best[gpus] = max(best.get(gpus, 0.0), _samples_per_s(speed))
    return best


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """How fast each job would be on each GPU type.

    Attributes:
        rates: ``(n, t)`` relative to a type of which the site says nothing, or that is known best.
    """

    rates: F64
    origin: I8  # ``(n,)`` int8, an `Origin`, the least trustworthy of each job's


def rates_of_jobs(
    snap: Snapshot, profiles: Mapping[str, Profile], site: SitePriors
) -> Rates | None:
    """Speed of each job on each of the cluster's GPU types, as many as it asks for.

    One type of each job has the relative speed that the site gives it, the first that the job's
    profile knows best; the others are relative to that. None where nothing tells types apart.
    """
    kinds = snap.seen.gpu_types
    if not kinds:
        return None
    prior = np.array([site.of_type(kind) for kind in kinds])
    rates = np.tile(prior, (len(snap.jobs), 1))
    origin = np.full(len(snap.jobs), Origin.PRIOR, dtype=np.int8)
    jobs = as_submitted(snap)
    row_of = jobs.rows if snap.seen.claims else {}
    known: dict[tuple[str, Shape, float], tuple[F64, Origin]] = {}
    tells = bool((prior != prior[0]).any())
    for job_id, claim in snap.seen.claims.items():
        row = row_of.get(job_id)
        profile = None if claim.model is None else profiles.get(claim.model)
        if row is None or profile is None or not profile.speeds:
            continue
        shape, gpus = shape_of(jobs, row), float(jobs.gpus[row])
        key = profile.name, shape, gpus
        if key not in known:
            known[key] = _row(profile, shape, gpus, kinds, site)
        rates[row], origin[row] = known[key]
        tells = True
    return Rates(rates, origin) if tells else None


def shape_of(jobs: Jobs, row: int) -> Shape:
    """The nodes a job holds or asks for, with as many GPUs on each, at least one."""
    nodes = max(1, int(jobs.n_nodes[row]))
    return Shape(nodes, max(1, math.ceil(float(jobs.gpus[row]) / nodes)))


def _row(
    profile: Profile, shape: Shape, gpus: float, kinds: Sequence[str], site: SitePriors
) -> tuple[F64, Origin]:
    found = [speed_of(profile, shape, kind, site, gpus=gpus) for kind in kinds]
    best = min(range(len(kinds)), key=lambda i: found[i].origin)
    anchor = site.of_type(kinds[best]) / found[best].samples_per_s
    row = np.array([estimate.samples_per_s * anchor for estimate in found])
    return row, max(estimate.origin for estimate in found)
