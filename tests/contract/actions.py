"""What each action must do, and when it must be refused; the same on every cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from contract.described import described
from contract.subject import CLAIM, Subject

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import (
    Attach,
    ClearSteer,
    ClusterAction,
    Detach,
    Requeue,
    Reserve,
    Reshape,
    SetSiteFactor,
    SetSteer,
    Signal,
    Unseal,
)
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Observed
from slurm_dl.model.steer import Steer

HANDOVER: Final = HandoverId(1)
OURS: Final = "slurm_dl_1"
NOBODY: Final = JobId(999_999)
WHY: Final = "the contract"
ROOT: Final = (0,)


def state_of(seen: Observed, job: JobId) -> str:
    """Its state; empty if it is not there."""
    row = seen.jobs.row_of().get(job)
    return "" if row is None else described(seen, row)["state"]


def told(subject: Subject, job: JobId) -> dict[str, Any]:
    """All that is reported of *job* now."""
    seen = subject.observe()
    return described(seen, seen.jobs.row_of()[job])


def until(subject: Subject, job: JobId, state: str) -> dict[str, Any]:
    """Wait for *job* to be in *state*; all that is reported of it then."""
    seen = subject.until(lambda s: state_of(s, job) == state, f"job {job} to be {state}")
    return described(seen, seen.jobs.row_of()[job])


def run_of(job: JobId, is_now: dict[str, Any]) -> Run:
    """The run that *job* is in."""
    return Run(job, is_now["start_s"], is_now["restarts"])


def refused(subject: Subject, action: ClusterAction) -> None:
    """Fail unless *action* is refused."""
    try:
        subject.apply(action)
    except ClusterError:
        return
    msg = f"not refused: {action}"
    raise AssertionError(msg)


def factor(job: JobId, value: int) -> SetSiteFactor:
    return SetSiteFactor(job_id=job, value=value, why=WHY)


def reserve(*nodes: str, handover: HandoverId = HANDOVER) -> Reserve:
    return Reserve(handover_id=handover, nodes=nodes, uids=ROOT, duration_s=600.0, why=WHY)


def attach(job: JobId, handover: HandoverId = HANDOVER) -> Attach:
    return Attach(handover_id=handover, job_id=job, why=WHY)


def detach(job: JobId) -> Detach:
    return Detach(job_id=job, why=WHY)


def signal(run: Run) -> Signal:
    return Signal(handover_id=HANDOVER, run=run, signal="USR1", target="batch", why=WHY)


def requeue(run: Run) -> Requeue:
    return Requeue(handover_id=HANDOVER, run=run, why=WHY)


def steer(
    job: JobId,
    *avoid: str,
    own: tuple[str, ...] = (),
    not_before_s: float = 0.0,
    lift: bool = False,
) -> SetSteer:
    return SetSteer(
        steer=Steer(
            job_id=job,
            kind="spot",
            avoid=avoid,
            own=own,
            since_s=0.0,
            until_s=0.0,
            not_before_s=not_before_s,
            why=WHY,
        ),
        why=WHY,
        lift=lift,
    )


def clear(job: JobId, *own: str, lift: bool = False) -> ClearSteer:
    return ClearSteer(job_id=job, own=own, why=WHY, lift=lift)


def size(job: JobId, shape: str, cpus: int = 0) -> Reshape:
    return Reshape(job_id=job, shape=Shape.of(shape), cpus=cpus, mem_mb=0, why=WHY)


def fill(subject: Subject) -> JobId:
    """A job that takes all there is."""
    job = subject.submit("-N2", "--gpus-per-node=4", CLAIM)
    until(subject, job, "RUNNING")
    return job


def site_factor_moves_the_priority(subject: Subject) -> None:
    """Of running and of waiting jobs, at once, by as much as it changes; never to 0, held."""
    runs = fill(subject)
    waits = subject.submit("-N1", "--gpus-per-node=1")
    subject.observe()
    for job in (runs, waits):
        subject.apply(factor(job, 1000))
        low = told(subject, job)["priority"]
        subject.apply(factor(job, 3000))
        high = told(subject, job)["priority"]
        assert high - low == 2000, (low, high)
        subject.apply(factor(job, 0))
        assert 0 < told(subject, job)["priority"] < low
        subject.apply(factor(job, -1000))
        assert told(subject, job)["priority"] >= 1


def greater_site_factor_starts_first(subject: Subject) -> None:
    """Of two jobs that cannot both run the later one starts, if its SiteFactor is greater."""
    runs = fill(subject)
    first, second = (subject.submit("-N2", "--gpus-per-node=4") for _ in range(2))
    subject.observe()
    subject.apply(factor(second, 5000))
    subject.cancel(runs)

    until(subject, second, "RUNNING")

    assert told(subject, first)["state"] == "PENDING"


def site_factor_outlives_a_requeue(subject: Subject) -> None:
    """A job that comes back into the queue still has it."""
    job = fill(subject)
    plain = subject.submit("-N1", "--gpus-per-node=1")
    subject.observe()
    subject.apply(factor(job, 5000))
    subject.apply(requeue(run_of(job, told(subject, job))))

    assert until(subject, job, "PENDING")["priority"] - told(subject, plain)["priority"] > 4000


def site_factor_of_no_job_is_refused(subject: Subject) -> None:
    """One that never was, and one that has ended."""
    ended = subject.submit("-N1", does="ends")
    until(subject, ended, "COMPLETED")

    refused(subject, factor(NOBODY, 1))
    refused(subject, factor(ended, 1))


def reservation_keeps_its_nodes_for_the_attached(subject: Subject) -> None:
    """Others do not start there although there is room; who is attached does."""
    subject.apply(reserve("n1"))
    stranger = subject.submit("-N1", "-wn1", "--gpus-per-node=1")
    beside = subject.submit("-N1", "-wn2", "--gpus-per-node=1")
    until(subject, beside, "RUNNING")
    mine = subject.submit("-N1", "-wn1", "--gpus-per-node=1", "-bnow+1hour")
    subject.observe()
    subject.apply(attach(mine))
    assert told(subject, mine)["reserved"] == OURS
    other = subject.submit("-N1", "-wn1", "--gpus-per-node=1", "-H")
    subject.observe()
    assert told(subject, other)["reserved"] is None

    seen = subject.observe()

    assert state_of(seen, stranger) == "PENDING"
    kept = [(r.name, r.end_s > seen.now_s + 400) for r in seen.reservations]
    assert kept == [(OURS, True)], kept


def attached_job_starts_in_the_reservation(subject: Subject) -> None:
    """As soon as there is room, past who waits for the same room."""
    runs = fill(subject)
    stranger = subject.submit("-N1", "-wn1", "--gpus-per-node=4")
    mine = subject.submit("-N1", "-wn1", "--gpus-per-node=4")
    subject.apply(reserve("n1"))
    subject.observe()
    subject.apply(attach(mine))
    subject.cancel(runs)

    now = until(subject, mine, "RUNNING")

    assert now["split"] == {"n1": 4.0}
    assert told(subject, stranger)["state"] == "PENDING"
    subject.apply(detach(mine))
    assert told(subject, mine)["reserved"] == OURS, "a running job keeps its reservation"


def reserving_again_changes_nothing(subject: Subject) -> None:
    """The same is there already; another of that name, overlapping or of no node is refused."""
    subject.apply(reserve("n1"))
    subject.apply(reserve("n1"))

    refused(subject, reserve("n2"))
    refused(subject, reserve("n1", "n2"))
    refused(subject, reserve("n1", handover=HandoverId(2)))
    refused(subject, reserve("n9", handover=HandoverId(3)))
    subject.apply(reserve("n2", handover=HandoverId(4)))

    names = sorted(r.name for r in subject.observe().reservations)
    assert names == [OURS, "slurm_dl_4"], names


def attaching_and_detaching(subject: Subject) -> None:
    """A waiting job is given the reservation and loses it; what is not there is refused or done."""
    fill(subject)
    waits = subject.submit("-N1", "--gpus-per-node=1")
    subject.apply(reserve("n1"))
    subject.observe()

    subject.apply(attach(waits))
    assert told(subject, waits)["reserved"] == OURS
    subject.apply(attach(waits))
    subject.apply(detach(waits))
    assert told(subject, waits)["reserved"] is None
    subject.apply(detach(waits))
    assert told(subject, waits)["state"] == "PENDING"

    refused(subject, attach(waits, HandoverId(77)))
    refused(subject, attach(NOBODY))
    subject.apply(detach(NOBODY))
    assert told(subject, waits)["reserved"] is None


def unsealing(subject: Subject) -> None:
    """The reservation goes, with a job in it too, which runs on; only ours, and twice is once."""
    subject.apply(reserve("n1"))
    mine = subject.submit("-N1", "-wn1", "--gpus-per-node=1", "-H")
    inside = subject.submit("-N1", "-wn1", "--gpus-per-node=1")
    stranger = subject.submit("-N1", "-wn1", "--gpus-per-node=1")
    subject.observe()
    subject.apply(attach(inside))
    until(subject, inside, "RUNNING")
    subject.apply(Unseal(name=OURS, handover_id=HANDOVER, why=WHY))

    subject.until(lambda s: s.reservations == (), "the reservation to be gone")

    assert told(subject, inside)["state"] == "RUNNING"
    assert told(subject, mine)["state"] == "PENDING"
    until(subject, stranger, "RUNNING")
    subject.apply(Unseal(name=OURS, handover_id=HANDOVER, why=WHY))
    refused(subject, Unseal(name="course", handover_id=None, why=WHY))


def signalled_job_does_as_it_says(subject: Subject) -> None:
    """One ends, one saves its work, says so for this run and goes on; nobody else notices."""
    ends = subject.submit("-N1", "--gpus-per-node=1", CLAIM, does="finishes when told")
    saves = subject.submit("-N1", "--gpus-per-node=1", CLAIM, does="saves when told")
    other = subject.submit("-N1", "--gpus-per-node=1", CLAIM)
    runs = {job: run_of(job, until(subject, job, "RUNNING")) for job in (ends, saves, other)}
    assert told(subject, saves)["acked_run"] is None

    subject.apply(signal(runs[ends]))
    subject.apply(signal(runs[saves]))

    until(subject, ends, "COMPLETED")
    subject.until(lambda s: s.claim(saves).acked_run == 0, "the job to say that its work is saved")
    for job in (saves, other):
        assert run_of(job, until(subject, job, "RUNNING")) == runs[job]


def tasks_of_an_array_with_pending_tasks_are_signalled_once(subject: Subject) -> None:
    """It is answered with "try again later", and scancel would send the signal again after 5 s."""
    claim = CLAIM.replace("}}", ',"to":"batch"}}')
    array = subject.submit("--array=1-6%4", "--gpus-per-node=1", claim, does="counts")

    def tasks(seen: Observed, state: str) -> list[JobId]:
        head = f"{array}_"
        listed = [job for job, text in seen.texts.items() if text.label.startswith(head)]
        return [job for job in listed if state_of(seen, job) == state]

    seen = subject.until(lambda s: len(tasks(s, "RUNNING")) == 4, "four tasks to run")
    assert tasks(seen, "PENDING")
    running = tasks(seen, "RUNNING")
    runs = [run_of(job, described(seen, seen.jobs.row_of()[job])) for job in running]
    subject.apply_together([signal(run) for run in runs])

    def counts(seen: Observed) -> list[int | None]:
        return [seen.claim(job).acked_run for job in running]

    sent_s = subject.until(lambda s: counts(s) == [1] * 4, "a signal to each task").now_s
    later = subject.until(lambda s: s.now_s > sent_s + 7, "scancel's first pause to be over")
    assert counts(later) == [1] * 4


def signal_to_another_run_is_refused(subject: Subject) -> None:
    """To what is not that run any more, waits, has ended, is nobody's or may not come back."""
    job = subject.submit("-N1", "--gpus-per-node=1", CLAIM, does="finishes when told")
    once = subject.submit(
        "-N1", "--gpus-per-node=1", "--no-requeue", CLAIM, does="finishes when told"
    )
    waits = subject.submit("-N1", "-H", CLAIM)
    gone = subject.submit("-N1", CLAIM, does="ends")
    ran = until(subject, gone, "COMPLETED")
    run = run_of(job, until(subject, job, "RUNNING"))
    run_once = run_of(once, until(subject, once, "RUNNING"))
    wrong = (
        *(Run(job, run.start_s + 1, 0), Run(job, run.start_s, 1), run_once),
        *(Run(waits, 0.0, 0), run_of(gone, ran), Run(NOBODY, run.start_s, 0)),
    )

    for run in wrong:
        refused(subject, signal(run))

    assert [told(subject, j)["state"] for j in (job, once)] == ["RUNNING", "RUNNING"]


