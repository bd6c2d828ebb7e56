"""``dlsim whatif``: what other policies would have made of the site's own days."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import click

from slurm_dl.cli.commandline import EXIT_FAILED, print_json
from slurm_dl.cli.dlsim import whatif_text
from slurm_dl.cli.dlsim.simulation_options import (
    check_outputs,
    check_place,
    cluster_options,
    is_printed,
    json_option,
    min_quantum_option,
    parameters_option,
    place_options,
    policies_option,
    processes_option,
    read_value,
)
from slurm_dl.cli.dlsim.whatif_options import (
    history_options,
    parse_quanta,
    parse_thresholds,
    read_history,
)
from slurm_dl.experiments import placement_choice as placing
from slurm_dl.experiments import simulation_run, sweep, whatif_history, whatif_runs
from slurm_dl.experiments.placement_choice import Named
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.experiments.whatif_ranking import Ranking, rank
from slurm_dl.experiments.whatif_runs import Bench, fates
from slurm_dl.report import export
from slurm_dl.report.console import console, progress
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.text import safe

_MOST_POLICIES = 100


@click.command(name="whatif")
@history_options
@cluster_options
@policies_option(
    "What is compared; the first is what the others are held against.",
    default="fifo_skip,discrete_las",
)
@click.option(
    "--thresholds",
    metavar="GPU_S,...",
    multiple=True,
    help="Also discrete_las with these thresholds; may be repeated.",
)
@parameters_option
@min_quantum_option(
    "each policy with each of these times for which a run is left alone before it may be "
    "preempted; 900 if not given.",
    several=True,
)
@place_options(several=True)
@processes_option
@json_option
def whatif_command(
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
    policies: str,
    thresholds: tuple[str, ...],
    parameters: tuple[str, ...],
    min_quanta: str | None,
    places: tuple[str, ...],
    rules: tuple[str, ...],
    profiles: Path | None,
    widths: Literal["any", "fewest"],
    contention: str | None,
    processes: int | None,
    json_path: Path | None,
) -> None:
    """Rank policies on a site's own history, and say which differences its days can show.

    The history is simulated once under each policy. Each figure has a range by a bootstrap over
    days, and so has its difference to the first policy's on the same days; where that range
    holds 0 the history shows no difference.

    Ends with status 1 if a policy left jobs undone. No figure depends on -j.

    \b
    Examples:
      dlsim whatif history.txt --cluster 8x8
      dlsim whatif --from-sacct dump.txt.gz --cluster 8x8,4x4 --policies fifo_skip,srtf,las
      dlsim whatif history.txt --cluster 8x8 --policies discrete_las \\
        --thresholds 3600,36000 --thresholds 86400 --by p95-jct --block-days 7 --json out.json
    """  # noqa: D301 - \b is click's mark
    prints = is_printed(json_path)
    check_outputs(None if prints else json_path)
    shape = parse_shape(cluster)
    schemes = [placing.parse_scheme(word, read_value) for word in places]
    check_place(given=any(schemes))
    quanta = (None,) if min_quanta is None else parse_quanta(min_quanta)
    wishes = asked(policies, thresholds, parameters, schemes, quanta)
    ground = placing.parse_ground(rules, profiles, widths, contention, read_value)
    jobs = read_history(trace, dump, format_name)
    history = whatif_history.cut(
        jobs, shape, warm_up=warm_up, cool_down=cool_down, block_days=block_days
    )
    bench = whatif_runs.Bench(history=history, shape=shape, costs=costs, seed=seed, ground=ground)
    ranking = _ranked(bench, wishes, by=by, processes=processes or 1)
    told = whatif_text.as_json(jobs, history, shape, ranking)
    if prints:
        print_json(told)
    else:
        used = "; ".join(dict.fromkeys(row.fate.costs for row in ranking.rows))
        _show([*whatif_text.head_lines(jobs, history, shape, used), *_notes(ranking)])
        out = console()
        out.print(whatif_text.ranked_table(ranking))
        out.print()
        _show(whatif_text.verdict_lines(ranking, history))
        if json_path is not None:
            export.write_json(json_path, told)
    if any(row.fate.unfinished for row in ranking.rows):
        raise SystemExit(EXIT_FAILED)


def asked(
    policies: str,
    thresholds: tuple[str, ...],
    parameters: tuple[str, ...],
    schemes: Sequence[Named | None] = (),
    quanta: Sequence[float | None] = (None,),
) -> list[tuple[str, PolicySpec]]:
    """What is compared, by label.

    Args:
        schemes: Each policy runs with each of them; none: GPUs are only counted.
        quanta: It runs with each of these least times of a run as well, seconds; None: the default.

    Raises:
        ConfigError: A policy, a parameter or thresholds are wrong.
        UsageError: There is nothing to compare, or too much.
    """
    given = simulation_run.parse_parameters(parameters, read_value)
    made: list[tuple[str, PolicySpec]] = [
        (wish.short_label, wish) for wish in sweep.parse_policies(policies, given)
    ]
    for text in thresholds:
        edges = parse_thresholds(text)
        wish = simulation_run.PolicySpec(
            policy="discrete_las", parameters={"thresholds_gpu_s": list(edges)}
        )
        made.append((f"discrete_las {','.join(f'{edge:g}' for edge in edges)}", wish))
    timed = [
        (label, wish)
        if quantum_s is None
        else (
            f"{label} min-quantum {quantum_s:g}",
            dataclasses.replace(wish, min_quantum_s=quantum_s),
        )
        for label, wish in made
        for quantum_s in quanta
    ]
    found = {
        label if scheme is None else f"{label} on {scheme}": placed
        for label, wish in timed
        for scheme in schemes or (None,)
        for placed in sweep.with_places([wish], [scheme])
    }
    if len(found) < 2:  # noqa: PLR2004 - one and another
        msg = "nothing to compare: name several --policies, or give --thresholds"
        raise click.UsageError(msg)
    if len(found) > _MOST_POLICIES:
        msg = f"{len(found)} policies and thresholds; at most {_MOST_POLICIES}"
        raise click.UsageError(msg)
    return list(found.items())


def _ranked(
    bench: Bench, wishes: list[tuple[str, PolicySpec]], *, by: str, processes: int
) -> Ranking:
    with progress("what if", len(wishes) * len(bench.history.trace)) as report:
        made = fates(bench, wishes, processes=processes, report=report)
        report.tell("ranges by bootstrap")
        return rank(made, by=by, seed=bench.seed)


def _notes(ranking: Ranking) -> list[str]:
    told = [(row.label, note) for row in ranking.rows for note in row.fate.notes]
    return [*(f"{safe(label, 40)}: {note}" for label, note in dict.fromkeys(told)), ""]


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
