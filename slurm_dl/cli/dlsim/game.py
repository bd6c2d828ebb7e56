"""``dlsim game``: what one selfish user gains by each strategy, and what it costs the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from slurm_dl.cli.commandline import EXIT_FAILED, FloatRange
from slurm_dl.cli.dlsim import simulation_options as option
from slurm_dl.cli.dlsim.asked import check_outputs, manifest, report, run_each
from slurm_dl.experiments import game, policy_words
from slurm_dl.experiments.game import Game, GameCell, GameRow, GameStore, Spread
from slurm_dl.experiments.game_strategies import BASES, HONEST, STRATEGIES, parse_strategies
from slurm_dl.experiments.game_workload import Crowd
from slurm_dl.experiments.grid import Figures, Workload, product
from slurm_dl.experiments.option_words import parse_parameters
from slurm_dl.experiments.process_pool import WorkFault
from slurm_dl.report import export
from slurm_dl.report.terminal_table import NONE, Column, duration, table
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import read_trace

_SHARE = FloatRange(0, 1, max_open=True)
_PART = FloatRange(0, 1, min_open=True, max_open=True)


def _list(context: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's form
    if value:
        for name, strategy in STRATEGIES.items():
            if name not in BASES:
                click.echo(f"{name:17}{strategy.title}")
        context.exit()


_CROWD = (
    click.option("--jobs", type=click.IntRange(10, 100_000), default=160, show_default=True,
                 help="Jobs of the honest users."),
    click.option("--users", type=click.IntRange(3, 10_000), default=20, show_default=True,
                 help="The player included."),
    click.option("--share", type=_PART, default=0.05, show_default=True,
                 help="Share of the work that is the player's, within a fifth of it."),
    click.option("--sessions", type=_SHARE, default=0.0, show_default=True,
                 help="So many of the honest jobs come when the one before of their user is over, "
                 "about 20 minutes later."),
    click.option("--opt-outs", type=_SHARE, default=0.0, show_default=True,
                 help="So many of the honest users cannot save, and do not opt in."),
)  # fmt: skip


def _with(options: Sequence[option.Option]) -> option.Option:
    def add(call: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(options):
            call = one(call)
        return call

    return add


@click.command(name="game")
@_with(option.trace_options())
@option.cluster_option()
@option.policies_option("Under which it is played.", default="discrete_las")
@option.PARAMETERS
@click.option(
    "--strategies",
    metavar="NAME,...",
    default="all",
    show_default=True,
    help="What the player does; --list tells the names.",
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list,
    help="List the strategies and end.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Workloads that are drawn, with seeds from 1 on.",
)
@click.option(
    "--loads",
    metavar="LOAD,...",
    default="1.4",
    show_default=True,
    help="GPU-seconds that are asked for per second while jobs come, over the GPUs.",
)
@_with(_CROWD)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Take the daemon's limits from this configuration, circuit breakers left off; its own "
    "defaults if not given.",
)
@option.PROCESSES
@option.dir_option("Keep the simulations here; what is there already is not run again.")
@option.JSON
def game_command(
    *,
    trace: Path,
    format_name: str | None,
    cluster: str,
    policies: str,
    parameters: tuple[str, ...],
    strategies: str,
    seeds: int,
    loads: str,
    config: str | None,
    processes: int | None,
    directory: Path | None,
    json_path: Path | None,
    **crowd: float,
) -> None:
    """Measure what a selfish user gains by each strategy, and what the others lose.

    Jobs are drawn from TRACE and run on the simulated Slurm under dlschedd, once with all users
    honest and once for each strategy of one of them, the player. Ends with status 1 if a
    simulation failed.

    \b
    Examples:
      dlsim game traces/elasticflow/cluster10.csv --cluster 4x8 --seeds 2 \\
        --strategies early,no-opt-in
      dlsim game traces/elasticflow/cluster10.csv --cluster 4x8 -j 2 --dir game \\
        --policies discrete_las,learned_gittins --opt-outs 0.2 --json game.json
    """  # noqa: D301 - \b is click's mark
    check_outputs(json_path)
    names = parse_strategies(strategies)
    specs = policy_words.parse_policies(policies, parse_parameters(parameters))
    times = policy_words.parse_loads(loads)
    product(specs, loads=times)
    played = Game(
        workloads={"": Workload(cluster=cluster, trace=read_trace(trace, format_name))},
        crowd=Crowd(**crowd),  # type: ignore[arg-type]
        config=config,
    )
    cells = game.cells(specs, names, times, seeds)
    written = manifest(played, cells)
    played.check(cells)
    store = None if directory is None else GameStore(directory, played).begin()
    found: dict[GameCell, Figures] = {}
    failed: list[str] = []
    for cell, value in run_each("game", played, cells, played.figures, processes, store=store):
        if isinstance(value, WorkFault):
            failed.append(value.why)
            click.echo(f"dlsim game: {safe(f'failed: {value.why}', 1000)}", err=True)
        else:
            assert isinstance(cell, GameCell)  # noqa: S101 - of this experiment
            found[cell] = value
    rows = [*game.rows({cell: found[cell] for cell in cells if cell in found})]
    made = {"manifest": written, **as_json(played, seeds, rows, failed)}
    report(made, json_path, _lines(rows, has_opt_outs=played.crowd.opt_outs > 0))
    if failed:
        raise SystemExit(EXIT_FAILED)


def as_json(
    played: Game, seeds: int, rows: Sequence[GameRow], failed: Sequence[str]
) -> dict[str, object]:
    """All of it as plain values; the keys are those of `docs/evaluate/gaming.md`."""
    told: dict[str, object] = export.plain({
        "cluster": played.workloads[""].cluster,
        "crowd": asdict(played.crowd),
        "config": played.config,
        "seeds": seeds,
        "rows": [{**asdict(row), "title": STRATEGIES[row.strategy].title} for row in rows],
        "failed": list(failed),
    })  # fmt: skip
    return told


def _lines(rows: Sequence[GameRow], *, has_opt_outs: bool) -> Iterator[RenderableType]:
    """A table for each policy and load."""
    for policy, load in dict.fromkeys((row.policy, row.load) for row in rows):
        of_both = [row for row in rows if (row.policy, row.load) == (policy, load)]
        for row in of_both:
            if row.strategy == HONEST:
                own, others = (row.jct_s[name].mean for name in game.FIGURES[:2])
                yield (
                    f"{safe(policy, 60)}, load {load:g}; all honest: mean JCT "
                    f"{duration(own)} of the player, {duration(others)} of the others"
                )
        titles = ["gain", "others lose", *["cannot opt in, lose"] * has_opt_outs, "seeds"]
        columns = [Column(title=title, right=True, folds=True) for title in titles]
        cells = [
            (
                f"{STRATEGIES[row.strategy].title}{' !' if row.unfinished else ''}",
                *map(spread, (row.gain, row.loss, *[row.cannot] * has_opt_outs)),
                str(row.seeds),
            )
            for row in of_both
            if row.strategy not in BASES
        ]
        yield table((Column(title="strategy", folds=True), *columns), cells)
        yield ""
    yield "per cent of the mean JCT with all honest: mean of the seeds (least..most)"
    if any(row.unfinished for row in rows):
        yield "!: seeds are left out in which jobs did not get to their end"


def spread(figure: Spread) -> str:
    """A mean and the range of the seeds, per cent."""
    if math.isnan(figure.mean):
        return NONE
    return f"{100 * figure.mean:+.1f} ({100 * figure.low:+.0f}..{100 * figure.high:+.0f})"
