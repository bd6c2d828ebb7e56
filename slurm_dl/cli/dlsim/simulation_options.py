"""Options that several of the simulator's commands have, and what they are read into."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from slurm_dl.model.errors import ConfigError
from slurm_dl.simulation.slurm.overheads import table_of

F = TypeVar("F", bound=Callable[..., Any])

LONGEST_QUANTUM_S = 30 * 86400.0
"""As in the configuration."""


def with_options(command: F, options: Sequence[Callable[[F], F]]) -> F:
    """*command* with *options*, which its help lists in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def trace_argument(command: F) -> F:
    """``TRACE`` and ``--format``."""
    return _trace_argument(command, required=True)


def trace_argument_if_any(command: F) -> F:
    """``TRACE`` and ``--format``, where the jobs may come from elsewhere."""
    return _trace_argument(command, required=False)


def _trace_argument(command: F, *, required: bool) -> F:
    path = click.Path(path_type=Path, exists=True)
    argument = click.argument("trace", type=path, required=required)
    option = click.option(
        "--format",
        "format_name",
        metavar="FORMAT",
        help="Format of the trace, if it cannot be told from the content; "
        "'dlsim traces --formats' lists them.",
    )
    return argument(option(command))


def policies_option(text: str, *, default: str | None = None) -> Callable[[F], F]:
    """``--policies``.

    Args:
        text: What is done with them.
    """
    return click.option(
        "--policies",
        metavar="NAME[:PRESET],...",
        default=default,
        show_default=default is not None,
        help=text,
    )


def parameters_option(command: F) -> F:
    """``-p``, for several policies."""
    return click.option(
        "-p",
        "parameters",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set a parameter of those policies that have one of this name.",
    )(command)


def processes_option(command: F) -> F:
    """``-j``; the value is None if nobody said."""
    return click.option(
        "-j",
        "processes",
        type=click.IntRange(min=1),
        metavar="PROCESSES",
        help="Simulations at a time; 1 if not given.",
    )(command)


def json_option(command: F) -> F:
    """``--json`` of commands that can print JSON in place of their text: see `is_printed`."""
    return click.option(
        "--json",
        "json_path",
        type=click.Path(path_type=Path, allow_dash=True),
        help="Write the figures here; -: print them in place of the text.",
    )(command)


def is_printed(json_path: Path | None) -> bool:
    """Whether the value of `json_option` means standard output."""
    return json_path is not None and str(json_path) == "-"


def tags_option(command: F) -> F:
    """``--tags``, for `made_tags.tagged`."""
    return click.option(
        "--tags",
        metavar="none|SD",
        default="none",
        help="Give the jobs names that tell of run times, in place of their models: within a name "
        "the logarithm of the run time has this standard deviation, such as 0.7. Policies that "
        "learn from finished jobs go by names.",
    )(command)


def quiet_option(command: F) -> F:
    """``-q``."""
    return click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")(command)


def cluster_option(*, required: bool = True) -> Callable[[F], F]:
    """``--cluster``."""
    return click.option(
        "--cluster",
        "cluster",
        metavar="NODESxGPUS",
        required=required,
        help="The cluster: 8x8 is 8 nodes of 8 GPUs; groups are joined by commas, and a type "
        "may follow: 4x8:v100,2x4:k80. With @N nodes are on leaf switches of N: 8x8@4.",
    )


_COSTS = (
    "What starting and stopping cost. none: nothing, as in most papers. slurm: what "
    "a real Slurm under dlschedd costs. muri: Muri's start overhead at every event. FILE: "
    "a table. Not given: what the preset has."
)


def costs_option(*, several: bool = False) -> Callable[[F], F]:
    """``--costs``.

    Args:
        several: Cost models can be compared: the value is a tuple of those given.
    """
    return click.option(
        "--costs",
        metavar="none|slurm|muri|FILE",
        multiple=several,
        help=f"{_COSTS} Given several times, a table for each." if several else _COSTS,
    )


def cluster_options(command: F) -> F:
    """``--cluster``, ``--costs`` and ``--seed``."""
    seed = click.option(
        "--seed", type=click.IntRange(min=0), default=0, help="Seed of all that is drawn."
    )
    return cluster_option()(costs_option()(seed(command)))


_PLACE = (
    "Put jobs on nodes by this scheme; none: GPUs are only counted. Speeds are those of profiles."
)


def place_options(*, several: bool) -> Callable[[F], F]:
    """``--place`` and what goes with it.

    Args:
        several: Schemes can be compared: ``places``, and not ``place``, is what was given.
    """
    place = click.option(
        "--place",
        "places" if several else "place",
        metavar="SCHEME[:KEY=VALUE,...]",
        multiple=several,
        help=f"{_PLACE} Given several times, each policy runs with each." if several else _PLACE,
    )
    others = [
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
            type=click.Path(path_type=Path, exists=True, file_okay=False),
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
    ]

    def add(command: F) -> F:
        return with_options(command, [place, *others])

    return add


def min_quantum_option(text: str, *, several: bool = False) -> Callable[[F], F]:
    """``--min-quantum``, as ``preemption.min_quantum_s`` of the daemon.

    Args:
        text: What is done with it.
        several: It is a list, to be read by the command; else one number, None if not given.
    """
    return click.option(
        "--min-quantum",
        "min_quanta" if several else "min_quantum_s",
        type=str if several else click.FloatRange(min=0, max=LONGEST_QUANTUM_S),
        metavar="SECONDS,..." if several else "SECONDS",
        callback=None if several else _number,
        help=f"With --costs slurm: {text}",
    )


def _number(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    """*value*, which a range lets through even if it is none."""
    if value is not None and math.isnan(value):
        msg = f"{value} is not a number of seconds."
        raise click.BadParameter(msg)
    return value


def foresight_options(command: F) -> F:
    """``--gpu-speed``, ``--estimate-error`` and ``--due``: what policies know beforehand."""
    options = [
        click.option(
            "--gpu-speed",
            metavar="TYPE=SPEED,...",
            help="Relative speed of the cluster's GPU types, where profiles do not tell: "
            "v100=4,k80=1. A job runs on GPUs of one type; its time in the trace is that on the "
            "fastest.",
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
    ]
    return with_options(command, options)


def check_place(*, given: bool) -> None:
    """Refuse what goes with ``--place`` where there is none.

    Args:
        given: There is a scheme.

    Raises:
        UsageError: There is something, and no scheme.
    """
    context = click.get_current_context()
    for name in ("rules", "profiles", "widths", "contention"):
        source = context.get_parameter_source(name)
        if not given and source is not None and source.name == "COMMANDLINE":
            option = "--rule" if name == "rules" else f"--{name}"
            msg = f"{option} goes with --place: name a scheme"
            raise click.UsageError(msg)


def read_value(text: str) -> object:
    """The value of a parameter as YAML reads it: 8, 0.5, true, [3250, 7200].

    Raises:
        ConfigError: It is no value.
    """
    try:
        return table_of(text)
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        msg = f"-p: {text!r} is no value, such as 8, true or [3250, 7200]"
        raise ConfigError(msg) from err


def check_outputs(*paths: Path | None) -> None:
    """Say before the work, not after it, that a result could not be written.

    Raises:
        UsageError: A directory is not there, or two results would go into one file.
    """
    given = [path for path in paths if path is not None]
    for path in given:
        if not path.absolute().parent.is_dir():
            msg = f"{path}: there is no directory {path.parent}"
            raise click.UsageError(msg)
    if len({path.absolute() for path in given}) < len(given):
        msg = "two results would go into one file; give each a name of its own"
        raise click.UsageError(msg)
