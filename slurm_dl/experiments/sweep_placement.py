"""Policies, schemes, rules and profiles in the folder of a sweep; see `sweep_files`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict

from slurm_dl.experiments.oracle import Oracle
from slurm_dl.experiments.placement_choice import Named, PlacementSetup
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.model.errors import ConfigError
from slurm_dl.report.atomic_files import write_whole
from slurm_dl.simulation.ideal.jobs_on_nodes import Widths

_PROFILES: Final = "profiles"


class Part(BaseModel):
    """A part of the file that says what is run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NamedFile(Part):
    """A scheme or a rule."""

    name: str
    parameters: dict[str, Any]

    @classmethod
    def of(cls, named: Named) -> Self:
        """*named*, as it is written."""
        return cls(name=named.name, parameters=dict(named.parameters))

    def made(self) -> Named:
        """What was written."""
        return Named(name=self.name, parameters=self.parameters)


class WishFile(Part):
    """A policy, and the scheme it runs with."""

    policy: str
    preset: str | None
    parameters: dict[str, Any]
    place: NamedFile | None = None

    @classmethod
    def of(cls, wish: PolicySpec) -> Self:
        """*wish*, as it is written."""
        return cls(
            policy=wish.policy,
            preset=wish.preset,
            parameters=dict(wish.parameters),
            place=None if wish.place is None else NamedFile.of(wish.place),
        )

    def made(self) -> PolicySpec:
        """What was written."""
        return PolicySpec(
            policy=self.policy,
            preset=self.preset,
            parameters=self.parameters,
            place=None if self.place is None else self.place.made(),
        )


class GroundFile(Part):
    """What goes with the schemes; the profiles lie beside it."""

    rules: tuple[NamedFile, ...] = ()
    has_profiles: bool = False
    widths: Widths = "any"
    network_mb_s: float | None = None
    pcie_mb_s: float | None = None
    gpu_speed: dict[str, float] = {}
    estimate_error: float = 0.0
    due_share: float = 0.0
    due_after: float = 2.0

    @classmethod
    def of(cls, ground: PlacementSetup) -> Self:
        """*ground*, as it is written."""
        return cls(
            rules=tuple(map(NamedFile.of, ground.rules)),
            has_profiles=ground.profiles is not None,
            widths=ground.widths,
            network_mb_s=ground.network_mb_s,
            pcie_mb_s=ground.pcie_mb_s,
            gpu_speed=dict(ground.foresight.gpu_speed),
            estimate_error=ground.foresight.error,
            due_share=ground.foresight.due_share,
            due_after=ground.foresight.due_after,
        )

    def made(self, folder: Path) -> PlacementSetup:
        """What was written; its profiles are the copies in *folder*."""
        return PlacementSetup(
            rules=tuple(rule.made() for rule in self.rules),
            profiles=str(folder / _PROFILES) if self.has_profiles else None,
            widths=self.widths,
            network_mb_s=self.network_mb_s,
            pcie_mb_s=self.pcie_mb_s,
            foresight=Oracle(
                gpu_speed=self.gpu_speed,
                error=self.estimate_error,
                due_share=self.due_share,
                due_after=self.due_after,
            ),
        )


def copy_profiles(ground: PlacementSetup, folder: Path) -> PlacementSetup:
    """*ground* with its profiles in *folder*, where nobody changes them while the sweep runs.

    Raises:
        ConfigError: They cannot be copied.
    """
    given, copy = Path(str(ground.profiles)), folder / _PROFILES
    try:
        copy.mkdir(mode=0o700)
        for source in sorted(given.glob("*.yaml")):
            write_whole(copy / source.name, source.read_bytes())
    except OSError as err:
        msg = f"--profiles {given}: {err.strerror}"
        raise ConfigError(msg) from err
    return dataclasses.replace(ground, profiles=str(copy))
