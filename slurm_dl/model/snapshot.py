"""The frozen picture that a decision is made from.

`Observed` is what the cluster says. `Snapshot` adds what only we remember: service over all runs,
preemptions, SiteFactors written, hand-overs under way. A saved snapshot is a complete bug report.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from slurm_dl.model.booking import Entry
from slurm_dl.model.breaker import Breaker, Restart, Taken
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.contract import NO_CLAIM, Claim
from slurm_dl.model.handover import Handover, Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import F64, I8, I16, I64, Bool, Jobs, Origin, Remembered
from slurm_dl.model.json_marks import SharedMasks
from slurm_dl.model.limits import PartitionLimits, Quotas
from slurm_dl.model.nodes import Allocations, Nodes, OtherGres, SharedGpu
from slurm_dl.model.pair_rates import PairRates
from slurm_dl.model.promise import PromiseTerms
from slurm_dl.model.replicas import Replicas
from slurm_dl.model.sizes import Sizes
from slurm_dl.model.steer import Steer
from slurm_dl.model.value_curve import ValueCurve

DEFAULT_HOLD_S: Final = 121.0
"""A requeued job may not start for this long with Slurm's default cred_expire (22.05.8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation of ours that Slurm reports."""

    name: str
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocked:
    """Whole nodes that a reservation which is not ours keeps from all jobs but its own."""

    start_s: float  # When it begins, epoch seconds; of one that repeats, the next time
    end_s: float  # When it ends, epoch seconds
    nodes: Bool  # ``(m,)`` bool, its nodes
    jobs: frozenset[JobId] = frozenset()  # Jobs that run in it or are submitted into it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobText:
    """What people want to read about a job; of it, *qos* and *account* decide something as well."""

    label: str  # Slurm's way of naming it: ``123``, ``123_7`` or ``123_[8-20]``
    name: str = ""
    user: str = ""
    account: str = ""  # Its account, to which nodes may be guaranteed
    qos: str = ""  # Its QOS. Where Slurm itself preempts it does so inside one of them.
    reason: str = ""  # Slurm's own reason word. The ledger reads of it that Slurm put a job aside.
    nodes: str = ""  # Node list as Slurm writes it
    ending: str = ""  # Slurm's word for how it ended, such as ``TIMEOUT``; empty if it is not over


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A job that one look at the cluster leaves out, because of what its record says.

    It has no row in `Jobs`, so nothing is done to it or for it; the ledger keeps what it knows.

    Attributes:
        field: What Slurm says of it that is not understood, in squeue's words; empty if its record
            changed while it was read.
    """

    uid: int  # Its owner; -1 if that could not be read either
    label: str  # Slurm's way of naming it, as far as it could be read
    field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """The cluster at one instant, as the cluster tells it.

    Attributes:
        weights: What a GPU counts as in service and limits, by the name of its type; of types that
            are not here 1.
        claims: Metadata of the jobs that have any.
        also_in: Further partitions, as indices, of pending jobs that name several;
            `Jobs.partition` has the first.
        choices: ``(m,)`` bool by job id, the nodes a pending or running job may use at all, for
            the jobs that restrict them (``--nodelist``, ``--constraint``, ``--tmp``, GRES); all
            False if the restriction, or what it excludes, could not be understood.
        unmodelled: An option of sbatch by job id, such as ``--contiguous``, of pending and running
            jobs of which it is not known which nodes would do; their *choices* are all False.
        gres: What there is of GRES beside GPUs, and what jobs take of it; None if none asks for
            any.
        quotas: Limits and licences in which waiting jobs count; None if none is known.
        deadlines: When pending and running jobs have to be over, epoch seconds, by job id. Slurm
            ends a pending job whose time limit would pass it.
        limits: Of each of *partitions*, None where they are not known; empty: of none.
        reserved_until: When the reservations of others that jobs are in or ask for end, the last
            of them, epoch seconds, by job id; 0 if there is none of them any more.
        barred: Running jobs that their account or QOS would not let start again, as far as they
            were asked about.
        excluded: ``(m,)`` bool by job id, the nodes that stand in a pending job's ``ExcNodeList``,
            whoever put them there; only jobs that exclude any.
        begins: When pending jobs that have a begin time may start, epoch seconds, by job id; of
            one that is over Slurm goes on saying so until its scheduler has looked.
        planned: When Slurm's own plan starts pending jobs, epoch seconds, by job id; only where
            that is later than *now_s*.
        eligible: From when on pending and running jobs could or can start, epoch seconds, by job
            id, as Slurm tells it; only jobs of which that is later than their submission.
        throttles: ArrayTaskThrottle of pending array records, by job id; 0: none. Not of tasks with
            a record of their own, of which Slurm shows none.
        reserved: Job ids whose ReservationName is one of ours, with that name.
        reservations: Reservations of ours; empty when they were not read.
        blocked: Reservations of others, as they were last read; they are read with the nodes.
        shared: GPUs of which jobs hold shares, by node and index; those of jobs that have just
            started may be missing.
        sharable: ``(m,)`` bool, nodes that hand out shares of their GPUs; None if none does.
        spreads_shares: Of the devices with room Slurm takes the least loaded (LL_SHARED_GRES), not
            the first.
        cut_short: Jobs that are over because somebody or a time limit ended them; their end says
            nothing about the job.
        failed_with: Exit statuses, as a shell has them, of preemptible jobs that are FAILED and not
            over in another way; None while Slurm has not told.
        left_out: Jobs that Slurm lists and that have no row here.
        unreadable: Records that were left out: of those jobs, of nodes, and without a readable id.
    """

    now_s: float  # The instant, epoch seconds; every age is counted from it
    jobs: Jobs  # Every job that Slurm still lists, finished ones too while they are listed
    nodes: Nodes  # Every node
    held: Allocations  # Who holds what where
    partitions: tuple[str, ...]  # Partition names; `Jobs.partition` indexes them
    gpu_types: tuple[str, ...]  # GPU type names; `Jobs.gpu_type` and `Nodes.gpu_type` index them
    weights: Mapping[str, float] = field(default_factory=dict)
    node_in: Bool  # ``(p, m)`` bool, node is in partition
    claims: Mapping[JobId, Claim] = field(default_factory=dict)
    also_in: Mapping[JobId, tuple[int, ...]] = field(default_factory=dict)
    choices: Annotated[Mapping[JobId, Bool], SharedMasks()] = field(default_factory=dict)
    excluded: Annotated[Mapping[JobId, Bool], SharedMasks()] = field(default_factory=dict)
    unmodelled: Mapping[JobId, str] = field(default_factory=dict)
    gres: OtherGres | None = None
    quotas: Quotas | None = None
    deadlines: Mapping[JobId, float] = field(default_factory=dict)
    limits: tuple[PartitionLimits | None, ...] = ()
    reserved_until: Mapping[JobId, float] = field(default_factory=dict)
    barred: frozenset[JobId] = frozenset()
    requeue_hold_s: float = DEFAULT_HOLD_S  # How long Slurm keeps a requeued job back, seconds
    begins: Mapping[JobId, float] = field(default_factory=dict)
    planned: Mapping[JobId, float] = field(default_factory=dict)
    eligible: Mapping[JobId, float] = field(default_factory=dict)
    throttles: Mapping[JobId, int] = field(default_factory=dict)
    texts: Mapping[JobId, JobText] = field(default_factory=dict)  # Words for people, by job id
    reserved: Mapping[JobId, str] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    shared: tuple[SharedGpu, ...] = ()
    sharable: Bool | None = None
    spreads_shares: bool = False
    cut_short: frozenset[JobId] = frozenset()
    failed_with: Mapping[JobId, int | None] = field(default_factory=dict)
    left_out: Mapping[JobId, LeftOut] = field(default_factory=dict)
    unreadable: int = 0

    def gpu_type_on(self, node: int) -> str:
        """Type of the GPUs on *node*; empty if it has no name, or they are of several."""
        kind = -1 if self.nodes.is_mixed[node] else int(self.nodes.gpu_type[node])
        return self.gpu_types[kind] if kind >= 0 else ""

    def weighted_gpus(self) -> F64:
        """``(n,)`` GPUs of each job, each GPU counted with the weight of its type.

        Of running jobs by what they hold, of others by what they ask for.
        """
        jobs = self.jobs
        if not (self.weights and self.gpu_types):
            return jobs.gpus
        weight = np.array([self.weights.get(name, 1.0) for name in self.gpu_types] + [1.0])
        more = (weight[:-1] - 1.0) @ self.held.gpus_by_type(self.nodes, len(self.gpu_types))
        gpus: F64 = jobs.gpus * weight[jobs.gpu_type]
        holds = np.unique(self.held.job)
        gpus[holds] = (jobs.gpus + np.bincount(self.held.job, more, len(jobs)))[holds]
        return gpus

    def weight_of_node(self) -> F64:
        """``(m,)`` GPUs of each node, counted likewise."""
        nodes, gpus = self.nodes, self.nodes.gpus
        for kind, name in enumerate(self.gpu_types):
            there = nodes.of_type(kind) * nodes.with_type(kind)
            gpus = gpus + there * (self.weights.get(name, 1.0) - 1.0)
        return gpus

    def claim(self, job_id: JobId) -> Claim:
        """The job's metadata; an empty claim if it has none."""
        return self.claims.get(job_id, NO_CLAIM)

    def may_list(self, job_id: JobId) -> bool:
        """Whether Slurm may still have a job that has no row here: it need not have left."""
        return job_id in self.left_out or self.unreadable > len(self.left_out)

    def has_acknowledged(self, run: Run) -> bool:
        """Whether the job says that its work is saved, and that it may be requeued, in *run*."""
        return self.claim(run.job_id).acked_run == run.restarts

    def is_unhandled(self, run: Run) -> bool:
        """Whether dlrun, asked in *run*, says that nothing takes the checkpoint signal, or will."""
        claim = self.claim(run.job_id)
        return claim.unhandled_asked and claim.unhandled_run == run.restarts


