"""The daemon and accounting: when it asks, what it says, and that a lost ledger comes back."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_cluster import FakeCluster

from slurm_dl import logging_setup
from slurm_dl.config import Config, load_with_origins, show
from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.components import Loaded
from slurm_dl.daemon.ledger_recovery import LEAST_PAUSE_S, LONGEST_PAUSE_S, LedgerRecovery
from slurm_dl.daemon.main_loop import Daemon
from slurm_dl.daemon.preconditions import PauseSwitch
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.ledger.rebuild_from_accounting import ReportedRun
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Requeue
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.slurm.accounting.job_runs import Told
from slurm_dl.slurm.accounting.query import NoAccountingError

POLL_S = 30
GPUS = 4

YAML = """\
manage: {{partitions: [gpu]}}
daemon: {{poll_s: {poll_s}, shadow: {shadow}}}
cluster: {{timeout_s: 17}}
paths: {{state_dir: {home}, run_dir: {home}, audit_log: {home}/audit.jsonl}}
"""


class Books:
    """What accounting would have written down about the fake's jobs."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.first_submit_s: dict[int, float] = {}
        self.asked: list[list[int]] = []
        self.limits_s: list[float] = []
        self.error: ClusterError | None = None
        self.silent_about: set[int] = set()

    def runs(self, job_ids: Sequence[int], *, within_s: float) -> Told:
        """Every run of *job_ids*."""
        self.asked.append(list(job_ids))
        self.limits_s.append(within_s)
        if self.error is not None:
            raise self.error
        told = [r for j in job_ids if j not in self.silent_about for r in self._of(JobId(j))]
        return Told(tuple(told), frozenset(job_ids), 0)

    def _of(self, job_id: JobId) -> Iterator[ReportedRun]:
        job = self.cluster.jobs[job_id]
        submit_s = self.first_submit_s[job_id]
        for start_s, end_s in job.runs:
            yield self._run(job_id, submit_s, start_s, end_s)
            submit_s = end_s
        if job.state in (JobState.PENDING, JobState.RUNNING):
            yield self._run(job_id, submit_s, job.start_s, 0)

    def _run(self, job_id: JobId, submit_s: float, start_s: float, end_s: float) -> ReportedRun:
        job = self.cluster.jobs[job_id]
        return ReportedRun(
            job_id=job_id,
            uid=job.uid,
            submit_s=submit_s,
            start_s=start_s,
            end_s=end_s,
            elapsed_s=(end_s or self.cluster.now_s) - start_s if start_s else 0,
            gpus=job.gpus,
            is_requeued=end_s > 0,
        )


class Watched(FakeCluster):
    """The fake with what the loop schedules."""

    watch_reservations = False
    reader = None

    def close(self) -> None:
        """Nothing runs for it."""

    def refresh_nodes(self) -> None:
        """Nothing changes."""


@dataclass
class FakeParts:
    """What `assemble` gives."""

    cluster: Watched
    ledger: Ledger
    policy: DiscreteLas = field(default_factory=lambda: DiscreteLas(thresholds_gpu_s=(1e8, 1e9)))
    settings: Settings = field(
        default_factory=lambda: Settings(
            partitions=frozenset({"gpu"}), preemption=Preemption(enabled=False)
        )
    )
    enrich: Callable[[Snapshot], Snapshot] = lambda snap: snap


