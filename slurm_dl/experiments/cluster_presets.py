"""``--costs``: which simulated cluster, and what starting, stopping and waiting cost on it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import yaml

from slurm_dl.error_text import unknown_key
from slurm_dl.experiments.oracle import Oracle
from slurm_dl.experiments.placement_choice import Named, PlacementSetup, Placing, place, profiles_of
from slurm_dl.experiments.simulation_run import ClusterKind, Ideal, UnderSlurm
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.ideal import presets
from slurm_dl.simulation.ideal.decision_times import DecisionTimes
from slurm_dl.simulation.ideal.start_costs import FlatCosts, NoCosts, muri_costs, quantile_costs
from slurm_dl.simulation.slurm.job_behaviour import NodeFailures
from slurm_dl.simulation.slurm.overheads import PRODUCTION, read_costs, table_of
from slurm_dl.text import shown

NAMED: Final = ("none", "slurm", "muri")

_FLAT: Final = ("restart_s", "large_restart_s", "large_gpus", "start_s")
_LARGEST_FILE: Final = 1_000_000
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0
_LARGEST_S: Final = 1e12


def find(word: str | None, preset: str, trace: Trace) -> ClusterKind:
    """The cluster that ``--costs`` *word* means.

    Args:
        word: ``none``, ``slurm``, ``muri``, a file, or None for what *preset* has.

    Raises:
        ConfigError: There is no such model, or the file is none.
    """
    chosen = presets.find(preset)
    clockwork = chosen.clockwork
    if word is None:
        return Ideal(chosen.costs(trace), clockwork)
    match word:
        case "none":
            return Ideal(NoCosts(), clockwork)
        case "muri":
            return Ideal(muri_costs(trace), clockwork)
        case "slurm":
            return UnderSlurm(PRODUCTION, "slurm")
        case _:
            return _from_file(Path(word), trace, clockwork)


def with_failures(cluster: ClusterKind, words: str | None) -> ClusterKind:
    """*cluster* with nodes that break and are mended.

    Args:
        words: ``DAYS:HOURS``, the mean time a node works and the mean time until it is back.

    Raises:
        ConfigError: They are no two numbers above 0, or *cluster* has no nodes that could break.
    """
    if words is None:
        return cluster
    if not isinstance(cluster, UnderSlurm):
        msg = "--node-failures: jobs are on nodes only with --costs slurm"
        raise ConfigError(msg)
    works, colon, repaired = words.partition(":")
    try:
        failures = NodeFailures(mtbf_s=float(works) * _DAY_S, mttr_s=float(repaired) * _HOUR_S)
    except ValueError:
        failures = None
    if not colon or failures is None:
        msg = f"--node-failures {shown(words)}: must be DAYS:HOURS, not below a minute, as 90:4"
        raise ConfigError(msg)
    name = f"{cluster.name}, nodes break every {float(works):g} d for {float(repaired):g} h"
    return dataclasses.replace(cluster, name=name, failures=failures)


def with_placing(cluster: ClusterKind, placing: Placing | None) -> ClusterKind:
    """*cluster* with its jobs on nodes.

    Raises:
        ConfigError: It is a Slurm, which has its own ways.
    """
    if placing is None:
        return cluster
    if not isinstance(cluster, Ideal):
        msg = "--place: with --costs slurm it is Slurm that places jobs; leave one of them out"
        raise ConfigError(msg)
    return dataclasses.replace(cluster, placing=placing)


def with_ground(cluster: ClusterKind, scheme: Named | None, ground: PlacementSetup) -> ClusterKind:
    """*cluster* with its jobs on nodes if there is a *scheme*, and with what is known of them.

    Raises:
        ConfigError: A scheme, a rule, a profile or what is known does not go with the cluster.
    """
    placed = with_placing(cluster, place(scheme, ground))
    if ground.foresight == Oracle():
        return placed
    profiles = profiles_of(ground) if ground.foresight.gpu_speed else {}
    match placed:
        case Ideal() | UnderSlurm():
            return dataclasses.replace(placed, foresight=ground.foresight, profiles=profiles)
        case _:
            return placed


def with_nodes_noted(cluster: ClusterKind) -> ClusterKind:
    """*cluster*, of which the records say which nodes each run held, if there are nodes."""
    match cluster:
        case Ideal() | UnderSlurm():
            return dataclasses.replace(cluster, notes_nodes=True)
        case _:
            return cluster


def is_slurm(word: str | None) -> bool:
    """Whether ``--costs`` *word* means a Slurm.

    Raises:
        ConfigError: It is a file that cannot be read.
    """
    if word is None or word in NAMED:
        return word == "slurm"
    content = _read(Path(word))
    return not (_is_quantiles(content) or _is_flat(content))


def _is_quantiles(content: dict[str, Any]) -> bool:
    return "seconds" in content or "quantiles_s" in content


def _is_flat(content: dict[str, Any]) -> bool:
    # restore_s and the like are Slurm's.
    return bool(set(content) & set(_FLAT))


def _from_file(path: Path, trace: Trace, clockwork: DecisionTimes) -> ClusterKind:
    """A quantile table, a flat cost, or the costs of a Slurm, told from the keys."""
    content = _read(path)
    if _is_quantiles(content):
        known = {"seconds", "quantiles_s", "origin", "licence", "unit"}
        for key in content:
            if key not in known:
                msg = f"{path}: {unknown_key(str(key), dict.fromkeys(known))}"
                raise ConfigError(msg)
        values = content.get("seconds", content.get("quantiles_s"))
        return Ideal(quantile_costs(path.name, values), clockwork)
    if _is_flat(content):
        return Ideal(_flat(path, content, trace), clockwork)
    return UnderSlurm(read_costs(path), f"slurm, {path.name}")


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LARGEST_FILE + 1)
    except (OSError, UnicodeDecodeError) as err:
        msg = f"--costs {path}: must be {', '.join(NAMED)} or a file ({err})"
        raise ConfigError(msg) from err
    if len(text) > _LARGEST_FILE:
        msg = f"{path}: larger than {_LARGEST_FILE} characters: this is no table of costs"
        raise ConfigError(msg)
    try:
        content = table_of(text)
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        msg = f"{path}: neither JSON nor YAML: {err}"
        raise ConfigError(msg) from err
    if not isinstance(content, dict):
        msg = f"{path}: must be a mapping of names to values"
        raise ConfigError(msg)
    return content


def _flat(path: Path, content: dict[str, Any], trace: Trace) -> FlatCosts:
    values = {}
    for key, value in content.items():
        if key not in _FLAT:
            msg = f"{path}: {unknown_key(str(key), dict.fromkeys(_FLAT))}"
            raise ConfigError(msg)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < _LARGEST_S:
            msg = f"{path}: {key}: must be a number, 0 or more (got {shown(value)})"
            raise ConfigError(msg)
        values[key] = float(value)
    if "large_restart_s" in values and "large_gpus" not in values:
        msg = f"{path}: large_restart_s needs large_gpus: the size from which on it is paid"
        raise ConfigError(msg)
    values.setdefault("restart_s", 0.0)
    values.setdefault("large_restart_s", values["restart_s"])
    return FlatCosts(gpus=trace.gpus, file=path.name, **values)
