"""A workload's statistics: sizes, durations by size, arrivals over the day, and how well they fit.

``python -m tools.fit_traces`` fits from the command line; so the fits under ``traces/fits``
were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.traces.lognormal_mixture import Lognormals, fit_lognormals, ks_distance

Places = npt.NDArray[np.intp]

CLASSES: Final = (1.0, 4.0, 8.0, np.inf)
"""Upper ends, in GPUs, of the classes with durations of their own: 1, to 4, to 8, more."""

MIN_JOBS: Final = 50
"""A class with fewer is joined with its neighbour: five components have 14 parameters."""

QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)

HOURS: Final = 24
_S_PER_HOUR: Final = 3600
_MAX_USERS: Final = 200
_MAX_FIT_BYTES: Final = 1 << 20


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Size(_Part):
    """How many jobs ask for this many GPUs."""

    gpus: float = Field(gt=0, le=1e6)
    share: float = Field(gt=0, le=1)


class Quantile(_Part):
    """A quantile of the durations, in the data and in the fit."""

    share: float
    data_s: float
    fit_s: float


class SizeClass(_Part):
    """The durations of jobs of a range of sizes."""

    low_gpus: float  # Smallest size of the data in the class
    high_gpus: float  # Largest
    jobs: int  # Jobs it was fitted to
    durations: Lognormals
    ks: float  # Kolmogorov-Smirnov distance of fit and data, 0 is perfect, 1 the worst
    quantiles: tuple[Quantile, ...]


class Fit(_Part):
    """What a workload is like, enough to make another one like it.

    Attributes:
        hourly: Submissions in each hour of the trace's day over their mean; 24 of them.
        interarrival_cv: Standard deviation of the gaps between submissions over their mean; 1 for
            Poisson arrivals, more for burstier ones.
        users: Shares of jobs of the most active users, 200 at most, in descending order, of the
            jobs of these. Empty if the trace knows no users.
    """

    origin: str  # The traces it was made from
    jobs: int = Field(gt=0)  # Jobs in them
    span_s: float  # Seconds between first and last submission; of several traces the sum
    sizes: tuple[Size, ...] = Field(min_length=1)  # Shares of the numbers of GPUs
    classes: tuple[SizeClass, ...] = Field(min_length=1)  # Durations, by ascending size
    hourly: tuple[float, ...] = Field(min_length=HOURS, max_length=HOURS)
    interarrival_cv: float
    users: tuple[float, ...]
    mean_gpu_s_data: float  # GPU-seconds of a job, in the data on average
    mean_gpu_s_fit: float  # The same expected of the fit

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if min(self.hourly) < 0 or not sum(self.hourly) > 0:
            msg = "hourly rates are negative or all 0"
            raise ValueError(msg)
        if min(self.users, default=0) < 0 or (self.users and not sum(self.users) > 0):
            msg = "shares of users are negative or all 0"
            raise ValueError(msg)
        return self

    def class_of(self, gpus: F64) -> Places:
        """The place in `classes` of each of *gpus*, ``(n,)``."""
        ends = np.array([c.high_gpus for c in self.classes[:-1]])
        return np.searchsorted(ends, gpus, side="left")


def fit(*traces: Trace) -> Fit:
    """The statistics of *traces* together; arrivals are those of each for itself."""
    gpus = np.concatenate([t.gpus for t in traces])
    duration_s = np.concatenate([t.duration_s for t in traces])
    hour = np.concatenate([t.submit_s for t in traces]) // _S_PER_HOUR % HOURS
    by_hour = np.bincount(hour.astype(np.intp), minlength=HOURS)
    sizes, counts = np.unique(gpus, return_counts=True)
    classes = tuple(_classes(gpus, duration_s))
    found = Fit(
        origin=", ".join(t.name for t in traces),
        jobs=len(gpus),
        span_s=sum(float(t.submit_s[-1] - t.submit_s[0]) for t in traces),
        sizes=tuple(
            Size(gpus=g, share=n / len(gpus))
            for g, n in zip(sizes.tolist(), counts.tolist(), strict=True)
        ),
        classes=classes,
        hourly=tuple((by_hour / by_hour.mean()).tolist()),
        interarrival_cv=_interarrival_cv(traces),
        users=_user_shares(traces),
        mean_gpu_s_data=float(gpus @ duration_s) / len(gpus),
        mean_gpu_s_fit=0.0,
    )
    mean_s = np.array([c.durations.mean_s() for c in classes])
    expected = np.array([s.share for s in found.sizes]) * sizes * mean_s[found.class_of(sizes)]
    return found.model_copy(update={"mean_gpu_s_fit": float(expected.sum())})


def _classes(gpus: F64, duration_s: F64) -> list[SizeClass]:
    """A fit for each class that has enough jobs, small sizes first."""
    groups: list[Places] = []
    low = 0.0
    for high in CLASSES:
        rows = np.flatnonzero((gpus > low) & (gpus <= high))
        low = high
        if groups and min(len(rows), len(groups[-1])) < MIN_JOBS:
            groups[-1] = np.concatenate([groups[-1], rows])
        else:
            groups.append(rows)
    return [_size_class(gpus[rows], duration_s[rows]) for rows in groups if len(rows)]


def _size_class(gpus: F64, duration_s: F64) -> SizeClass:
    durations = fit_lognormals(duration_s)
    shares = np.array(QUANTILES)
    return SizeClass(
        low_gpus=float(gpus.min()),
        high_gpus=float(gpus.max()),
        jobs=len(gpus),
        durations=durations,
        ks=ks_distance(duration_s, durations),
        quantiles=tuple(
            Quantile(share=share, data_s=data_s, fit_s=fit_s)
            for share, data_s, fit_s in zip(
                QUANTILES,
                np.quantile(duration_s, shares).tolist(),
                durations.quantile(shares).tolist(),
                strict=True,
            )
        ),
    )


def _interarrival_cv(traces: Sequence[Trace]) -> float:
    gaps = np.concatenate([np.diff(t.submit_s) for t in traces])
    mean = gaps.mean() if len(gaps) else 0.0
    return float(gaps.std() / mean) if mean else 0.0


def _user_shares(traces: Sequence[Trace]) -> tuple[float, ...]:
    """Shares of jobs by user, most active first; users of different traces are different."""
    counts = np.concatenate([np.bincount(t.user, minlength=len(t.users)) for t in traces])
    if not any(any(t.users) for t in traces):
        return ()
    ordered = np.sort(counts[counts > 0])[::-1][:_MAX_USERS]
    return tuple((ordered / ordered.sum()).tolist())


def read_fit(path: Path) -> Fit:
    """A fit from its file.

    Raises:
        ConfigError: It cannot be read, or is no fit.
    """
    try:
        with path.open("rb") as stream:
            return Fit.model_validate_json(stream.read(_MAX_FIT_BYTES))
    except OSError as err:
        msg = f"{path}: cannot be read: {err.strerror}"
        raise ConfigError(msg) from err
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        msg = f"{path}: no fit of a workload: {where}: {first['msg']}"
        raise ConfigError(msg) from err


def write_fit(found: Fit, path: Path) -> None:
    """Write *found* to *path*, in place of what is there.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        path.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as err:
        msg = f"{path}: cannot be written: {err.strerror}"
        raise ConfigError(msg) from err
