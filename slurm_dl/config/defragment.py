"""The section ``defragment``: when running jobs are moved together."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slurm_dl.config.section import Section
from slurm_dl.config.values import Seconds, Unit, Whole


class DefragmentSection(Section):
    """When running jobs that agreed to preemption are moved together, so that larger ones fit."""

    enabled: bool = Field(
        default=False,
        description=(
            "Move jobs so that a waiting job fits for which there are GPUs enough, but in pieces. "
            "All limits of preemption hold; with daemon.shadow it only says so. Not with "
            "preemption.mode native."
        ),
    )
    after_s: Seconds = Field(
        default=300,
        ge=0,
        le=30 * 86400,
        description="Only for a job that has waited this long.",
    )
    max_moves: Annotated[Whole, Unit("jobs")] = Field(
        default=8, ge=1, le=1000, description="Most jobs that are moved at a time."
    )
    free_nodes: Annotated[Whole, Unit("nodes")] = Field(
        default=0,
        ge=0,
        le=100_000,
        description=(
            "Nodes that are to be free as a whole: while fewer are, jobs are moved together, one "
            "node at a time, if no job waits for room. 0: nobody is moved for that."
        ),
    )
