"""Options of the commands that simulate, each declared once.

It imports no NumPy: `lazy_command` imports a command's module when the command runs, so that
``--help`` and the completion of shells do not wait for it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from slurm_dl.cli.commandline import FloatRange

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

LONGEST_QUANTUM_S: Final = 30 * 86400.0  # As in the configuration


def lazy_command(
    name: str, runs: str, *options: Option, hidden: bool = False
) -> Callable[[Any], click.Command]:
    """A command with the docstring of the decorated function.

    Args:
        runs: ``module:function`` that gets the values of the options; imported when it is called.
        options: In the order of the help.
        hidden: It is left out of the help of its group.
    """

    def make(described: Any) -> click.Command:  # noqa: ANN401 - any function
        def call(**given: object) -> None:
            module, _, function = runs.partition(":")
            getattr(importlib.import_module(module), function)(**given)

        for option in reversed(options):
            call = option(call)
        text = inspect.cleandoc(described.__doc__)
        return click.command(name=name, help=text, hidden=hidden)(call)

    return make


def input_file(**more: bool) -> click.Path:
    """The type of an option that names a file or folder."""
    return click.Path(path_type=Path, **more)


def _keep(ctx: click.Context, param: click.Parameter, value: str | Path | None) -> None:
    """Leave the value for `_format_name`."""
    ctx.meta[f"slurm_dl.{param.name}"] = value


def _format_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The format, or with ``--columns`` or ``--models`` what `format_registry` makes of them."""
    columns, models = ctx.meta["slurm_dl.columns"], ctx.meta["slurm_dl.models"]
    if columns is None and models is None:
        return value
    if columns is not None and (value is not None or models is not None):
        msg = "--columns reads any table; leave --format and --models out"
        raise click.UsageError(msg)
    if value not in {None, "pollux"}:
        msg = "--models goes with format pollux"
        raise click.UsageError(msg)
    assert param.name is not None  # noqa: S101 - an option has a name
    ctx.set_parameter_source(param.name, ParameterSource.COMMANDLINE)
    return f"pollux:{models}" if columns is None else f"columns:{columns}"


def format_options(text: str = "Format of the trace, if it cannot be told") -> tuple[Option, ...]:
    """``--format`` and ``--columns``, together the value ``format_name``.

    Args:
        text: The beginning of the help of ``--format``.
    """
    return (
        click.option(
            "--format",
            "format_name",
            metavar="FORMAT",
            callback=_format_name,
            help=f"{text} from the content; 'dlsim traces --formats' lists them.",
        ),
        click.option(
            "--columns",
            metavar="OURS=THEIRS,...",
            is_eager=True,
            expose_value=False,
            callback=_keep,
            help="The trace is any table under a header; this tells its names for submit_s, "
            "duration_s and gpus, and for job_id, user, account, model and ending if it has them: "
            "gpus=#GPU,submit_s=Submit. Case does not count.",
        ),
        click.option(
            "--models",
            metavar="DIR",
            type=input_file(exists=True, file_okay=False),
            is_eager=True,
            expose_value=False,
            callback=_keep,
            help="The trace is of format pollux; its measured models are here. Not given: in "
            "models beside the trace.",
        ),
    )


def trace_options(*, required: bool = True) -> tuple[Option, ...]:
    """``TRACE`` and `format_options`.

    Args:
        required: The jobs cannot come from elsewhere.
    """
    return (
        click.argument("trace", type=input_file(exists=True), required=required),
        *format_options(),
    )


def plot_option(text: str) -> Option:
    """``--plot``; *text* is its help."""
    return click.option("--plot", "plot_path", type=input_file(dir_okay=False), help=text)


def policies_option(text: str, *, default: str | None = None) -> Option:
    """``--policies``; *text* is its help."""
    return click.option(
        "--policies",
        metavar="NAME[:PRESET],...",
        default=default,
        show_default=default is not None,
        help=text,
    )


