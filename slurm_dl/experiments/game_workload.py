"""Jobs for the question of what a selfish user gains: an honest crowd, and one player.

Run times and GPUs are drawn from a trace with replacement; who submits what, and when, is drawn
too. All jobs are written honestly: a strategy changes those of the player, see `game_strategies`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.slurm.scripted_cluster import NOBODY, JobScript, Scripts
from slurm_dl.simulation.slurm.simulated_cluster import EPOCH_S

PLAYER = 0  # The user who plays; the others are honest

LEAST_S, MOST_S, MOST_GPUS = 300.0, 86_400.0, 8
"""Jobs of the trace that are drawn from: run time from and to, GPUs up to."""

_KNOWN, _OWN_KNOWN = 200, 0.06
"""Jobs that were over before, for policies that learn, and the share of the player's."""

_SPREAD = 0.2
_THINK_S = 1200.0
_SLACK = 0.2
_TRIES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedJob:
    """One job that a user wants; times in seconds."""

    work: int  # Jobs of one number do the work of one honest job
    user: int
    name: str
    gpus: int
    need_s: float
    due_s: float  # When it is submitted; inf: some time after *after*
    limit_s: float
    after: int = NOBODY  # A number of work
    script: JobScript = JobScript()  # noqa: RUF009 - frozen
    rows: int = 1  # As many jobs of Slurm can take it on, one after the other
    users: tuple[int, ...] = ()  # Who submits them in turn; nobody: its user

    def written(self, **changes: object) -> WantedJob:
        """The same job with another script."""
        return dataclasses.replace(self, script=dataclasses.replace(self.script, **changes))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The users and their jobs; see `honest`."""

    jobs: int = 160  # Of the honest users
    users: int = 20  # The player included
    share: float = 0.05  # Of the work that is the player's, about
    sessions: float = 0.0  # Share of the jobs that come after the end of their user's job before
    opt_outs: float = 0.0  # Share of the honest users who cannot save, and so do not opt in


@dataclass(frozen=True, slots=True, eq=False)
class WantedJobs:
    """All jobs, and those that are over already."""

    jobs: tuple[WantedJob, ...]
    users: tuple[str, ...]
    before: tuple[WantedJob, ...]


def limit_of(need_s: float) -> float:
    """The limit that an honest user sets, seconds."""
    return math.ceil((max(3.0 * need_s, 1800.0) + 60.0) / 60.0) * 60.0


def honest(
    trace: Trace, crowd: Crowd, *, gpus: float, node_gpus: float, load: float, seed: int
) -> WantedJobs:
    """Jobs as they are wanted, all written honestly.

    Args:
        gpus: Of the cluster; *load* times these are asked for while jobs come.
        node_gpus: Of its largest node; no job has more.

    Raises:
        ConfigError: The trace has no such jobs, or the player's share cannot be had.
    """
    rng = np.random.default_rng([seed, 77])
    ok = (trace.gpus <= min(MOST_GPUS, node_gpus)) & (trace.duration_s >= LEAST_S)
    ok &= trace.duration_s <= MOST_S
    if not ok.any():
        msg = f"trace {trace.name}: no job of 5 minutes to a day fits a node of {node_gpus:g} GPUs"
        raise ConfigError(msg)
    pool_gpus, pool_s = np.ceil(trace.gpus[ok]), trace.duration_s[ok]

    def draw(n: int) -> tuple[F64, F64]:
        at = rng.integers(0, len(pool_s), n)
        return pool_gpus[at], pool_s[at] * rng.lognormal(0, _SPREAD, n)

    size, need_s = draw(crowd.jobs)
    honest_gpu_s = float((size * need_s).sum())
    scale = crowd.jobs / 160
    for _ in range(_TRIES):
        k = int(rng.integers(max(1, round(6 * scale)), max(2, round(14 * scale))))
        own_size, own_s = draw(k)
        own_gpu_s = float((own_size * own_s).sum())
        if abs(own_gpu_s / (honest_gpu_s + own_gpu_s) / crowd.share - 1) < _SLACK:
            break
    else:
        msg = f"--share {crowd.share:g}: so few jobs have no such share; change --share or --jobs"
        raise ConfigError(msg)
    span_s = (honest_gpu_s + own_gpu_s) / (gpus * load)
    weight = rng.dirichlet(np.full(crowd.users - 1, 2.0))

    def name(user: int, duration_s: float) -> str:
        # Names tell something: most jobs of a name are about as long.
        bin_ = np.clip(np.round(np.log2(duration_s / 300) / 2 + rng.normal(0, 0.5)), 0, 4)
        return f"u{user}-s{int(bin_)}"

    def job(work: int, user: int, gpus: float, need_s: float, due_s: float = 0.0) -> WantedJob:
        called = name(user, need_s)
        due_s = due_s or float(rng.uniform(0, span_s))
        return WantedJob(
            work=work, user=user, name=called, gpus=int(gpus), need_s=need_s, due_s=due_s,
            limit_s=limit_of(need_s),
        )  # fmt: skip

    jobs = [
        job(i, 1 + int(rng.choice(crowd.users - 1, p=weight)), float(size[i]), float(need_s[i]))
        for i in range(crowd.jobs)
    ]
    if crowd.sessions:
        jobs = _in_sessions(jobs, crowd.sessions, rng)
    n = len(jobs)
    jobs += [job(n + i, PLAYER, float(own_size[i]), float(own_s[i])) for i in range(k)]
    if crowd.opt_outs:
        cannot = 1 + rng.permutation(crowd.users - 1)[: round(crowd.opt_outs * (crowd.users - 1))]
        jobs = [j.written(claim=None) if j.user in cannot else j for j in jobs]
    size, need_s = draw(_KNOWN)
    own = rng.random(_KNOWN) < _OWN_KNOWN
    owner = np.where(own, PLAYER, 1 + rng.choice(crowd.users - 1, _KNOWN, p=weight))
    before = [
        job(-1, int(user), float(g), float(s), -1.0)
        for user, g, s in zip(owner, size, need_s, strict=True)
    ]
    names = (*(f"user{i}" for i in range(crowd.users)), "second-name")
    return WantedJobs(tuple(jobs), names, tuple(before))


def _in_sessions(jobs: list[WantedJob], share: float, rng: np.random.Generator) -> list[WantedJob]:
    """*jobs*, of which *share* come when the one before of the same user is over."""
    last: dict[int, int] = {}
    made = []
    for job in sorted(jobs, key=lambda job: job.due_s):
        before = last.get(job.user)
        last[job.user] = job.work
        if before is not None and rng.random() < share:
            think_s = float(rng.lognormal(math.log(_THINK_S), 1.0))
            later = job.written(think_s=think_s)
            made.append(dataclasses.replace(later, due_s=math.inf, after=before))
        else:
            made.append(job)
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Jobs as Slurm gets them, row by row."""

    trace: Trace
    scripts: Scripts
    limit_s: F64
    work: tuple[int, ...]
    before: Past


