"""What the daemon's loop is made of: protocols, so that tests pass in parts of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slurm_dl.config import Config, ConfigValue
from slurm_dl.engine.cycle import Cluster
from slurm_dl.engine.settings import Settings
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.slurm.controller_status import ControllerStatus
from slurm_dl.slurm.read.queue_reader import ReaderChoice
from slurm_dl.slurm.running_config import SiteConfig


class WatchedCluster(Cluster, Protocol):
    """A cluster whose slow and optional reads the loop schedules.

    Attributes:
        watch_reservations: Read the reservations with each `observe`.
        now: What time it is where the cluster's times come from, epoch seconds.
    """

    watch_reservations: bool
    now: Callable[[], float]

    @property
    def asked_s(self) -> float:
        """How long Slurm took to answer in the last `observe`, seconds."""

    def health(self) -> ControllerStatus:
        """How slurmctld is, and what time it is there; one RPC.

        Raises:
            ClusterError: It does not say.
        """

    @property
    def reader(self) -> ReaderChoice | None:
        """What reads the queue, and why; None before that is decided."""

    @property
    def config(self) -> SiteConfig | None:
        """What of slurm.conf was read last; None before the first time."""

    def why_not(self) -> str:
        """Why nothing should be done to it, as it is set up; see `Precondition`."""

    def close(self) -> None:
        """End what runs for it."""

    def refresh_nodes(self) -> None:
        """Read nodes and partitions again.

        Raises:
            ClusterError: They could not be read; the old ones stay.
        """


class Components(Protocol):
    """What a configuration is assembled into."""

    @property
    def cluster(self) -> WatchedCluster:
        """The cluster to schedule."""

    @property
    def ledger(self) -> Ledger:
        """What is remembered."""

    @property
    def policy(self) -> Policy:
        """Who deserves GPUs first."""

    @property
    def settings(self) -> Settings:
        """The site's limits."""

    @property
    def enrich(self) -> Callable[[Snapshot], Snapshot]:
        """Adds to a snapshot what is known of its jobs beforehand."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration as it was read, with where each value comes from."""

    config: Config
    rows: tuple[ConfigValue, ...]

    @property
    def fixed(self) -> dict[str, str]:
        """The values that cannot change while the daemon runs."""
        return {
            row.key: row.text
            for row in self.rows
            if row.key.startswith(("paths.", "cluster.", "takeover."))
            or row.key == "control.socket_mode"
        }