def requeued_job_waits_and_runs_again(subject: Subject) -> None:
    """It waits out its interval, one restart later, without its nodes; then it has a new run."""
    job = subject.submit("-N1", "-wn1", "--gpus-per-node=4", CLAIM)
    before = until(subject, job, "RUNNING")
    subject.apply(requeue(run_of(job, before)))

    waits = until(subject, job, "PENDING")

    assert (waits["held"], waits["restarts"], waits["split"]) == ("BEGIN_TIME", 1, {}), waits
    assert (waits["start_s"], waits["end_s"]) == (0, 0), waits
    assert waits["gpus"] == 4
    assert waits["contract"] == before["contract"]
    assert waits["submit_s"] >= before["submit_s"]
    subject.apply(requeue(run_of(job, before)))
    assert told(subject, job)["restarts"] == 1
    again = until(subject, job, "RUNNING")
    assert again["restarts"] == 1
    assert again["start_s"] > before["start_s"]
    assert again["split"] == {"n1": 4.0}
    refused(subject, requeue(run_of(job, before)))
    assert told(subject, job)["restarts"] == 1


def requeue_of_another_run_is_refused(subject: Subject) -> None:
    """Of what has ended, is nobody's or may not come back; all stay as they are."""
    once = subject.submit("-N1", "--gpus-per-node=1", "--no-requeue", CLAIM)
    gone = subject.submit("-N1", CLAIM, does="ends")
    ran = until(subject, gone, "COMPLETED")
    run = run_of(once, until(subject, once, "RUNNING"))

    refused(subject, requeue(run))
    refused(subject, requeue(run_of(gone, ran)))
    refused(subject, requeue(Run(NOBODY, run.start_s, 0)))

    assert run_of(once, until(subject, once, "RUNNING")) == run
    assert told(subject, gone)["state"] == "COMPLETED"


