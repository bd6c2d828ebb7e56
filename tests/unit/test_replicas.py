"""Replicas of a service: the formula beside closed forms and a queue, and its count over a day."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from in_process import in_process

from slurm_dl.cli.dlsim.command import main
from slurm_dl.estimates.replicas import (
    ServiceLevel,
    attainable,
    delay_probability,
    predicted_rate,
    replicas_for,
    share_in_time,
)
from slurm_dl.simulation.service import counters, play

LEVEL = ServiceLevel(service_s=0.2, scv=1.0, sla_s=1.0, setup_s=120.0, least=1, most=500)


@pytest.mark.parametrize(("replicas", "load"), [(1, 0.5), (2, 1.5), (7, 5.0), (40, 33.0)])
def test_the_delay_is_erlangs_and_the_response_that_of_m_m_c(replicas: int, load: float) -> None:
    """By the sums of the textbook: of states, and of wait and service, both exponential."""
    states = [math.exp(k * math.log(load) - math.lgamma(k + 1)) for k in range(replicas)]
    last = math.exp(replicas * math.log(load) - math.lgamma(replicas + 1))
    full = last * replicas / (replicas - load)
    waits = full / (sum(states) + full)
    assert delay_probability(replicas, load) == pytest.approx(waits, rel=1e-9)
    mu, decay, t = 1 / LEVEL.service_s, (replicas - load) / LEVEL.service_s, LEVEL.sla_s
    late = (1 - waits) * math.exp(-mu * t) + waits * (
        (1 + mu * t) * math.exp(-mu * t)
        if math.isclose(mu, decay)
        else (decay * math.exp(-mu * t) - mu * math.exp(-decay * t)) / (decay - mu)
    )
    assert share_in_time(LEVEL, replicas, load / LEVEL.service_s) == pytest.approx(
        1 - late, abs=1e-5
    )


@pytest.mark.parametrize("scv", [0.0, 0.25, 1.0, 3.0])
@pytest.mark.parametrize("rate", [2.0, 15.0, 120.0])
def test_a_queue_keeps_the_agreement_with_that_many_and_not_with_fewer(
    scv: float, rate: float
) -> None:
    """The formula tells the share that a queue of 200,000 requests has, and of one replica less."""
    level = dataclasses.replace(LEVEL, scv=scv, service_s=0.15, sla_s=2.0)
    enough = replicas_for(level, rate)
    times, rates = [0.0, 100_000.0 / rate], [rate, rate]
    for replicas in (enough, enough + 1):
        played = play(level, times, rates, lambda _, n=replicas: n)  # type: ignore[misc]
        assert played.in_time == pytest.approx(share_in_time(level, replicas, rate), abs=0.003)
    if enough > 1:
        assert play(level, times, rates, lambda _: enough - 1).in_time < level.quantile


def test_the_count_is_the_least_and_grows_with_the_rate() -> None:
    """By trying all; out of bounds it is the bound."""
    for rate in (0.0, 1.0, 9.9, 50.0):
        tried = (c for c in itertools.count(1) if share_in_time(LEVEL, c, rate) >= LEVEL.quantile)
        assert replicas_for(LEVEL, rate) == next(tried)
    counts = [replicas_for(LEVEL, rate) for rate in np.linspace(0, 300, 50)]
    assert counts == sorted(counts)
    assert replicas_for(dataclasses.replace(LEVEL, most=3), 300.0) == 3
    assert replicas_for(dataclasses.replace(LEVEL, least=4), 0.0) == 4
    assert replicas_for(dataclasses.replace(LEVEL, sla_s=0.001, most=9), 1.0) == 9


def test_the_rate_is_predicted_for_the_end_of_the_start_up() -> None:
    """A rising line goes on, what has just been may come again, and what was missed is added."""
    assert predicted_rate([0, 60, 120], [10, 20, 30], 120) == pytest.approx(50 + 20)
    assert predicted_rate([0, 60, 120], [30, 20, 10], 120) == pytest.approx(30)
    assert predicted_rate([5], [7], 120) == 7


@pytest.mark.parametrize("scv", [0.0001, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("sla_s", [1e3, 1e6, 1e9])
def test_a_long_agreement_is_kept_by_service_alone(scv: float, sla_s: float) -> None:
    """Nearly every request takes less than a thousand times the mean, by Cantelli's bound."""
    level = dataclasses.replace(LEVEL, scv=scv, service_s=1.0, sla_s=sla_s)
    assert attainable(level) == pytest.approx(1.0, abs=2e-4 + scv / (scv + (sla_s - 1.0) ** 2))


