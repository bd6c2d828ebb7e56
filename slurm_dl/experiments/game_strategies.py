"""Strategies of a selfish user: what becomes of the jobs that the user would submit honestly."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from slurm_dl.experiments.game_workload import PLAYER, WantedJob, WantedJobs, limit_of
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.simulation.slurm.job_columns import OnSignal
from slurm_dl.text import shown

HONEST: Final = "honest"

_LEAST_RUN_S: Final = 600.0
"""Nobody is preempted earlier, by default; a job that comes anew each time needs so many."""

_MARGIN_S: Final = 120.0
_START_S: Final = 45.0
_ALL_CPUS: Final = 1_000_000
_FASTER: Final = 1.15  # A job with all CPUs of a node to itself reads its data faster

Play = Callable[[WantedJobs, int], list[WantedJob]]
"""Makes the player's jobs from honest ones; told the GPUs of a node as well."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to play."""

    title: str
    play: Play
    against: str = HONEST  # The strategy that is honesty here


def _each(change: Callable[[WantedJob], WantedJob | Iterable[WantedJob]]) -> Play:
    def play(workload: WantedJobs, _node_gpus: int) -> list[WantedJob]:
        made: list[WantedJob] = []
        for job in workload.jobs:
            if job.user == PLAYER:
                new = change(job)
                made += [new] if isinstance(new, WantedJob) else new
        return made

    return play


def _written(**changes: object) -> Play:
    return _each(lambda job: job.written(**changes))


def _whole_minutes(time_s: float) -> float:
    return math.ceil(time_s / 60.0) * 60.0


def _limited(limit_s: Callable[[WantedJob], float], **changes: object) -> Play:
    return _each(
        lambda job: dataclasses.replace(job, limit_s=_whole_minutes(limit_s(job))).written(
            **changes
        )
    )


def _chain(
    run_s: Callable[[WantedJob], float], *, tight: bool = True, users: tuple[int, ...] = ()
) -> Play:
    """Each job is many, which save after a while and submit the next."""

    def change(job: WantedJob) -> WantedJob:
        piece_s = max(120.0, run_s(job))
        return dataclasses.replace(
            job, users=users, rows=3 + math.ceil(job.need_s / (piece_s - _START_S)),
            limit_s=_whole_minutes(piece_s + _MARGIN_S) if tight else job.limit_s,
        ).written(leaves_after_s=piece_s, checkpoint_every_s=0.0)  # fmt: skip

    return _each(change)


def _below_threshold(job: WantedJob) -> float:
    return DiscreteLas().thresholds_gpu_s[0] / job.gpus - _START_S


def _requeues(run_s: float) -> Play:
    return _limited(
        lambda _: run_s + _MARGIN_S, leaves_after_s=run_s, checkpoint_every_s=0.0,
        claim=Claim(contract=Contract(requeued_by="job")), on_signal=OnSignal.REQUEUE_ITSELF,
    )  # fmt: skip


def _resubmits(job: WantedJob) -> WantedJob:
    rows = 3 + math.ceil(job.need_s / _LEAST_RUN_S)
    return dataclasses.replace(job, rows=rows).written(heir_after="preemption")


def _early(workload: WantedJobs, _node_gpus: int) -> list[WantedJob]:
    first_s = min(job.due_s for job in workload.jobs) + 1.0
    return [
        dataclasses.replace(job, due_s=first_s).written(begin_s=job.due_s)
        for job in workload.jobs
        if job.user == PLAYER
    ]


def _in_tasks(job: WantedJob, tasks: int = 4) -> list[WantedJob]:
    each_s = job.need_s / tasks
    own = dataclasses.replace(job, need_s=each_s + 35.0, limit_s=limit_of(each_s))
    return [own] * tasks


def _alone(workload: WantedJobs, node_gpus: int) -> list[WantedJob]:
    def change(job: WantedJob) -> WantedJob:
        faster = dataclasses.replace(job, need_s=job.need_s / _FASTER)
        return faster.written(held=(1, node_gpus), gpus=float(job.gpus), cpus=_ALL_CPUS)

    return _each(lambda job: change(job) if job.gpus < node_gpus else job)(workload, node_gpus)


def _on_nodes(workload: WantedJobs, node_gpus: int) -> list[WantedJob]:
    def change(job: WantedJob) -> WantedJob:
        return dataclasses.replace(job, gpus=node_gpus, need_s=job.need_s * job.gpus / node_gpus)

    return _each(change)(workload, node_gpus)


