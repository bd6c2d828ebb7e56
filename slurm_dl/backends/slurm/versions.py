"""Slurm's releases: which are supported, and under which nothing may be preempted.

How they spell things is not asked here: the parsers take the spellings of all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_dl.model.errors import ClusterError

OLDEST = (22, 5)
NEWEST = (26, 5)


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """One Slurm release, such as 22.05.8."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor:02}.{self.patch}"


_NO_PREEMPTION = {
    Release(23, 2, 0): "a requeued job loses its GPUs; upgrade to 23.02.2 before preempting",
    Release(23, 2, 1): "a requeued job loses its GPUs; upgrade to 23.02.2 before preempting",
}


def parse_release(text: str) -> Release:
    """The release named in *text*, as ``scontrol show config`` or ``squeue -V`` print it.

    Raises:
        ClusterError: There is none in it.
    """
    found = re.search(r"\b(\d{2})\.(\d{2})(?:\.(\d+))?", text)
    if found is None:
        msg = f"no Slurm version in {text[:80]!r}"
        raise ClusterError(msg)
    major, minor, patch = found.groups(default="0")
    return Release(int(major), int(minor), int(patch))


def unsupported(release: Release) -> str:
    """Why *release* is outside the tested range; empty if it is inside."""
    if OLDEST <= (release.major, release.minor) <= NEWEST:
        return ""
    return (
        f"Slurm {release} is outside the supported range "
        f"{OLDEST[0]}.{OLDEST[1]:02} to {NEWEST[0]}.{NEWEST[1]:02}"
    )


def no_preemption(release: Release) -> str:
    """Why jobs must not be preempted under *release*; empty if they may."""
    reason = _NO_PREEMPTION.get(release, "")
    return f"Slurm {release}: {reason}" if reason else ""