def steered_job_starts_on_what_is_left(subject: Subject) -> None:
    """It is seen what it is kept from, and once it runs nothing of that is changed any more."""
    runs = fill(subject)
    job = subject.submit("-N1", "--gpus-per-node=1")
    subject.observe()

    subject.apply(steer(job, "n1"))

    waits = told(subject, job)
    assert (waits["state"], waits["excluded"], waits["choices"]) == ("PENDING", ["n1"], None), waits
    subject.apply(steer(job, "n1"))
    subject.cancel(runs)
    assert until(subject, job, "RUNNING")["split"] == {"n2": 1.0}
    subject.apply(steer(job, "n2"))
    subject.apply(clear(job))
    assert told(subject, job)["excluded"] == []
    other = subject.submit("-N1", "--gpus-per-node=1")
    assert until(subject, other, "RUNNING")["state"] == "RUNNING"


def cleared_job_starts_anywhere(subject: Subject) -> None:
    """Nothing is left of the steer, not even where it left the job no node at all."""
    runs = fill(subject)
    job = subject.submit("-N2", "--gpus-per-node=4")
    alone = subject.submit("-N1", "--gpus-per-node=1")
    subject.observe()
    subject.apply(steer(job, "n2"))
    subject.apply(steer(alone, "n1", "n2"))
    subject.cancel(runs)
    beside = subject.submit("-N1", "--gpus-per-node=1")
    until(subject, beside, "RUNNING")
    kept = [told(subject, j) for j in (job, alone)]
    assert [j["state"] for j in kept] == ["PENDING", "PENDING"]
    assert [j["excluded"] for j in kept] == [["n2"], ["n1", "n2"]]

    subject.apply(clear(alone))
    until(subject, alone, "RUNNING")
    subject.apply(clear(job))
    assert told(subject, job)["excluded"] == []
    subject.cancel(beside)
    subject.cancel(alone)

    assert until(subject, job, "RUNNING")["split"] == {"n1": 4.0, "n2": 4.0}


