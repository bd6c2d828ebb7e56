"""Nodes for waiting jobs that ask for shares of a GPU, and the jobs that they share it with.

Slurm is told a node; the device on it is its own choice. So a pair is formed only where there is
one device with room for it, and a job that is to be alone is kept from every node on which it could
come beside somebody. Each of them gets nodes of its own: two that start in the same pass of Slurm
would lie on the same device. Jobs that ask for whole GPUs are not looked at.

Where there are free GPUs for all that wait nobody has to share: a job then gets a device of its
own as long as there is one. A pair that was formed stays together, so what is found at one poll
undoes nothing of the poll before, and the load needs no hysteresis.

Source: Hu et al., ASPLOS 2023, section 4 (no pairs at low load; jobs that were not measured run
alone, and on a bounded number of GPUs).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.placing.place_waiting import Placed, holds, named, to_place, wants_of
from slurm_dl.engine.settings import Placement
from slurm_dl.engine.target import Rows, pools
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool, Held, JobState, is_in
from slurm_dl.model.nodes import SLACK
from slurm_dl.model.pair_rates import NO_RULE, PairRule
from slurm_dl.model.profile import Label, Load, Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.gpu_packing import GpuTenant, PairLimits, rank_of, why_apart
from slurm_dl.placement.pair_speeds import labels_in
from slurm_dl.placement.resource_request import PendingJob
from slurm_dl.placement.scheme import Wait

_NO_PLACE = "a GPU that nobody shares, or half of one beside a job it gets on with"
_ENDED = (JobState.PENDING, JobState.COMPLETED, JobState.FAILED)


def with_shares(
    snap: Snapshot,
    ranked: Rows,
    reserved: Collection[JobId],
    how: Placement,
    placed: Placed,
    *,
    rule: PairRule = NO_RULE,
) -> Placed:
    """*placed*, and where the jobs that ask for shares of a GPU should go.

    Args:
        ranked: Rows of the managed live jobs, best first.
        reserved: Jobs that a hand-over makes room for.
        rule: The policy's own conditions on a pair.
    """
    if not how.pack or snap.seen.sharable is None:
        return placed
    jobs = snap.jobs
    parts = (jobs.gpus > 0) & (jobs.gpus != np.floor(jobs.gpus))
    # A job that was requeued starts when its interval is over, before anybody has looked again.
    resting = parts & snap.managed_jobs & (jobs.state == JobState.PENDING)
    resting &= (jobs.held == Held.BEGIN_TIME) & (jobs.restarts > 0)
    ready = to_place(snap, ranked, parts, how)
    resting[ready] = False
    rows = ranked[is_in(ranked, ready) | resting[ranked]]
    if not len(rows):
        return placed
    at_work = _Sharing(snap, how, rule, snap.seen.sharable)
    crowded = _crowded(snap, to_place(snap, ranked, jobs.gpus > 0, how))
    waits = {}
    for want in wants_of(snap, rows, reserved, how):
        wait = at_work.place(want, crowded=bool(crowded[want.row]))
        if wait.within is None and resting[want.row]:
            # Its begin time is Slurm's, and not to be changed.
            wait = at_work.where_full(want) or wait
        if wait.within is not None or not resting[want.row]:
            waits[want.job_id] = wait
    return dataclasses.replace(placed, waits={**placed.waits, **waits})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """A device in shares."""

    node: int
    tenants: tuple[GpuTenant, ...]  # Who is on it
    first: bool = False  # Slurm takes it before any free one


class _Views:
    """The nodes as seen by jobs that are alike.

    Attributes:
        guest: One such job.
        hosts: Beside whom Slurm would put it, where that is certain and may be; the least rank is
            the best.
        beside: ``(m,)`` bool, it may come beside somebody there.
        bearable: ``(m,)`` bool, whoever that is, it gets on with him.
        until: How many of those that were sent somewhere have been looked at.
    """

    def __init__(self, guest: GpuTenant, m: int) -> None:
        self.guest = guest
        self.hosts: dict[int, tuple[tuple[float, float, int], GpuTenant]] = {}
        self.beside: Bool = np.zeros(m, dtype=np.bool_)
        self.bearable: Bool = np.ones(m, dtype=np.bool_)
        self.until = 0


class _Sharing:
    """One walk over the jobs that want shares, best first."""

    def __init__(self, snap: Snapshot, how: Placement, rule: PairRule, sharable: Bool) -> None:
        self._snap = snap
        self._how = how
        self._rule = rule
        self._sharable = sharable
        self._available = FreeResources.free_in(snap)
        self._whole = FreeResources.unoccupied(snap)
        self._lost = frozenset(frozenset(models) for models in snap.lost_pairs)
        self._closed: Bool = np.zeros(len(sharable), dtype=np.bool_)
        self._coming: dict[int, list[GpuTenant]] = {}
        self._sent: list[int] = []  # Nodes to which jobs were sent, in that order
        self._known: dict[tuple[object, ...], _Views] = {}
        self._limits: dict[str, PairLimits] = {}
        self._on: dict[int, list[_Device]] = {}
        for device in _devices(snap, how, rule):
            self._on.setdefault(device.node, []).append(device)
        tenants = [t for there in self._on.values() for d in there for t in d.tenants]
        # GPUs with a job on them of which nothing was measured.
        self._unmeasured = sum(not (_is_measured(t.profile) or t.own) for t in tenants)

    def place(self, want: PendingJob, *, crowded: bool) -> Wait:
        """The nodes on which Slurm may start it: those of its device, or of a whole free one.

        Args:
            crowded: More GPUs are waited for than are free.
        """
        guest = self._guest(want)
        slots = self._how.profile_slots
        # What it says of itself before it runs here is not looked at: it could say anything.
        unmeasured = not _is_measured(want.profile)
        if unmeasured and crowded and self._unmeasured >= slots:
            why = f"one of the {slots} GPUs for jobs whose model was not measured yet"
            return Wait(within=None, for_s=float("inf"), why=why)
        wait = self._find(want, guest, crowded=crowded)
        if unmeasured and wait.within is not None:
            self._unmeasured += want.need.n_nodes * int(self._snap.jobs.tasks[want.row])
        return wait

    def _guest(self, want: PendingJob) -> GpuTenant:
        share = want.gpus / want.need.n_nodes
        return _tenant(self._snap, want.row, share, want.profile, self._rule)

    def _find(self, want: PendingJob, guest: GpuTenant, *, crowded: bool) -> Wait:
        fits = self._fits(want)
        # The tasks of an array are one record: where one goes another may follow.
        is_single = want.need.n_nodes == 1 and self._snap.jobs.tasks[want.row] == 1
        found = self._host_of(guest, fits) if is_single else None
        nodes = [] if crowded else self._alone(want, guest, fits & ~self._views(guest).beside)
        if found is not None and not nodes:
            node, host = found
            self._send(want, guest, node, free=0.0)
            model = host.model or "of an unknown model"
            half = f"half of a GPU of {self._name(node)}, beside job {host.job_id} ({model})"
            short = "more GPUs are waited for than are free"
            why = short if crowded else "no node has a GPU for it alone"
            return self._only([node], f"{half}: {why}")
        # A node on which it may come beside somebody is as good only where there is no other.
        nodes = nodes or self._alone(want, guest, fits)
        for node in nodes:
            self._send(want, guest, node, free=1.0)
        if nodes:
            names = ", ".join(self._name(node) for node in nodes)
            more = "" if crowded else "; there are free GPUs for all that wait"
            return self._only(nodes, f"a GPU of {names} that nobody shares yet{more}")
        return self._later(want)

    def _fits(self, want: PendingJob) -> Bool:
        """``(m,)`` bool, nodes that have CPUs and memory for it and hand out shares."""
        available, ask = self._available, want.need.asks[0]
        fits = want.need.allowed & self._sharable & ~self._closed & (available.cpus >= ask.cpus)
        fits &= available.mem_mb >= ask.mem_mb
        if want.need.exclusive:
            fits &= available.jobs_on == 0
        return fits

    def _host_of(self, guest: GpuTenant, fits: Bool) -> tuple[int, GpuTenant] | None:
        """Best node and job for *guest* to share a GPU with; None if it would surely share none."""
        hosts = self._views(guest).hosts
        found = [(rank, node) for node, (rank, _) in hosts.items() if fits[node]]
        if not found:
            return None
        node = min(found)[1]
        return node, hosts[node][1]

    def _views(self, guest: GpuTenant) -> _Views:
        """The nodes as jobs like *guest* see them; worked out once for all of them."""
        left_gpu_s = None if self._rule.most_ratio is None else guest.left_gpu_s
        key = (guest.model, guest.share, guest.devices, guest.own, left_gpu_s)
        views = self._known.get(key)
        if views is None:
            views = self._known[key] = _Views(guest, len(self._closed))
            changed = {*self._on, *self._coming}
        else:
            changed = set(self._sent[views.until :])
        views.until = len(self._sent)
        for node in changed:
            self._look(views, node)
        return views

    def _look(self, views: _Views, node: int) -> None:
        guest, bounds = views.guest, self._bounds(node)
        pairs = self._neighbours(node, guest)
        views.beside[node] = bool(pairs)
        views.bearable[node] = all(not why_apart(*pair, bounds) for pair in pairs)
        views.hosts.pop(node, None)
        host = self._first_host(node, guest) if pairs and views.bearable[node] else None
        if host is not None:
            views.hosts[node] = (rank_of(host, guest, bounds), host)

    def _first_host(self, node: int, guest: GpuTenant) -> GpuTenant | None:
        """The one beside whom Slurm will put *guest* there; None if that is not certain."""
        open_to = self._open_to(node, guest)
        coming = self._coming.get(node, [])
        full = self._available.gpus[node] < 1
        if not coming and len(open_to) == 1 and len(open_to[0].tenants) == 1:
            return open_to[0].tenants[0] if full or open_to[0].first else None
        if not open_to and len(coming) == 1 and (full or not self._snap.seen.spreads_shares):
            # It gets the first free device. Either may start before the other.
            return coming[0]
        return None

    def _open_to(self, node: int, guest: GpuTenant) -> list[_Device]:
        return [
            device
            for device in self._on.get(node, ())
            if sum(t.share for t in device.tenants) + guest.share <= 1.0 + SLACK
        ]

    def _neighbours(self, node: int, guest: GpuTenant) -> list[tuple[GpuTenant, GpuTenant]]:
        """Pairs, host first, that could come about if *guest* started there."""
        there = [tenant for device in self._open_to(node, guest) for tenant in device.tenants]
        coming = self._coming.get(node, [])
        return [(tenant, guest) for tenant in (*there, *coming)] + [(guest, c) for c in coming]

    def _alone(self, want: PendingJob, guest: GpuTenant, fits: Bool) -> list[int]:
        """Nodes with a whole free device on which nobody is in its way; empty if too few."""
        gpus, views = self._available.gpus, self._views(guest)
        crowded = np.zeros(len(gpus), dtype=np.bool_)
        crowded[[*self._on, *self._coming]] = True
        steer = self._snap.steers.get(want.job_id)
        left = named(self._snap.seen.nodes, () if steer is None else steer.avoid)
        # Where it was sent before nothing has to be written. A tenant that leaves frees half a
        # device: better where there is none. Then the fullest.
        nodes = np.flatnonzero(fits & views.bearable & (gpus >= 1))
        nodes = nodes[np.lexsort([c[nodes] for c in (gpus, crowded, views.beside, left)])]
        n_nodes, tasks = want.need.n_nodes, int(self._snap.jobs.tasks[want.row])
        if n_nodes > 1:
            enough = n_nodes if len(nodes) >= n_nodes else 0
        else:
            # As many as the tasks of an array fill.
            enough = int(np.searchsorted(np.cumsum(gpus[nodes]), tasks)) + 1
        return sorted(nodes[:enough].tolist())

    def _later(self, want: PendingJob) -> Wait:
        """Nodes on which it may start once they have room: those without shared GPUs."""
        within = want.need.allowed & self._sharable & ~self._closed
        within[[*self._on, *self._coming]] = False
        if not holds(self._whole, within, want, want.need.n_nodes):
            return Wait(within=None, for_s=float("inf"), why=_NO_PLACE)
        # Whoever comes later is sent elsewhere: it could start beside this one.
        self._closed |= within
        return Wait(within=within, for_s=float("inf"), why=_NO_PLACE)

    def where_full(self, want: PendingJob) -> Wait | None:
        """Nodes on which it cannot start as things are; None if there are too few."""
        guest = self._guest(want)
        within = want.need.allowed & self._sharable & (self._available.gpus < 1)
        for node in np.flatnonzero(within).tolist():
            within[node] = not self._open_to(node, guest)
        if not holds(self._whole, within, want, want.need.n_nodes):
            return None
        return Wait(within=within, for_s=float("inf"), why=_NO_PLACE)

    def _only(self, nodes: Sequence[int], why: str) -> Wait:
        within = np.zeros(len(self._snap.seen.nodes), dtype=np.bool_)
        within[list(nodes)] = True
        return Wait(within=within, for_s=float("inf"), why=why)

    def _send(self, want: PendingJob, guest: GpuTenant, node: int, *, free: float) -> None:
        """Count on it to come to *node*, and to take *free* of its free GPUs."""
        ask = want.need.asks[0]
        self._coming.setdefault(node, []).append(guest)
        self._available.gpus[node] -= free
        self._available.cpus[node] -= ask.cpus
        self._available.mem_mb[node] -= ask.mem_mb
        self._available.jobs_on[node] += 1
        self._sent.append(node)

    def _bounds(self, node: int) -> PairLimits:
        """Limits on a pair on GPUs of that node's type."""
        gpu_type, how = self._snap.seen.gpu_type_on(node), self._how
        if gpu_type not in self._limits:
            labels: Mapping[str, Label | None] = {}
            if self._rule.by_labels:
                labels = labels_in(how.profiles.values(), how.sharing_mode, gpu_type)
            self._limits[gpu_type] = PairLimits(
                gpu_type=gpu_type,
                gpu_mem_mb=how.gpu_mem_mb.get(gpu_type),
                mode=how.sharing_mode,
                least_speed=how.least_pair_speed,
                max_host_slowdown=how.max_host_slowdown,
                rule=self._rule,
                labels=labels,
                lost=self._lost,
            )
        return self._limits[gpu_type]

    def _name(self, node: int) -> str:
        return self._snap.seen.nodes.name[node]