PARAMETERS: Final = click.option(
    "-p",
    "parameters",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a parameter of those policies that have one of this name.",
)
PROCESSES: Final = click.option(
    "-j",
    "processes",
    type=click.IntRange(min=1),
    metavar="PROCESSES",
    help="Simulations at a time; 1 if not given.",
)
JSON_FILE: Final = click.option(
    "--json", "json_path", type=input_file(), help="Write the figures here."
)
JSON: Final = click.option(
    "--json",
    "json_path",
    type=input_file(allow_dash=True),
    help="Write the figures here; -: print them in place of the text.",
)
TAGS: Final = click.option(
    "--tags",
    metavar="none|SD",
    default="none",
    help="Give the jobs names that tell of run times, in place of their models: within a name "
    "the logarithm of the run time has this standard deviation, such as 0.7. Policies that "
    "learn from finished jobs go by names.",
)
QUIET: Final = click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
SEED: Final = click.option(
    "--seed", type=click.IntRange(min=0), default=0, help="Seed of all that is drawn."
)


def resamples_of(ctx: click.Context, _param: click.Parameter, value: int) -> int:
    """``--resamples``; ``--seeds``, which was its name, counts the trace too."""
    seeds: int | None = ctx.params.pop("seeds", None)
    if seeds is None:
        return value
    if ctx.get_parameter_source("resamples") is not ParameterSource.DEFAULT:
        msg = "--seeds N is --resamples N-1; give --resamples alone"
        raise click.UsageError(msg)
    return seeds - 1


def cluster_option(*, required: bool = True) -> Option:
    """``--cluster``."""
    return click.option(
        "--cluster",
        "cluster",
        metavar="NODESxGPUS",
        required=required,
        help="The cluster: 8x8 is 8 nodes of 8 GPUs; groups are joined by commas, and a type "
        "may follow: 4x8:v100,2x4:k80. With @N nodes are on leaf switches of N: 8x8@4."
        + ("" if required else " Not given: that of the preset, if it has one."),
    )


def costs_option(*, several: bool = False) -> Option:
    """``--costs``.

    Args:
        several: Cost models can be compared: the value is a tuple of those given.
    """
    text = (
        "What starting and stopping cost. none: nothing, as in most papers. slurm: what "
        "a real Slurm under dlschedd costs. muri: Muri's start overhead at every event. SECONDS: "
        "of each start but the first. FILE: a table. Not given: what the preset has."
    )
    return click.option(
        "--costs",
        metavar="none|slurm|muri|SECONDS|FILE",
        multiple=several,
        help=f"{text} Given several times, a table for each." if several else text,
    )


CLUSTER: Final = (cluster_option(), costs_option(), SEED)


def place_options(*, several: bool) -> tuple[Option, ...]:
    """``--place`` and what goes with it, for `asked.placement_of`.

    Args:
        several: Schemes can be compared: it may be given several times.
    """
    text = (
        "Put jobs on nodes by this scheme; none: GPUs are only counted. Speeds are those of "
        "profiles."
    )
    return (
        click.option(
            "--place",
            "places",
            metavar="SCHEME[:KEY=VALUE,...]",
            multiple=several,
            help=f"{text} Given several times, each policy runs with each." if several else text,
        ),
        click.option(
            "--rule",
            "rules",
            metavar="NAME[:KEY=VALUE,...]",
            multiple=True,
            help="With --place: nodes where jobs may not, or had better not be.",
        ),
        click.option(
            "--profiles",
            "profiles",
            metavar="DIR",
            type=input_file(exists=True, file_okay=False),
            help="With --place: profiles of models, before those that come with slurm_dl.",
        ),
        click.option(
            "--widths",
            type=click.Choice(["any", "fewest"]),
            default="any",
            help="With --place: users let a job lie on any number of nodes, or ask for the fewest. "
            "any if not given.",
        ),
        click.option(
            "--contention",
            metavar="NETWORK[:PCIE]",
            help="With --place: jobs share a node's link, and PCIe, of so many MB/s.",
        ),
    )