def put_off_job_starts_when_it_may(subject: Subject) -> None:
    """Not before, though there is room; at once when that is lifted, and by itself in the end."""
    runs = fill(subject)
    job = subject.submit("-N1", "--gpus-per-node=1")
    soon = subject.submit("-N1", "--gpus-per-node=1")
    now_s = subject.observe().now_s
    subject.apply(steer(job, not_before_s=now_s + 600))
    subject.apply(steer(soon, "n1", not_before_s=now_s + 5))
    assert told(subject, job)["held"] == "BEGIN_TIME"
    subject.cancel(runs)
    beside = subject.submit("-N1", "--gpus-per-node=1")
    until(subject, beside, "RUNNING")

    started = until(subject, soon, "RUNNING")

    assert started["start_s"] >= now_s + 5
    assert started["split"] == {"n2": 1.0}
    assert told(subject, job)["state"] == "PENDING"
    subject.apply(steer(job, "n2", lift=True))
    assert until(subject, job, "RUNNING")["split"] == {"n1": 1.0}


def owner_keeps_what_it_excludes(subject: Subject) -> None:
    """It stands beside ours, is left when ours goes, and what the owner writes replaces all."""
    job = subject.submit("-H", "-N1", "--gpus-per-node=1", "-xn1")
    assert told(subject, job)["excluded"] == ["n1"]

    subject.apply(steer(job, "n2", own=("n1",)))
    assert told(subject, job)["excluded"] == ["n1", "n2"]
    subject.apply(clear(job, "n1"))
    assert told(subject, job)["excluded"] == ["n1"]
    subject.apply(steer(job, "n2", own=("n1",)))
    subject.exclude(job, "n2")
    assert told(subject, job)["excluded"] == ["n2"]
    subject.exclude(job)
    assert told(subject, job)["excluded"] == []


