"""Options that ``dlsim whatif`` and ``dlsim tune`` share, and the history that they are about."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from slurm_dl.cli.dlsim.simulation_options import (
    LONGEST_QUANTUM_S,
    trace_argument_if_any,
    with_options,
)
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies.discrete_las import check_thresholds
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.slurm.history_dump import read_dump

F = TypeVar("F", bound=Callable[..., Any])

FIGURES: Final = (
    "mean-jct", "p50-jct", "p95-jct", "p99-jct", "mean-queue", "p95-queue", "lost", "mean-rho",
    "unfair",
)  # fmt: skip
"""The words of ``--by``: the keys of `experiments.whatif_history.KINDS`, which takes long to
import."""

MOST_SHOWN: Final = 40


def history_options(command: F) -> F:
    """What the history is, and how its days are counted."""
    options = [
        trace_argument_if_any,
        click.option(
            "--from-sacct",
            "dump",
            metavar="DUMP",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="In place of TRACE: a dump of accounting; 'dlsim history --sacct-command' tells "
            "how to make it.",
        ),
        click.option(
            "--by",
            type=click.Choice(FIGURES),
            default=FIGURES[0],
            show_default=True,
            help="The figure that counts; less is better. lost: GPU-hours a day without progress. "
            "unfair: the share of jobs with a finish-time fairness above 1.05.",
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
    ]  # fmt: skip
    return with_options(command, options)


def read_history(trace: Path | None, dump: Path | None, format_name: str | None) -> Trace:
    """The jobs of a trace, or of a dump of accounting.

    Raises:
        UsageError: It is neither or both.
        ConfigError: It cannot be read.
    """
    if (trace is None) == (dump is None):
        msg = "give a TRACE or --from-sacct DUMP"
        raise click.UsageError(msg)
    if dump is not None:
        if format_name is not None:
            msg = "--format is for a TRACE"
            raise click.UsageError(msg)
        return read_dump(dump)

    assert trace is not None  # noqa: S101 - one of them is there
    return read_trace(trace, format_name)


def parse_thresholds(text: str) -> tuple[float, ...]:
    """Thresholds from ``3600,36000``, GPU-seconds.

    Raises:
        ConfigError: They cut no service into queues.
    """
    try:
        found = tuple(float(word) for word in text.split(","))
        check_thresholds(found)
    except ValueError as err:
        msg = (
            f"--thresholds {text[:MOST_SHOWN]!r}: must be one or more numbers above 0 that "
            "increase, in GPU-seconds, such as 3600,36000"
        )
        raise ConfigError(msg) from err
    return found


def parse_numbers(text: str, option: str) -> tuple[float, ...]:
    """Numbers of 0 or more from ``0,2,8``.

    Raises:
        ConfigError: One is none.
    """
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = (math.nan,)
    if not all(math.isfinite(value) and value >= 0 for value in found):
        msg = f"{option} {text[:MOST_SHOWN]!r}: must be numbers of 0 or more, such as 0,2,8"
        raise ConfigError(msg)
    return found


def parse_quanta(text: str) -> tuple[float, ...]:
    """Least times of a run from ``300,900``, seconds; each once.

    Raises:
        ConfigError: One is none.
    """
    found = tuple(dict.fromkeys(parse_numbers(text, "--min-quantum")))
    if max(found) > LONGEST_QUANTUM_S:
        msg = f"--min-quantum {text[:MOST_SHOWN]!r}: at most {LONGEST_QUANTUM_S:.0f} seconds"
        raise ConfigError(msg)
    return found
