"""How often dlschedd looks, whether it acts, and what it logs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from slurm_dl.config.error_text import number
from slurm_dl.config.section import Section
from slurm_dl.config.value_types import Seconds, refuse


class DaemonSection(Section):
    """How often dlschedd looks, whether it acts, and what it logs."""

    poll_s: Seconds = Field(
        default=30, gt=0, le=3600, description="Time between two looks at the queue."
    )
    fast_poll_s: Seconds = Field(
        default=5,
        gt=0,
        le=3600,
        description=(
            "Time between two looks while a hand-over is under way, and the least time until a "
            "look that comes early because a job changes its tier. A cycle also begins no write "
            "of the order later than this after its first action: what is left over is done in "
            "the next. At most daemon.poll_s."
        ),
    )
    slow_poll_s: Seconds = Field(
        default=120,
        gt=0,
        le=3600,
        description=(
            "While slurmctld is slow the time between two looks is doubled again and again, up to "
            "this; see docs/operate/operate.md. Without effect where poll_s is longer."
        ),
    )
    nodes_every_s: Seconds = Field(
        default=150,
        gt=0,
        le=86400,
        description="Time between two looks at the nodes; they change more rarely than jobs.",
    )
    shadow: bool = Field(
        default=True,
        description=(
            "Look, plan and report, but change nothing. Set it to false once the plans are to "
            "your liking."
        ),
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severity that is logged."
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="Lines for people, or one JSON object a line."
    )

    @field_validator("fast_poll_s")
    @classmethod
    def _check_fast_poll(cls, fast_poll_s: float, info: ValidationInfo) -> float:
        poll_s = info.data.get("poll_s")
        if poll_s is not None and fast_poll_s > poll_s:
            refuse(
                f"must be at most daemon.poll_s (got {number(fast_poll_s)}, daemon.poll_s is "
                f"{number(poll_s)})",
                others=(("daemon", "poll_s"),),
            )
        return fast_poll_s


# The section ``takeover``: two daemons on two hosts, one of which acts.
class TakeoverSection(Section):
    """A second daemon on another host that acts when the first does not; same on both hosts."""

    enabled: bool = Field(
        default=False,
        description=(
            "Several daemons share paths.state_dir: one acts, the others stand by. false: a second "
            "daemon ends at once."
        ),
    )
    lease_s: Seconds = Field(
        default=20,
        ge=2,
        le=3600,
        description=(
            "A daemon that has not been heard of for this long is taken over. It stops acting by "
            "itself after three quarters of that. At most daemon.poll_s for a second one that acts "
            "within two polls."
        ),
    )
    follow_slurmctld: bool = Field(
        default=False,
        description=(
            "Only the daemon on the host of the acting slurmctld acts. For a cluster with a "
            "backup controller (several SlurmctldHost) that has a daemon on each of their hosts."
        ),
    )