NEW_JOB: Final = "new job"
"""Metadata of the fields of `Snapshot` that are inputs of policies about each job: the value of a
job of which nothing is known, where others are."""


class Fixed(IntEnum):
    """Changes that a running job cannot make."""

    NO = 0
    GROWTH = 1  # It can give GPUs back, and goes on with the others
    ALL = 2  # It keeps what it holds


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """All that a decision may depend on.

    Attributes:
        left_s: ``(n,)`` seconds each job is still expected to run on GPUs of a type
            whose rate is 1, as many as it asks for; inf where nothing is known.
        left_from: ``(n,)`` int8, an `Origin`: where *left_s* is from; None: its time limit.
        progress: ``(n,)`` share of each job's work that is done, 0 to 1; NaN where nothing is
            known. None: of no job.
        due_s: ``(n,)`` when each job is to be done, epoch seconds; inf for those that are not due.
            None: none is.
        curves: Values of jobs with several deadlines, by job id; *due_s* is that of the highest.
        rates: ``(n, t)`` speed of each job on GPUs of each of the `Observed.gpu_types`, as many as
            it asks for; 0 where it cannot run. None: every type is as fast as any other.
        rates_from: ``(n,)`` int8, an `Origin`: where *rates* are from; None: nobody measured them.
        on_type: ``(n,)`` int16, type of the GPUs that each running job holds; None: that of its
            nodes.
        credit_s: ``(n, t)`` seconds that each job is owed on each GPU type by the shares it was
            given so far, less those it ran there; None: no share was ever given.
        booked: What policies had written down, sorted by kind and key; see `booking`.
        terms: What a policy must know before it promises anything; `decide` sets it. None: the
            terms of an ideal cluster.
        pair_rates: Speeds of two jobs on the same GPUs, row by row of the jobs; None: nobody
            measured any.
        setup_s: ``(n,)`` seconds that stopping each job and starting it again takes: save, requeue
            hold, start and restore. None: nobody measured it.
        fixed: ``(n,)`` int8, a `Fixed`: what each running job cannot give up now; `decide` sets it
            for policies that choose sizes. None: nobody is kept from any change.
        committed_s: ``(n,)`` seconds of a run of each job in which it cannot be preempted; see
            `engine.preemption.commitment`. None: that does not count.
        answers: Of jobs that we have preempted, whether each acknowledged when we last did, by job
            id; some may be missing.
        steers: What jobs are kept from by us, by job id; of those that have started too.
        trimmed: Jobs whose CPUs or memory we have cut since we began to look.
        rewrite: Jobs whose SiteFactor Slurm has undone and that is to be written again now.
        lost_pairs: Names of models that were slower together on a GPU than taking turns, one name
            where both are the same; sorted.
        next_handover_id: Number for the next one.
        broken: Jobs whose run began with a contract, and that Slurm may not requeue any more.
        restarts: What became of jobs that were put back into the queue, of a day.
        breakers: The circuit breakers that have tripped or were reset, as they were written down;
            see `Breaker.at`. The others never did.
    """

    seen: Observed  # What the cluster says
    memory: Remembered  # What the ledger says, row by row
    managed: Bool  # ``(p,)`` bool, which partitions are ours to order
    left_s: F64 = field(metadata={NEW_JOB: np.inf})
    left_from: I8 | None = field(default=None, metadata={NEW_JOB: Origin.DECLARED})
    progress: F64 | None = field(default=None, metadata={NEW_JOB: np.nan})
    due_s: F64 | None = field(default=None, metadata={NEW_JOB: np.inf})
    curves: Mapping[JobId, ValueCurve] = field(default_factory=dict)
    rates: F64 | None = field(default=None, metadata={NEW_JOB: 1.0})
    rates_from: I8 | None = field(default=None, metadata={NEW_JOB: Origin.PRIOR})
    on_type: I16 | None = field(default=None, metadata={NEW_JOB: -1})
    credit_s: F64 | None = field(default=None, metadata={NEW_JOB: 0.0})
    sizes: Sizes | None = None  # The sizes of elastic jobs; None: no job is elastic
    services: tuple[
        Replicas, ...
    ] = ()  # Services of the site, whose replicas come before batch jobs
    pair_rates: PairRates | None = None
    past: Past = NO_PAST  # Jobs that are over, the last of them
    booked: tuple[Entry, ...] = ()
    terms: PromiseTerms | None = None
    setup_s: F64 | None = field(default=None, metadata={NEW_JOB: DEFAULT_HOLD_S})
    fixed: I8 | None = None
    committed_s: F64 | None = None
    answers: Mapping[JobId, bool] = field(default_factory=dict)
    handovers: tuple[Handover, ...] = ()  # Hand-overs that are not closed yet
    steers: Mapping[JobId, Steer] = field(default_factory=dict)
    trimmed: frozenset[JobId] = frozenset()
    rewrite: frozenset[JobId] = frozenset()
    lost_pairs: tuple[tuple[str, ...], ...] = ()
    next_handover_id: HandoverId = HandoverId(1)  # noqa: RUF009 - a NewType call is an int
    preempted_gpus_last_hour: float = 0.0  # GPUs taken back in the last hour, for the limit on it
    taken: tuple[Taken, ...] = ()  # GPUs that were taken back, at least those of the last hour
    broken: frozenset[JobId] = frozenset()
    restarts: tuple[Restart, ...] = ()
    breakers: tuple[Breaker, ...] = ()

    @property
    def now_s(self) -> float:
        """The instant of the snapshot, epoch seconds."""
        return self.seen.now_s

    @property
    def jobs(self) -> Jobs:
        """Columns of the jobs."""
        return self.seen.jobs

    def service(self, dimensions: Literal[1, 2] = 2) -> F64:
        """``(n,)`` service of each job: what it has had, and what it keeps for good once it runs.

        Args:
            dimensions: 2: GPU-seconds. 1: seconds.
        """
        had = self.memory.ran_s if dimensions == 1 else self.memory.attained_gpu_s
        return had if self.committed_s is None else had + self.kept(dimensions)

    def kept(self, dimensions: Literal[1, 2] = 2) -> F64:
        """``(n,)`` service that each job keeps for good once it runs, likewise."""
        if self.committed_s is None:
            return np.zeros(len(self.jobs))
        return self.committed_s if dimensions == 1 else self.seen.weighted_gpus() * self.committed_s

    def choice(self, job_id: JobId) -> Bool | None:
        """``(m,)`` bool, the nodes a job's owner lets it use; None if there is no restriction.

        What we ourselves keep it from does not count: that can be changed.
        """
        choice = self.seen.choices.get(job_id)
        excluded = self.seen.excluded.get(job_id)
        if excluded is not None and self.steers:
            own = self.owner_excludes(job_id)
            if not own:
                return choice
            excluded = np.array([name in own for name in self.seen.nodes.name], dtype=np.bool_)
        if excluded is None or not excluded.any():
            return choice
        return ~excluded if choice is None else choice & ~excluded

    def owner_excludes(self, job_id: JobId) -> frozenset[str]:
        """Names of the nodes that a pending job's owner excludes."""
        excluded = self.seen.excluded.get(job_id)
        if excluded is None:
            return frozenset()
        there = frozenset(itertools.compress(self.seen.nodes.name, excluded.tolist()))
        steer = self.steers.get(job_id) or self.array_steer(job_id)
        if steer is None:
            return there
        return steer.inherited(there) if self.is_of_array(job_id) else steer.owned(there)

    def is_of_array(self, job_id: JobId) -> bool:
        """Whether a job is an array's pending tasks, or one of its tasks."""
        text = self.seen.texts.get(job_id)
        return text is not None and "_" in text.label

    def array_steer(self, job_id: JobId) -> Steer | None:
        """The steer of the array that a job is a task of; None if there is none."""
        text = self.seen.texts.get(job_id)
        array, task, _ = ("", "", "") if text is None else text.label.partition("_")
        if not task:
            return None
        steer = self.steers.get(JobId(int(array)))
        return None if steer is None or steer.job_id == job_id else steer

    def partitions_of(self, row: int) -> tuple[int, ...]:
        """The known partitions in which the job at *row* runs or may start."""
        also = self.seen.also_in.get(JobId(int(self.jobs.job_id[row])), ())
        return tuple(p for p in (int(self.jobs.partition[row]), *also) if p >= 0)

    def partition_tiers(self) -> I64 | None:
        """``(p + 1,)`` PriorityTier of each partition, last of an unknown one; None: all alike."""
        limits = self.seen.limits
        tiers = [1 if one is None else one.tier for one in limits]
        if len(set(tiers)) <= 1:
            return None
        return np.array([*tiers, *[1] * (len(self.seen.partitions) + 1 - len(tiers))], np.int64)

    def priority_tiers(self) -> I64 | None:
        """``(n,)`` PriorityTier of each job; None if all partitions have the same.

        Of a job that waits in several partitions that of the node where it is lowest: a further
        partition with few nodes is no way to come first on all others. Anybody may name a partition
        that is down or that shuts somebody out, so it raises no tier.
        """
        of, seen = self.partition_tiers(), self.seen
        if of is None:
            return None
        tiers: I64 = of[self.jobs.partition]
        raises = np.array([one is None or (one.starts and one.is_open) for one in seen.limits])
        known: dict[tuple[int, ...], int] = {}
        for row in np.flatnonzero(np.isin(self.jobs.job_id, list(seen.also_in))).tolist():
            parts = self.partitions_of(row)
            if parts not in known:
                at = list(parts)
                least = of[at].min(initial=int(tiers[row]))
                there = np.where(raises[at], of[at], least)[:, None] * seen.node_in[at]
                best = there.max(axis=0, initial=0)[seen.nodes.up]
                known[parts] = int(best[best > 0].min(initial=int(of[at].max(initial=least))))
            tiers[row] = known[parts]
        return tiers

    @cached_property
    def managed_jobs(self) -> Bool:
        """`is_managed`, computed once; it cannot be written."""
        managed = self.is_managed()
        managed.setflags(write=False)
        return managed

    def derived(self, **changes: Any) -> Snapshot:  # noqa: ANN401 - as `dataclasses.replace`
        """The same jobs in the same partitions, with some fields replaced."""
        snap = dataclasses.replace(self, **changes)
        if "managed_jobs" in self.__dict__:
            snap.__dict__["managed_jobs"] = self.managed_jobs
        return snap

    def with_jobs(self, **columns: npt.NDArray[Any]) -> Snapshot:
        """The same jobs with other values in some columns, but for their partitions."""
        seen = dataclasses.replace(self.seen, jobs=self.jobs.with_columns(**columns))
        return self.derived(seen=seen)

    def is_managed(self) -> Bool:
        """``(n,)`` bool: every partition the job is in or asks for is managed."""
        part = self.jobs.partition
        managed: Bool = (part >= 0) & self.managed[part]
        if self.seen.also_in:
            elsewhere = [
                job_id
                for job_id, others in self.seen.also_in.items()
                if not all(self.managed[p] for p in others)
            ]
            managed &= ~np.isin(self.jobs.job_id, elsewhere)
        return managed
