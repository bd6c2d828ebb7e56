"""What is asked of a policy over days of simulated time; see the package.

The cluster is the papers' ideal one: what the policy wants is so at once, and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.leases import lease_of
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.policies.base import Policy
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.outcome import Outcome, SimulationError
from slurm_dl.testing.checks import Check, ContractFailure, fail

_GPUS: Final = 2
_CLUSTER: Final = parse_shape("1x2")
"""So small that a fair share of it is more than a lease every other hour."""

_LOAD: Final = 1.05
"""Demand of the newcomers over what the cluster can do: the queue never empties.

Not far above 1, or it grows so fast that a fair share of the time, one of so many, becomes too
small to be seen.
"""

_NEWCOMER_S: Final = 4000.0
_GANG_S: Final = 6000.0
_LONG_S: Final = 8000.0
"""Longer than any newcomer, but not so long that its fair end is beyond the horizon."""

_HORIZON_S: Final = 72_000.0
_LEASES: Final = 120  # A job of a policy with leases may have to wait for many of them
_SAME_SERVICE: Final = 1e-6

_MOST_REPORTS: Final = 20
"""After so many reports of a simulation's progress, some 2,000 events each, it is endless."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Jobs that never stop coming, and one that was there before nearly all of them.

    Attributes:
        horizon_s: It must have been served at last within this time, seconds after the first job.
    """

    name: str  # What is special about them
    trace: Trace
    victim: int  # Row of that one
    horizon_s: float

    def __str__(self) -> str:
        return self.name


def streams(horizon_s: float = _HORIZON_S, *, load: float = _LOAD) -> tuple[Stream, ...]:
    """A gang as large as the cluster, or a job that runs long, against small and short ones.

    All of one user, or each newcomer of a user who has had nothing yet.

    Args:
        horizon_s: How long newcomers come, seconds.
        load: Their demand over what the cluster can do, 1 or more.
    """
    return tuple(
        _stream(f"{what}, {whose}", gpus, duration_s, horizon_s, load, users=users)
        for what, gpus, duration_s in (
            ("a gang of all GPUs", float(_GPUS), _GANG_S),
            ("a long job", 1.0, _LONG_S),
        )
        for whose, users in (("all of one user", False), ("each newcomer of a new user", True))
    )


def _stream(
    name: str, gpus: float, duration_s: float, horizon_s: float, load: float, *, users: bool
) -> Stream:
    every_s = _NEWCOMER_S / (_GPUS * load)
    # The cluster is full, and a few wait, when the victim comes.
    first = np.zeros(2 * _GPUS)
    later = np.arange(100.0, horizon_s, every_s)
    submit_s = np.concatenate([first, [50.0], later])
    n, victim = len(submit_s), len(first)
    # 0.6 to 1.4 of the mean, in turn; none is like its neighbour.
    golden: F64 = np.arange(n, dtype=np.float64) * 0.6180339887 % 1.0
    length_s: F64 = _NEWCOMER_S * (0.6 + 0.8 * golden)
    length_s[victim] = duration_s
    wants: F64 = np.ones(n)
    wants[victim] = gpus
    whose = np.maximum(np.arange(n) - victim, 0) if users else np.zeros(n)
    return Stream(name, _trace(name, submit_s, length_s, wants, whose), victim, horizon_s)


def _trace(name: str, submit_s: F64, duration_s: F64, gpus: F64, user: npt.ArrayLike) -> Trace:
    n, whose = len(submit_s), np.array(user, dtype=np.int32)
    return Trace(
        name=name,
        format="generated",
        job_id=tuple(str(i) for i in range(n)),
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        user=whose,
        model=np.full(n, -1, dtype=np.int32),
        ending=np.zeros(n, dtype=np.int8),
        users=tuple(f"user{i}" for i in range(int(whose.max()) + 1)),
    )


def is_starved(policy: Policy, stream: Stream) -> bool:
    """Whether the old job gets no GPU in the second half of the time, and is not done either."""
    runs = _outcome(policy, stream.trace, stream.name).records.runs
    own = runs.job == stream.victim
    begin_s = float(stream.trace.submit_s[0]) + stream.horizon_s / 2
    end_s = begin_s + stream.horizon_s / 2
    got_s = np.minimum(runs.end_s[own], end_s) - np.maximum(runs.start_s[own], begin_s)
    total_s = float((np.minimum(runs.end_s[own], end_s) - runs.start_s[own]).clip(min=0).sum())
    done = total_s >= float(stream.trace.duration_s[stream.victim]) * (1 - _SAME_SERVICE)
    return not done and float(got_s.clip(min=0).sum()) <= 0


def starved_in(policy: Policy, *, load: float = _LOAD) -> Iterator[str]:
    """Names of the streams of that *load* that starve an old job under *policy*.

    Each stream is simulated when it is its turn: whoever asks for one name waits for no other.
    """
    horizon_s = max(_HORIZON_S, _LEASES * lease_of(policy))
    return (s.name for s in streams(horizon_s, load=load) if is_starved(policy, s))


def no_job_is_lost(policy: Policy) -> None:
    """A small trace comes to its end: each job gets what it needs and no more, time goes on.

    Raises:
        Broken: A job never ends or gets another service, or the policy asks to be woken for ever.
    """
    draw = np.random.default_rng(19)
    n = 30
    submit_s = np.sort(draw.uniform(0, 20_000, n).round())
    submit_s[10:16] = submit_s[10]
    trace = _trace(
        "a small trace",
        submit_s,
        draw.choice([30.0, 600.0, 3000.0, 9000.0], n),
        draw.choice([1.0, 1.0, 1.0, 2.0], n),
        np.arange(n) % 3,
    )
    records = _outcome(policy, trace, trace.name).records
    lost = np.isnan(records.end_s)
    if lost.any():
        fail(policy, trace.name, f"job {int(lost.argmax())} never ends")
    demand = trace.duration_s * trace.gpus
    apart = np.abs(records.service_gpu_s - demand) > _SAME_SERVICE * demand
    if apart.any():
        job = int(apart.argmax())
        fail(
            policy,
            trace.name,
            f"job {job} had {records.service_gpu_s[job]:g} GPU-seconds and needs {demand[job]:g}",
        )


def nobody_starves_unless_it_says_so(policy: Policy) -> None:
    """An old job is served at last, whoever else keeps coming, if `About.starves` is empty.

    Raises:
        Broken: One is not.
    """
    if policy.about.starves:
        return
    for where in starved_in(policy):
        fail(policy, where, "an old job starves; about.starves does not say so")


RUNS: tuple[Check, ...] = (no_job_is_lost, nobody_starves_unless_it_says_so)
"""Everything that is simulated."""


def _outcome(policy: Policy, trace: Trace, where: str) -> Outcome:
    reports = 0

    def count(_: int) -> None:
        nonlocal reports
        reports += 1
        if reports > _MOST_REPORTS:
            fail(policy, where, f"it is woken again and again: {reports - 1} x 2,048 times so far")

    try:
        outcome = simulate(trace, _CLUSTER, policy, progress=count)
    except SimulationError as err:
        msg = f"policy {policy.name}, {where}: {err}"
        raise ContractFailure(msg) from err
    if not math.isfinite(outcome.now_s):
        fail(policy, where, "time runs away")
    return outcome
