"""Arguments of `slurm_dl.sim`: their types, and policies that are objects in place of names."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from numbers import Integral, Real
from types import NoneType
from typing import Any, Final

from slurm_dl.config.parameters import POLICY
from slurm_dl.experiments import simulation_run
from slurm_dl.experiments.grid import Cell, Experiment
from slurm_dl.experiments.option_words import made
from slurm_dl.experiments.simulation_run import Chosen, Cluster, PolicySpec
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies import policy_file
from slurm_dl.policies.base import Policy
from slurm_dl.text import shown

_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "trace": (str, os.PathLike, Trace), "path": (str, os.PathLike), "format": (str, NoneType),
    "cluster": (str,), "costs": (str, NoneType), "loads": (Real,), "policies": (object,),
    "preset": (str, NoneType), "parameters": (Mapping, NoneType), "place": (str, NoneType),
    "names of parameters": (str,), "library": (str, NoneType),
    "seed": (Integral,), "resamples": (Integral,), "processes": (Integral,),
}  # fmt: skip


def check(**given: Any) -> None:  # noqa: ANN401 - they may be anything
    """Raise `TypeError` or `ValueError` with the argument's name if its value is none for it."""
    for name, value in given.items():
        kinds = _KINDS[name]
        if not issubclass(type(value), kinds):
            words = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
            msg = f"{name}: must be {words} (got {shown(value)})"
            raise TypeError(msg)
        least = 1 if name == "processes" else 0
        if kinds == (Integral,) and value < least:
            msg = f"{name}: must be at least {least} (got {shown(value)})"
            raise ValueError(msg)


def checked_each(name: str, values: Any) -> list[Any]:  # noqa: ANN401 - they may be anything
    """*values*, checked one by one."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        msg = f"{name}: must be a list (got {shown(values)})"
        raise TypeError(msg)
    found = list(values)
    for value in found:
        check(**{name: value})
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WithObjects(Experiment):
    """An experiment some of whose policies are objects."""

    objects: Mapping[str, Policy] = field(default_factory=dict)  # By `PolicySpec.name`

    def ready(self, cell: Cell, jobs: Trace | None = None) -> tuple[Chosen, Cluster]:
        """See `Experiment.ready`."""
        policy = self.objects.get(cell.policy.name)
        if policy is None:
            return Experiment.ready(self, cell, jobs)
        # The cluster is the same for all policies that have no preset.
        other = dataclasses.replace(cell.policy, policy="fifo")
        chosen, cluster = Experiment.ready(self, dataclasses.replace(cell, policy=other), jobs)
        return dataclasses.replace(chosen, wish=cell.policy, made=policy), cluster


def asked(
    policy: type[Policy] | Policy,
    parameters: Mapping[str, object],
    *,
    preset: str | None = None,
    elsewhere: bool = False,
) -> tuple[PolicySpec, dict[str, Policy]]:
    """A policy as experiments name it, and what `WithObjects.objects` has to have for it.

    Args:
        elsewhere: It is to run in other processes.

    Raises:
        ConfigError: It is no policy, refuses its parameters, or cannot go to other processes.
    """
    kind: Any = policy if inspect.isclass(policy) else type(policy)
    word = getattr(kind, "name", kind.__name__)
    family = dataclasses.replace(POLICY, find=lambda _: kind)
    family.usable(word)
    if elsewhere:
        _check_importable(kind)
    if preset is not None:
        msg = "preset: a class has none; give the policy by its name"
        raise ConfigError(msg)
    if kind is not policy and parameters:
        msg = "parameters: an instance has its own; pass its class, or make it with these"
        raise ConfigError(msg)
    it: Any = made(family, "parameters", word, parameters) if kind is policy else policy
    usual = {f.name: f.default for f in dataclasses.fields(kind) if f.init}
    told = simulation_run.parameters(it)
    given = {key: told[key] for key, value in usual.items() if getattr(it, key) != value}
    name = " ".join((word, *(f"{key}={value}" for key, value in given.items())))
    return PolicySpec(policy=word, name=name), {name: it}


def _check_importable(kind: type[object]) -> None:
    module = kind.__module__
    own = module == "__main__" or module.startswith(policy_file.MODULE)
    if own or "<locals>" in kind.__qualname__ or find_spec(module) is None:
        msg = (
            f"processes: policy {kind.__name__} is of no module that other processes can import; "
            "put it into a file and name it 'FILE.py:CLASS', or use one process"
        )
        raise ConfigError(msg)
