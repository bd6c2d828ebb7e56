"""The section ``takeover``: two daemons on two hosts, one of which acts."""

from __future__ import annotations

from pydantic import Field

from slurm_dl.config.section import Section
from slurm_dl.config.values import Seconds


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
