"""Slurm's releases: one table of what each can do, how far it was tried, and its known faults.

Only what something here asks about is in it. How the releases spell things is not: the parsers
take the spellings of all of them, whatever a controller calls itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_dl.model.errors import ClusterError


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """One Slurm release, such as 22.05.8."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor:02}.{self.patch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One word of a list in slurm.conf: ``PreemptParameters=send_user_signal``."""

    key: str
    word: str

    def __str__(self) -> str:
        return f"{self.key}={self.word}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Properties of the releases of one series.

    Attributes:
        tried: The release of it that slurm_dl was run on, whole clusters of it; None: what stands
            here is taken from Slurm's documentation and change logs.
        requeue_delay: ``SchedulerParameters=requeue_delay`` says how long a requeued job waits,
            whatever the credentials' lifetime.
    """

    major: int  # Year of the series
    minor: int  # Its month
    tried: Release | None = None
    warn_signal: Setting  # What makes Slurm send a preempted job the signal of its own ``--signal``
    limits_calls: bool  # It can limit the calls of each user (``SlurmctldParameters=rl_enable``)
    requeue_delay: bool = False
    pyslurm: str = ""  # Release of pyslurm on PyPI that works with it; empty: there is none

    def __str__(self) -> str:
        return f"{self.major}.{self.minor:02}"

    @property
    def number(self) -> tuple[int, int]:
        """The key by which series are compared."""
        return self.major, self.minor


_SIGNAL_OF_OLD = Setting(key="SlurmctldParameters", word="preempt_send_user_signal")
_SIGNAL = Setting(key="PreemptParameters", word="send_user_signal")

# Sources: slurm.conf(5) of 22.05.8, 24.11.5 and 26.05.5, and SchedMD's change logs for what is
# between them: PreemptParameters and rl_enable came with 23.02, requeue_delay with 25.11 (measured
# on 26.05.5: it wins over cred_expire, and like it counts from the requeue plus a second). pyslurm
# 25.11.2 was built against 25.11's headers by its authors, against 26.05.5 by docker/image/pyslurm.
SERIES = (
    Series(
        major=22,
        minor=5,
        tried=Release(22, 5, 8),
        warn_signal=_SIGNAL_OF_OLD,
        limits_calls=False,
    ),
    Series(major=23, minor=2, warn_signal=_SIGNAL, limits_calls=True),
    Series(major=23, minor=11, warn_signal=_SIGNAL, limits_calls=True),
    Series(major=24, minor=5, warn_signal=_SIGNAL, limits_calls=True),
    Series(major=24, minor=11, tried=Release(24, 11, 5), warn_signal=_SIGNAL, limits_calls=True),
    Series(major=25, minor=5, warn_signal=_SIGNAL, limits_calls=True),
    Series(
        major=25,
        minor=11,
        warn_signal=_SIGNAL,
        limits_calls=True,
        requeue_delay=True,
        pyslurm="25.11.2",
    ),
    Series(
        major=26,
        minor=5,
        tried=Release(26, 5, 5),
        warn_signal=_SIGNAL,
        limits_calls=True,
        requeue_delay=True,
        pyslurm="25.11.2",
    ),
)
"""The supported series, oldest first."""

OLDEST = SERIES[0].number
NEWEST = SERIES[-1].number


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFault:
    """A fault of some releases that matters here."""

    first: Release  # First release that has it
    last: Release  # Last one
    text: str  # What goes wrong and what helps
    forbids_preemption: bool = False  # Nothing may be preempted because of it


# Sources: Slurm's change logs of 22.05.9 (bug 15857) and 23.02.2 (commit 5c3a7f6aaf).
FAULTS = (
    ReleaseFault(
        first=Release(22, 5, 5),
        last=Release(22, 5, 8),
        text=(
            "some jobs with --ntasks-per-node and a range of nodes are refused (fixed in 22.05.9); "
            "dlsubmit always names one number of nodes"
        ),
    ),
    ReleaseFault(
        first=Release(23, 2, 0),
        last=Release(23, 2, 1),
        text="a requeued job loses its GPUs; upgrade to 23.02.2 before preempting",
        forbids_preemption=True,
    ),
)


def parse_release(text: str) -> Release:
    """The release named in *text*, as ``scontrol show config`` or ``squeue -V`` print it.

    Raises:
        ClusterError: There is none in it.
    """
    found = re.search(r"\b([0-9]{2})\.([0-9]{2})(?:\.([0-9]{1,4}))?", text)
    if found is None:
        msg = f"no Slurm version in {text[:80]!r}"
        raise ClusterError(msg)
    major, minor, patch = found.groups(default="0")
    return Release(int(major), int(minor), int(patch))


def series_of(release: Release) -> Series:
    """The series of *release*; one outside the range or between two series counts as the one below.

    Older than all: as the oldest.
    """
    number = (release.major, release.minor)
    return max((s for s in SERIES if s.number <= number), key=lambda s: s.number, default=SERIES[0])


def unsupported(release: Release) -> str:
    """The reason why *release* is not supported; empty if it is."""
    if OLDEST <= (release.major, release.minor) <= NEWEST:
        return ""
    return f"Slurm {release} is outside the supported range {SERIES[0]} to {SERIES[-1]}"


def faults(release: Release) -> tuple[ReleaseFault, ...]:
    """The known faults of *release*."""
    return tuple(fault for fault in FAULTS if fault.first <= release <= fault.last)


def no_preemption(release: Release) -> str:
    """The reason why jobs must not be preempted under *release*; empty if they may."""
    reasons = [fault.text for fault in faults(release) if fault.forbids_preemption]
    return f"Slurm {release}: {'; '.join(reasons)}" if reasons else ""