def _crowded(snap: Snapshot, waiting: Rows) -> Bool:
    """``(n,)`` bool, jobs of pools in which more GPUs are waited for than are free.

    A share counts as a whole GPU: the question is whether each could have one of its own.

    Args:
        waiting: Rows of the jobs that wait for room.
    """
    jobs, free_gpus = snap.jobs, FreeResources.free_in(snap).gpus
    wanted = np.ceil(jobs.gpus) * jobs.tasks
    crowded = np.zeros(len(jobs), dtype=np.bool_)
    for pool in pools(snap):
        short = wanted[pool.of(waiting)].sum() > free_gpus[pool.usable(snap)].sum()
        crowded[slice(None) if pool.jobs is None else pool.jobs] |= bool(short)
    return crowded


def _devices(snap: Snapshot, how: Placement, rule: PairRule) -> Iterator[_Device]:
    """The devices in shares; of a job that has just started, a device of its own."""
    held, jobs = snap.seen.held, snap.jobs
    part = (held.gpus != np.floor(held.gpus)) & ~is_in(jobs.state[held.job], _ENDED)
    loose: dict[tuple[int, int], GpuTenant] = {}
    for at in np.flatnonzero(part).tolist():
        row, share = int(held.job[at]), float(held.gpus[at] % 1.0)
        job_id = JobId(int(jobs.job_id[row]))
        profile = how.profiles.get(snap.seen.claim(job_id).model or "")
        loose[job_id, int(held.node[at])] = _tenant(snap, row, share, profile, rule)
    for gpu in snap.seen.shared:
        tenants = [loose.pop((job_id, gpu.node), None) for job_id in gpu.jobs]
        there = tuple(tenant for tenant in tenants if tenant is not None)
        if there:
            yield _Device(node=gpu.node, tenants=there, first=gpu.first)
    for (_, node), tenant in loose.items():
        yield _Device(node=node, tenants=(tenant,))


def _tenant(
    snap: Snapshot, row: int, share: float, profile: Profile | None, rule: PairRule
) -> GpuTenant:
    """The job at *row*, with such a share on each of its nodes."""
    jobs = snap.jobs
    job_id, gpus = JobId(int(jobs.job_id[row])), float(jobs.gpus[row])
    claim = snap.seen.claim(job_id)
    left_gpu_s = float(snap.left_s[row]) * gpus
    if rule.left_gpu_s is not None:
        left_gpu_s = float(rule.left_gpu_s[row])
    measured = claim.gpu_busy is not None and claim.gpu_mem_mb is not None
    return GpuTenant(
        job_id=job_id,
        share=share,
        devices=max(1, round(gpus / share)),
        profile=profile,
        own=Load(gpu_util=claim.gpu_busy, gpu_mem_mb=claim.gpu_mem_mb) if measured else None,
        left_gpu_s=math.inf if math.isnan(left_gpu_s) else left_gpu_s,
        start_s=math.inf if jobs.state[row] == JobState.PENDING else float(jobs.start_s[row]),
    )


def _is_measured(profile: Profile | None) -> bool:
    """The memory that its jobs take is known: without that nobody is paired."""
    return profile is not None and profile.load.gpu_mem_mb is not None
