"""The recorded jobs once more, in the simulator: under plain Slurm, and under the policy.

Both run the same jobs on the same simulated cluster; under the policy dlschedd's own engine serves
them. What really happened is the measure of how far the simulated Slurm is to be believed. The
effects are summed up by group of jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.engine.settings import Settings
from slurm_dl.model.errors import ConfigError, SlurmDlError
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.trace import Trace
from slurm_dl.policies.base import Policy
from slurm_dl.shadow.records import EndedJobRecord
from slurm_dl.shadow.segment_store import UnfinishedJobs
from slurm_dl.simulation.cluster_shape import ClusterShape, NodeGroup
from slurm_dl.simulation.slurm.job_behaviour import JobBehaviour, shapes
from slurm_dl.simulation.slurm.scenario import Scenario, simulate_plain, simulate_slurm

SAME_S = 60.0
SAME_SHARE = 0.05
"""A job is neither helped nor hurt if its completion time differs by less than either."""

CHECKPOINT_EVERY_S = 3600.0
_LEAST_S = 1.0


Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """One job of the counterfactual.

    Attributes:
        arrive_s: When it is submitted, epoch seconds; the beginning for one that was there then.
        duration_s: Seconds it runs from then on.
        real_wait_s: From *arrive_s* to its first start in reality; NaN if it ran already.
        ended: Its real end is known, so *duration_s* is all of it.
    """

    job_id: int
    uid: int
    account: str
    gpus: float
    arrive_s: float
    duration_s: float
    real_wait_s: float
    ended: bool
    opted_in: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who takes part, and who does not.

    Attributes:
        players: In the order of their arrival.
        never_ran: Jobs, tasks of arrays one by one, that wait and have never run: how long they
            will run is not known.
        unfit: Jobs that fit no equal shares of the cluster's nodes.
    """

    players: tuple[Player, ...]
    never_ran: int
    unfit: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Effects:
    """What became of the jobs with a known end, n rows.

    Attributes:
        players: The jobs.
        plain_wait_s, policy_wait_s: ``(n,)`` from arrival to the first start, seconds.
        plain_jct_s, policy_jct_s: ``(n,)`` from arrival to the end, seconds.
        preemptions: How often jobs were stopped under the policy, all jobs together.
        lost_gpu_s: GPU-seconds that were no progress under the policy, beyond those under plain
            Slurm; all jobs together, at least 0.
        open_ended: Jobs that took part and had not ended in reality.
    """

    players: tuple[Player, ...]
    plain_wait_s: F64
    policy_wait_s: F64
    plain_jct_s: F64
    policy_jct_s: F64
    preemptions: int
    lost_gpu_s: float
    open_ended: int

    @property
    def helped(self) -> Bool:
        """``(n,)`` bool, done clearly sooner under the policy."""
        return self.plain_jct_s - self.policy_jct_s > self._same_s

    @property
    def hurt(self) -> Bool:
        """``(n,)`` bool, done clearly later under the policy."""
        return self.policy_jct_s - self.plain_jct_s > self._same_s

    @property
    def _same_s(self) -> F64:
        return np.maximum(SAME_S, SAME_SHARE * self.plain_jct_s)


def shape_of(groups: Sequence[tuple[int, int, str]]) -> ClusterShape:
    """The cluster of these (nodes, GPUs of each, type).

    Raises:
        SlurmDlError: It has no GPUs.
    """
    known = tuple(
        NodeGroup(nodes=nodes, gpus=gpus, gpu_type=kind or "gpu")
        for nodes, gpus, kind in groups
        if nodes > 0 and gpus > 0
    )
    if not known:
        msg = "no node with GPUs was up"
        raise SlurmDlError(msg)
    return ClusterShape(known)


def cast_of(
    ended: Sequence[EndedJobRecord],
    standing: UnfinishedJobs | None,
    shape: ClusterShape,
    begin_s: float,
    end_s: float,
) -> Cast:
    """The jobs that waited, ran or came between *begin_s* and *end_s*, epoch seconds.

    A job that ran at the beginning goes on with what it had left; one that waited arrives then.
    """
    players, never_ran = [], 0
    known = set()
    for job in ended:
        if job.end_s <= begin_s or job.submit_s >= end_s:
            continue
        known.add(job.job_id)
        ran_s = min(job.ran_s, job.end_s - begin_s)
        closed = job.how != "V"
        players.append(_player(job, max(ran_s, _LEAST_S), begin_s, ended=closed))
    for row in () if standing is None else standing.jobs:
        job_id, start_s = int(row["job_id"]), float(row["start_s"])
        if job_id in known or float(row["submit_s"]) >= end_s:
            continue
        if start_s <= 0 or row["ran_s"] <= 0:
            never_ran += int(row["tasks"])
            continue
        assert standing is not None  # noqa: S101 - narrows the type
        job = EndedJobRecord(
            job_id=job_id,
            uid=int(row["uid"]),
            account=standing.accounts[int(row["account"])],
            gpus=float(row["gpus"]),
            submit_s=min(float(row["submit_s"]), start_s),
            start_s=start_s,
            ran_s=float(row["ran_s"]),
            end_s=max(standing.now_s, start_s),
            how="V",
            opted_in=bool(row["opted_in"]),
        )
        ran_s = min(job.ran_s, max(job.end_s - begin_s, 0.0))
        players.append(_player(job, max(ran_s, _LEAST_S), begin_s, ended=False))
    # What ran at the beginning comes first, and so starts first.
    players.sort(key=lambda p: (p.arrive_s, not math.isnan(p.real_wait_s), p.job_id))
    fit, unfit = fitting(players, shape)
    return Cast(players=fit, never_ran=never_ran, unfit=unfit)