@dataclass
class House:
    """A cluster with accounting, and a daemon that can lose its ledger."""

    home: Path
    cluster: Watched = field(default_factory=lambda: Watched(nodes=2, gpus=GPUS))
    log: io.StringIO = field(default_factory=io.StringIO)
    shadow: bool = False
    monotonic_s: float = 0.0
    daemon: Daemon | None = None

    def __post_init__(self) -> None:
        self.books = Books(self.cluster)
        logging_setup.configure(level="debug", form="json", stream=self.log)
        self.audit = AuditLog(self.home / "audit.jsonl")

    def submit(self, gpus: int = GPUS, work_s: float = 1e6) -> JobId:
        """Queue a job; accounting takes note."""
        job_id = self.cluster.submit(gpus, work_s=work_s)
        self.books.first_submit_s[job_id] = self.cluster.now_s
        return job_id

    def requeue(self, job_id: JobId) -> None:
        """Put a running job back, as its user would."""
        job = self.cluster.jobs[job_id]
        run = Run(job_id, job.start_s, job.restarts)
        self.cluster.apply(Requeue(handover_id=HandoverId(1), run=run, why="test"))

    def start(self) -> None:
        """Start a daemon on the ledger that is there."""
        text = YAML.format(poll_s=POLL_S, home=self.home, shadow=str(self.shadow).lower())
        (self.home / "dl.yaml").write_text(text, "utf-8")
        config, origins = load_with_origins(self.home / "dl.yaml")
        loaded = Loaded(config, tuple(show(config, origins)))
        self.daemon = Daemon(
            loaded=loaded,
            parts=self.parts(config),
            reread=lambda: loaded,
            assemble=self.parts,
            live=lambda c: not c.daemon.shadow,
            audit=self.audit,
            pause=PauseSwitch(self.home),
            log=logging_setup.logger(),
            accounting=self.books,
        )
        self.daemon._rebuilding._clock = lambda: self.monotonic_s

    def parts(self, _: Config) -> FakeParts:
        """Over the same cluster and file."""
        return FakeParts(self.cluster, Ledger(SqliteStore(self.home / "ledger.sqlite")))

    def stop(self) -> None:
        """End the daemon."""
        if self.daemon is not None:
            self.daemon.close()
            self.daemon = None

    def lose(self) -> None:
        """The ledger is gone, with all that SQLite keeps beside it."""
        for path in self.home.glob("ledger.sqlite*"):
            path.unlink()

    def poll(self, *, passing_s: int = POLL_S) -> None:
        """Let time pass and look."""
        assert self.daemon is not None
        self.cluster.advance(passing_s)
        self.monotonic_s += passing_s
        self.daemon.cycle_once(acting=not self.shadow)

    def attained(self) -> dict[int, float]:
        """GPU-seconds by job, as the ledger has them."""
        assert self.daemon is not None
        service = self.daemon._parts.ledger.service
        return dict(zip(service.job_id.tolist(), service.attained_gpu_s.tolist(), strict=True))

    def truth(self) -> dict[int, float]:
        """GPU-seconds by job, as they really were."""
        return {
            job.job_id: job.gpu_s
            + job.gpus
            * (self.cluster.now_s - job.start_s if job.state is JobState.RUNNING else 0.0)
            for job in self.cluster.jobs.values()
        }

    def said(self, event: str) -> list[dict[str, object]]:
        """The log lines of one kind."""
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.stop()
    made.audit.close()


def lived(house: House) -> list[JobId]:
    """Three jobs with some requeues behind them, all watched by a daemon."""
    jobs = [house.submit() for _ in range(3)]
    house.start()
    house.poll()
    house.requeue(jobs[0])
    house.poll()
    house.requeue(jobs[1])
    house.poll()
    house.poll()
    return jobs


@pytest.mark.parametrize("shadow", [False, True])
def test_a_lost_ledger_is_rebuilt_on_the_first_look(house: House, *, shadow: bool) -> None:
    """Attained service is what it was, within one poll, before anything is decided; it is said."""
    house.shadow = shadow
    lived(house)
    before = house.attained()
    house.stop()
    house.lose()

    house.start()
    house.poll()

    after = house.attained()
    assert after == house.truth()
    for job_id, gpu_s in before.items():
        assert gpu_s <= after[job_id] <= gpu_s + GPUS * POLL_S
    assert len(house.books.asked) == 1
    (line,) = house.said("rebuilt from accounting")
    assert (line["jobs"], line["runs"], line["level"]) == (2, 2, "info")


def test_without_accounting_the_same_loss_is_told(house: House) -> None:
    """The test above would fail without accounting: and then it is said what is missing."""
    lived(house)
    house.stop()
    house.lose()
    house.books.error = NoAccountingError("Slurm's accounting storage is disabled")

    house.start()
    for _ in range(5):
        house.poll()

    assert house.attained() != house.truth()
    (line,) = house.said("no accounting")
    assert line["level"] == "warning"
    assert line["jobs"] == 2
    assert "not counted" in str(line["because"])
    assert len(house.books.asked) == 1


def test_an_ordinary_poll_asks_nothing(house: House) -> None:
    """Jobs that come, start, are requeued while somebody looks and end are no reason to ask."""
    jobs = lived(house)
    for _ in range(5):
        job = house.cluster.jobs[jobs[2]]
        if job.state is JobState.RUNNING:
            house.requeue(jobs[2])
        house.submit(1, work_s=40)
        house.poll()

    assert house.books.asked == []


def test_runs_missed_in_an_outage_are_asked_for(house: House) -> None:
    """A run that began and was requeued while the daemon was down is counted afterwards."""
    first, *_ = lived(house)
    house.stop()
    for _ in range(2):
        house.cluster.advance(50)
        running = [j for j in house.cluster.jobs.values() if j.state is JobState.RUNNING]
        for job in running:
            house.requeue(job.job_id)
    house.cluster.advance(50)

    house.start()
    house.poll()

    assert house.attained() == house.truth()
    assert first in house.books.asked[0]


def test_a_run_missed_between_two_polls_is_asked_for(house: House) -> None:
    """Started and requeued between two looks of a daemon that is up."""
    jobs = lived(house)
    running = [j for j in jobs if house.cluster.jobs[j].state is JobState.RUNNING]
    house.requeue(running[0])
    house.cluster.advance(12)
    again = [j for j in jobs if house.cluster.jobs[j].state is JobState.RUNNING]
    fresh = next(j for j in again if house.cluster.jobs[j].start_s > house.cluster.now_s - 12)
    house.requeue(fresh)

    house.poll()

    assert fresh in house.books.asked[0]
    assert house.attained() == house.truth()


