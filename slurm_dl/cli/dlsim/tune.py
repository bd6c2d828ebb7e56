"""``dlsim tune``: thresholds of discrete_las for a site's own history, and their worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import click

from slurm_dl.cli.dlsim import tune_text
from slurm_dl.cli.dlsim.asked import (
    PlacementOptions,
    check_outputs,
    manifest,
    parse_quanta,
    parse_thresholds,
    placement_of,
    read_history,
    report,
    run_all,
)
from slurm_dl.config.loading import load
from slurm_dl.engine.settings import Preemption
from slurm_dl.experiments import grid, tuning
from slurm_dl.experiments.cluster_presets import is_slurm
from slurm_dl.experiments.grid import Cell
from slurm_dl.experiments.option_words import parse_amounts
from slurm_dl.experiments.tuning import Candidate, Tried
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.report import export
from slurm_dl.simulation.cluster_shape import parse_shape


def tune(
    *,
    trace: Path | None,
    dump: Path | None,
    format_name: str | None,
    by: str,
    warm_up: int | None,
    cool_down: int | None,
    block_days: int,
    cluster: str,
    costs: str | None,
    seed: int,
    config_path: Path | None,
    thresholds: str | None,
    promote: str | None,
    min_quanta: str | None,
    most: int,
    out: Path | None,
    processes: int | None,
    json_path: Path | None,
    **placed: Unpack[PlacementOptions],
) -> None:
    """Run ``dlsim tune``; the arguments are its options."""
    check_outputs(out, json_path)
    if config_path is not None and thresholds is not None:
        msg = "--config or --thresholds says what is in use, not both"
        raise click.UsageError(msg)
    quanta = parse_quanta(min_quanta)
    current = _current(config_path, thresholds, costs, has_quanta=bool(quanta))
    form = "numbers of 0 or more, such as 0,2,8"
    knobs = None if promote is None else parse_amounts("--promote", promote, form)
    schemes, ground = placement_of(**placed)
    jobs = read_history(trace, dump, format_name)
    data = tuning.halves(
        jobs, parse_shape(cluster), by=by, costs=costs, seed=seed, ground=ground,
        scheme=schemes[0] if schemes else None,
        warm_up=warm_up, cool_down=cool_down, block_days=block_days,
    )  # fmt: skip

    ran: list[Cell] = []

    def run(cells: Sequence[Cell]) -> list[Tried]:
        unlike = list(dict.fromkeys(cells))
        ran.extend(unlike)
        measured = run_all("tune", data.experiment, unlike, data.measure, processes)
        found = grid.all_of(measured)
        return [found[cell] for cell in cells]

    result = tuning.tuned(data, current, run, most=most, knobs=knobs, quanta=quanta)
    told = {"manifest": manifest(data.experiment, ran), **tune_text.as_json(jobs, result)}
    report(told, json_path, tune_text.lines(jobs, result))
    if out is not None and result.is_recommended:
        export.write_whole(out, tune_text.yaml_lines(result.winner, current).encode())
    elif out is not None:
        click.echo(f"dlsim tune: {out} was not written: there is nothing to change", err=True)


def _current(
    config_path: Path | None, thresholds: str | None, costs: str | None, *, has_quanta: bool
) -> Candidate:
    """The parameters in use.

    Args:
        costs: The word of ``--costs``: only a Slurm's runs are left alone for a time.
        has_quanta: Such times are tried.

    Raises:
        ConfigError: The configuration or the thresholds are wrong, or another policy is in use.
    """
    made = DiscreteLas()
    min_quantum_s = Preemption().min_quantum_s if has_quanta else None
    if thresholds is not None:
        made = DiscreteLas(thresholds_gpu_s=parse_thresholds(thresholds))
    if config_path is not None:
        config = load(config_path)
        if has_quanta or is_slurm(costs):
            min_quantum_s = config.preemption.min_quantum_s
        used = config.policy.make()
        if not isinstance(used, DiscreteLas):
            msg = (
                f"{config_path}: policy.order is {config.policy.order}; dlsim tune searches "
                "thresholds of discrete_las: 'dlsim whatif' holds the two against each other"
            )
            raise ConfigError(msg)
        made = used
    return Candidate(made.thresholds_gpu_s, made.promote_knob, min_quantum_s, made.dimensions)
