"""``dlsim service``: how many replicas a service needs, by the day."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from slurm_dl.cli.commandline import AS_JSON, FloatRange, print_json
from slurm_dl.estimates.replicas import MOST_REPLICAS, ServiceLevel, attainable
from slurm_dl.simulation.service import ServiceOutcome, counters, play, read_rates

_ABOVE_0: Final = FloatRange(0, 1e9, min_open=True)


@click.command("service")
@click.argument("rates", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--service-s", type=_ABOVE_0, required=True, help="Mean time of a request on a free replica."
)
@click.option("--sla", "sla_s", type=_ABOVE_0, required=True, help="Longest response, seconds.")
@click.option(
    "--scv",
    type=FloatRange(0, 100),
    default=1.0,
    show_default=True,
    help="Variance of the service time over its mean squared.",
)
@click.option(
    "--quantile",
    type=FloatRange(0, 1, min_open=True, max_open=True),
    default=0.99,
    show_default=True,
    help="Share of responses to be in time.",
)
@click.option(
    "--setup-s",
    type=FloatRange(0, 1e6),
    default=120.0,
    show_default=True,
    help="What a replica takes to start.",
)
@click.option(
    "--most",
    type=click.IntRange(1, MOST_REPLICAS),
    default=1000,
    show_default=True,
    help="Most replicas.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of arrivals and service times.",
)
@AS_JSON
def service_command(
    *,
    rates: Path,
    service_s: float,
    sla_s: float,
    scv: float,
    quantile: float,
    setup_s: float,
    most: int,
    seed: int,
    as_json: bool,
) -> None:
    """Play requests at the rates of the file RATES against replicas that follow them.

    It is a CSV file. Each line is epoch_s,requests_per_s: the rate from then to the next line.
    The count follows the predicted rate, is that for the mean rate, or that of a clairvoyant who
    knows what comes.

    \b
    Example:
      dlsim service rates.csv --service-s 0.2 --sla 1
    """  # noqa: D301 - \b is click's mark
    level = ServiceLevel(
        service_s=service_s, scv=scv, sla_s=sla_s, quantile=quantile, setup_s=setup_s, most=most
    )
    if (best := attainable(level)) < quantile:
        msg = (
            f"no number of replicas keeps --quantile {quantile:g}: service alone is in time for "
            f"{best:.4g} of the requests; give a longer --sla or a lower --quantile"
        )
        raise click.UsageError(msg)
    times_s, told = read_rates(rates)
    found = {
        name: play(level, times_s, told, count, seed=seed)
        for name, count in counters(level, times_s, told).items()
    }
    if as_json:
        print_json({name: _figures(outcome) for name, outcome in found.items()})
        return
    for name, outcome in found.items():
        figures = _figures(outcome)
        click.echo(
            f"{name:<12} {outcome.in_time:8.2%} in time {outcome.replica_hours:10.1f} replica-hours"
            f" {figures['least']:>5} to {figures['most']} replicas"
        )


def _figures(outcome: ServiceOutcome) -> dict[str, float]:
    return {
        "in_time": outcome.in_time,
        "replica_hours": outcome.replica_hours,
        "least": min(outcome.counts),
        "most": max(outcome.counts),
    }
