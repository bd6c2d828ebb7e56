"""``dlctl advice``: nodes that an admin can power down, by a forecast from the site's history."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path

import click

from slurm_dl.cli.commandline import AS_JSON, CONFIG, EXIT_FAILED, FloatRange, print_json
from slurm_dl.cli.dlctl.runtimes import slurm_of
from slurm_dl.cli.dlctl.status_text import utc
from slurm_dl.daemon.enrich import learn_on_one_core
from slurm_dl.estimates.boosted_trees import is_available
from slurm_dl.estimates.node_demand import LEAST_STEPS, STEP_S, node_demand, nodes_in_use
from slurm_dl.model.errors import ConfigError
from slurm_dl.slurm.accounting.node_runs import idle_nodes, runs_on_nodes

GAUGES = {
    "idle": ("slurm_dl_nodes_idle", "Nodes that are up and have no job."),
    "in_use": ("slurm_dl_nodes_in_use", "Nodes with a job."),
    "expected_most": (
        "slurm_dl_nodes_expected_in_use",
        "Nodes expected in use at most within the horizon, with the buffer.",
    ),
    "can_power_down": (
        "slurm_dl_nodes_can_power_down",
        "Idle nodes that the forecast does not need within the horizon; 0 without advice.",
    ),
    "error": (
        "slurm_dl_nodes_forecast_error",
        "Mean absolute error of the forecast on the time held out, nodes.",
    ),
    "until": ("slurm_dl_nodes_forecast_until_seconds", "End of the horizon, Unix time."),
}  # Name and help of each metric


@click.group()
def advice() -> None:
    """Advise on what only an admin can do.

    \b
    Example:
      dlctl advice nodes --hours 3
    """  # noqa: D301 - \b is click's mark


@advice.command()
@click.option(
    "--hours",
    type=FloatRange(0.2, 24),
    default=3.0,
    show_default=True,
    help="How far ahead.",
)
@click.option(
    "--days",
    type=click.IntRange(15, 365),
    default=90,
    show_default=True,
    help="How far back accounting is asked.",
)
@click.option(
    "--metrics",
    "metrics_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.prom",
    help="Also write the numbers for node_exporter's textfile collector.",
)
@CONFIG
@AS_JSON
def nodes(
    *, hours: float, days: int, metrics_file: Path | None, config_path: Path | None, as_json: bool
) -> None:
    """Say how many of the nodes that are idle now will not be needed in the next hours.

    Learns from the jobs that held nodes. The last fifth of the time is held out: the error there
    is printed, beside those of the last value and of the last value with its mean rise. Nothing is
    powered down. Ends with status 1, without advice, if the forecast is not better than both.

    \b
    Example:
      dlctl advice nodes --hours 6 --json
    """  # noqa: D301 - \b is click's mark
    if not is_available():
        msg = "dlctl advice needs scikit-learn; install slurm_dl[learn]"
        raise ConfigError(msg)
    learn_on_one_core()
    slurm, now_s = slurm_of(config_path), float(int(time.time()))
    begin_s = now_s - days * 86_400.0
    runs = runs_on_nodes(slurm, begin_s, now_s)
    first_s = max(begin_s, min((start_s for _, start_s, _ in runs), default=now_s))
    in_use = nodes_in_use(runs, first_s, now_s)
    found = node_demand(in_use, now_s, hours * 3600)
    if found is None:
        least, there = LEAST_STEPS * STEP_S / 86_400, len(in_use) * STEP_S / 86_400
        msg = f"no advice: {least:g} days of history are needed, accounting tells of {there:.1f}"
        raise ConfigError(msg)
    idle = idle_nodes(slurm)
    expected = math.ceil(found.most) + found.buffer
    # The last step also counts nodes whose jobs ended in it.
    busy = len({node for node, _, stop_s in runs if stop_s >= now_s}.difference(idle))
    spare = max(0, len(idle) - max(0, expected - busy)) if found.is_of_use else 0
    until_s = now_s + hours * 3600
    told = {"in_use": busy, "expected_most": expected, "can_power_down": spare}
    if metrics_file is not None:
        _write(metrics_file, {"idle": len(idle), **told, "error": found.error, "until": until_s})
    if as_json:
        more = {"idle": idle, "until_s": until_s, "is_of_use": found.is_of_use}
        print_json({**more, **told, **dataclasses.asdict(found)})
    else:
        click.echo(
            f"idle now: {len(idle)} nodes; in use: {busy}; expected in use at most until "
            f"{utc(until_s)}: {expected}, of which {found.buffer} are a buffer\n"
            f"error on the time held out, nodes: forecast {found.error:.2f}, last value "
            f"{found.last_value_error:.2f}, with its mean rise {found.risen_value_error:.2f}"
        )
        if found.is_of_use:
            click.echo(f"can be powered down until then: {spare} of the idle nodes")
        else:
            click.echo("no advice: the forecast is not better than the last value")
    if not found.is_of_use:
        raise SystemExit(EXIT_FAILED)


def _write(path: Path, values: Mapping[str, float]) -> None:
    try:
        from slurm_dl.daemon.metrics.exposition import write_gauges  # noqa: PLC0415 - an extra

        write_gauges(path, {name: (text, values[key]) for key, (name, text) in GAUGES.items()})
    except ImportError:
        msg = "--metrics needs prometheus-client; install slurm_dl[metrics]"
        raise ConfigError(msg) from None
    except OSError as err:
        msg = f"--metrics: {path} cannot be written: {err.strerror}"
        raise ConfigError(msg) from err
