"""``dlsim traces``: the traces that there are; ``dlsim generate``: a workload like a real one."""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import click

from slurm_dl.cli.commandline import FloatRange, print_json
from slurm_dl.cli.dlsim.simulation_options import SEED, cluster_option, format_options
from slurm_dl.cli.policy_lists import wrapped
from slurm_dl.model.errors import ConfigError
from slurm_dl.report import export
from slurm_dl.report.terminal_table import duration, number
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.text import safe
from slurm_dl.traces import workload_fit as fits
from slurm_dl.traces import workload_generator as made
from slurm_dl.traces.file_lines import read_head
from slurm_dl.traces.format_registry import FORMATS, read_trace
from slurm_dl.traces.formats.slurm_dl_csv import write_trace
from slurm_dl.traces.slurm.sacct import SACCT
from slurm_dl.traces.summary import QUANTILES, TraceSummary, summarize
from slurm_dl.traces.workload_fit import Fit

_WIDTH: Final = 80
_MOST_SIZES: Final = 12
_S_PER_DAY: Final = 86_400.0

_FORMAT_OF_FILE, _COLUMNS_OF_FILE, _MODELS_OF_FILE = format_options()

_TOGETHER: Final = "\N{NO-BREAK SPACE}"
"""A space at which no line is broken; a plain one once it is printed."""


@click.command(name="traces")
@click.argument("trace", type=click.Path(path_type=Path, exists=True), required=False)
@_FORMAT_OF_FILE
@_COLUMNS_OF_FILE
@_MODELS_OF_FILE
@click.option("--formats", is_flag=True, help="List the formats.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def traces_command(
    *, trace: Path | None, format_name: str | None, formats: bool, as_json: bool
) -> None:
    """Say what is in TRACE, and what was left out of it and why.

    \b
    Examples:
      dlsim traces traces/philly/philly.csv.gz
      dlsim traces history.txt --format sacct --json
      dlsim traces mine.csv --columns gpus=#GPU,submit_s=Submit,duration_s=Run
      dlsim traces --formats
    """  # noqa: D301 - \b is click's mark
    if formats == (trace is not None):
        msg = "give a TRACE, or --formats alone"
        raise click.UsageError(msg)
    if trace is None:
        _show_formats(as_json=as_json)
        return

    summary = summarize(read_trace(trace, format_name))
    if as_json:
        print_json(summary_json(summary))
        return
    for line in summary_lines(summary):
        click.echo(line)


def _show_formats(*, as_json: bool) -> None:
    if as_json:
        print_json({"formats": [{"name": f.name, "about": f.about} for f in FORMATS.values()]})
        return
    for known in FORMATS.values():
        click.echo(f"{known.name:12} {known.about}")


def summary_json(summary: TraceSummary) -> dict[str, object]:
    """The summary as plain values; the keys are those of `docs/evaluate/simulator.md`."""
    # A trace whose jobs all come at once asks for no number of GPUs in particular: null.
    told: dict[str, object] = export.plain(summary)
    return {
        **told,
        "duration_s": dict(zip(map("{:g}".format, QUANTILES), summary.duration_s, strict=True)),
        "jobs_by_gpus": [{"gpus": gpus, "jobs": jobs} for gpus, jobs in summary.jobs_by_gpus],
        "endings": dict(summary.endings),
        "lines_left_out": summary.lines_left_out,
    }


def summary_lines(summary: TraceSummary) -> Iterator[str]:
    """The summary for people."""
    told = {0.0: "least", 0.5: "median", 1.0: "most"}
    durations = ", ".join(
        f"{told.get(share, f'{100 * share:g}%')} {duration(value)}".replace(" ", _TOGETHER)
        for share, value in zip(QUANTILES, summary.duration_s, strict=True)
    )
    # The commonest, in the order of their size.
    common = sorted(summary.jobs_by_gpus, key=lambda pair: -pair[1])[:_MOST_SIZES]
    sizes = ", ".join(
        f"{gpus:g} GPU: {jobs:,}".replace(" ", _TOGETHER) for gpus, jobs in sorted(common)
    )
    rest = len(summary.jobs_by_gpus) - len(common)
    busy = number(summary.mean_gpus)
    rows = {
        "trace": f"{safe(summary.name)} ({summary.format})",
        "jobs": f"{summary.jobs:,}",
        "GPU-hours": f"{summary.gpu_hours:,.1f}",
        "span": f"{summary.span_s / _S_PER_DAY:,.1f} days from first to last submission",
        "demand": f"{busy} GPUs busy on average" if busy != "-" else "all jobs come at once",
        "sizes": sizes + (f", and {rest} sizes more" if rest else ""),
        "durations": durations,
        "users": f"{summary.users:,}" if summary.users else "not told",
        "models": f"{summary.models:,}" if summary.models else "not told",
        "endings": ", ".join(f"{word} {count:,}" for word, count in summary.endings),
        "left out": f"{summary.lines_left_out:,} lines",
    }
    for title, text in rows.items():
        for line in wrapped(text, _WIDTH, f"{title:<11}", " " * 11):
            yield line.replace(_TOGETHER, " ")
    for kind in summary.left_out:
        yield f"  {kind.lines:,}: {kind.reason}"
        for example in kind.examples:
            yield f"    {safe(example)}"


