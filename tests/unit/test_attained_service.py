"""Attained service: folded observations against what really ran."""

from __future__ import annotations

import dataclasses

import build
import numpy as np
import pytest
from fake_cluster import FakeCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.ledger.apply_observation import FORGET_AFTER_S, LEAVE_AFTER_S, LONGEST_LOOK_S
from slurm_dl.ledger.attained_service import AttainedService, remembered
from slurm_dl.ledger.clock_adjustment import cut_service
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.model.plan import Requeue

T0 = build.NOW_S


def _fold_all(*looks: tuple[float, list[JobRow]]) -> AttainedService:
    service = AttainedService.empty()
    for now_s, rows in looks:
        service = build.folded(service, build.observed(rows, now_s=now_s)).service
    return service


def test_a_run_first_seen_late_counts_from_its_start() -> None:
    """A daemon that comes up late still knows what a running job has had."""
    service = _fold_all((T0, [build.running(1, 4, ran_s=100)]))

    assert service.attained_gpu_s.tolist() == [400.0]
    assert service.ran_s.tolist() == [100.0]


def test_a_finished_run_counts_to_its_exact_end() -> None:
    """The end comes from Slurm, not from the poll that saw it."""
    done = JobRow(job_id=1, state=JobState.COMPLETED, gpus=2, start_s=T0 - 10, end_s=T0 + 7)
    service = _fold_all((T0, [build.running(1, 2, ran_s=10)]), (T0 + 30, [done]))

    assert service.attained_gpu_s.tolist() == [2 * 17.0]
    assert service.over.tolist() == [True]


def test_a_run_that_ended_while_the_controller_was_away_counts_to_its_end() -> None:
    """The look began before the outage and was answered after it, with an end in between."""
    done = JobRow(job_id=1, state=JobState.COMPLETED, gpus=4, start_s=T0 - 5, end_s=T0 + 4)
    service = _fold_all((T0 - 2, [build.running(1, 4, ran_s=5)]), (T0, [done]))

    assert service.attained_gpu_s.tolist() == [4 * 9.0]
    assert service.waiting_since_s.tolist() == [T0]


def test_a_run_that_began_while_the_look_was_kept_waiting_counts_from_its_start() -> None:
    """The look began eight seconds before the run did, and was answered after that."""
    run = JobRow(job_id=1, state=JobState.RUNNING, gpus=2, start_s=T0 + 8)
    done = JobRow(job_id=1, state=JobState.COMPLETED, gpus=2, start_s=T0 + 8, end_s=T0 + 15)
    service = _fold_all((T0, [run]), (T0 + 10, [run]), (T0 + 20, [done]))

    assert service.attained_gpu_s.tolist() == [2 * 7.0]


@pytest.mark.parametrize("back_s", [20.0, 3600.0])
def test_a_run_is_booked_once_when_the_clock_is_set_back(back_s: float) -> None:
    """Its start and end, as Slurm wrote them, then lie in the future of the look that ends it."""
    done = JobRow(job_id=1, state=JobState.COMPLETED, gpus=4, start_s=T0 - 100, end_s=T0 + 5)
    before = _fold_all((T0, [build.running(1, 4, ran_s=100)]))
    service, _ = cut_service(before, T0 - back_s)

    folded = build.folded(service, build.observed([done], now_s=T0 + 10 - back_s))

    assert [(run.job_id, run.gpu_s) for run in folded.ended] == [
        (1, folded.service.attained_gpu_s[0])
    ]
    # Its last seconds are known no better than to the poll, or as a look that was kept waiting.
    most_s = 110.0 if back_s > LONGEST_LOOK_S else 105.0 + back_s
    assert 4 * 105.0 <= folded.service.attained_gpu_s[0] <= 4 * most_s


def test_a_requeue_while_the_look_was_kept_waiting_counts_to_its_instant() -> None:
    """A slurmctld that comes back requeues, and answers a look that was begun before that."""
    again = build.pending(1, 4, restarts=1, submit_s=T0 + 6)
    service = _fold_all((T0, [build.running(1, 4, ran_s=10)]), (T0 + 2, [again]))

    assert service.attained_gpu_s.tolist() == [4 * 16.0]