def steer_outlives_a_requeue(subject: Subject) -> None:
    """Slurm keeps the list of a job that runs; it must be cleared when the job waits again."""
    runs = fill(subject)
    job = subject.submit("-N1", "--gpus-per-node=1", CLAIM)
    subject.observe()
    subject.apply(steer(job, "n1"))
    subject.cancel(runs)
    is_now = until(subject, job, "RUNNING")
    assert is_now["excluded"] == []

    subject.apply(requeue(run_of(job, is_now)))

    assert until(subject, job, "PENDING")["excluded"] == ["n1"]
    subject.apply(clear(job))
    assert told(subject, job)["excluded"] == []


def steer_of_what_does_not_wait_is_nothing(subject: Subject) -> None:
    """Of one that never was or has ended nothing is done; to no node it is refused."""
    ended = subject.submit("-N1", does="ends")
    waits = subject.submit("-N1", "-H")
    until(subject, ended, "COMPLETED")

    for job in (ended, NOBODY):
        subject.apply(steer(job, "n1"))
        subject.apply(clear(job, lift=True))

    refused(subject, steer(waits, "n9"))
    assert told(subject, waits)["excluded"] == []
    assert told(subject, waits)["held"] == "USER_OR_ADMIN"
    assert told(subject, ended)["state"] == "COMPLETED"