def fitting(players: Sequence[Player], shape: ClusterShape) -> tuple[tuple[Player, ...], int]:
    """Those of *players* that fit equal shares of the nodes, and how many do not."""
    fits = {gpus: _fits(gpus, shape) for gpus in {p.gpus for p in players}}
    fit = tuple(p for p in players if fits[p.gpus])
    return fit, len(players) - len(fit)


def _player(job: EndedJobRecord, duration_s: float, begin_s: float, *, ended: bool) -> Player:
    ran_before = job.start_s < begin_s
    arrive_s = max(job.submit_s, begin_s)
    return Player(
        job_id=job.job_id,
        uid=job.uid,
        account=job.account,
        gpus=job.gpus,
        arrive_s=arrive_s,
        duration_s=duration_s,
        real_wait_s=math.nan if ran_before else max(0.0, job.start_s - arrive_s),
        ended=ended,
        opted_in=job.opted_in,
    )


def _fits(gpus: float, shape: ClusterShape) -> bool:
    try:
        shapes(np.array([gpus]), shape.nodes().gpus)
    except ValueError:
        return False
    return True


def effects(
    cast: Cast,
    shape: ClusterShape,
    policy: Policy,
    settings: Settings,
    *,
    begin_s: float,
    progress: Progress = lambda _what, _share: None,
) -> Effects:
    """Simulate both, and compare.

    Args:
        settings: The engine's limits as configured; placement and breakers are left out.
        begin_s: The trace's zero, epoch seconds.
        progress: Told again and again what is simulated, and the share of its jobs that are done;
            what it raises ends both.

    Raises:
        ConfigError: The policy cannot run there, or never served some of the jobs.
    """
    players = cast.players
    scenario = Scenario(
        trace=_trace(players, begin_s),
        shape=shape,
        habits=JobBehaviour(
            opted_in_frac=sum(p.opted_in for p in players) / max(1, len(players)),
            checkpoint_every_s=CHECKPOINT_EVERY_S,
        ),
        epoch_s=begin_s,
    )

    def telling(what: str) -> Callable[[int], None]:
        return lambda left: progress(what, 1.0 - left / max(1, len(players)))

    plain = simulate_plain(scenario, on_step=telling("plain Slurm")).records
    ours = Settings(
        partitions=frozenset({"gpu"}),
        band_width=settings.band_width,
        window=settings.window,
        preemption=settings.preemption,
    )
    served = simulate_slurm(
        scenario, policy=policy, settings=ours, on_step=telling("the configured policy")
    ).records
    counted = np.array([p.ended for p in players], dtype=np.bool_)
    if not (plain.finished.all() and served.finished.all()):
        msg = "in the simulation some jobs were never served: the policy passes nobody by"
        raise ConfigError(msg)
    return Effects(
        players=tuple(p for p in players if p.ended),
        plain_wait_s=(plain.start_s - plain.submit_s)[counted],
        policy_wait_s=(served.start_s - served.submit_s)[counted],
        plain_jct_s=plain.jct_s[counted],
        policy_jct_s=served.jct_s[counted],
        preemptions=int(served.preemptions.sum()),
        lost_gpu_s=max(0.0, float((served.all_lost_gpu_s - plain.all_lost_gpu_s).sum())),
        open_ended=int((~counted).sum()),
    )


def _trace(players: Sequence[Player], begin_s: float) -> Trace:
    users = sorted({p.uid for p in players})
    row = {uid: i for i, uid in enumerate(users)}
    n = len(players)
    return Trace(
        name="shadow",
        format="shadow",
        job_id=tuple(str(i) for i in range(n)),
        submit_s=np.array([p.arrive_s - begin_s for p in players], dtype=np.float64),
        duration_s=np.array([p.duration_s for p in players], dtype=np.float64),
        gpus=np.array([p.gpus for p in players], dtype=np.float64),
        user=np.array([row[p.uid] for p in players], dtype=np.int32),
        model=np.full(n, -1, dtype=np.int32),
        ending=np.zeros(n, dtype=np.int8),
        users=tuple(str(uid) for uid in users) or ("",),
    )