def test_a_requeue_counts_to_its_instant_and_keeps_the_service() -> None:
    """Slurm forgets start and end at a requeue; its new submit time is the end of the run."""
    again = build.pending(1, 2, restarts=1, submit_s=T0 + 12)
    service = _fold_all((T0, [build.running(1, 2, ran_s=10)]), (T0 + 30, [again]))

    assert service.attained_gpu_s.tolist() == [2 * 22.0]
    assert service.first_submit_s.tolist() == [T0 - 100_000 + 1]
    assert service.waiting_since_s.tolist() == [T0 + 12]


def test_a_requeued_job_that_is_still_completing_is_booked_later() -> None:
    """Slurm counts the restart at once and tells the time of the requeue only afterwards."""
    run = build.running(1, 2, ran_s=10)
    completing = JobRow(
        job_id=1, state=JobState.COMPLETING, gpus=2, restarts=1, submit_s=run.submit_s
    )
    again = build.pending(1, 2, restarts=1, submit_s=T0 + 12)
    service = _fold_all((T0, [run]), (T0 + 14, [completing]), (T0 + 20, [again]))

    assert service.attained_gpu_s.tolist() == [2 * 22.0]
    assert service.waiting_since_s.tolist() == [T0 + 12]


def test_a_restart_within_one_poll_counts_both_runs() -> None:
    """Requeued and running again between two looks: neither run is lost."""
    again = build.running(1, 2, restarts=1, submit_s=T0 + 12, start_s=T0 + 20)
    service = _fold_all((T0, [build.running(1, 2, ran_s=10)]), (T0 + 30, [again]))

    assert service.attained_gpu_s.tolist() == [2 * (22.0 + 10.0)]


def test_suspended_time_is_no_service() -> None:
    """A suspended job holds its GPUs and gets nothing from them."""
    run = build.running(1, 1, ran_s=10)
    asleep = JobRow(job_id=1, state=JobState.SUSPENDED, start_s=run.start_s)
    awake = JobRow(job_id=1, state=JobState.RUNNING, start_s=run.start_s)
    service = _fold_all((T0, [run]), (T0 + 20, [asleep]), (T0 + 50, [asleep]), (T0 + 60, [awake]))

    assert service.attained_gpu_s.tolist() == [10.0 + 10.0]


def test_a_resized_job_counts_with_the_gpus_it_held() -> None:
    """After a shrink the time before it still counts with the old size."""
    run = build.running(1, 8, ran_s=10)
    small = JobRow(job_id=1, state=JobState.RUNNING, gpus=4, start_s=run.start_s)
    service = _fold_all((T0, [run]), (T0 + 10, [small]), (T0 + 20, [small]))

    assert service.attained_gpu_s.tolist() == [8 * 20.0 + 4 * 10.0]


def test_a_reused_job_id_starts_from_nothing() -> None:
    """Ids wrap; the new job must not inherit the old one's service."""
    old = JobRow(job_id=1, state=JobState.COMPLETED, gpus=2, start_s=T0 - 10, end_s=T0 + 7)
    new = build.pending(1, 1, submit_s=T0 + 1000)
    service = _fold_all((T0, [build.running(1, 2, ran_s=10)]), (T0 + 30, [old]), (T0 + 1001, [new]))

    assert service.attained_gpu_s.tolist() == [0.0]
    assert service.first_submit_s.tolist() == service.queued_s.tolist() == [T0 + 1000]
    assert service.over.tolist() == [False]


def test_a_job_that_vanished_keeps_what_was_counted() -> None:
    """Unknown is not zero: nothing is taken away from a job Slurm no longer lists."""
    service = _fold_all((T0, [build.running(1, 2, ran_s=10)]), (T0 + 5000, []))

    assert service.attained_gpu_s.tolist() == [20.0]