def cancelled_jobs_have_failed(subject: Subject) -> None:
    """One that ran has a start and an end, one that waited has no start; both hold nothing."""
    runs = subject.submit("-N1", "--gpus-per-node=1")
    waits = subject.submit("-N1", "-H")
    started = until(subject, runs, "RUNNING")["start_s"]
    subject.cancel(runs)
    subject.cancel(waits)

    ended = until(subject, runs, "FAILED")

    assert ended["start_s"] == started <= ended["end_s"], ended
    assert ended["split"] == {}
    never = until(subject, waits, "FAILED")
    assert (never["start_s"], never["split"]) == (0, {}), never


def job_that_cannot_meet_its_deadline_ends(subject: Subject) -> None:
    """While it waits, and when it is requeued too late; not while its owner holds it."""
    runs = fill(subject)
    late, held, in_time = (
        subject.submit(*more, "-N1", "--gpus-per-node=1", "-t1", f"--deadline=now+{s}")
        for more, s in (((), 70), (("-H",), 70), ((), 7200))
    )
    assert until(subject, late, "FAILED")["start_s"] == 0
    seen = subject.observe()
    assert [state_of(seen, job) for job in (held, in_time)] == ["PENDING", "PENDING"]

    subject.cancel(runs)
    again = subject.submit("-N1", "--gpus-per-node=1", "-t1", "--deadline=now+62")
    subject.apply(requeue(run_of(again, until(subject, again, "RUNNING"))))

    assert until(subject, again, "FAILED")["restarts"] == 1


def requeue_incomplete_of_a_completing_job_does_nothing(subject: Subject) -> None:
    """Whether it ended with success or was cancelled; without that word it does run again."""
    jobs = [subject.submit("-N1", CLAIM, does="leaves a step behind") for _ in range(3)]
    ends, cancelled, again = jobs
    for job in jobs:
        subject.until(lambda s, job=job: s.claim(job).acked_run == 0, "its step to be there")  # type: ignore[misc]
    for job in (ends, again):
        subject.apply(signal(run_of(job, told(subject, job))))
    subject.cancel(cancelled)
    for job in jobs:
        until(subject, job, "COMPLETING")

    for job in (ends, cancelled):
        subject.scontrol_requeue(job, "Incomplete")
    subject.scontrol_requeue(again)

    seen = subject.observe()
    assert [state_of(seen, job) for job in (ends, cancelled)] == ["COMPLETING"] * 2, "too late"
    seen = subject.until(lambda s: state_of(s, again) == "RUNNING", "the third to run again")
    assert [state_of(seen, job) for job in jobs] == ["COMPLETED", "FAILED", "RUNNING"]
    assert [told(subject, job)["restarts"] for job in jobs] == [0, 0, 1]


