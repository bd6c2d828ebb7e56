"""The part of the daemon's configuration that users' commands are told: client.yaml."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from slurm_dl.client_config import SOCKET_NAME, ClientConfig
from slurm_dl.config.daemon_section import split_address
from slurm_dl.config.tree import Config
from slurm_dl.placement.consolidate import Consolidate
from slurm_dl.text import user_name


def client_config_of(config: Config, servers: Sequence[str] = ()) -> ClientConfig:
    """The client.yaml that goes with *config*.

    Args:
        servers: ``HOST:PORT`` of each daemon; empty: that of this host, if it listens.
    """
    if not servers and config.control.listen:
        address, port = split_address(config.control.listen)
        anywhere = address in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
        host = socket.getfqdn() if anywhere else f"[{address}]" if ":" in address else address
        servers = (f"{host}:{port}",)
    parameters = config.placement.parameters

    def number(name: str, default: float) -> float:
        value = parameters.get(name, default)
        return float(value) if isinstance(value, int | float) else default

    settle_s = config.placement.settle_s
    steers = config.placement.steer or config.holds
    resizes = config.resizing.expand or "sizes" in config.policy.make().about.needs
    return ClientConfig(
        server=tuple(servers),
        socket=str(config.paths.run_dir / SOCKET_NAME),
        munge_socket=config.control.munge_socket,
        daemon_user=_owner(config.paths.state_dir),
        qos=config.preemption.qos,
        native=config.preemption.mode == "native",
        max_grace_s=config.preemption.max_grace_s,
        partitions=config.manage.partitions,
        locality_wait_s=number("locality_wait_s", 0.0),
        skew_threshold=number("skew_threshold", Consolidate().skew_threshold),
        settle_s=settle_s if steers else 0.0,
        sizes_settle_s=settle_s if steers or resizes else 0.0,
        profile_dir=str(config.paths.profile_dir),
    )


def _owner(state_dir: Path) -> str:
    """The daemon's account: its state directory is its own; an admin types the command."""
    try:
        uid = state_dir.stat().st_uid
    except OSError:
        uid = 0
    return user_name(uid) if uid else ClientConfig().daemon_user