def min_quantum_option(text: str, *, several: bool = False) -> Option:
    """``--min-quantum``, as ``preemption.min_quantum_s`` of the daemon.

    Args:
        text: The end of its help.
        several: It is a list, to be read by the command; else one number, None if not given.
    """
    return click.option(
        "--min-quantum",
        "min_quanta" if several else "min_quantum_s",
        type=str if several else FloatRange(min=0, max=LONGEST_QUANTUM_S),
        metavar="SECONDS,..." if several else "SECONDS",
        help=f"With --costs slurm: {text}",
    )


FORESIGHT: Final = (
    click.option(
        "--gpu-speed",
        metavar="TYPE=SPEED,...",
        help="Relative speed of the cluster's GPU types, where profiles do not tell: "
        "v100=4,k80=1. A job runs on GPUs of one type; its time in the trace is that on the "
        "fastest.",
    ),
    click.option(
        "--rates",
        metavar="FILE",
        type=input_file(exists=True, dir_okay=False),
        help="Speeds of models on GPU types, before those of profiles and --gpu-speed: YAML or "
        "JSON, MODEL: {TYPE: SPEED} or MODEL: {GPUS: {TYPE: SPEED}}.",
    ),
    click.option(
        "--estimate-error",
        type=float,
        default=0.0,
        show_default=True,
        metavar="SIGMA",
        help="Policies that go by run times are told wrong ones: the logarithm of foreseen / "
        "true has this standard deviation.",
    ),
    click.option(
        "--due",
        metavar="SHARE:MULTIPLE",
        help="This share of the jobs is to be done so many times their run time after their "
        "submission: 0.3:1.5.",
    ),
    click.option(
        "--elastic",
        type=float,
        default=0.0,
        show_default=True,
        metavar="SHARE",
        help="This share of the jobs can change size, from half to twice the GPUs they ask for; "
        "policies that choose sizes use it, and all others with --expand.",
    ),
    click.option(
        "--expand",
        is_flag=True,
        help="Under policies that choose no sizes, too: elastic jobs get their least size in the "
        "order of the policy, and what is left over goes to those that gain most by it.",
    ),
    click.option(
        "--steadiness",
        type=float,
        metavar="RESTARTS",
        help="A running job gets more GPUs only if that saves it more than so many restarts; "
        "if not given, as the preset has it, or 10.",
    ),
    click.option(
        "--pairs",
        metavar="slices|mps|FILE[:SHARES]",
        help="Two jobs may share their GPUs, at the speeds of a file, KIND: {OTHER: SPEED}, or "
        "those measured on an H200 of heavy, medium and light jobs in slices of time or under "
        "MPS. A job is of the kind that its model names, else drawn: mps:40/30/30.",
    ),
)
"""Knowledge that policies have beforehand."""


def dir_option(text: str) -> Option:
    """``--dir``; *text* is its help."""
    return click.option(
        "--dir", "directory", metavar="DIR", type=input_file(file_okay=False), help=text
    )


ON_SLURM: Final = (
    click.option(
        "--on",
        "where",
        type=click.Choice(["local", "slurm"]),
        default="local",
        show_default=True,
        help="Run here, or as one job array of the Slurm cluster.",
    ),
    dir_option(
        "Keep the figures and the jobs of each simulation here; what is there already is not run "
        "again. With --on slurm: a new folder, on a file system that all nodes see."
    ),
    click.option("--resume", is_flag=True, help="With --on slurm: go on with the sweep in --dir."),
    click.option(
        "--partition", metavar="P", help="With --on slurm: partition; else the default one."
    ),
    click.option(
        "--time", "time_limit", metavar="T", help="With --on slurm: time limit of a task."
    ),
    click.option(
        "--array-limit",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --on slurm: at most so many tasks at a time.",
    ),
    click.option(
        "--within",
        "within_s",
        type=FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="With --on slurm: stop waiting after so long (a day if not given); the array goes on.",
    ),
)
"""The place of the simulations of a comparison: here, or an array on Slurm."""