FITS: Final = ("philly", "itp")  # Fits that come with the project

_FORMAT, _COLUMNS, _MODELS = format_options("Format of the trace of --like, if it cannot be told")

_ARRIVALS: Final = ("poisson", "diurnal")


@click.command(name="generate")
@click.option(
    "--like",
    metavar="philly|itp|FILE",
    required=True,
    help="Whose sizes, durations, hours and users: Microsoft's Philly or ITP clusters, a trace, "
    "or a fit that was written before.",
)
@_FORMAT
@_COLUMNS
@_MODELS
@click.option("--jobs", type=click.IntRange(min=1), required=True, help="How many.")
@click.option(
    "--load",
    type=FloatRange(min=0, min_open=True),
    required=True,
    help="GPU-seconds that arrive per second, over the GPUs of the cluster; 1 is all it can do.",
)
@cluster_option()
@click.option(
    "--arrivals",
    type=click.Choice(_ARRIVALS),
    default="poisson",
    show_default=True,
    help="At an even rate, or at one that follows the hours of the day.",
)
@SEED
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Write the trace here.",
)
@click.option("--force", is_flag=True, help="Overwrite it if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def generate_command(
    *,
    like: str,
    format_name: str | None,
    jobs: int,
    load: float,
    cluster: str,
    arrivals: str,
    seed: int,
    out: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Write a trace of made jobs, with statistics of a real one, and say how well they fit.

    The same options give the same trace, with one version of NumPy. The load is that of the jobs
    that were drawn, so a few very long ones do not change it.

    \b
    Examples:
      dlsim generate --like philly --jobs 20000 --load 0.8 --cluster 64x8 --arrivals diurnal \\
        --seed 1 --out made.csv
      dlsim generate --like history.txt --format sacct --jobs 5000 --load 1.2 --cluster 8x4 \\
        --out busier.csv
    """  # noqa: D301 - \b is click's mark
    if out.exists() and not force:
        msg = f"{out} is there already; --force overwrites it"
        raise click.UsageError(msg)
    shape = parse_shape(cluster)
    fit = _fit(like, format_name)
    kind = next(known for known in made.ARRIVALS if known == arrivals)
    trace = made.generate(fit, jobs=jobs, load=load, gpus=shape.gpus, seed=seed, arrivals=kind)
    write_trace(trace, out)
    summary = summarize(trace)
    offered = summary.mean_gpus / shape.gpus
    if as_json:
        load_told = offered if math.isfinite(offered) else None
        told = {"out": str(out), "offered_load": load_told, "fit": fit_json(fit)}
        print_json(told | {"trace": summary_json(summary)})
        return
    for line in summary_lines(summary):
        click.echo(line)
    if math.isfinite(offered):
        click.echo(f"{'load':<11}{offered:.3f} of {shape.gpus:,} GPUs over the span")
    click.echo()
    click.echo(f"fit of {fit.origin} ({fit.jobs:,} jobs)")
    click.echo("  GPUs           jobs   KS distance of durations, 0 is perfect")
    for part in fit.classes:
        sizes = f"{part.low_gpus:g}"
        if part.high_gpus > part.low_gpus:
            sizes += f" to {part.high_gpus:g}"
        click.echo(f"  {sizes:<12}{part.jobs:>7,}   {part.ks:.3f}")
    click.echo(
        f"  a job's mean GPU-seconds: {fit.mean_gpu_s_data:,.0f} in the data, "
        f"{fit.mean_gpu_s_fit:,.0f} in the fit"
    )
    click.echo(f"written to {out}")


def fit_json(fit: Fit) -> dict[str, object]:
    """How good a fit is, as plain values."""
    names = ("origin", "jobs", "mean_gpu_s_data", "mean_gpu_s_fit", "interarrival_cv")
    classes = [
        {
            **{name: getattr(part, name) for name in ("low_gpus", "high_gpus", "jobs")},
            "components": len(part.durations.weight),
            "ks": part.ks,
            "quantiles": [quantile.model_dump() for quantile in part.quantiles],
        }
        for part in fit.classes
    ]
    return {**{name: getattr(fit, name) for name in names}, "classes": classes}


def _fit(like: str, format_name: str | None) -> Fit:
    """The fit that ``--like`` means."""
    if like in FITS:
        with importlib.resources.as_file(_ours(like)) as path:
            return fits.read_fit(path)
    path = Path(like)
    if not path.exists():
        msg = f"--like {like}: must be {', '.join(FITS)} or a file, and there is no such file"
        raise ConfigError(msg)
    if format_name is None and _is_fit(path):
        return fits.read_fit(path)
    return fits.fit(read_trace(path, format_name))


def _ours(name: str) -> Traversable:
    """The fit of that name: the wheel's, or the checkout's."""
    package = importlib.resources.files("slurm_dl")
    in_wheel = package / "_data" / "fits" / f"{name}.json"
    if not in_wheel.is_file() and isinstance(package, Path):
        return package.parent / "traces" / "fits" / f"{name}.json"
    return in_wheel


def _is_fit(path: Path) -> bool:
    """Whether the file begins as a JSON object does, and is no trace of sacct."""
    head = read_head(path)
    return head.text.lstrip().startswith("{") and not SACCT.recognizes(head)
