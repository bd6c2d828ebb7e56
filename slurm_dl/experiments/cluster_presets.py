"""``--costs``: which simulated cluster, and what starting, stopping and waiting cost on it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from slurm_dl.engine.settings import Resizing
from slurm_dl.error_text import unknown_key
from slurm_dl.experiments.option_words import numbers
from slurm_dl.experiments.placement_choice import PLAIN, Named, PlacementSetup
from slurm_dl.experiments.simulation_run import Cluster
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.ideal import presets, start_costs
from slurm_dl.simulation.slurm import overheads
from slurm_dl.simulation.slurm.job_columns import NodeFailures
from slurm_dl.traces.formats.gavel_shockwave import TABLE

NAMED: Final = ("none", "slurm", "muri")

_FLAT: Final = ("restart_s", "large_restart_s", "large_gpus", "start_s")
_QUANTILES: Final = ("seconds", "quantiles_s")
_ABOUT: Final = ("origin", "licence", "unit")
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0
_LARGEST_S: Final = 1e12


def find(
    word: str | None,
    preset: str,
    trace: Trace,
    scheme: Named | None = None,
    ground: PlacementSetup = PLAIN,
) -> Cluster:
    """The cluster that ``--costs`` *word* means, with its jobs on nodes if there is a *scheme*.

    Args:
        word: ``none``, ``slurm``, ``muri``, the seconds of each start but the first, a file, or
            None for what *preset* has.

    Raises:
        ConfigError: There is no such model, the file is none, or a scheme, a rule or a profile is
            wrong or does not go with it.
    """
    chosen = presets.find(preset)
    costs = chosen.costs(trace) if word is None else _costs(word, trace)
    if chosen.rates and not isinstance(costs, start_costs.NoCosts):
        msg = f"preset {preset!r}: nothing costs anything in its rounds: leave out --costs"
        raise ConfigError(msg)
    if chosen.rates and ground.foresight.pairs is not None:
        msg = f"preset {preset!r}: it has speeds of pairs of its own: leave out --pairs"
        raise ConfigError(msg)
    if chosen.rates:
        own = not ground.foresight.rates
        foresight = dataclasses.replace(
            ground.foresight,
            rates=str(TABLE.with_name(chosen.rates)) if own else ground.foresight.rates,
            rates_from=f"preset {preset}" if own else "--rates",
            in_steps=True,
            pairs_by_type=str(TABLE.with_name(chosen.pairs)) if own else None,
        )
        ground = dataclasses.replace(ground, foresight=foresight)
    measured = chosen.measured and bool(trace.measured)
    if measured and (scheme is not None or ground.foresight.error):
        what = "--place" if scheme is not None else "--estimate-error"
        msg = f"preset {preset!r}: jobs are where and as fast as its models say: leave out {what}"
        raise ConfigError(msg)
    placement = ground.placement(scheme)
    if isinstance(costs, overheads.SlurmCosts):
        if scheme is not None:
            msg = "--place: with --costs slurm it is Slurm that places jobs; leave one of them out"
            raise ConfigError(msg)
        name = "slurm" if word == "slurm" else f"slurm, {Path(word or '').name}"
    else:
        name = costs.name
    foresight = ground.foresight
    asked = foresight.steadiness
    return Cluster(
        costs=costs, name=name, clockwork=chosen.decides(trace), placement=placement,
        place=ground.label(scheme), ground=ground, measured=measured,
        resizing=Resizing(
            expand=foresight.expand,
            steadiness=chosen.steadiness if asked is None else asked,
        ),
    )  # fmt: skip


def with_failures(cluster: Cluster, words: str | None) -> Cluster:
    """*cluster* with nodes that break and are mended.

    Args:
        words: ``DAYS:HOURS``, the mean time a node works and the mean time until it is back.

    Raises:
        ConfigError: They are no two numbers above 0, or *cluster* has no nodes that could break.
    """
    if words is None:
        return cluster
    if not isinstance(cluster.costs, overheads.SlurmCosts):
        msg = "--node-failures: jobs are on nodes only with --costs slurm"
        raise ConfigError(msg)
    form = "DAYS:HOURS, not below a minute, as 90:4"
    failures = numbers(
        "--node-failures", words, form, at=":",
        make=lambda days, hours: NodeFailures(mtbf_s=days * _DAY_S, mttr_s=hours * _HOUR_S),
    )  # fmt: skip
    days, hours = failures.mtbf_s / _DAY_S, failures.mttr_s / _HOUR_S
    name = f"{cluster.name}, nodes break every {days:g} d for {hours:g} h"
    return dataclasses.replace(cluster, name=name, failures=failures)


def is_file(word: str) -> bool:
    """True if ``--costs`` *word* names a file."""
    return word not in NAMED and _seconds(word) is None


def file_of(word: str | None) -> str | None:
    """The file that ``--costs`` *word* names; None if it names none."""
    return word if word is not None and is_file(word) else None


def plain_word(word: str) -> str:
    """*word*, which names no file, with a number written in one way."""
    seconds = _seconds(word)
    return word if seconds is None else repr(seconds)


def _seconds(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def is_slurm(word: str | None) -> bool:
    """Whether ``--costs`` *word* means a Slurm.

    Raises:
        ConfigError: It is a file that cannot be read.
    """
    if word is None or not is_file(word):
        return word == "slurm"
    # restore_s and the like are Slurm's.
    return not set(_read(word)) & {*_QUANTILES, *_FLAT}


def _costs(word: str, trace: Trace) -> start_costs.Costs | overheads.SlurmCosts:
    """A quantile table, a flat cost, or the costs of a Slurm, told from the keys of a file."""
    match word:
        case "none":
            return start_costs.NoCosts()
        case "muri":
            return start_costs.muri_costs(trace)
        case "slurm":
            return overheads.PRODUCTION
    if (seconds := _seconds(word)) is not None:
        _check_s(f"--costs {word}", seconds)
        return start_costs.FlatCosts(restart_s=seconds, large_restart_s=seconds, gpus=trace.gpus)
    content, path = _read(word), Path(word)
    keys = set(content)
    if keys & set(_QUANTILES):
        for key in content:
            if key not in (*_QUANTILES, *_ABOUT):
                msg = f"{path}: {unknown_key(str(key), (*_QUANTILES, *_ABOUT))}"
                raise ConfigError(msg)
        values = content.get("seconds", content.get("quantiles_s"))
        return start_costs.quantile_costs(path.name, values)
    return _flat(path, content, trace) if keys & set(_FLAT) else overheads.read_costs(path)


def _read(word: str) -> dict[Any, Any]:
    try:
        return overheads.read_table(Path(word))
    except ConfigError as err:
        msg = f"--costs {word}: must be {', '.join(NAMED)}, seconds or a file ({err})"
        raise ConfigError(msg) from err


def _check_s(what: str, value: float) -> None:
    if not 0 <= value < _LARGEST_S:
        msg = f"{what}: must be 0 or more, below {_LARGEST_S:g} (got {value:g})"
        raise ConfigError(msg)


def _flat(path: Path, content: dict[Any, Any], trace: Trace) -> start_costs.FlatCosts:
    values = overheads.seconds_of(content, _FLAT, path)
    for key, value in values.items():
        _check_s(f"{path}: {key}", value)
    if "large_restart_s" in values and "large_gpus" not in values:
        msg = f"{path}: large_restart_s needs large_gpus: the size from which on it is paid"
        raise ConfigError(msg)
    values.setdefault("restart_s", 0.0)
    values.setdefault("large_restart_s", values["restart_s"])
    return start_costs.FlatCosts(gpus=trace.gpus, file=path.name, **values)
