"""The values of the simulator's options, from their words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict, TypeVar, Unpack

import click
from click.core import ParameterSource

from slurm_dl.cli.commandline import command_line, print_json
from slurm_dl.cli.dlsim.simulation_options import LONGEST_QUANTUM_S
from slurm_dl.experiments import grid
from slurm_dl.experiments.cell_store import Manifest, Store, manifest_of
from slurm_dl.experiments.grid import Cell, Experiment, Simulated
from slurm_dl.experiments.option_words import numbers, parse_amounts
from slurm_dl.experiments.oracle import parse_foresight
from slurm_dl.experiments.placement_choice import (
    NOWHERE,
    Named,
    PlacementSetup,
    parse_contention,
    parse_named,
)
from slurm_dl.experiments.process_pool import WorkFault
from slurm_dl.experiments.whatif_history import DAY_S, DailyHistory
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.report import export
from slurm_dl.report.terminal_table import console, progress
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.slurm.dumps import read_dump
from slurm_dl.traces.summary import summarize

if TYPE_CHECKING:
    from rich.console import RenderableType

M = TypeVar("M")


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
    *,
    store: Store | None = None,
) -> dict[Cell, M | WorkFault]:
    """All *cells*, with a bar of progress."""
    found = dict(run_each(title, experiment, cells, measure, processes, store=store))
    return {cell: found[cell] for cell in cells}


def manifest(experiment: Experiment, cells: Sequence[Cell]) -> Manifest:
    """The manifest of what this command runs."""
    return manifest_of(experiment, cells, command_line())


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
    rates: NotRequired[Path | None]
    elastic: NotRequired[float]
    expand: NotRequired[bool]
    steadiness: NotRequired[float | None]
    pairs: NotRequired[str | None]


def placement_of(
    **given: Unpack[PlacementOptions],
) -> tuple[tuple[Named | None, ...], PlacementSetup]:
    """Schemes, and all that goes with them."""
    places = given["places"]
    words = (places,) if isinstance(places, str) else places or ()
    schemes = tuple(None if w.strip() == NOWHERE else parse_named("--place", w) for w in words)
    for name, option in given_options().items():
        if not any(schemes) and name in {"rules", "profiles", "widths", "contention"}:
            msg = f"{option} goes with --place: name a scheme"
            raise click.UsageError(msg)
    foresight = parse_foresight(
        given.get("gpu_speed"), given.get("estimate_error", 0.0), given.get("due"),
        given.get("rates"), elastic=given.get("elastic", 0.0), expand=given.get("expand", False),
        steadiness=given.get("steadiness"), pair_table=given.get("pairs"),
    )  # fmt: skip
    profiles = given["profiles"]
    return schemes, PlacementSetup(
        rules=tuple(parse_named("--rule", word) for word in given["rules"]),
        profiles=None if profiles is None else str(profiles),
        widths=given["widths"],
        contention=parse_contention(given["contention"]),
        foresight=foresight,
    )


def check_outputs(*paths: Path | None) -> None:
    """Raise before the work, not after it, if a result could not be written; ``-`` always can."""
    given = [path for path in paths if path is not None and not is_printed(path)]
    for path in given:
        if not path.absolute().parent.is_dir():
            msg = f"{path}: there is no directory {path.parent}"
            raise click.UsageError(msg)
    if len({path.absolute() for path in given}) < len(given):
        msg = "two results would go into one file; give each a name of its own"
        raise click.UsageError(msg)


def given_options() -> dict[str, str]:
    """Options and arguments on the command line, by the name of their value."""
    context = click.get_current_context()
    return {
        option.name: option.opts[-1] if isinstance(option, click.Option) else "TRACE"
        for option in context.command.params
        if option.name is not None
        and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }


def check_picture(path: Path | None) -> None:
    """Raise before the work is done if the name is no picture's."""
    endings = (".png", ".svg", ".pdf")
    if path is not None and path.suffix.lower() not in endings:
        msg = f"--plot {path}: name a file that ends with one of {', '.join(endings)}"
        raise ConfigError(msg)


def is_printed(json_path: Path | None) -> bool:
    """True if the value of ``--json`` means standard output."""
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


def read_lines(trace: Trace, *, too_large: int = 0, gpus: int = 0) -> Iterator[str]:
    """Number of jobs read, and of those left out, with reasons.

    Args:
        too_large: So many ask for more than the *gpus* of the cluster.
    """
    summary = summarize(trace)
    yield (
        f"{summary.name} ({summary.format}): {summary.jobs:,} jobs, "
        f"{summary.gpu_hours:,.1f} GPU-hours over {summary.span_s / DAY_S:.1f} days"
    )
    for kind in summary.left_out:
        yield f"left out {kind.lines:,} lines: {kind.reason} ({kind.examples[0]})"
    if too_large:
        yield f"left out {too_large:,} jobs that ask for more than the {gpus} GPUs there are"


def head_lines(
    trace: Trace,
    history: DailyHistory,
    shape: ClusterShape,
    ran: Sequence[tuple[str, str, Sequence[str]]],
    *days: str,
) -> Iterator[str]:
    """Jobs, cluster and policies of a study of a history.

    Args:
        ran: Label, costs and notes of each policy.
        days: Lines about the days that count.
    """
    costs = "; ".join(dict.fromkeys(word for _, word, _ in ran))
    yield from read_lines(trace, too_large=history.too_large, gpus=shape.gpus)
    yield f"on {shape}, costs {costs}"
    yield from days
    if costs == "none":
        yield (
            "starting and stopping costs nothing here, which favours policies that preempt: "
            "see --costs"
        )
    told = ((label, note) for label, _, notes in ran for note in notes)
    yield from (f"{safe(label, 40)}: {note}" for label, note in dict.fromkeys(told))
    yield ""


def read_history(trace: Path | None, dump: Path | None, format_name: str | None) -> Trace:
    """The jobs of a trace, or of a dump of accounting."""
    if (trace is None) == (dump is None):
        msg = "give a TRACE or --from-sacct DUMP"
        raise click.UsageError(msg)
    if dump is not None and format_name is not None:
        msg = "--format and --columns are for a TRACE"
        raise click.UsageError(msg)
    if dump is not None:
        return read_dump(dump)
    assert trace is not None  # noqa: S101 - one of them is there
    return read_trace(trace, format_name)


def parse_thresholds(text: str) -> tuple[float, ...]:
    """Thresholds from ``3600,36000``, GPU-seconds."""
    form = "one or more numbers above 0 that increase, in GPU-seconds, such as 3600,36000"
    return numbers(
        "--thresholds", text, form, lambda *edges: DiscreteLas(thresholds_gpu_s=edges)
    ).thresholds_gpu_s


def parse_quanta(text: str | None) -> tuple[float, ...]:
    """Least times of a run from ``300,900``, seconds, each once; none if nobody said."""
    if text is None:
        return ()
    form = f"numbers of 0 or more, such as 300,900; at most {LONGEST_QUANTUM_S:.0f} seconds"
    return parse_amounts("--min-quantum", text, form, most=LONGEST_QUANTUM_S)
