"""Files that are made of the configuration: client.yaml for users' commands, and a JSON schema."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from slurm_dl.client_config import SOCKET_NAME, ClientConfig
from slurm_dl.config.daemon_section import split_address
from slurm_dl.config.parameters import Parameter, parameters_of
from slurm_dl.config.placement_section import PlacementSection
from slurm_dl.config.tree import SECTIONS, Config, PolicySection
from slurm_dl.placement.consolidate import Consolidate
from slurm_dl.placement.scheme_registry import RULES, SCHEMES
from slurm_dl.policies.registry import POLICIES, runs_on_slurm
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


def policies_for_slurm() -> list[str]:
    """Names of the policies that a cluster can run."""
    return [name for name, policy in POLICIES.items() if runs_on_slurm(policy)]


def schema() -> dict[str, Any]:
    """A JSON schema of the file, with the parameters of all that comes with us."""
    whole = Config.model_json_schema()
    for name in SECTIONS.keys() - whole["required"]:
        # A section with all its keys commented out is empty, which YAML calls null.
        whole["properties"][name] = {"anyOf": [whole["properties"][name], {"type": "null"}]}
    policy = whole["$defs"][PolicySection.__name__]
    policy["properties"]["order"]["enum"] = policies_for_slurm()
    default = PolicySection.model_fields["order"].default
    policy["allOf"] = [_case("order", name, kind, default) for name, kind in POLICIES.items()]
    placement = whole["$defs"][PlacementSection.__name__]
    placement["properties"]["scheme"]["enum"] = ["", *SCHEMES]
    placement["allOf"] = [_case("scheme", name, kind) for name, kind in SCHEMES.items()]
    # A rule with nothing behind its name has no parameters of its own, which YAML calls null.
    rules = {
        name: {"anyOf": [_parameters_schema(parameters_of(rule)), {"type": "null"}]}
        for name, rule in RULES.items()
    }
    placement["properties"]["rules"] |= {"properties": rules, "additionalProperties": False}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}


def _case(key: str, name: str, kind: type[object], default: object = None) -> dict[str, Any]:
    return {
        "if": {
            "properties": {key: {"const": name}},
            "required": [] if name == default else [key],
        },
        "then": {"properties": {"parameters": _parameters_schema(parameters_of(kind))}},
    }


def _parameters_schema(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    strict = ConfigDict(strict=True)
    properties = {
        p.name: {
            **TypeAdapter(p.hint, config=strict).json_schema(),
            "description": p.meaning,
        }
        for p in parameters
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}