@pytest.mark.parametrize(
    ("rates", "options", "says"),
    [
        *(("0,1\n9,1\n", (name, "nan"), "nan is not a number") for name in ("--sla", "--scv")),
        ("0,1000000\n1e11,1\n", (), "at most 1e7"),
        ("0,0\n1e11,1\n", (), "at most 1e7"),
        ("1,2\n2,3\n", ("--service-s", "1"), "no number of replicas keeps"),
        *(
            (text, (), "epoch_s,requests_per_s")
            for text in ("", "1,2\n", "1,2\n1,3\n", "1,2\n2,-3\n", "1,2\n2,nan\n", "1,2\n2\n")
        ),
    ],
)
def test_what_cannot_be_played_is_refused(
    tmp_path: Path, rates: str, options: tuple[str, ...], says: str
) -> None:
    """One line each, and no numbers."""
    (tmp_path / "rates.csv").write_text(rates)
    given = ["service", str(tmp_path / "rates.csv"), "--service-s", "0.2", "--sla", "1", *options]
    done = in_process(main, *given)
    assert (done.exit_code, says in done.output) == (2, True)


def test_an_agreement_that_service_alone_breaks_is_told() -> None:
    """Of exponential times exp(-1 / 0.2) are later; of constant ones all or none."""
    assert attainable(LEVEL) == pytest.approx(1 - math.exp(-5), abs=1e-5)
    assert attainable(dataclasses.replace(LEVEL, scv=0.0, sla_s=0.1)) == 0


def day(seed: int) -> tuple[list[float], list[float]]:
    """Four hours by the minute: a wave of two hours, and bursts that rise in ten minutes."""
    rng = np.random.default_rng(seed)
    minutes = np.arange(240)
    rates = 60 - 50 * np.cos(minutes / 120 * 2 * math.pi)
    for begin in rng.choice(210, 3, replace=False):
        rates[begin : begin + 30] += 30 * np.minimum(np.arange(30) / 10, 1)
    return (minutes * 60.0).tolist(), rates.tolist()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_count_follows_a_rate_and_one_for_its_mean_misses_the_agreement(seed: int) -> None:
    """At little more than what one who knows the rate beforehand needs."""
    times, rates = day(seed)
    found = {n: play(LEVEL, times, rates, c) for n, c in counters(LEVEL, times, rates).items()}
    predicted, known = found["predicted"], found["clairvoyant"]
    assert predicted.in_time >= LEVEL.quantile
    assert found["mean rate"].in_time < 0.9
    assert np.corrcoef(predicted.counts, rates)[0, 1] > 0.9
    assert known.replica_hours <= predicted.replica_hours <= 1.5 * known.replica_hours


def test_dlsim_service_tells_the_three_ways(tmp_path: Path) -> None:
    """By what is to come, by the mean rate, and by the rate that comes."""
    rates = tmp_path / "rates.csv"
    lines = (f"{60 * i},{20 + 10 * (i > 10)}" for i in range(20))
    rates.write_text("epoch_s,requests_per_s\n" + "\n".join(lines), encoding="utf-8")
    told = ("--service-s", "0.2", "--sla", "1")
    found = json.loads(in_process(main, "service", str(rates), *told, "--json").stdout)
    assert list(found) == ["predicted", "mean rate", "clairvoyant"]
    assert found["clairvoyant"]["in_time"] >= 0.99
    assert found["predicted"]["least"] < found["predicted"]["most"]
