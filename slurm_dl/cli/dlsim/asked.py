"""The values of the simulator's options, from their words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict, TypeVar, Unpack

import click
import yaml

from slurm_dl.cli.commandline import print_json
from slurm_dl.cli.dlsim.simulation_options import LONGEST_QUANTUM_S
from slurm_dl.experiments import grid, placement_choice
from slurm_dl.experiments.grid import Cell, Experiment, Simulated, Store
from slurm_dl.experiments.oracle import parse_foresight
from slurm_dl.experiments.placement_choice import Named, PlacementSetup
from slurm_dl.experiments.process_pool import WorkFault
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies.discrete_las import check_thresholds
from slurm_dl.report import export
from slurm_dl.report.console import console, progress
from slurm_dl.simulation.slurm.overheads import table_of
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.slurm.history_dump import read_dump

if TYPE_CHECKING:
    from rich.console import RenderableType

M = TypeVar("M")

_SHOWN = 40


def run_each(
    title: str,
    experiment: Experiment,
    cells: Sequence[Cell],
    measure: Callable[[Simulated], M],
    processes: int | None,
    *,
    store: Store | None = None,
) -> Iterator[tuple[Cell, M | WorkFault]]:
    """See `grid.run`; with a bar of progress."""
    done = 0
    with progress(safe(title, 60), len(cells)) as bar:
        ran = grid.run(
            experiment, cells, measure, processes=processes or 1, store=store,
            begin=lambda cell: bar.tell(safe(str(cell), 60)),
            progress=lambda share: bar(done + share),
        )  # fmt: skip
        for done, found in enumerate(ran, 1):
            bar(done)
            yield found


def run_all(
    title: str,
    experiment: Experiment,
    cells: Sequence[Cell],
    measure: Callable[[Simulated], M],
    processes: int | None,
) -> dict[Cell, M | WorkFault]:
    """All *cells*, with a bar of progress."""
    found = dict(run_each(title, experiment, cells, measure, processes))
    return {cell: found[cell] for cell in cells}


class PlacementOptions(TypedDict):
    """Values of `place_options`, and those of `FORESIGHT` where a command has them."""

    places: Sequence[str] | str | None
    rules: tuple[str, ...]
    profiles: Path | None
    widths: Literal["any", "fewest"]
    contention: str | None
    gpu_speed: NotRequired[str | None]
    estimate_error: NotRequired[float]
    due: NotRequired[str | None]


def placement_of(
    **given: Unpack[PlacementOptions],
) -> tuple[tuple[Named | None, ...], PlacementSetup]:
    """Schemes, and all that goes with them.

    Raises:
        ConfigError: One of the options is no such thing.
        UsageError: Something goes with ``--place``, and there is no scheme.
    """
    places = given["places"]
    words = (places,) if isinstance(places, str) else places or ()
    schemes = tuple(placement_choice.parse_scheme(word, read_value) for word in words)
    context = click.get_current_context()
    for name in ("rules", "profiles", "widths", "contention"):
        source = context.get_parameter_source(name)
        if not any(schemes) and source is not None and source.name == "COMMANDLINE":
            option = "--rule" if name == "rules" else f"--{name}"
            msg = f"{option} goes with --place: name a scheme"
            raise click.UsageError(msg)
    ground = placement_choice.parse_ground(
        given["rules"], given["profiles"], given["widths"], given["contention"], read_value
    )
    foresight = parse_foresight(
        given.get("gpu_speed"), given.get("estimate_error", 0.0), given.get("due")
    )
    return schemes, dataclasses.replace(ground, foresight=foresight)


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
    """Raise before the work, not after it, if a result could not be written; ``-`` always can.

    Raises:
        UsageError: A directory is not there, or two results would go into one file.
    """
    given = [path for path in paths if path is not None and not is_printed(path)]
    for path in given:
        if not path.absolute().parent.is_dir():
            msg = f"{path}: there is no directory {path.parent}"
            raise click.UsageError(msg)
    if len({path.absolute() for path in given}) < len(given):
        msg = "two results would go into one file; give each a name of its own"
        raise click.UsageError(msg)


def is_printed(json_path: Path | None) -> bool:
    """Whether the value of ``--json`` means standard output."""
    return json_path is not None and str(json_path) == "-"


def report(told: dict[str, object], json_path: Path | None, text: Iterator[RenderableType]) -> None:
    """Print *told* as JSON, or *text* and write *told* to a file."""
    if is_printed(json_path):
        print_json(told)
        return
    out = console()
    for part in text:
        if isinstance(part, str):
            click.echo(part)
        else:
            out.print(part)
    if json_path is not None:
        export.write_json(json_path, told)


def read_history(trace: Path | None, dump: Path | None, format_name: str | None) -> Trace:
    """The jobs of a trace, or of a dump of accounting.

    Raises:
        UsageError: It is neither or both.
        ConfigError: It cannot be read.
    """
    if (trace is None) == (dump is None):
        msg = "give a TRACE or --from-sacct DUMP"
        raise click.UsageError(msg)
    if dump is not None and format_name is not None:
        msg = "--format is for a TRACE"
        raise click.UsageError(msg)
    if dump is not None:
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
            f"--thresholds {text[:_SHOWN]!r}: must be one or more numbers above 0 that "
            "increase, in GPU-seconds, such as 3600,36000"
        )
        raise ConfigError(msg) from err
    return found


def parse_numbers(text: str, option: str, *, most: float = math.inf) -> tuple[float, ...]:
    """Numbers of 0 or more from ``0,2,8``; each once.

    Raises:
        ConfigError: One is none.
    """
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = (math.nan,)
    if not all(math.isfinite(value) and value >= 0 for value in found):
        msg = f"{option} {text[:_SHOWN]!r}: must be numbers of 0 or more, such as 0,2,8"
        raise ConfigError(msg)
    if max(found) > most:
        msg = f"{option} {text[:_SHOWN]!r}: at most {most:.0f} seconds"
        raise ConfigError(msg)
    return tuple(dict.fromkeys(found))


def parse_quanta(text: str | None) -> tuple[float, ...]:
    """Least times of a run from ``300,900``, seconds; none if nobody said.

    Raises:
        ConfigError: One is none.
    """
    return () if text is None else parse_numbers(text, "--min-quantum", most=LONGEST_QUANTUM_S)