def _hog(workload: WantedJobs, node_gpus: int) -> list[WantedJob]:
    held = (1, node_gpus)
    return [
        job.written(held=held, gpus=0.0, cpus=_ALL_CPUS, claim=None)
        for job in _on_nodes(workload, node_gpus)
    ]


def _poisoned(workload: WantedJobs, node_gpus: int) -> list[WantedJob]:
    named = _each(lambda job: dataclasses.replace(job, name="u0-poison"))(workload, node_gpus)
    sizes = [gpus for gpus in sorted({job.gpus for job in named}) for _ in range(12)]
    return named + [
        WantedJob(
            work=-2 - i, user=PLAYER, name="u0-poison", gpus=gpus, need_s=60.0,
            due_s=1.0 + 30.0 * (i % 12), limit_s=1800.0,
        ).written(fails=True)
        for i, gpus in enumerate(sizes)
    ]  # fmt: skip


_DEAF: Final = {"on_signal": OnSignal.IGNORE, "checkpoint_every_s": 600.0}
_NEARLY: Final = 0.999

STRATEGIES: Final = {
    HONEST: Strategy("honest", _written()),
    "whole-nodes": Strategy("honest, on whole nodes", _on_nodes),
    "no-opt-in": Strategy("no opt-in", _written(claim=None)),
    "contract-out": Strategy(
        "contract taken out once it runs", _written(claims_while_it_runs=False)
    ),
    "requeue-0": Strategy(
        "Requeue=0 once it runs", _written(requeue_refused=True, on_signal=OnSignal.IGNORE)
    ),
    "chain-20min": Strategy("chain of 20 min, tight limits", _chain(lambda _: 1200.0)),
    "chain-1h": Strategy("chain of 1 h", _chain(lambda _: 3600.0)),
    "chain-threshold": Strategy(
        "chain, each below 1st threshold", _chain(_below_threshold, tight=False)
    ),
    "chain-two-users": Strategy(
        "chain by two users", _chain(_below_threshold, tight=False, users=(PLAYER, -1))
    ),
    "resubmit": Strategy("cancel and resubmit when preempted", _each(_resubmits)),
    "early": Strategy("early submission, begin later", _early),
    "requeue-1h": Strategy("self-requeue each hour, limit 1 h", _requeues(3600.0)),
    "requeue-14min": Strategy("self-requeue each 14 min", _requeues(840.0)),
    "until": Strategy(
        "until 0.5 with a tight limit",
        _limited(
            lambda job: 1.05 * job.need_s + 900.0, claim=Claim(contract=Contract(), until=0.5)
        ),
    ),
    "tight-limit": Strategy(
        "limit 3 % over the need (truth)", _limited(lambda job: 1.03 * job.need_s + 240.0)
    ),
    "long-limit": Strategy("limit 7 days", _limited(lambda _: 7 * 86_400.0)),
    "split-gang": Strategy(
        "gang split into 1-GPU jobs",
        _each(lambda job: [dataclasses.replace(job, gpus=1)] * job.gpus),
    ),
    "array": Strategy("4 array tasks of a quarter", _each(_in_tasks)),
    "node-by-cpus": Strategy("node alone by CPUs", _alone),
    "cpu-hog": Strategy("CPU-only hog, no contract", _hog, against="whole-nodes"),
    "new-names": Strategy(
        "new name for each job",
        _each(lambda job: dataclasses.replace(job, name=f"new-{job.work}")),
    ),
    "poisoned-name": Strategy("name made short by failing jobs", _poisoned),
    "progress": Strategy("says that 0.999 of it is done", _written(progress=_NEARLY)),
    "grace": Strategy(
        "grace 600 and no answer to the signal",
        _written(claim=Claim(contract=Contract(grace_s=600.0)), **_DEAF),
    ),
    "silent": Strategy("never reports a save", _written(reports="never")),
    "saved-now": Strategy("says 'saved just now'", _written(reports="now")),
}
"""By the words of ``--strategies``."""

BASES: Final = frozenset({HONEST, "whole-nodes"})  # Those that are honest


def parse_strategies(words: str) -> tuple[str, ...]:
    """Strategies from ``early,no-opt-in`` or ``all``.

    Raises:
        ConfigError: There is no such strategy.
    """
    known = [name for name in STRATEGIES if name not in BASES]
    named = known if words == "all" else [word.strip() for word in words.split(",")]
    for name in named:
        if name not in known:
            msg = f"--strategies {shown(name)}: there are {', '.join(known)}; or all"
            raise ConfigError(msg)
    return tuple(dict.fromkeys(named))
