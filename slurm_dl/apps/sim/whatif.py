"""``dlsim whatif``: what other policies would have made of the site's own days."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_dl.apps.commandline import EXIT_FAILED, print_json, safe
from slurm_dl.apps.sim.console import console, progress
from slurm_dl.apps.sim.options import check_outputs, cluster_options, read_value
from slurm_dl.apps.sim.whatif_options import history_options, parse_thresholds, read_history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slurm_dl.apps.sim.experiment import Wish
    from slurm_dl.apps.sim.whatif_history import Fate, History
    from slurm_dl.apps.sim.whatif_ranking import Ranking
    from slurm_dl.backends.sim.shape import ClusterShape

_MOST_POLICIES = 100


@click.command(name="whatif")
@history_options
@cluster_options
@click.option(
    "--policies",
    metavar="NAME[:PRESET],...",
    default="fifo_skip,discrete_las",
    show_default=True,
    help="What is compared; the first is what the others are held against. A policy without a "
    "preset runs as its own parameters say, as under dlschedd.",
)
@click.option(
    "--thresholds",
    metavar="GPU_S,...",
    multiple=True,
    help="Also discrete_las with these thresholds; may be repeated.",
)
@click.option(
    "-p",
    "parameters",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a parameter of those --policies that have one of this name.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write the figures here; -: print them in place of the table.",
)
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
    json_path: Path | None,
) -> None:
    """Rank policies on a site's own history, and say which differences its days can show.

    The history is simulated once under each policy. Each figure has a range by a bootstrap over
    days, and so has its difference to the first policy's on the same days; where that range
    holds 0 the history shows no difference.

    Ends with status 1 if a policy left jobs undone.

    \b
    Examples:
      dlsim whatif history.txt --cluster 8x8
      dlsim whatif --from-sacct dump.txt.gz --cluster 8x8,4x4 --policies fifo_skip,srtf,las
      dlsim whatif history.txt --cluster 8x8 --policies discrete_las \\
        --thresholds 3600,36000 --thresholds 86400 --by p95-jct --block-days 7 --json out.json
    """  # noqa: D301 - \b is click's mark
    from slurm_dl.apps.sim import whatif_history, whatif_text  # noqa: PLC0415 - numpy is slow
    from slurm_dl.backends.sim.shape import parse_shape  # noqa: PLC0415
    from slurm_dl.report import export  # noqa: PLC0415

    is_printed = json_path is not None and str(json_path) == "-"
    check_outputs(None if is_printed else json_path)
    shape = parse_shape(cluster)
    wishes = asked(policies, thresholds, parameters)
    jobs = read_history(trace, dump, format_name)
    history = whatif_history.cut(
        jobs, shape, warm_up=warm_up, cool_down=cool_down, block_days=block_days
    )
    ranking = _ranked(wishes, history, shape, by=by, costs=costs, seed=seed)
    told = whatif_text.as_json(jobs, history, shape, ranking)
    if is_printed:
        print_json(told)
    else:
        used = "; ".join(dict.fromkeys(row.fate.costs for row in ranking.rows))
        _show([*whatif_text.head_lines(jobs, history, shape, used), *_notes(ranking)])
        out = console()
        out.print(whatif_text.table(ranking))
        out.print()
        _show(whatif_text.verdict_lines(ranking, history))
        if json_path is not None:
            export.write_json(json_path, told)
    if any(row.fate.unfinished for row in ranking.rows):
        raise SystemExit(EXIT_FAILED)


def asked(
    policies: str, thresholds: tuple[str, ...], parameters: tuple[str, ...]
) -> list[tuple[str, Wish]]:
    """What is compared, by label.

    Raises:
        ConfigError: A policy, a parameter or thresholds are wrong.
        UsageError: There is nothing to compare, or too much.
    """
    from slurm_dl.apps.sim import experiment, sweep  # noqa: PLC0415

    given = experiment.parse_parameters(parameters, read_value)
    found = {}
    for wish in sweep.parse_policies(policies, given):
        # No preset is usual here: what counts is what dlschedd would do.
        found[wish.short_label] = dataclasses.replace(wish, preset=wish.preset or "none")
    for text in thresholds:
        edges = parse_thresholds(text)
        label = f"discrete_las {','.join(f'{edge:g}' for edge in edges)}"
        found[label] = experiment.Wish(
            policy="discrete_las", preset="none", parameters={"thresholds_gpu_s": list(edges)}
        )
    if len(found) < 2:  # noqa: PLR2004 - one and another
        msg = "nothing to compare: name several --policies, or give --thresholds"
        raise click.UsageError(msg)
    if len(found) > _MOST_POLICIES:
        msg = f"{len(found)} policies and thresholds; at most {_MOST_POLICIES}"
        raise click.UsageError(msg)
    return list(found.items())


def _ranked(
    wishes: list[tuple[str, Wish]],
    history: History,
    shape: ClusterShape,
    *,
    by: str,
    costs: str | None,
    seed: int,
) -> Ranking:
    from slurm_dl.apps.sim.whatif_history import fate  # noqa: PLC0415
    from slurm_dl.apps.sim.whatif_ranking import rank  # noqa: PLC0415

    fates: list[tuple[str, Fate]] = []
    with progress("what if", len(wishes) * len(history.trace)) as report:
        for number, (label, wish) in enumerate(wishes):
            report.tell(safe(label, 40))
            done = _after(report, number * len(history.trace))
            fates.append((label, fate(wish, history, shape, costs=costs, seed=seed, progress=done)))
        report.tell("ranges by bootstrap")
        return rank(fates, by=by, seed=seed)


def _after(report: Callable[[int], None], before: int) -> Callable[[int], None]:
    return lambda done: report(before + done)


def _notes(ranking: Ranking) -> list[str]:
    told = [(row.label, note) for row in ranking.rows for note in row.fate.notes]
    return [*(f"{safe(label, 40)}: {note}" for label, note in dict.fromkeys(told)), ""]


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
