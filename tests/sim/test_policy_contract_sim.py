"""Every policy over days of simulated time: no job is lost, nobody starves unsaid."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies import registry
from slurm_dl.policies.base import Order, Policy, one_tier
from slurm_dl.policies.fifo import Fifo, FifoSkip
from slurm_dl.policies.las import Las
from slurm_dl.policies.shortest import Srtf
from slurm_dl.simulation.outcome import Outcome
from slurm_dl.testing import RUNS, Check, ContractFailure, simulation_checks, starved_in, streams

_OVERLOAD = 1.3
"""Some starve an old job only where far more comes than can be done."""

EVERY_POLICY = pytest.mark.parametrize("name", registry.POLICIES)


@EVERY_POLICY
@pytest.mark.parametrize("check", RUNS, ids=lambda check: check.__name__)
def test_every_policy_keeps_the_contract_in_the_simulator(name: str, check: Check) -> None:
    """Work is neither lost nor made up, time goes on, and who starves is told."""
    check(registry.find(name)())


@EVERY_POLICY
def test_what_is_said_to_starve_does(name: str) -> None:
    """A sentence about starvation that no stream shows is to be looked at; it may yet be true."""
    policy = registry.find(name)()
    shown = chain(starved_in(policy), starved_in(policy, load=_OVERLOAD))
    if policy.about.starves and next(shown, None) is None:
        pytest.xfail(f"{name} says of who starves: {policy.about.starves}; no stream shows it")


def variant(kind: type[Any], **members: object) -> Policy:
    """*kind* with some of its members replaced."""
    made: Policy = type(kind.__name__, (kind,), {"__slots__": (), **members})()
    return made


def silent(kind: type[Any]) -> Policy:
    """*kind*, which says that it starves nobody."""
    return variant(kind, about=dataclasses.replace(kind.about, starves=""))


def bars_one(_: object, snap: Snapshot) -> Order:
    """Job 7 may never start."""
    order = one_tier(snap.memory.first_submit_s)
    return dataclasses.replace(order, barred=snap.jobs.job_id == 7)


def wakes_in(seconds: float) -> Callable[..., float]:
    """A `next_change_s` that is always so far ahead."""
    return lambda _, snap, *__: snap.now_s + seconds


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (variant(FifoSkip, order=bars_one), "job 7 never ends"),
        (variant(FifoSkip, next_change_s=wakes_in(0.0)), "stops time"),
        (variant(FifoSkip, next_change_s=wakes_in(1.0)), "woken again and again"),
    ],
    ids=["barred for ever", "no time at all", "each second"],
)
def test_lost_jobs_and_endless_looks_are_caught(
    bad: Policy, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would hold up a cluster, or a daemon."""
    monkeypatch.setattr(simulation_checks, "_MOST_REPORTS", 3)

    with pytest.raises(ContractFailure, match=said):
        simulation_checks.no_job_is_lost(bad)


def test_service_that_is_not_the_demand_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever loses it, policy or simulator."""
    simulate = simulation_checks.simulate

    def lossy(*args: Any, **more: Any) -> Outcome:  # noqa: ANN401
        out = simulate(*args, **more)
        service = out.records.service_gpu_s * np.where(
            np.arange(len(out.records.end_s)) == 5, 0.9, 1
        )
        return dataclasses.replace(
            out, records=dataclasses.replace(out.records, service_gpu_s=service)
        )

    monkeypatch.setattr(simulation_checks, "simulate", lossy)

    with pytest.raises(ContractFailure, match=r"job 5 had .* GPU-seconds and needs"):
        simulation_checks.no_job_is_lost(Fifo())


@pytest.mark.parametrize(
    ("kind", "where"),
    [(FifoSkip, "a gang of all GPUs"), (Srtf, "a gang of all GPUs"), (Las, "a gang of all GPUs")],
)
def test_starvation_that_is_not_said_is_caught(kind: type[Policy], where: str) -> None:
    """Three policies that are known to starve, once they are silent about it."""
    with pytest.raises(ContractFailure, match=f"{where}.*an old job starves"):
        simulation_checks.nobody_starves_unless_it_says_so(silent(kind))


def test_who_starves_in_which_stream_is_known_for_the_plain_policies() -> None:
    """First come first served starves nobody; passing starves gangs alone; shortest first all."""
    names = {stream.name for stream in streams()}
    gangs = {name for name in names if name.startswith("a gang")}

    assert len(names) == 4
    assert set(starved_in(Fifo())) == set()
    assert set(starved_in(FifoSkip())) == gangs
    assert set(starved_in(Srtf())) == names
    assert set(starved_in(Las())) >= gangs


def test_the_streams_never_let_the_cluster_rest() -> None:
    """More is asked for than there is, from the first second to the horizon."""
    for stream in streams():
        trace = stream.trace
        others = np.arange(len(trace)) != stream.victim
        for until_s in np.linspace(1000.0, stream.horizon_s, 20):
            come = others & (trace.submit_s <= until_s)
            assert trace.duration_s[come].sum() >= 2 * until_s * 0.99
        assert trace.submit_s[stream.victim] < 100
        assert math.isclose(trace.submit_s[-1], stream.horizon_s, rel_tol=0.02)