def rows_of(jobs: Sequence[WantedJob], workload: WantedJobs) -> Played:
    """*jobs* as jobs of Slurm: those that come by themselves in their order, then all others."""
    jobs = sorted(jobs, key=lambda job: job.due_s)
    first = {job.work: row for row, job in reversed([*enumerate(jobs)])}
    last_s = max(job.due_s for job in jobs if job.due_s < math.inf)
    rows = [job.written(after=first.get(job.after, NOBODY)) for job in jobs]
    for row, job in enumerate(jobs):
        at = row
        for piece in range(1, job.rows):
            rows[at] = rows[at].written(heir=len(rows))
            at = len(rows)
            # A user of -1 is the last one.
            user = (
                job.users[piece % len(job.users)] % len(workload.users) if job.users else job.user
            )
            heir = job.written(begin_s=-math.inf, after=NOBODY)
            rows.append(dataclasses.replace(heir, user=user, due_s=last_s))
    names = tuple(sorted({job.name for job in (*rows, *workload.before)}))
    index = {name: i for i, name in enumerate(names)}
    count: Counter[int] = Counter()
    ids = []
    for job in rows:
        ids.append(f"{job.work}.{count[job.work]}")
        count[job.work] += 1
    trace = Trace(
        name="game", format="generated", job_id=tuple(ids),
        submit_s=np.minimum([job.due_s for job in rows], last_s),
        duration_s=np.array([job.need_s for job in rows]),
        gpus=np.array([job.gpus for job in rows], dtype=np.float64),
        user=np.array([job.user for job in rows], dtype=np.int32),
        model=np.array([index[job.name] for job in rows], dtype=np.int32),
        ending=np.zeros(len(rows), dtype=np.int8), users=workload.users, models=names,
    )  # fmt: skip
    over = workload.before
    ran_s = np.array([job.need_s for job in over])
    end_s: F64 = EPOCH_S - 86_400.0 + 400.0 * np.arange(len(over), dtype=np.float64)
    owner = np.array([job.user for job in over], dtype=np.int32)
    before = Past(
        account=owner, user=owner.copy(), gpus=np.array([float(job.gpus) for job in over]),
        name=np.array([index[job.name] for job in over], dtype=np.int32),
        submit_s=end_s - ran_s, start_s=end_s - ran_s, end_s=end_s, ran_s=ran_s,
        accounts=workload.users, users=workload.users, names=names,
    )  # fmt: skip
    limit_s = np.array([job.limit_s for job in rows])
    scripts = Scripts(tuple(job.script for job in rows))
    return Played(trace, scripts, limit_s, tuple(job.work for job in rows), before)