SIZES: Final = ((1, "1"), (4, "2-4"), (8, "5-8"), (16, "9-16"), (64, "17-64"))
LARGEST: Final = "65 and more"
_GPU_H: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What the simulator says about one group; *helped*, *hurt* and *same* are all its jobs.

    Attributes:
        plain_wait_s, policy_wait_s: Mean wait, seconds.
        plain_jct_s, policy_jct_s: Mean time from arrival to the end, seconds.
        worst_s: Seconds that the job that is hurt most ends later; 0 if none is.
    """

    group: str
    jobs: int
    helped: int
    hurt: int
    same: int
    plain_wait_s: float
    policy_wait_s: float
    plain_jct_s: float
    policy_jct_s: float
    worst_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The counterfactual.

    Attributes:
        total: All jobs whose end is known.
        by: Groups by ``user``, ``account`` and ``size``, the most jobs first; sizes by size.
        real_wait_s: Mean wait in reality of the jobs that came or waited; NaN if there is none.
        model_wait_s: The same jobs' mean wait under the simulated plain Slurm.
        preemptions: How often jobs were stopped.
        lost_gpu_h: GPU-hours without progress, more than under plain Slurm.
        open_ended, never_ran, unfit: See `Effects` and `Cast`.
        jobs_taken, jobs_in_all: Jobs that took part, and those there were; fewer in a sample.
        gpus, gpus_in_all: GPUs that were simulated, and those there are.
    """

    total: Balance
    by: Mapping[str, tuple[Balance, ...]]
    real_wait_s: float
    model_wait_s: float
    preemptions: int
    lost_gpu_h: float
    open_ended: int
    never_ran: int
    unfit: int
    jobs_taken: int
    jobs_in_all: int
    gpus: float
    gpus_in_all: float

    @property
    def is_sample(self) -> bool:
        """Whether the nodes were a share of those there are."""
        return self.gpus < self.gpus_in_all


def size_of(gpus: float) -> str:
    """The class of jobs that *gpus* belongs to."""
    return next((name for most, name in SIZES if gpus <= most), LARGEST)


def size_rank(name: str) -> int:
    """The place of a class of `size_of` among them."""
    names = [known for _, known in SIZES]
    return names.index(name) if name in names else len(names)


def simulated_of(
    effects: Effects,
    cast: Cast,
    name_of: Callable[[int], str],
    *,
    jobs_in_all: int,
    gpus: float,
    gpus_in_all: float,
) -> Simulated:
    """What the simulator says, by user, account and size; see `Simulated`."""
    players = effects.players
    everybody = np.ones(len(players), dtype=np.bool_)

    def by(group_of: Sequence[str]) -> list[Balance]:
        column = np.array(group_of, dtype=object)
        found = [_balance(effects, column == name, name) for name in dict.fromkeys(group_of)]
        return sorted(found, key=lambda b: (-b.jobs, b.group))

    sizes = by([size_of(p.gpus) for p in players])
    real = np.array([p.real_wait_s for p in players], dtype=np.float64)
    came = ~np.isnan(real)
    return Simulated(
        total=_balance(effects, everybody, "all"),
        by={
            "user": tuple(by([name_of(p.uid) for p in players])),
            "account": tuple(by([p.account or "-" for p in players])),
            "size": tuple(sorted(sizes, key=lambda b: size_rank(b.group))),
        },
        real_wait_s=_mean(real[came]),
        model_wait_s=_mean(effects.plain_wait_s[came]),
        preemptions=effects.preemptions,
        lost_gpu_h=effects.lost_gpu_s / _GPU_H,
        open_ended=effects.open_ended,
        never_ran=cast.never_ran,
        unfit=cast.unfit,
        jobs_taken=len(cast.players),
        jobs_in_all=jobs_in_all,
        gpus=gpus,
        gpus_in_all=gpus_in_all,
    )


def _balance(effects: Effects, mask: Bool, group: str) -> Balance:
    later_s = (effects.policy_jct_s - effects.plain_jct_s)[mask]
    jobs = int(mask.sum())
    helped, hurt = int(effects.helped[mask].sum()), int(effects.hurt[mask].sum())
    return Balance(
        group=group,
        jobs=jobs,
        helped=helped,
        hurt=hurt,
        same=jobs - helped - hurt,
        plain_wait_s=_mean(effects.plain_wait_s[mask]),
        policy_wait_s=_mean(effects.policy_wait_s[mask]),
        plain_jct_s=_mean(effects.plain_jct_s[mask]),
        policy_jct_s=_mean(effects.policy_jct_s[mask]),
        worst_s=float(later_s.max(initial=0.0)) if hurt else 0.0,
    )


def _mean(values: F64) -> float:
    return float(values.mean()) if len(values) else math.nan
