"""A JSON schema of the configuration file, for editors."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, TypeAdapter

from slurm_dl.config.parameters import Parameter, parameters_of
from slurm_dl.config.placement_section import PlacementSection
from slurm_dl.config.tree import SECTIONS, Config, PolicySection
from slurm_dl.placement.scheme_registry import RULES, SCHEMES
from slurm_dl.policies.registry import POLICIES, runs_on_slurm


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
    """What the parameters may be where *key* is *name*."""
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