def pending_job_grows_and_goes_back(subject: Subject) -> None:
    """By the node, with a type, CPUs for a task, or none; requeued, it takes its old size again."""
    for asked in (("--gpus-per-node=1",), ("--gres=gpu:a100:1",), ("--gpus-per-node=1", "-c1")):
        runs = fill(subject)
        job = subject.submit(*asked, CLAIM)
        subject.apply(size(job, "2x2", cpus=2))
        is_now = told(subject, job)
        assert (is_now["state"], is_now["n_nodes"], is_now["gpus"]) == ("PENDING", 2, 4), is_now
        assert is_now["cpus"] == 4, is_now
        subject.apply(size(job, "2x2", cpus=1))
        assert told(subject, job)["cpus"] == 2, "what it asks of a node is asked again"
        subject.cancel(runs)

        grown = until(subject, job, "RUNNING")

        assert grown["split"] == {"n1": 2, "n2": 2}, grown
        subject.apply(requeue(run_of(job, grown)))
        until(subject, job, "PENDING")
        subject.apply(size(job, "1x1", cpus=1))
        small = until(subject, job, "RUNNING")
        assert (small["n_nodes"], list(small["split"].values())) == (1, [1]), small
        subject.cancel(job)


def size_of_a_running_job_stays(subject: Subject) -> None:
    """It is not pending: nothing is done to it, and nothing is refused."""
    job = subject.submit("--gpus-per-node=1")
    before = until(subject, job, "RUNNING")
    subject.apply(size(job, "1x2"))
    assert told(subject, job) == before


def too_large_a_size_waits_until_it_is_taken_back(subject: Subject) -> None:
    """More GPUs than a node has, more nodes than there are: nobody refuses, and it never starts."""
    for too_large, held in (("1x5", "UNAVAILABLE"), ("3x1", "LIMIT")):
        job = subject.submit("--gpus-per-node=1", "-b", "now+1hour")
        subject.apply(size(job, too_large))
        subject.apply(clear(job, lift=True))
        subject.until(
            lambda s, job=job, held=held: (  # type: ignore[misc]
                described(s, s.jobs.row_of()[job])["held"] == held
            ),
            f"{too_large} to be {held}",
        )
        subject.apply(size(job, "1x1"))
        assert until(subject, job, "RUNNING")["gpus"] == 1


def size_of_gpus_that_were_not_asked_by_the_node_is_refused(subject: Subject) -> None:
    """And the job stays as it was, and starts so."""
    runs = fill(subject)
    jobs = [subject.submit(*options) for options in (("--gpus=1",), ("-n1", "--gpus-per-task=1"))]
    for job in jobs:
        refused(subject, size(job, "1x2"))
    subject.cancel(runs)
    assert [until(subject, job, "RUNNING")["gpus"] for job in jobs] == [1] * len(jobs)


ACTIONS: Final[dict[str, Callable[[Subject], None]]] = {
    check.__name__: check
    for check in (
        site_factor_moves_the_priority,
        greater_site_factor_starts_first,
        site_factor_outlives_a_requeue,
        site_factor_of_no_job_is_refused,
        reservation_keeps_its_nodes_for_the_attached,
        attached_job_starts_in_the_reservation,
        reserving_again_changes_nothing,
        attaching_and_detaching,
        unsealing,
        signalled_job_does_as_it_says,
        signal_to_another_run_is_refused,
        requeued_job_waits_and_runs_again,
        requeue_of_another_run_is_refused,
        steered_job_starts_on_what_is_left,
        cleared_job_starts_anywhere,
        put_off_job_starts_when_it_may,
        owner_keeps_what_it_excludes,
        steer_outlives_a_requeue,
        steer_of_what_does_not_wait_is_nothing,
        cancelled_jobs_have_failed,
        job_that_cannot_meet_its_deadline_ends,
        pending_job_grows_and_goes_back,
        size_of_a_running_job_stays,
        too_large_a_size_waits_until_it_is_taken_back,
    )
}
"""By name; each wants an empty cluster of `contract.subject.SMALL`."""

ON_SLURM: Final = ACTIONS | {
    check.__name__: check
    for check in (
        tasks_of_an_array_with_pending_tasks_are_signalled_once,
        requeue_incomplete_of_a_completing_job_does_nothing,
        size_of_gpus_that_were_not_asked_by_the_node_is_refused,
    )
}
"""Those, and what a cluster in memory has not: arrays, jobs that take long to end, and GPUs that
are asked for otherwise than by the node."""
