"""The cluster in memory with a QOS inside which it preempts by itself, as Slurm does.

What was seen on Slurm 22.05.8, 24.11.5 and 26.05.5: inside a QOS whose PreemptMode has REQUEUE and
WITHIN a waiting job displaces running ones of lower priority, never of equal priority, never inside
PreemptExemptTime. Those get their signal, and are requeued at the end of GraceTime if they have not
requeued themselves. Waiting adds to a priority, running does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from fake_cluster import FakeCluster
from fake_slurm import FakeJob

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeQos:
    """The QOS.

    Attributes:
        exempt_s: PreemptExemptTime, seconds.
        grace_s: GraceTime, seconds.
        age_per_s: What a second of waiting adds to a priority.
        most_age: The most that waiting adds.
    """

    qos: str = "dl"
    exempt_s: float = 10.0
    grace_s: float = 30.0
    age_per_s: int = 1000
    most_age: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Displaced:
    """One run that Slurm ended for a waiting job."""

    victim: JobId
    beneficiary: JobId
    at_s: float
    ran_s: float


class WithinCluster(FakeCluster):
    """A `FakeCluster` that preempts inside one QOS.

    Attributes:
        displaced: Whom it preempted for whom, in order.
    """

    def __init__(
        self, *, nodes: int, gpus: int, hold_s: float = 6.0, within: NativeQos | None = None
    ) -> None:
        super().__init__(nodes=nodes, gpus=gpus, hold_s=hold_s)
        self._within = within or NativeQos()
        self._going: dict[JobId, float] = {}
        self.displaced: list[Displaced] = []

    def priority(self, job: FakeJob) -> int:
        """SiteFactor, and age for those who wait."""
        if job.state is not JobState.PENDING:
            return super().priority(job)
        waited_s = max(0.0, self.now_s - job.eligible_s)
        age = min(int(waited_s * self._within.age_per_s), self._within.most_age)
        return super().priority(job) + age

    def _work(self, job: FakeJob) -> None:
        super()._work(job)
        since_s = self._going.get(job.job_id)
        if job.state is not JobState.RUNNING or since_s is None:
            return
        # dlrun does not wait for the end of the grace once its work is saved.
        saved = job.acked_run == job.restarts
        if saved or self.now_s - since_s >= self._within.grace_s:
            self._requeue(job)

    def _try_start(self, job: FakeJob) -> None:
        super()._try_start(job)
        if job.state is JobState.PENDING and job.qos == self._within.qos:
            self._displace_for(job)

    def _displace_for(self, job: FakeJob) -> None:
        """Preempt who has less priority until the job would fit; nobody if it would not."""
        # Who is on the way out makes room already.
        running = {j.job_id: j for j in self.jobs.values() if j.state is JobState.RUNNING}
        self._going = {j: at for j, at in self._going.items() if j in running}
        share = job.gpus / job.n_nodes
        free = self._free()
        for going in self._going:
            _give_back(free, running[going])
        may = [
            j
            for j in running.values()
            if j.job_id not in self._going
            and j.qos == self._within.qos
            and self.priority(j) < self.priority(job)
            and self.now_s - j.start_s >= self._within.exempt_s
        ]
        chosen: list[FakeJob] = []
        for victim in sorted(may, key=lambda j: (self.priority(j), -j.job_id)):
            if _holding(free, share, job) >= job.n_nodes:
                break
            chosen.append(victim)
            _give_back(free, victim)
        if _holding(free, share, job) < job.n_nodes:
            return
        for victim in chosen:
            self._going[victim.job_id] = victim.asked_s = self.now_s
            victim.signals.append(self.now_s)
            self.displaced.append(
                Displaced(
                    victim=victim.job_id,
                    beneficiary=job.job_id,
                    at_s=self.now_s,
                    ran_s=self.now_s - victim.start_s,
                )
            )

    def _requeue(self, job: FakeJob) -> None:
        self._going.pop(job.job_id, None)
        super()._requeue(job)


def _give_back(free: list[float], job: FakeJob) -> None:
    for node in job.nodes:
        free[node] += job.gpus / len(job.nodes)


def _holding(free: list[float], share: float, job: FakeJob) -> int:
    """How many of the nodes that *job* does not exclude hold *share*."""
    return sum(f >= share for node, f in enumerate(free) if node not in job.excluded)
