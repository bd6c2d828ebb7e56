"""``dlsim traces``: what there is to simulate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from slurm_dl.cli.commandline import print_json
from slurm_dl.cli.dlsim.simulation_options import format_options
from slurm_dl.cli.policy_lists import wrapped
from slurm_dl.report import export
from slurm_dl.report.number_format import duration, number
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import FORMATS, read_trace
from slurm_dl.traces.summary import QUANTILES, TraceSummary, summarize

_WIDTH: Final = 80
_MOST_SIZES: Final = 12
_S_PER_DAY: Final = 86_400.0

_FORMAT, _COLUMNS, _MODELS = format_options()

_TOGETHER: Final = "\N{NO-BREAK SPACE}"
"""A space at which no line is broken; a plain one once it is printed."""


@click.command(name="traces")
@click.argument("trace", type=click.Path(path_type=Path, exists=True), required=False)
@_FORMAT
@_COLUMNS
@_MODELS
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
