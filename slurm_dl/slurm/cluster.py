"""A real Slurm as the engine's cluster: `observe` and `apply`.

The queue is read by the `CliQueue` or `PyslurmQueue` that is passed in; all else goes through the
command-line tools. RPCs where squeue reads it (measured on 22.05.8 with sdiag):

- `observe` is two; two more with new pending jobs, or after a steer or a `refresh_nodes`; one for
  watched reservations, two for the nodes of ours; three if Slurm first says of a job that nodes are
  down; one each if jobs have started that asked for GPUs in all on several nodes, or on nodes of
  which GPUs are shared; two if a job that was not over has left the listing.
- `refresh_nodes` is eight, one more with licences, and one if nodes came or went; some accounts
  also ask slurmdbd.
- `look_again` is four for the nodes, two for jobs of which something is not known, two for each new
  beneficiary, and one a minute for limits. A cycle that writes SiteFactors asks sdiag once,
  and sprio about jobs that have none so far or whose priority is not what theirs makes it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import (
    ClearSteer,
    ClusterAction,
    Reshape,
    SetSteer,
    Throttle,
    Trim,
    Unfinished,
)
from slurm_dl.model.snapshot import Observed, Reservation
from slurm_dl.slurm.controller import (
    ControllerStatus,
    SiteConfig,
    partition_values,
    read_config,
    read_health,
)
from slurm_dl.slurm.preflight import check_sight, lacks_rights
from slurm_dl.slurm.read.account_limits import AccountLimits
from slurm_dl.slurm.read.array_throttles import ArrayThrottles
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.conditions import ConditionReader, read_licences
from slurm_dl.slurm.read.gpu_holdings import Holdings, Shares
from slurm_dl.slurm.read.grammar import UsableNode, read_usable
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_choices import NodeChoices
from slurm_dl.slurm.read.node_reader import (
    ClusterReading,
    NodesSeen,
    ReservationSeen,
    blocked_by,
    check_nobody_runs,
    is_up,
    last_end_s,
    node_arguments,
    read_nodes,
    read_reservations,
    site_of,
)
from slurm_dl.slurm.read.queue_reader import CliQueue, ExitStatuses, ReaderChoice
from slurm_dl.slurm.read.record_parser import (
    MOST_NAMED,
    new_nonce,
    of_jobs,
    queue_arguments,
    split_records,
)
from slurm_dl.slurm.read.vocabulary import nodes_missing
from slurm_dl.slurm.releases import Release, no_preemption
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.actions import Actor
from slurm_dl.slurm.write.release_all import set_by_hand, site_factors

_OVER = (JobState.COMPLETED, JobState.FAILED)


class SlurmCluster:
    """One Slurm cluster.

    Attributes:
        watch_reservations: Read reservations at each `observe`; to be set while hand-overs are
            open. The first `observe` always reads them.
        watch_throttles: Read the throttles of arrays, see `engine.array_throttles.watched`.
        now: What time it is at slurmctld, epoch seconds.
        asked_s: How long Slurm took to answer in the last `observe`, seconds.
        config: What of slurm.conf was read last; None before the first time.
    """

    def __init__(
        self,
        slurm: Slurm,
        *,
        max_grace_s: float,
        models: Collection[str] | None = None,
        clock: Callable[[], float] = time.time,
        queue: CliQueue | None = None,
        weights: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Bind to a cluster; nothing is read yet.

        Args:
            max_grace_s: Longest grace a job may claim, seconds.
            models: Names of the model profiles there are; None takes any well-formed name.
            clock: The first value of `now`.
            queue: What reads the queue; None is squeue.
            weights: See `Observed.weights`.
        """
        self.watch_reservations = self.watch_throttles = False
        self.now = clock
        self.asked_s = 0.0
        self._slurm = slurm
        self._weights = weights
        self._reader = JobReader(ClaimReader(max_grace_s=max_grace_s, models=models))
        self._holdings = Holdings()
        self._shares = Shares(slurm)
        self._throttles = ArrayThrottles(slurm)
        self._limits = AccountLimits(slurm)
        self._statuses = ExitStatuses(slurm)
        self._queue = CliQueue(slurm) if queue is None else queue
        self._actor = Actor(slurm, set_site_factor=self._queue.set_site_factor)
        self.config: SiteConfig | None = None
        self._lacks_rights = ""
        # True at first, so that the first look is checked too if it is empty.
        self._saw_jobs = True
        self._not_over: frozenset[int] = frozenset()
        self._topology: tuple[frozenset[str], str] | None = None
        self._found: NodesSeen | None = None
        self._usable: Mapping[str, UsableNode] = {}
        self._words: Mapping[str, Mapping[str, str]] = {}
        self._site: ClusterReading | None = None
        self._last: tuple[JobTable, ConditionReader, float] | None = None
        self._stuck: set[JobId] = set()
        self._ours: tuple[ReservationSeen, ...] = ()
        self._reservations: tuple[ReservationSeen, ...] = ()
        self._choices: NodeChoices | None = None
        # Types are only ever added at the end: an index keeps its meaning for our lifetime.
        self._gpu_types: dict[str, int] = {}

    @property
    def release(self) -> Release:
        """The controller's Slurm release.

        Raises:
            ClusterError: Nothing has been read yet.
        """
        if self.config is None:
            msg = "the cluster has not been read yet"
            raise ClusterError(msg)
        return self.config.release

    def why_not(self) -> str:
        """The reason why nothing should be written: it would have no effect, or rights are missing.

        See `Precondition`. As of the last `refresh_nodes`; empty before the first.
        """
        return (self.config.unfit if self.config else "") or self._lacks_rights

    def refresh_nodes(self) -> None:
        """Read settings, nodes, partitions, reservations anew; topology if nodes came or went.

        Raises:
            ClusterError: Something could not be read; what was known stays.
        """
        self._read_site()

    def observe(self) -> Observed:
        """The cluster now; the instant is that of `now` when the reading began.

        Raises:
            ClusterError: It could not be read whole.
        """
        before_s = self._slurm.spent_s
        try:
            return self._observe()
        finally:
            self.asked_s = self._slurm.spent_s - before_s

    def health(self) -> ControllerStatus:
        """State and time of slurmctld; one RPC, which takes no lock of its jobs.

        Raises:
            ClusterError: It is silent, or there is no sdiag.
        """
        return read_health(self._slurm.run("sdiag"))

    def _observe(self) -> Observed:
        reservations: tuple[ReservationSeen, ...] | None = None
        site = self._site
        if site is None:
            site, reservations = self._read_site()
        # Slurm tells whole seconds. Counting in them too, no run is ever counted beyond its end.
        now_s = float(math.floor(self.now()))
        table, conditions = self._queue.read(self._reader, site, now_s=now_s)
        listed = bool(table.texts or table.left_out)
        if self._saw_jobs and not listed:
            # All gone at once: have they ended, or are they hidden from us since?
            site, reservations = self._read_site()
            check_nobody_runs(site)
        self._check_none_left_out(table)
        self._saw_jobs = listed
        if reservations is None and self.watch_reservations:
            reservations = self._read_reservations()
            # A hand-over must not wait for a node that has left service since.
            self._look_at({name for one in reservations if one.is_ours for name in one.nodes})
        self._ours = reservations or ()
        stuck = {job for job, text in table.texts.items() if nodes_missing(text.reason)}
        if stuck - self._stuck:
            self._look_at()
        self._stuck = stuck
        self._queue.learn_splits(self._holdings, table, site)
        self._holdings.correct(table)
        self._shares.learn(table)
        self._statuses.learn(table)
        return self._put_together(table, conditions, now_s)

    def look_again(
        self,
        seen: Observed,  # noqa: ARG002 - see `LookAgain`
        jobs: frozenset[JobId],
        *,
        nodes: bool,
    ) -> Observed:
        """See `LookAgain`: one sinfo and two scontrol if *nodes*, and what is asked of *jobs*."""
        assert self._last is not None and self._site is not None  # noqa: S101, PT018
        if nodes:
            self._ours = self._read_reservations()
            self._look_at()
        table, conditions, now_s = self._last
        self._limits.ask(jobs, table, self._site, now_s)
        conditions.learn_whole(jobs, table)
        return self._put_together(table, conditions, now_s)

    def _put_together(self, table: JobTable, conditions: ConditionReader, now_s: float) -> Observed:
        """The observation at *now_s*, with the nodes as they were read last."""
        jobs = table.columns(self._gpu_types)
        site, found = self._site, self._found
        assert site is not None and found is not None  # noqa: S101, PT018 - narrows the types
        if len(self._gpu_types) > len(site.type_row):
            site = self._set_site(found, first=site.partitions)
        if self._choices is None:
            self._choices = NodeChoices(site)
        asked = self._choices.of(table, conditions)
        labels = {job: text.label for job, text in table.texts.items()}
        self._actor.know(labels, no_preemption=no_preemption(site.config.release))
        held = self._holdings.allocations(table, site)
        self._last = table, conditions, now_s
        return Observed(
            now_s=now_s,
            jobs=jobs,
            nodes=site.nodes,
            held=held,
            partitions=site.partitions,
            gpu_types=tuple(self._gpu_types),
            weights=self._weights,
            node_in=site.node_in,
            claims=table.claims,
            also_in=table.also_in,
            choices=asked.choices,
            excluded=asked.excluded,
            unmodelled=asked.unmodelled,
            gres=asked.gres,
            quotas=self._limits.quotas(table, site, held, conditions, now_s),
            deadlines=table.deadlines,
            limits=site.limits,
            reserved_until=last_end_s(self._reservations, table.inside),
            barred=frozenset(self._limits.barred & table.texts.keys()),
            requeue_hold_s=site.config.requeue_hold_s,
            begins=table.begins,
            planned=table.planned,
            eligible=table.eligible,
            throttles=self._throttles.of(table) if self.watch_throttles else {},
            texts=table.texts,
            reserved=table.reserved,
            reservations=tuple(
                Reservation(name=r.name, end_s=r.end_s) for r in self._ours if r.is_ours
            ),
            blocked=blocked_by(self._reservations, site.nodes, table.inside, now_s),
            shared=self._shares.gpus(table, site),
            sharable=site.sharable if site.sharable.any() else None,
            spreads_shares=site.config.spreads_shares,
            cut_short=frozenset(table.cut_short),
            failed_with=self._statuses.known,
            left_out=table.left_out,
            unreadable=table.unreadable + site.unreadable,
        )

    def apply(self, action: ClusterAction, /) -> Unfinished | None:
        """Do one thing, or begin a signal; jobs are named as the last `observe` saw them.

        Raises:
            ClusterError: Refused, silent or no longer right.
        """
        if isinstance(action, Throttle):
            self._throttles.ask_again(action.job_id)
        elif isinstance(action, SetSteer | ClearSteer | Trim | Reshape):
            # Also where it fails: a command that was not answered may have done it.
            self._queue.ask_again(action.job_id)
        return self._actor.apply(action)

    def site_factors(self) -> dict[JobId, int]:
        """SiteFactor of each pending job that is eligible; see `site_factors`."""
        return site_factors(self._slurm)

    def set_by_hand(self, jobs: Collection[JobId]) -> dict[JobId, bool]:
        """Of which of *jobs* an operator has set the priority, one RPC; see `set_by_hand`."""
        return set_by_hand(self._slurm, jobs)

    @property
    def reader(self) -> ReaderChoice:
        """The reader of the queue, and the reason for the choice."""
        return self._queue.choice

    def close(self) -> None:
        """End what runs for the reading; it may be read again."""
        self._queue.close()

    def _check_none_left_out(self, table: JobTable) -> None:
        """Refuse a *table* without a job that was not over when last seen and that Slurm has."""
        if table.unreadable == len(table.left_out):  # Else it may be a record without an id.
            _check_gone(self._slurm, self._not_over.difference(table.job_id, table.left_out))
        not_over = {
            job for job, state in zip(table.job_id, table.state, strict=True) if state not in _OVER
        }
        self._not_over = frozenset(not_over) | self._not_over.intersection(table.left_out)

    def _read_site(self) -> tuple[ClusterReading, tuple[ReservationSeen, ...]]:
        config = read_config(self._slurm.run("scontrol", "show", "config"), self._slurm.slurm_conf)
        lacks = lacks_rights(self._slurm, config)
        if lacks is not None:
            self._lacks_rights = lacks
        check_sight(config, self._lacks_rights)
        nonce = new_nonce()
        sinfo = self._slurm.run("sinfo", *node_arguments(nonce))
        reservations = self._read_reservations()
        found = read_nodes(sinfo, nonce)
        self._words = self._read_partitions()
        nodes = self._slurm.run("scontrol", "show", "node", "--all", "--oneliner")
        self._usable = read_usable(nodes)
        if config.licences:
            config = dataclasses.replace(config, licences=read_licences(self._slurm))
        self.config = config
        self._limits.barred.clear()
        self._queue.forget()
        self._throttles.forget()
        return self._set_site(found, first=()), reservations

    def _look_at(self, names: Collection[str] | None = None) -> None:
        """Read the nodes *names* again, or all of them and the partitions."""
        site, before = self._site, self._found
        if site is None or before is None or (names is not None and not names):
            return
        nonce = new_nonce()
        found = read_nodes(self._slurm.run("sinfo", *node_arguments(nonce, names or ())), nonce)
        if names is not None:
            known = {name: n for name, n in found.nodes.items() if name in before.nodes}
            if all(is_up(n.state) == is_up(before.nodes[name].state) for name, n in known.items()):
                return
            found = dataclasses.replace(before, nodes={**before.nodes, **known})
        else:
            self._words = self._read_partitions()
        # What was read of jobs goes by the indices of these partitions.
        self._set_site(found, first=site.partitions)

    def _set_site(self, found: NodesSeen, *, first: Sequence[str]) -> ClusterReading:
        assert self.config is not None  # noqa: S101 - narrows the type
        if self._topology is None or self._topology[0] != found.nodes.keys():
            topology = self._slurm.run("scontrol", "show", "topology")
            self._topology = frozenset(found.nodes), topology
        site = site_of(
            found,
            topology=self._topology[1],
            reservations=self._reservations,
            config=self.config,
            type_row=self._gpu_types,
            usable=self._usable,
            words=self._words,
            first=first,
        )
        self._site, self._found, self._choices = site, found, None
        return site

    def _read_partitions(self) -> Mapping[str, Mapping[str, str]]:
        shown = self._slurm.run("scontrol", "show", "partition", "--all", "--oneliner")
        return partition_values(shown)

    def _read_reservations(self) -> tuple[ReservationSeen, ...]:
        shown = self._slurm.run("scontrol", "show", "reservation", "--oneliner")
        self._reservations = read_reservations(shown)
        return self._reservations


def _check_gone(slurm: Slurm, job_ids: Collection[int]) -> None:
    """Ask about the first `MOST_NAMED` of *job_ids*, which a listing lacks; one RPC, if any.

    An answer of squeue without error may still lack jobs. Slurm lists an ended job for MinJobAge
    more seconds, so a job that was not over at one look is seldom gone at the next.

    Raises:
        ClusterError: Slurm still has one of them, or is silent.
    """
    asked = sorted(job_ids)[:MOST_NAMED]
    if not asked:
        return
    nonce = new_nonce()
    text = slurm.run("squeue", *of_jobs(asked), *queue_arguments(("JobID", "State"), nonce))
    found = {job_id for job_id, _ in split_records(text, nonce, 2)[0]}
    left_out = next((job_id for job_id in asked if str(job_id) in found), None)
    if left_out is not None:
        msg = (
            f"squeue left out job {left_out}, which Slurm has when asked by id; this look is not "
            "used. If it goes on, compare squeue --all --states=all with slurmctld's log"
        )
        raise ClusterError(msg)
