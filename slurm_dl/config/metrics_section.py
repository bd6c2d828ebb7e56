"""The section ``metrics``: where Prometheus finds the daemon's figures."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from slurm_dl.config.section import Section
from slurm_dl.config.value_types import refuse
from slurm_dl.text import shown

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
