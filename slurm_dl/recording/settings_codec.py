"""The engine's limits as plain JSON, with what their types do not tell: schemes, rules, profiles.

A scheme or a rule is kept as its name and parameters, as the policy is. A profile stands there
once, under its own name; its other names point to that one.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping

from slurm_dl.engine.settings import Placement, Settings
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import Profile
from slurm_dl.placement import scheme_registry
from slurm_dl.recording.codec import (
    Codec,
    FormError,
    Json,
    JsonObject,
    codec_of,
    dataclass_codec,
    tuple_codec,
)
from slurm_dl.recording.codec.protocol import at, refuse, wrong


def _chosen(find: Callable[[str], type[object]]) -> Codec:
    """What is found by its name: the name and its parameters."""

    def write(value: object) -> Json:
        kind: object = type(value)
        name: Json = getattr(value, "name", None)
        parameters = codec_of(kind).write(value)
        if not isinstance(name, str):
            what = "something with a name"
            raise wrong(what, value)
        return {"name": name, "parameters": parameters}

    def read(content: Json) -> object:
        if not isinstance(content, dict) or content.keys() != {"name", "parameters"}:
            refuse("a name with parameters", content)
        name = content["name"]
        if not isinstance(name, str):
            refuse("text", name, "name")
        try:
            kind: object = find(name)
            codec = codec_of(kind)
        except (ConfigError, TypeError) as err:
            raise FormError(str(err), "name") from None
        with at("parameters"):
            return codec.read(content["parameters"])

    return Codec(write, read)


def _or_none(inner: Codec) -> Codec:
    return Codec(
        lambda value: None if value is None else inner.write(value),
        lambda content: None if content is None else inner.read(content),
    )


def _write_profiles(value: object) -> Json:
    if not isinstance(value, Mapping):
        what = "a mapping"
        raise wrong(what, value)
    codec, plain = codec_of(Profile), dict[str, Json]()
    for name, profile in value.items():
        is_other = name != profile.name and value.get(profile.name) == profile
        plain[name] = profile.name if is_other else codec.write(profile)
    return plain


def _read_profiles(content: Json) -> object:
    if not isinstance(content, dict):
        refuse("a mapping", content)
    codec = codec_of(Profile)
    found = {
        name: _profile(name, content, codec) for name in content if name not in _others(content)
    }
    for name, own in _others(content).items():
        if own not in found:
            refuse("the name of a profile", own, name)
        found[name] = found[own]
    # In the order in which they stood.
    return {name: found[name] for name in content}


def _others(content: JsonObject) -> dict[str, str]:
    """Further names, each with the profile's own."""
    return {name: item for name, item in content.items() if isinstance(item, str)}


def _profile(name: str, content: JsonObject, codec: Codec) -> object:
    with at(name):
        return codec.read(content[name])


SETTINGS: typing.Final = dataclass_codec(
    Settings,
    {
        "placement": dataclass_codec(
            Placement,
            {
                "scheme": _or_none(_chosen(scheme_registry.find_scheme)),
                "rules": tuple_codec(_chosen(scheme_registry.find_rule)),
                "profiles": Codec(_write_profiles, _read_profiles),
            },
        )
    },
)
"""How `Settings` are written and read; what an older slurm_dl did not write has its default."""
