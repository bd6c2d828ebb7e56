"""The site's choices, as the engine needs them. All are limits: none makes it do more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from slurm_dl.model.failure import Retries
from slurm_dl.model.json_marks import OneOf
from slurm_dl.model.profile import Profile, SharingMode
from slurm_dl.model.promise import Estimate
from slurm_dl.placement.candidate_nodes import Rule
from slurm_dl.placement.gpu_packing import FORM_FROM
from slurm_dl.placement.scheme import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Limits on preemption.

    Attributes:
        beneficiaries: For which waiting jobs others are preempted; see `eligibility.displacers`.
        handover_timeout_s: A hand-over that has signalled no job is given up after this. Its
            reservation lapses after this, the longest grace and `start_margin_s`; seconds.
        start_margin_s: Time Slurm gets to start the beneficiaries once all GPUs are free, seconds.
        limit_reserve_s: A run with less than this left of its time limit is left alone, seconds.
        checkpoint_cost_s: Save plus restore of one job whose model's profile does not tell,
            seconds; weighs victims.
        unsaved_share: Share of the work since its last checkpoint that a job which was never
            preempted is expected to lose, 0 to 1; weighs victims. 0 where saves never fail, as in
            simulations.
        beneficiary_delay_s: Nobody is preempted for a job that has waited for less than this and
            has never run, seconds; see `eligibility.displacers`.
        commitment: Whether GPU time that nobody can take back counts as service; see
            `engine.preemption.commitment`.
        broken_contract_s: The jobs of a user who took a running job out of its contract count as
            jobs without one for this long, seconds.
        because: Why nothing new is begun while it is not *enabled*.
    """

    enabled: bool = True  # False: nothing new is begun; what was begun is brought to its end
    beneficiaries: Literal["opted_in", "all"] = "opted_in"
    min_quantum_s: float = 900.0  # A run is left alone for this long, seconds
    cooldown_s: float = 900.0  # A job is left alone for this long after a preemption, seconds
    max_preemptions: int = 5  # Most preemptions of one job in its life; 0 allows none
    max_grace_s: float = 600.0  # A job whose contract asks for more is not preempted, seconds
    handover_timeout_s: float = 900.0
    start_margin_s: float = 120.0
    limit_reserve_s: float = 600.0
    checkpoint_cost_s: float = 60.0
    unsaved_share: float = 0.0
    beneficiary_delay_s: float = 0.0
    commitment: Literal["counted", "ignored"] = "counted"
    exempt_accounts: tuple[str, ...] = ()  # Accounts of whose jobs it does not count
    broken_contract_s: float = 604_800.0
    max_handovers: int = 4  # Most hand-overs under way at once
    max_victims: int = 64  # Most victims of one hand-over
    max_beneficiaries: int = 32  # Most beneficiaries of one hand-over
    max_gpus_per_hour: float = 0.0  # Most GPUs taken back in any hour; 0 is no limit
    most_gpus: float = math.inf  # Most GPUs that one hand-over may take back; `decide` sets it
    because: str = "preemption is switched off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakers:
    """Limits at which all preemption stops for a while; see `engine.circuit_breakers`.

    Attributes:
        cluster_share: More than this share of the managed GPUs taken back within an hour; 0 is no
            breaker. Above 1: the same GPUs several times.
        failed_share: More than this share of the preempted jobs did not come back, 0 to 1; 0 is no
            breaker.
        failed_window_s: What became known longer ago than this does not count, seconds.
    """

    gpus_per_hour: float = 0.0  # More GPUs than this taken back within an hour; 0 is no breaker
    cluster_share: float = 0.0
    cluster_least: float = 0.0  # The bound of `cluster_share` is at least so many GPUs
    failed_share: float = 0.0
    failed_least: int = 4  # Only once it is known of this many jobs whether they came back
    failed_window_s: float = 14_400.0
    rearms: bool = True  # A breaker re-arms by itself once its window has passed since it tripped


@dataclass(frozen=True, slots=True, kw_only=True)
class Defragment:
    """Moves of running jobs that join free GPUs, under all limits of `Preemption`.

    Attributes:
        free_nodes: Nodes that are to be free as a whole; while no job waits for room, jobs are
            moved together to get there, one node at a time. 0: nobody is moved for that.
    """

    enabled: bool = False  # Move jobs so that a waiting gang fits
    after_s: float = 300.0  # Only for a job that has waited this long, seconds
    max_moves: int = 8  # Most jobs that are moved at a time
    free_nodes: int = 0


@dataclass(frozen=True, slots=True)
class External:
    """The daemon takes GPUs back: it signals, waits, requeues, and seals the freed nodes."""


@dataclass(frozen=True, slots=True)
class Native:
    """Slurm takes GPUs back by itself, by the priorities that follow from our SiteFactors.

    Attributes:
        qos: The QOS inside which a job of higher priority preempts one of lower priority
            (PreemptMode with WITHIN); Slurm preempts no job outside it.
    """

    qos: str


