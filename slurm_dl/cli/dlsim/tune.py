"""``dlsim tune``: thresholds of discrete_las for a site's own history, and what they are worth."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from slurm_dl.cli.commandline import print_json
from slurm_dl.cli.dlsim import tune_text
from slurm_dl.cli.dlsim.simulation_options import (
    check_outputs,
    check_place,
    cluster_options,
    is_printed,
    json_option,
    min_quantum_option,
    place_options,
    processes_option,
    read_value,
)
from slurm_dl.cli.dlsim.whatif_options import (
    history_options,
    parse_numbers,
    parse_quanta,
    parse_thresholds,
    read_history,
)
from slurm_dl.config.loading import load
from slurm_dl.engine.settings import Preemption
from slurm_dl.experiments import placement_choice, threshold_tuning, tuning_data
from slurm_dl.experiments.cluster_presets import is_slurm
from slurm_dl.experiments.threshold_tuning import Current
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.report import atomic_files, export
from slurm_dl.report.console import progress
from slurm_dl.simulation.cluster_shape import parse_shape


@click.command(name="tune")
@history_options
@cluster_options
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The configuration in use, whose policy is to be tuned; the policy's defaults if neither "
    "this nor --thresholds is given.",
)
@click.option(
    "--thresholds", metavar="GPU_S,...", help="The thresholds in use, in place of --config."
)
@click.option(
    "--promote",
    metavar="KNOB,...",
    help="Values of promote_knob to try with the best thresholds; if not given, half and twice "
    "that of --config, unless it is 0 there.",
)
@min_quantum_option(
    "values of preemption.min_quantum_s to try with the best of all else; that of --config is in "
    "use, 900 without.",
    several=True,
)
@click.option(
    "--candidates",
    "most",
    type=click.IntRange(3, 2000),
    default=60,
    show_default=True,
    help="Sets of thresholds to begin with.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the lines for slurm_dl.yaml here, if they are recommended.",
)
@place_options(several=False)
@processes_option
@json_option
def tune_command(
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
    place: str | None,
    rules: tuple[str, ...],
    profiles: Path | None,
    widths: Literal["any", "fewest"],
    contention: str | None,
    processes: int | None,
    json_path: Path | None,
) -> None:
    """Search thresholds of discrete_las on the first half of a history; judge on the second.

    What was chosen on the first days is held against what is in use on the later ones, which the
    search never saw. If the difference there could be chance, the advice is to leave all as it
    is, and --out writes nothing.

    \b
    Examples:
      dlsim tune history.txt --cluster 8x8
      dlsim tune --from-sacct dump.txt --cluster 8x8 --config /etc/slurm_dl/slurm_dl.yaml
      dlsim tune history.txt --cluster 8x8 --by p95-jct --promote 0,2,8 --out policy.yaml
    """  # noqa: D301 - \b is click's mark
    prints = is_printed(json_path)
    check_outputs(out, None if prints else json_path)
    if config_path is not None and thresholds is not None:
        msg = "--config or --thresholds says what is in use, not both"
        raise click.UsageError(msg)
    quanta = () if min_quanta is None else parse_quanta(min_quanta)
    current = _current(config_path, thresholds, costs, has_quanta=bool(quanta))
    knobs = None if promote is None else parse_numbers(promote, "--promote")
    scheme = None if place is None else placement_choice.parse_scheme(place, read_value)
    check_place(given=scheme is not None)
    around = placement_choice.parse_ground(rules, profiles, widths, contention, read_value)
    jobs = read_history(trace, dump, format_name)
    ground = tuning_data.halves(
        jobs,
        parse_shape(cluster),
        by=by,
        costs=costs,
        seed=seed,
        edges=tuning_data.Edges(warm_up, cool_down, block_days),
        scheme=scheme,
        around=around,
    )
    with progress("tune", threshold_tuning.steps(ground, current, most, knobs, quanta)) as report:
        found = threshold_tuning.tuned(
            ground,
            current,
            most=most,
            knobs=knobs,
            quanta=quanta,
            processes=processes or 1,
            report=report,
        )
    told = tune_text.as_json(jobs, found)
    if prints:
        print_json(told)
    else:
        for line in tune_text.lines(jobs, found):
            click.echo(line)
        if json_path is not None:
            export.write_json(json_path, told)
    if out is not None and found.is_recommended:
        atomic_files.write_whole(out, tune_text.yaml_lines(found.winner, current).encode())
    elif out is not None:
        click.echo(f"dlsim tune: {out} was not written: there is nothing to change", err=True)


def _current(
    config_path: Path | None, thresholds: str | None, costs: str | None, *, has_quanta: bool
) -> Current:
    """What is in use.

    Args:
        costs: What ``--costs`` said: only a Slurm's runs are left alone for a time.
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
        policy = config.policy
        if has_quanta or is_slurm(costs):
            min_quantum_s = config.preemption.min_quantum_s
        used = policy.make()
        if not isinstance(used, DiscreteLas):
            msg = (
                f"{config_path}: policy.order is {policy.order}; dlsim tune searches thresholds of "
                "discrete_las: 'dlsim whatif' holds the two against each other"
            )
            raise ConfigError(msg)
        made = used
    return Current(
        thresholds_gpu_s=made.thresholds_gpu_s,
        promote_knob=made.promote_knob,
        dimensions=made.dimensions,
        min_quantum_s=min_quantum_s,
    )