def test_jobs_are_forgotten_only_long_after_slurm_forgot_them() -> None:
    """The ledger does not grow without end, and does not drop what may come back."""
    first = build.folded(AttainedService.empty(), build.observed([build.running(1)], now_s=T0))
    kept = build.folded(first.service, build.observed([], now_s=T0 + FORGET_AFTER_S))
    gone = build.folded(first.service, build.observed([], now_s=T0 + FORGET_AFTER_S + 1))

    assert (len(kept.service), kept.forgotten) == (1, ())
    assert (len(gone.service), gone.forgotten) == (0, (1,))


def test_jobs_that_are_over_leave_memory_and_are_not_forgotten() -> None:
    """Some time after Slurm purged them; what is stored of them stays. Those not over stay here."""
    runs = [build.running(1, ran_s=10), build.running(2, ran_s=10)]
    ended = JobRow(job_id=1, state=JobState.COMPLETED, gpus=1, start_s=T0 - 10, end_s=T0 + 7)
    service = _fold_all((T0, runs), (T0 + 10, [ended, runs[1]]))

    kept = build.folded(service, build.observed([], now_s=T0 + 10 + LEAVE_AFTER_S))
    left = build.folded(service, build.observed([], now_s=T0 + 11 + LEAVE_AFTER_S))

    assert kept.service.job_id.tolist() == [1, 2]
    assert left.service.job_id.tolist() == [2]
    assert left.forgotten == ()


def test_finished_jobs_never_seen_alive_are_not_taken_in() -> None:
    """A first look at a busy site lists hundreds of finished jobs; they are nobody's business."""
    done = JobRow(job_id=1, state=JobState.FAILED, start_s=T0 - 10, end_s=T0)

    assert len(_fold_all((T0, [done]))) == 0


def test_an_idle_look_changes_no_row() -> None:
    """What did not change is not written to disk again."""
    seen = build.observed([build.pending(1)], now_s=T0)
    first = build.folded(AttainedService.empty(), seen)
    second = build.folded(first.service, build.observed([build.pending(1)], now_s=T0 + 30))

    assert first.changed.tolist() == [True]
    assert second.changed.tolist() == [False]


HOLD, AFTER, BEGIN = Held.USER_OR_ADMIN, Held.DEPENDENCY, Held.BEGIN_TIME
Seen = tuple[float, Held | float, float | None]
"""Seconds after T0; what holds the job, or the seconds at which it began to run; EligibleTime."""