Mode = External | Native  # Who takes GPUs back


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """A bound on waiting, see `engine.intent`.

    Attributes:
        after_s: A job that has waited longer than this is served before others, seconds; 0: never.
        pass_s: Once the first waiting job has waited longer than this, others may not move its
            planned start, seconds; 0: they always may. See `engine.pass_bound`.
        short_s: Jobs with a time limit up to this have a lane of their own, seconds; 0: none has.
            See `engine.short_lane`.
    """

    after_s: float = 604_800.0
    share: float = 0.25  # Share of a pool's GPUs that such jobs may have together, 0 to 1
    pass_s: float = 3600.0
    short_s: float = 0.0
    short_gpus: float = 1.0  # Most GPUs of a job in the lane
    short_share: float = 0.1  # Share of a pool's GPUs that the lane may have, 0 to 1


NEVER_OVERDUE = Overdue(after_s=0.0, pass_s=0.0)  # Waiting has no bound but the policy's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Bounds on the deadlines of jobs, see `engine.promise_terms`."""

    share: float = 0.5  # Share of a pool's GPUs that jobs with deadlines ask for together, above 0
    account_share: float = 0.25  # Share that those of one account, or of one user, ask for, above 0
    qos: tuple[str, ...] = ()  # QOS whose jobs may have one, in small letters; empty: all
    longest_ahead_s: float = 1_209_600.0  # A deadline further ahead does not count yet, seconds
    lead_s: float = 780.0  # Promised GPUs are taken back this long before they are needed, seconds
    estimate: Estimate = "limit"  # The run time that promises rest on


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """Sizes of elastic jobs: where they change, and what a change has to save.

    Attributes:
        expand: Under policies that choose no sizes, too: each gets its least size in their order,
            and what is left over goes to the jobs that gain most by it.
        max_per_day: Most changes of a job's size within a day after which it may still grow; 0: any
            number.
    """

    expand: bool = False
    steadiness: float = 0.0  # See `engine.sized_target.steady`
    max_per_day: int = 0
    cooldown_s: float = 0.0  # A job does not grow for this long after its size changed, seconds


AS_SUBMITTED = Resizing()  # Elastic jobs change size only where the policy says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where waiting jobs should go, and whether they are made to.

    Attributes:
        steer: Keep pending jobs from other nodes than the chosen ones. False: only say so.
        trim: Cut the CPUs and memory of pending jobs whose owners allow it where that makes them
            fit.
        steer_for_s: A job is kept to chosen nodes for this long; what it waits for by a scheme or a
            rule has a time of its own. Seconds.
        defer_s: How far a job that is not to start anywhere is put off at first, seconds; more
            than the time between two looks.
        settle_s: A job that was submitted with a begin time this far ahead is placed meanwhile.
        pack: Of the jobs that ask for shares of a GPU, put two on one device where their profiles
            say that they get on with each other, and keep all others apart.
        gpu_mem_mb: Memory of a GPU by its type, MB; nobody is packed on types that are not there.
        max_host_slowdown: Most that a job may lose of its speed, 0 to 1, to one that joins it; None
            is no bound.
        sharing_mode: Mode of two jobs on one GPU; speeds of pairs count in this mode.
        least_pair_speed: Least sum of relative speeds from which two jobs are put together.
        profile_slots: GPUs that jobs whose model was not measured may hold while more GPUs are
            waited for than are free.
    """

    scheme: Scheme | None = None  # Chooses nodes; None: that is left to Slurm
    rules: tuple[Rule, ...] = ()  # Where jobs may not, or had better not be
    steer: bool = False
    trim: bool = False
    steer_for_s: float = 600.0
    defer_s: float = 120.0
    settle_s: float = 0.0
    window: int = 200  # Waiting jobs of each partition, best first, that are placed
    profiles: Mapping[str, Profile] = field(default_factory=dict)  # Models' profiles by name
    pack: bool = False
    gpu_mem_mb: Mapping[str, float] = field(default_factory=dict)
    max_host_slowdown: float | None = None
    sharing_mode: SharingMode = "slices"
    least_pair_speed: float = FORM_FROM
    profile_slots: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a decision depends on besides the snapshot and the policy.

    Attributes:
        band_width: SiteFactor between two places of the waiting line, or, in native mode, between
            two tiers; above what other priority factors can add up to.
        window: Pending jobs of each partition, best first, whose SiteFactor is kept up to date.
        equals: Who decides between jobs that the policy does not tell apart otherwise than by the
            time since which they could start: that time, or the site's own priority weights.
        lease_window: Share of a lease, from its begin, in which what the lease before kept may
            still change hands; a daemon needs some looks for that.
    """

    partitions: frozenset[str]  # The partitions that are ours to order
    band_width: int = 10_000_000
    window: int = 1000
    preemption: Preemption = Preemption()  # Limits on taking GPUs back
    mode: Annotated[Mode, OneOf()] = External()  # Who takes them back
    placement: Placement = Placement()  # Where waiting jobs should go
    defragment: Defragment = Defragment()  # When running jobs are moved together
    breakers: Breakers = Breakers()  # When to stop taking GPUs back altogether
    overdue: Overdue = Overdue()  # When a job has waited for so long that it comes first
    deadlines: Deadlines | None = Deadlines()  # Bounds on the deadlines of jobs; None: none counts
    resizing: Resizing = AS_SUBMITTED  # Sizes of elastic jobs
    retries: Retries | None = None  # Bounds on retries of failed jobs; None: they are left alone
    equals: Literal["submission", "site"] = "submission"
    hold: bool = True  # Whether jobs that the policy bars are put off
    lease_window: float = 0.25