def test_a_failing_accounting_is_asked_after_ever_longer_pauses(house: House) -> None:
    """Never once a poll; and once it answers, what was missed comes back."""
    lived(house)
    house.stop()
    house.lose()
    house.books.error = ClusterError("sacct --allusers: no answer in 17 s")
    house.start()
    at_s = []
    for _ in range(60):
        asked = len(house.books.asked)
        house.poll()
        if len(house.books.asked) > asked:
            at_s.append(house.monotonic_s)

    gaps = [b - a for a, b in itertools.pairwise(at_s)]
    assert gaps == [60, 120, 240, 480]
    levels = [line["level"] for line in house.said("accounting does not answer")]
    assert levels.count("warning") == 1

    house.books.error = None
    house.monotonic_s += LONGEST_PAUSE_S
    house.poll()
    assert house.attained() == house.truth()


def test_what_was_missed_is_still_known_after_a_restart(house: House) -> None:
    """A daemon that could not ask and is restarted asks again: the mark is in the ledger."""
    lived(house)
    house.stop()
    house.lose()
    house.books.error = ClusterError("slurmdbd is down")
    house.start()
    house.poll()
    house.stop()
    house.books.error = None

    house.start()
    house.poll()

    assert house.attained() == house.truth()


def test_an_accounting_that_lags_behind_is_asked_again(house: House) -> None:
    """Records that are still on their way come in later; others are not kept waiting by them."""
    jobs = lived(house)
    house.stop()
    house.lose()
    house.books.silent_about = {jobs[0]}
    house.start()
    house.poll()
    assert house.attained()[jobs[1]] == house.truth()[jobs[1]]
    assert house.attained()[jobs[0]] < house.truth()[jobs[0]]

    house.books.silent_about = set()
    house.poll()
    house.poll()

    assert house.books.asked[1:] == [[jobs[0]]]
    assert house.attained() == house.truth()


def test_what_accounting_never_knew_holds_nobody_up(house: House) -> None:
    """Runs that were purged are asked for ever more rarely, a new gap at the next poll."""
    jobs = lived(house)
    house.stop()
    house.lose()
    house.books.silent_about = {jobs[0]}
    house.start()
    for _ in range(20):
        house.poll()
    asked = len(house.books.asked)
    house.cluster.cancel(jobs[1])
    house.requeue(jobs[2])
    house.cluster.advance(12)
    house.requeue(jobs[2])

    house.poll()

    assert asked < 6
    assert house.books.asked[asked:] == [[jobs[2]]]
    assert house.attained()[jobs[2]] == house.truth()[jobs[2]]


def test_new_gaps_do_not_keep_older_ones_waiting(house: House) -> None:
    """A job whose records came late is asked about again, however often others flap meanwhile."""
    jobs = lived(house)
    house.stop()
    house.lose()
    house.books.silent_about = {jobs[0]}
    house.start()
    for _ in range(5):
        house.poll()
    house.books.silent_about = set()
    asked = len(house.books.asked)
    for _ in range(12):
        for job_id in jobs[1:]:
            if house.cluster.jobs[job_id].state is JobState.RUNNING:
                house.requeue(job_id)
        house.cluster.advance(12)
        for job_id in jobs[1:]:
            if house.cluster.jobs[job_id].state is JobState.RUNNING:
                house.requeue(job_id)
        house.poll()

    assert any(set(jobs[1:]) & set(some) for some in house.books.asked[asked:])
    assert any(jobs[0] in some for some in house.books.asked[asked:])


def test_it_may_take_no_longer_than_a_command(house: House) -> None:
    """However many are missing, a cycle is held up by cluster.timeout_s at most."""
    lived(house)
    house.stop()
    house.lose()
    house.start()
    house.poll()

    assert house.books.limits_s == [17]


def test_new_gaps_are_not_asked_about_one_by_one(house: House) -> None:
    """Jobs that flap at every poll cost one question a minute at most."""
    log = logging_setup.logger()
    now_s = 0.0
    rebuilding = LedgerRecovery(house.books, log, within_s=9, clock=lambda: now_s)
    asked = []
    for n in range(20):
        now_s = n * POLL_S
        if rebuilding._due([n]):
            rebuilding._asked_s = now_s
            asked.append(now_s)

    assert min(b - a for a, b in itertools.pairwise(asked)) >= LEAST_PAUSE_S


def test_a_daemon_nobody_gave_an_accounting_asks_none(house: House) -> None:
    """It works as before, and says nothing of it."""
    rebuilding = LedgerRecovery(None, logging_setup.logger(), within_s=9)
    ledger = house.parts(None).ledger  # type: ignore[arg-type] # not used
    rebuilding.complete(ledger, house.cluster.observe())
    ledger.close()

    assert house.log.getvalue() == ""
