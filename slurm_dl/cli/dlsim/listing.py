"""``dlsim traces`` and ``dlsim policies``: what there is to simulate, and under what."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click

from slurm_dl.cli.commandline import print_json
from slurm_dl.cli.dlctl.policies import all_policies, parameter_lines, plain, told
from slurm_dl.json_types import JsonObject
from slurm_dl.policies.policy_text import PREEMPTS
from slurm_dl.report.number_format import duration, number
from slurm_dl.simulation.ideal.presets import PRESETS, Preset
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import FORMATS, read_trace
from slurm_dl.traces.summary import QUANTILES, TraceSummary, summarize

_WIDTH: Final = 80
_MOST_SIZES: Final = 12
_S_PER_DAY: Final = 86_400.0

_TOGETHER: Final = "\N{NO-BREAK SPACE}"
"""A space at which no line is broken; a plain one once it is printed."""


@click.command(name="traces")
@click.argument("trace", type=click.Path(path_type=Path, exists=True), required=False)
@click.option(
    "--format", "format_name", metavar="FORMAT", help="Read it as this; told from the content."
)
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
    return {
        "name": summary.name,
        "format": summary.format,
        "jobs": summary.jobs,
        "gpu_hours": summary.gpu_hours,
        "span_s": summary.span_s,
        # A trace whose jobs all come at once asks for no number of GPUs in particular.
        "mean_gpus": summary.mean_gpus if math.isfinite(summary.mean_gpus) else None,
        "users": summary.users,
        "models": summary.models,
        "duration_s": {
            f"{share:g}": value for share, value in zip(QUANTILES, summary.duration_s, strict=True)
        },
        "jobs_by_gpus": [{"gpus": gpus, "jobs": jobs} for gpus, jobs in summary.jobs_by_gpus],
        "endings": dict(summary.endings),
        "lines_left_out": summary.lines_left_out,
        "left_out": [dataclasses.asdict(kind) for kind in summary.left_out],
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
        yield from _wrapped(text, first=f"{title:<11}", rest=" " * 11)
    for kind in summary.left_out:
        yield f"  {kind.lines:,}: {kind.reason}"
        for example in kind.examples:
            yield f"    {safe(example)}"


@click.command(name="policies")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies_command(*, as_json: bool) -> None:
    """List the policies with their parameters, and the presets with what they set.

    \b
    Example:
      dlsim policies
    """  # noqa: D301 - \b is click's mark
    policies = all_policies()
    presets = [preset_json(name, preset) for name, preset in PRESETS.items()]
    if as_json:
        print_json({"policies": policies, "presets": presets})
        return
    for policy in policies:
        for line in _policy_lines(policy):
            click.echo(line)
        click.echo()
    click.echo("Presets: --preset NAME, or NAME:PRESET in --policies")
    click.echo()
    for preset in presets:
        for line in _preset_lines(preset):
            click.echo(line)


def preset_json(name: str, preset: Preset) -> dict[str, object]:
    """What a preset sets, as plain values; seconds."""
    large = preset.large_gpus if math.isfinite(preset.large_gpus) else None
    return {
        "name": name,
        "about": preset.about,
        "readings": {
            policy: {
                "policy": reading.policy,
                "parameters": {k: plain(v) for k, v in reading.parameters.items()},
            }
            for policy, reading in preset.readings.items()
        },
        "tick_s": preset.clockwork.tick_s,
        "round_s": preset.clockwork.round_s,
        "charges": preset.charges,
        "start_s": preset.start_s,
        "restart_s": preset.restart_s,
        "large_restart_s": preset.large_restart_s,
        "large_gpus": large,
        "knows_sizes": preset.knows_sizes,
    }


def _policy_lines(policy: JsonObject) -> Iterator[str]:
    if policy["error"] is not None:
        yield from _wrapped(str(policy["error"]), first=f"{policy['name']}: ", rest="  ")
        return
    where = "Slurm and simulator" if policy["on_slurm"] else "simulator only"
    displaced = PREEMPTS[str(policy["preempts"])]
    tiers = "?" if policy["tiers"] is None else policy["tiers"]
    head = f"{policy['name']}  ({where}; tiers: {tiers}; displaces: {displaced})"
    yield from _wrapped(head, first="", rest="  ")
    yield from _wrapped(f"Source: {policy['source']}")
    if policy["interpretation"]:
        yield from _wrapped(f"Read as: {policy['interpretation']}")
    if not policy["skips"]:
        yield from _wrapped("A job that does not fit blocks all jobs behind it.")
    yield from parameter_lines(policy, _WIDTH, "  -p ")


def _preset_lines(preset: Mapping[str, object]) -> Iterator[str]:
    yield from _wrapped(f"{preset['name']}: {preset['about']}", first="", rest="  ")
    readings = preset["readings"]
    for policy, reading in readings.items() if isinstance(readings, dict) else []:
        values = ", ".join(f"{k} {told(v)}" for k, v in reading["parameters"].items())
        yield from _wrapped(
            f"{policy}: runs {reading['policy']}" + (f" with {values}" if values else "")
        )
    if text := _clock_and_costs(preset):
        yield from _wrapped(f"all policies: {text}")
    yield ""


def _clock_and_costs(preset: Mapping[str, object]) -> str:
    told = []
    if preset["tick_s"]:
        told.append(f"changes of order at multiples of {preset['tick_s']:g} s")
    if preset["round_s"]:
        told.append(f"decides every {preset['round_s']:g} s")
    if preset["charges"] == "muri":
        told.append("running jobs pay a measured start overhead at every event")
    if preset["start_s"]:
        told.append(f"a first start costs {preset['start_s']:g} s")
    if preset["restart_s"]:
        told.append(f"a restart costs {preset['restart_s']:g} s")
    if preset["large_restart_s"] and preset["large_gpus"] is not None:
        told.append(f"{preset['large_restart_s']:g} s for more than {preset['large_gpus']:g} GPUs")
    return "; ".join(told)


def _wrapped(text: str, *, first: str = "  ", rest: str = "    ") -> list[str]:
    # Text of plugins is a stranger's.
    lines = textwrap.wrap(
        safe(text, 10_000),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return [line.replace(_TOGETHER, " ") for line in lines]
