"""Policies and loads of an experiment, from the words of its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from slurm_dl.config.parameters import POLICY, parameters_of
from slurm_dl.experiments.option_words import numbers
from slurm_dl.experiments.placement_choice import Named
from slurm_dl.experiments.simulation_run import SLURM_ALONE, PolicySpec
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies import policy_file, registry
from slurm_dl.simulation.ideal import presets
from slurm_dl.text import shown

ALL: Final = "all"  # The word for every registered policy


def with_places(
    policies: Sequence[PolicySpec], schemes: Sequence[Named | None]
) -> tuple[PolicySpec, ...]:
    """Each of *policies* with each of *schemes*; as they are if there is no scheme."""
    if not schemes:
        return tuple(policies)
    return tuple(dataclasses.replace(one, place=scheme) for one in policies for scheme in schemes)


def parse_policies(text: str, given: Mapping[str, object]) -> tuple[PolicySpec, ...]:
    """Policies from ``NAME,NAME:PRESET,...``; ``all`` is every one not named beside it.

    A name may be ``FILE.py:CLASS``, or `SLURM_ALONE`, which is not among ``all``: it is no policy,
    and runs under the costs of a Slurm alone.

    Args:
        given: Parameters, each for all of these policies that have one of this name.

    Raises:
        ConfigError: A name is unknown, or none of the policies has one of the parameters.
    """
    words = [word.strip() for word in text.split(",")]
    named = {policy_file.split(word)[0] for word in words}
    others = [name for name in registry.names() if name not in named]
    found: list[PolicySpec] = []
    known: set[str] = set()
    for one in (o for word in words for o in (others if word == ALL else (word,))):
        name, preset = policy_file.split(one)
        if not name or preset == "":
            msg = f"--policies: {shown(one)} is not NAME or NAME:PRESET; see 'dlsim policies'"
            raise ConfigError(msg)
        try:
            has = set() if name == SLURM_ALONE else _parameters_of(name, preset)
        except ConfigError as err:
            if name not in named:
                has = set()
            elif ".py" not in name and any(map(policy_file.is_file, named - {name})):
                msg = f"{err} (a path here must not contain a comma)"
                raise ConfigError(msg) from err
            else:
                raise
        known |= has
        parameters = {key: value for key, value in given.items() if key in has}
        found.append(PolicySpec(policy=name, preset=preset, parameters=parameters))
    for key in given:
        if key not in known:
            msg = (
                f"-p {key}: none of these policies has such a parameter; they have "
                f"{', '.join(sorted(known)) or 'none at all'}"
            )
            raise ConfigError(msg)
    return tuple(found)


def _parameters_of(name: str, preset: str | None) -> set[str]:
    runs = presets.reading_of(name, preset).policy
    return {parameter.name for parameter in parameters_of(POLICY.usable(runs))}


def names_all(text: str) -> bool:
    """Whether *text*, as `parse_policies` takes it, asks for every policy."""
    return ALL in (word.strip() for word in text.split(","))


def parse_loads(text: str) -> tuple[float, ...]:
    """Loads from ``0.5,1,2``.

    Raises:
        ConfigError: One is no number.
    """
    return numbers("--loads", text, "numbers, such as 0.5,1,2", lambda *loads: loads)
