"""How often dlschedd looks, whether it acts, what it logs, and its metrics."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema, field_validator

from slurm_dl.config.value_types import Seconds, Section, refuse
from slurm_dl.text import number, shown


class DaemonSection(Section):
    """Polling, shadow mode and logging of dlschedd."""

    poll_s: Seconds = Field(
        default=30, gt=0, le=3600, description="Time between two polls of the queue."
    )
    fast_poll_s: Seconds = Field(
        default=5,
        gt=0,
        le=3600,
        description=(
            "Time between two polls during a hand-over, and the least time before an early poll "
            "for a job that changes its tier. A cycle also begins no write of the order later "
            "than this after its first action; the remaining writes are done in the next cycle. "
            "At most daemon.poll_s."
        ),
    )
    slow_poll_s: Seconds = Field(
        default=120,
        gt=0,
        le=3600,
        description=(
            "Longest time between two polls while slurmctld is slow: the time is doubled "
            "repeatedly, up to this. See docs/operate/operate.md. Without effect where poll_s is "
            "longer."
        ),
    )
    nodes_every_s: Seconds = Field(
        default=150,
        gt=0,
        le=86400,
        description="Time between two polls of the nodes, which change more rarely than jobs.",
    )
    shadow: bool = Field(
        default=True,
        description=(
            "Poll, plan and report, but change nothing. Set it to false once the plans are right "
            "for the site."
        ),
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severity that is logged."
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="Lines for people, or one JSON object per line."
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
    """A standby daemon on another host takes over when the acting one fails. Same on both hosts."""

    enabled: bool = Field(
        default=False,
        description=(
            "Several daemons share paths.state_dir: one acts, the others stand by. false: a "
            "second daemon ends at once."
        ),
    )
    lease_s: Seconds = Field(
        default=20,
        ge=2,
        le=3600,
        description=(
            "A standby takes over from an acting daemon that has not renewed its lease for this "
            "long. The acting daemon stops acting by itself after three quarters of that. At most "
            "daemon.poll_s if the standby is to act within two polls."
        ),
    )
    follow_slurmctld: bool = Field(
        default=False,
        description=(
            "Only the daemon on the host of the acting slurmctld acts. For a cluster with a "
            "backup controller (several SlurmctldHost) that has a daemon on each of their hosts."
        ),
    )


# The section ``metrics``.
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9.]{7,15})):([1-9][0-9]{0,4})")
_HIGHEST_PORT = 65535


def split_address(text: str) -> tuple[str, int]:
    """``127.0.0.1:9477`` or ``[::1]:9477`` as IP address and port.

    Raises:
        ValueError: It is none.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > _HIGHEST_PORT:
        msg = f"no address and port: {text!r}"
        raise ValueError(msg)
    if found[1]:
        return str(ipaddress.IPv6Address(found[1])), int(found[3])
    return str(ipaddress.IPv4Address(found[2])), int(found[3])


def _address_or_empty(text: str) -> str:
    try:
        if text:
            split_address(text)
    except ValueError:
        refuse(
            "must be an IP address and a port, as 127.0.0.1:9477 or [::1]:9477, or empty "
            f"(got {shown(text)})"
        )
    return text


Listen = Annotated[
    str,
    AfterValidator(_address_or_empty),
    WithJsonSchema({"type": "string", "pattern": "^(\\S+:[0-9]+)?$"}),
]


class MetricsSection(Section):
    """Metrics of the daemon for Prometheus; see docs/operate/metrics.md."""

    listen: Listen = Field(
        default="",
        description=(
            "IP address and port of the endpoint, for instance 127.0.0.1:9477. Empty: no "
            "endpoint. Every client that reaches it may read it: it has totals, and names no user "
            "and no job. It needs slurm-dl[metrics]."
        ),
    )
