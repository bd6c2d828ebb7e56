"""Replicas of a service of the site: how many it wants now, and its jobs."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_dl.model.ids import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """One service, an entry of ``replicas.services`` in the configuration."""

    name: str  # Its name, and that of its arrays
    wanted: int  # Replicas that are to run, 1 or more
    rate_per_s: float | None  # Rate they are for; None: none was read since the daemon started
    jobs: tuple[JobId, ...]  # Its array records and tasks, over ones too
