"""Options of the commands that ask a site's own history.

It imports no NumPy; see `simulation_options`.
"""

from __future__ import annotations

import functools
from typing import Final

import click

from slurm_dl.cli.commandline import seconds_of
from slurm_dl.cli.dlsim.simulation_options import input_file, plot_option, trace_options
from slurm_dl.text import safe, seconds_in

FIGURES: Final = (
    "mean-jct", "p50-jct", "p95-jct", "p99-jct", "mean-queue", "p95-queue", "lost", "mean-rho",
    "unfair",
)  # fmt: skip
"""The words of ``--by``: the keys of `whatif_history.KINDS`."""


def _figure_or_deadline(_ctx: click.Context, _param: click.Parameter, value: str) -> str | float:
    """``--by`` of whatif: a figure, or seconds."""
    if value in FIGURES:
        return value
    if seconds := seconds_in(value):
        return seconds
    msg = f"{safe(value, 40)!r} is no figure ({', '.join(FIGURES)}) and no deadline such as 5h"
    raise click.BadParameter(msg)


_BY_HELP = (
    "The figure that counts; less is better. lost: GPU-hours a day without progress. "
    "unfair: the share of jobs with a finish-time fairness above 1.05."
)
_by = functools.partial(click.option, "--by", default=FIGURES[0], show_default=True)
DEADLINE: Final = (
    click.option("--curve", "curve_path", metavar="FILE",
                 type=input_file(exists=True, dir_okay=False),
                 help="Values of one more job, lines of a time after its submission and a value: "
                 "8h 10. Without --by TIME its deadline is the first."),
    click.option("--gpus", type=click.IntRange(min=1), metavar="N",
                 help="GPUs of that job; with --by TIME or --curve."),
    click.option("--time", "time_s", metavar="TIME", callback=seconds_of,
                 help="How long that job runs: 2h."),
    click.option("--instants", type=click.IntRange(1, 10_000), metavar="N",
                 help="How many times it is submitted, each time alone; 40 if not given."),
    plot_option("Draw here when it is done (.png, .svg, .pdf)."),
)  # fmt: skip
"""One more job with a deadline; see `whatif_deadline`."""

_HISTORY: Final = (
    *trace_options(required=False),
    click.option(
        "--from-sacct",
        "dump",
        metavar="DUMP",
        type=input_file(exists=True, dir_okay=False),
        help="In place of TRACE: a dump of accounting; 'dlsim history --sacct-command' tells "
        "how to make it.",
    ),
    click.option(
        "--warm-up",
        type=click.IntRange(0, 1000),
        metavar="DAYS",
        help="Days at the beginning that are simulated and not counted, as the cluster begins "
        "empty; a tenth, 1 to 7, if not given.",
    ),
    click.option(
        "--cool-down",
        type=click.IntRange(0, 1000),
        metavar="DAYS",
        help="The same at the end, where no new jobs come; a tenth, 1 to 7, if not given.",
    ),
    click.option(
        "--block-days",
        type=click.IntRange(1, 100),
        default=1,
        show_default=True,
        help="So many days are resampled together: 7 where weeks are alike, or where a queue "
        "lasts for days.",
    ),
)
HISTORY: Final = (*_HISTORY, _by(type=click.Choice(FIGURES), help=_BY_HELP))
"""The history, how its days are counted, and by what."""
HISTORY_OR_DEADLINE: Final = (*_HISTORY, _by(
    metavar="FIGURE|TIME", callback=_figure_or_deadline,
    help=f"{_BY_HELP} FIGURE is one of {', '.join(FIGURES)}. TIME, such as 5h: the deadline of "
    "one more job, see --gpus and --time.",
))  # fmt: skip
