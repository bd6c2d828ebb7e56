"""What must be so at every instant of the preemption protocol, whoever fails when.

Everything is judged by what the daemon could know: the observation that it acts by, what it wrote
down, and what really happened to the jobs.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from fake_slurm import FakeJob
from protocol_life import Life
from protocol_world import World

from slurm_dl.engine.cycle import AppliedAction
from slurm_dl.engine.preemption.handover_verdicts import BEGIN_WITHIN_S
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.ledger.store_protocol import HOUR_S
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Handover, Seal, Victim, VictimState, reservation_name
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.plan import (
    CloseHandover,
    ClusterAction,
    MarkGone,
    Requeue,
    Reserve,
    Reshape,
    Shrink,
    Signal,
    Unseal,
)
from slurm_dl.model.snapshot import Observed

STAYS = (JobState.RUNNING, JobState.SUSPENDED, JobState.CONFIGURING)


class Sent:
    """The signals that one run was sent.

    Attributes:
        contract: The contract by which it was chosen.
        first_s: When the first was sent, epoch seconds.
        struck: How often something had gone wrong when the daemon in charge sent the last; -1 if
            it has sent none.
    """

    def __init__(self, contract: Contract, first_s: float, struck: int, gpus: float) -> None:
        self.contract, self.first_s, self.struck, self.gpus = contract, first_s, struck, gpus


class Invariants:
    """A `Witness` who objects.

    Args:
        path: The ledger.

    Attributes:
        settings: What the daemon is told to go by.
        life: The daemon that is in charge; another that acts has lost its ledger and does not
            know it yet.
    """

    def __init__(self, world: World, path: Path, settings: Settings) -> None:
        self.world, self.settings = world, settings
        self.life: Life | None = None
        # By job, start, and the GPUs that are left: who gave some back may be asked for more.
        self.sent: dict[tuple[JobId, float, float], Sent] = {}
        self._path = path
        self._most_gpu_s: dict[int, float] = {}
        self._gone: set[tuple[HandoverId, JobId]] = set()
        self._known: set[HandoverId] = set()
        self._late: set[Life] = set()
        self._unseen_gpu_s: dict[tuple[JobId, float, float], float] = {}
        self.submitted: dict[JobId, tuple[int, float]] = {}

    # Before an action reaches the cluster.

    def before(self, action: ClusterAction) -> None:
        """Object to *action* if it is wrong."""
        life = self.world.acting
        assert isinstance(life, Life)
        match action:
            case Signal():
                self._before_signal(life, action)
            case Requeue():
                self._before_requeue(life, action)
            case Shrink():
                self._before_shrink(life, action)
            case Unseal() if life is self.life:
                self._before_unseal(life, action)
            case Reserve() if life is self.life:
                assert self._open(action.handover_id), "nothing of it is written down"
            case Reshape() if life is self.life:
                self._before_reshape(action)
            case _:
                pass

    def _before_reshape(self, action: Reshape) -> None:
        """Only sizes that the job names, and none that Slurm did not give it."""
        job = self.world.jobs[action.job_id]
        size = action.shape.nodes, float(action.shape.gpus)
        assert size in self._sizes(job), f"{action}: {job.sizes}"
        # Once it may have started just before the size was written.
        times = self.world.ignored.get(job.job_id, {}).get(action.shape, 0)
        doubtful = self.world.is_doubtful(job.job_id)
        back = size == self.submitted[job.job_id]
        assert times <= 1 or doubtful or back, f"{action}, ignored {times} times"

    def _sizes(self, job: FakeJob) -> set[tuple[int, float]]:
        """Nodes and GPUs of each size that *job* may have."""
        return {(s.nodes, float(s.gpus)) for s in job.sizes} | {self.submitted[job.job_id]}

    def _is_on(self, action: Signal | Requeue | Shrink) -> FakeJob | None:
        """The job, if it is in the run that is meant; else the cluster refuses."""
        job = self.world.jobs[action.run.job_id]
        run = (job.start_s, job.restarts) == (action.run.start_s, action.run.restarts)
        return job if run and job.state is JobState.RUNNING and job.requeueable else None

    def _before_signal(self, life: Life, action: Signal) -> None:
        job, seen = self._is_on(action), life.basis
        assert seen is not None
        if job is None:
            return
        contract = seen.claim(job.job_id).contract
        assert contract is not None, f"{job.job_id} was signalled without a contract"
        said = (action.signal, action.target)
        assert said == (contract.signal, contract.target), f"{said} was not agreed to: {contract}"
        run = (job.job_id, job.start_s, job.gpus)
        sent, struck = self.sent.get(run), life.faults.struck
        if life is not self.life:
            # Taken over inside this call: neither daemon knows of the other's signal.
            assert life not in self._late, f"{job.job_id} was signalled after a refused write"
            self._late.add(life)
            struck = -1
        elif sent is not None:
            assert struck > sent.struck, f"{job.job_id} was signalled twice, and nothing went wrong"
            sent.struck = struck
        if sent is not None:
            return
        victim = next(
            v for h in life.ledger.handovers for v in h.victims if v.run.job_id == job.job_id
        )
        if life is self.life:
            handover = self._check_written(action, VictimState.SIGNALLING)
            self._check_seal(handover, job)
        if action.handover_id not in life.under_way:
            # Once somebody may have been told there is no way back.
            if life is self.life:
                self._check_room(handover, seen)
            self._check_limits(seen, job, victim, self.settings.preemption)
        self.sent[run] = Sent(contract, self.world.now_s, struck, victim.gives_gpus)

    def _check_written(self, action: Signal | Requeue | Shrink, state: VictimState) -> Handover:
        [handover] = self._open(action.handover_id)
        [victim] = [v for v in handover.victims if v.run == action.run]
        assert victim.state is state, f"{action} before it was written down: {victim}"
        return handover

    def _open(self, handover_id: HandoverId) -> list[Handover]:
        """The hand-over as it is on the disk, if it is there and not closed."""
        stored = self._life.store.inner.load().handovers
        return [h for h in stored if h.handover_id == handover_id]

    def _check_seal(self, handover: Handover, job: FakeJob) -> None:
        if not handover.nodes or self.world.forgot_s >= self._basis.now_s:
            return
        name, world = reservation_name(handover.handover_id), self.world
        seal = world.reservations.get(name)
        assert seal is not None, "signalled before its nodes were sealed"
        if handover.purpose != "reshape" or not self._grows(handover, job):
            assert set(job.nodes) <= seal.nodes, "freed nodes are not all sealed"
        grace_s = max(v.contract.grace_s for v in handover.victims)
        assert seal.end_s >= self._basis.now_s + grace_s, "the seal ends before the grace"
        if handover.purpose != "preempt":
            return
        users = [j for j in world.jobs.values() if j.reservation == name]
        waiting = [j for j in users if j.state is JobState.PENDING and not j.hold]
        assert users, "nobody may use the seal"
        # What a backfill pass has undone is seen at the next look only.
        if not world.doubtful and world.undone.isdisjoint(j.job_id for j in (job, *waiting)):
            assert all(j.site_factor > job.site_factor for j in waiting), "a worse job gains"

    @staticmethod
    def _grows(handover: Handover, job: FakeJob) -> bool:
        """True if nobody is to have the GPUs that the job leaves: it has more elsewhere."""
        [then] = [v.then for v in handover.victims if v.run.job_id == job.job_id]
        return then is not None and then.gpus > job.gpus

    def _check_room(self, handover: Handover, seen: Observed) -> None:
        """Once all victims are gone somebody it is for can start."""
        if not handover.beneficiaries or handover.purpose != "preempt":
            return
        rows, jobs = seen.jobs.row_of(), seen.jobs
        going = [rows[v.run.job_id] for v in handover.victims if v.run.job_id in rows]
        stays = np.isin(jobs.state[seen.held.job], STAYS) & ~np.isin(seen.held.job, going)
        m = len(seen.nodes)
        free = seen.nodes.gpus - np.bincount(seen.held.node[stays], seen.held.gpus[stays], m)
        usable = seen.nodes.up & np.isin(seen.nodes.name, handover.nodes)
        for job_id in handover.beneficiaries:
            row = rows.get(job_id, -1)
            if row < 0 or jobs.state[row] != JobState.PENDING or jobs.held[row] != Held.NO:
                continue
            job = self.world.jobs[job_id]  # Its size may have been written since.
            if int((usable & (free >= job.gpus / job.n_nodes)).sum()) >= job.n_nodes:
                return
        msg = f"nobody could start once {handover.victims} are gone"
        raise AssertionError(msg)

    def _check_limits(
        self, seen: Observed, job: FakeJob, victim: Victim, limits: Preemption
    ) -> None:
        now_s, then = seen.now_s, victim.then
        assert seen.jobs.requeueable[seen.jobs.row_of()[job.job_id]]
        assert job.gpus == int(job.gpus), "who shares a GPU is left alone"
        assert victim.contract.grace_s <= limits.max_grace_s, "its grace is too long"
        assert job.start_s + job.limit_s - now_s >= limits.limit_reserve_s, "near its time limit"
        if then is None or then.gpus > job.gpus:
            # What a job holds beyond its least size is lent, and given back at any time.
            earlier = [s.first_s for (j, *_), s in self.sent.items() if j == job.job_id]
            assert now_s - job.start_s >= limits.min_quantum_s, "inside its quantum"
            assert now_s - max(earlier, default=0.0) >= limits.cooldown_s, "inside its cooldown"
            times = self._preempted(job.job_id)
            assert times < limits.max_preemptions, "preempted too often"
        if limits.max_gpus_per_hour:
            lately = [s for s in self.sent.values() if s.first_s > now_s - HOUR_S]
            taken = sum(s.gpus for s in lately) + victim.gives_gpus - self._let_go_gpus()
            assert taken <= limits.max_gpus_per_hour, f"{taken} GPUs in an hour"

    def _before_requeue(self, life: Life, action: Requeue) -> None:
        job, seen = self._is_on(action), life.basis
        assert seen is not None
        if job is None or self.world.is_doubtful(job.job_id):
            return
        sent = self.sent.get((job.job_id, job.start_s, job.gpus))
        assert sent is not None, f"{job.job_id} was requeued without a signal"
        acked = job.acked_run == job.restarts and sent.contract.requeued_by == "daemon"
        over = self.world.now_s - sent.first_s >= sent.contract.grace_s
        assert acked or over, f"{job.job_id} was requeued inside its grace"
        if life is self.life:
            self._check_written(action, VictimState.REQUEUING)

    def _before_shrink(self, life: Life, action: Shrink) -> None:
        """Only of a run that has saved, to a size and nodes of its own."""
        job = self._is_on(action)
        if job is None or self.world.is_doubtful(job.job_id):
            return
        kept = self.world.node_rows(*action.nodes)
        size = len(kept), job.gpus * len(kept) / len(job.nodes)
        assert size in self._sizes(job), f"{action}: {job.sizes}"
        assert {min(job.nodes)} <= kept < {*job.nodes}, f"{action}: {job.nodes}"
        assert job.acked_run == job.restarts, f"{job.job_id} shrinks and has not saved"
        if life is self.life:
            self._check_written(action, VictimState.SHRINKING)

    def _before_unseal(self, life: Life, action: Unseal) -> None:
        """The freed GPUs are kept until those they are for had their chance."""
        mine = [h for h in life.ledger.handovers if h.handover_id == action.handover_id]
        if not mine or not mine[0].signalled or not mine[0].beneficiaries:
            assert action.handover_id is None or mine, "it is not its own"
            return
        [handover], seen = mine, self._basis
        here = np.isin(seen.nodes.name, handover.nodes)
        if handover.seal is Seal.RELEASED or not seen.nodes.up[here].all():
            return  # Nothing can be kept on a node that is lost.
        rows, jobs = seen.jobs.row_of(), seen.jobs
        waiting = [
            b
            for b in handover.beneficiaries
            if b in rows
            and jobs.state[rows[b]] == JobState.PENDING
            and jobs.held[rows[b]] == Held.NO
            and jobs.priority[rows[b]] > 0
        ]
        left = [v for v in handover.victims if v.state is not VictimState.GONE]
        if not waiting:
            # Those who were chosen are gone, or were, when this was planned.
            return
        assert not left, f"unsealed while {left} were still to go"
        since_s = max(v.gone_s for v in handover.victims)
        passed_s = seen.now_s - since_s
        assert passed_s >= self.settings.preemption.start_margin_s, f"unsealed after {passed_s} s"

    # While time passes.

    def started(self, job: FakeJob) -> None:
        """Object to a start that breaks up a gang, gives a node away twice, or in no size of it."""
        size = job.n_nodes, job.gpus
        assert size in self._sizes(job), f"{job.job_id} runs in the size {size}"
        nodes = job.nodes
        assert len(set(nodes)) == len(nodes), f"a node twice: {job}"
        assert len(nodes) in job.ways(), f"half a gang: {job}"
        assert min(self.world.free_gpus()) >= 0, f"over-allocated by {job.job_id}"
        assert not job.runs or job.runs[-1][1] <= job.start_s, f"{job.job_id} runs twice"

    def ticked(self) -> None:
        """Object to what no cluster can be."""
        assert min(self.world.free_gpus()) >= 0

    # After a cycle.

    def done(self, done: AppliedAction) -> None:
        """Object to an ending that is told twice, and to a seal that nobody would break."""
        match done:
            case AppliedAction(MarkGone(handover_id=handover_id, job_id=job_id), error=""):
                gone = (handover_id, job_id)
                assert gone not in self._gone, f"{done.action} twice"
                self._gone.add(gone)
            case AppliedAction(CloseHandover(handover_id=handover_id), error=""):
                name = reservation_name(handover_id)
                assert name not in self.world.reservations, f"{name} outlives its hand-over"
            case _:
                pass

    def after(self, life: Life) -> None:
        """Object to what a cycle has left behind."""
        if life is not self.life:
            return  # It has lost its ledger, and may not even know it yet.
        self._check_service(life)
        handovers = life.ledger.handovers
        assert handovers == life.store.inner.load().handovers, "memory is not what is on the disk"
        new = [h for h in handovers if h.handover_id not in self._known]
        limits = self.settings.preemption
        if any(h.purpose == "preempt" for h in new):
            # Whose nodes are lost is looked after anew at once.
            kept = [h for h in handovers if h.seal is not Seal.RELEASED]
            assert len(kept) <= limits.max_handovers
        for handover in new:
            assert len(handover.victims) <= limits.max_victims
        self._known.update(h.handover_id for h in new)
        nodes = [n for h in handovers for n in h.nodes]
        assert len(nodes) == len(set(nodes)), "two seals share a node"
        victims = [v.run.job_id for h in handovers for v in h.victims if v.state != "gone"]
        assert len(victims) == len(set(victims)), "a victim of two"

    def _check_service(self, life: Life) -> None:
        """What was booked is what was had."""
        service = life.ledger.service
        told = zip(
            service.job_id.tolist(),
            service.attained_gpu_s.tolist(),
            service.incomplete.tolist(),
            strict=True,
        )
        ending = set()
        if life.booked:
            jobs = self._basis_of(life).jobs
            ending = set(jobs.job_id[jobs.state == JobState.COMPLETING].tolist())
            for gift in self.world.given:
                unseen_s = self._basis_of(life).now_s - gift[1]
                if unseen_s > 0:
                    self._unseen_gpu_s.setdefault(gift, unseen_s * gift[2])
        for job_id, booked, incomplete in told:
            assert booked >= self._most_gpu_s.get(job_id, 0.0) - 1e-6, f"{job_id} lost service"
            if not life.booked:
                continue
            self._most_gpu_s[job_id] = booked
            had = life.had_gpu_s.get(job_id)
            if had is None or self.world.is_doubtful(JobId(job_id)):
                continue
            # A look does not tell since when it shows fewer GPUs.
            unseen_gpu_s = sum(s for (j, *_), s in self._unseen_gpu_s.items() if j == job_id)
            assert booked <= had + unseen_gpu_s + 1e-6, (
                f"{job_id} was booked {booked} of {had} GPU-seconds"
            )
            if not incomplete and job_id not in ending:
                assert booked >= had - 1e-6, f"{job_id} was booked {booked} of {had} GPU-seconds"

    # At the end.

    def longest_s(self) -> float:
        """How long any hand-over may take that nothing comes between, seconds."""
        limits = self.settings.preemption
        moved_s = max(limits.start_margin_s, limits.handover_timeout_s)
        return BEGIN_WITHIN_S + limits.handover_timeout_s + limits.max_grace_s + moved_s

    def preempted(self, life: Life) -> None:
        """Object to counts of preemptions that are not what the hand-overs say."""
        least: dict[int, int] = {}
        most: dict[int, int] = {}
        for body, _ in self._bodies():
            for victim in body["victims"]:
                job_id = victim["run"]["job_id"]
                if victim["outcome"] == "requeued" and not victim.get("then"):
                    most[job_id] = most.get(job_id, 0) + 1
                    least[job_id] = least.get(job_id, 0) + (victim["signalled_s"] > 0)
        service = life.ledger.service
        for job_id, times in zip(
            service.job_id.tolist(), service.preemptions.tolist(), strict=True
        ):
            assert least.get(job_id, 0) <= times <= most.get(job_id, 0), f"{job_id}: {times}"

    def _preempted(self, job_id: JobId) -> int:
        """Times that the job was put back so that it left its GPUs."""
        return sum(
            victim["run"]["job_id"] == job_id
            and not victim.get("then")
            and (job_id, victim["run"]["start_s"]) in self.world.requeued_by_us
            for body, _ in self._bodies()
            for victim in body["victims"]
        )

    def _let_go_gpus(self) -> float:
        """GPUs of those that were signalled, perhaps, and then let go."""
        return sum(
            float(victim["gpus"])
            for body, _ in self._bodies()
            for victim in body["victims"]
            if victim["outcome"] == "refused"
        )

    def _bodies(self) -> list[tuple[dict[str, Any], str]]:
        with closing(sqlite3.connect(self._path)) as db:
            rows = db.execute("SELECT body, closed FROM handover").fetchall()
        return [(json.loads(body), closed) for body, closed in rows]

    @property
    def _life(self) -> Life:
        assert self.life is not None
        return self.life

    @property
    def _basis(self) -> Observed:
        return self._basis_of(self._life)

    @staticmethod
    def _basis_of(life: Life) -> Observed:
        assert life.basis is not None
        return life.basis