@pytest.mark.parametrize(
    ("looks", "queued_s"),
    [
        # It was submitted at -100. A limit and a reservation are waited for in the queue.
        ([(0, Held.NO, None)], -100),
        ([(0, Held.LIMIT, None), (30, Held.RESERVATION, None), (60, Held.NO, None)], -100),
        ([(0, HOLD, None)], None),
        ([(0, AFTER, None)], None),
        ([(0, BEGIN, 50), (60, BEGIN, 70)], None),
        ([(0, HOLD, None), (30, Held.NO, 12)], 12),
        ([(0, AFTER, None), (30, Held.LIMIT, 12)], 12),
        ([(0, BEGIN, 50), (60, Held.NO, 50)], 50),
        # Nobody looked while it was let go, or Slurm does not tell when.
        ([(0, HOLD, None), (9000, Held.NO, 500)], 500),
        ([(0, HOLD, None), (30, Held.NO, None)], 30),
        ([(0, Held.NO, -20)], -20),
        ([(0, Held.NO, 500)], 0),
        # Held again: what Slurm tells may be of before. Then it is held once more.
        ([(0, Held.NO, -20), (30, HOLD, None), (60, Held.NO, -20)], 60),
        ([(0, Held.NO, -20), (30, HOLD, None), (60, Held.NO, 40)], 40),
        ([(0, Held.NO, -20), (30, HOLD, None)], None),
        # It began between two looks.
        ([(0, HOLD, None), (30, 20.0, 15)], 15),
        ([(0, HOLD, None), (30, 20.0, None)], 20),
        # A requeue, and the interval for which Slurm then keeps each job back, change nothing.
        ([(0, Held.NO, -20), (30, 20.0, -20), (60, BEGIN, 170), (200, Held.NO, 170)], -20),
        # A hold or a begin time of its owner's does, after a run as well.
        ([(0, Held.NO, -20), (30, 20.0, -20), (60, HOLD, None)], None),
        ([(0, Held.NO, -20), (30, 20.0, -20), (60, BEGIN, 5000), (5001, Held.NO, 5000)], 5000),
        ([(0, HOLD, None), (30, 20.0, 15), (60, HOLD, None), (300, Held.NO, 290)], 290),
    ],
)
def test_the_place_of_a_job_is_when_it_could_first_have_started(
    looks: list[Seen], queued_s: float | None
) -> None:
    """A job submitted early and held comes no sooner; None: it has no place yet."""
    service, restarts = AttainedService.empty(), 0
    for at_s, how, told_s in looks:
        restarts += service.run_start_s.any() and isinstance(how, Held)
        row = build.pending(1, restarts=restarts, submit_s=T0 + (at_s - 5 if restarts else -100))
        if isinstance(how, Held):
            row = dataclasses.replace(row, held=how)
        else:
            row = dataclasses.replace(row, state=JobState.RUNNING, start_s=T0 + how)
        eligible = {} if told_s is None else {JobId(1): T0 + told_s}
        begins = eligible if how is BEGIN else {}
        for now_s in (T0 + at_s, T0 + at_s + 1):
            seen = build.observed([row], now_s=now_s, eligible=eligible, begins=begins)
            applied = build.folded(service, seen)
            service = applied.service
        # Who is held costs no write at each look.
        assert service.ran_s.any() or not applied.changed.any()

    assert service.queued_s.tolist() == [0.0 if queued_s is None else T0 + queued_s]


def test_memory_lies_beside_the_jobs_in_their_order() -> None:
    """Rows are matched by id, whatever the order of either side."""
    service = _fold_all((T0, [build.running(5, 1, ran_s=50), build.running(3, 1, ran_s=30)]))
    jobs = build.observed([build.running(9), build.running(5), build.running(3)]).jobs

    memory = remembered(service, jobs)

    assert memory.attained_gpu_s.tolist() == [0.0, 50.0, 30.0]
    assert memory.first_submit_s[0] == jobs.submit_s[0]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_service_equals_the_runs_whatever_polls_are_missed(data: st.DataObject) -> None:
    """The ledger equals the sum over the true runs, for any requeues at any instant.

    A run that began and was requeued between two looks is the one thing Slurm tells nothing of,
    so only runs that were seen are requeued here.
    """
    cluster = FakeCluster(nodes=2, gpus=4, hold_s=3)
    for _ in range(data.draw(st.integers(1, 5))):
        cluster.submit(data.draw(st.sampled_from([1, 2, 4])), work_s=data.draw(st.integers(5, 80)))
    service, last = build.folded(AttainedService.empty(), cluster.observe()).service, np.zeros(0)
    for _ in range(data.draw(st.integers(3, 25))):
        cluster.advance(data.draw(st.integers(1, 12)))
        up = [
            j
            for j in cluster.jobs.values()
            if j.state is JobState.RUNNING and j.start_s in service.run_start_s
        ]
        if up and data.draw(st.booleans()):
            job = data.draw(st.sampled_from(up))
            run = Run(job.job_id, job.start_s, job.restarts)
            cluster.apply(Requeue(handover_id=HandoverId(1), run=run, why="test"))
        service = build.folded(service, cluster.observe()).service
        known = {
            int(j): float(a) for j, a in zip(service.job_id, service.attained_gpu_s, strict=True)
        }
        assert all(a >= b for a, b in zip(service.attained_gpu_s[: len(last)], last, strict=True))
        last = service.attained_gpu_s
    for job_id, attained in known.items():
        job = cluster.jobs[JobId(job_id)]
        under_way = (cluster.now_s - job.start_s) if job.state is JobState.RUNNING else 0.0
        assert attained == pytest.approx(job.gpu_s + job.gpus * under_way)
