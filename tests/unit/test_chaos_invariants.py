"""Each invariant of the fault campaign: it holds for what is sound, and can fail."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.chaos.checker.evidence import (
    deeds_of,
    faults_of,
    labels_in,
    left_of,
    lives_in,
    releases_of,
    runs_of,
    submission_of,
)
from tools.chaos.checker.records import (
    Booked,
    Deed,
    Evidence,
    Fault,
    Left,
    Life,
    Mark,
    Release,
    Run,
    Submission,
    Terms,
)
from tools.chaos.checker.report import Report, judge

T0 = 1_000_000.0
QUANTUM_S = 10.0
USR1 = Terms(signal="USR1", grace_s=8.0)


@dataclass
class Teller:
    """Tells of jobs one after the other, as the three witnesses would."""

    submissions: list[Submission] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    ledger: dict[int, Booked] = field(default_factory=dict)
    job: int = 0
    now_s: float = T0
    gpus: float = 2.0

    def submit(self, kind: str = "job", terms: Terms | None = USR1, **more: object) -> int:
        """A new job of two GPUs."""
        self.job += 1
        self.now_s = T0 + 1000.0 * self.job
        submission = Submission(
            job=self.job, kind=kind, gpus=self.gpus, terms=terms, at_s=self.now_s
        )
        self.submissions.append(replace(submission, **more))  # type: ignore[arg-type]
        return self.job

    def run(
        self,
        for_s: float,
        state: str,
        *says: Mark,
        label: str = "",
        job: int = 0,
        lives_on_s: float = 0.0,
        speaks: bool = True,
    ) -> None:
        """One run and the life in it; *says* has times since its start."""
        start_s, job = self.now_s, job or self.job
        label = label or str(job)
        before = [r for r in self.runs if r.label == label]
        end_s = start_s + for_s
        self.runs.append(
            Run(
                label=label,
                job=job,
                submit_s=start_s - 7 if before else start_s,
                start_s=start_s,
                end_s=end_s,
                state=state,
                elapsed_s=for_s,
                gpus=self.gpus,
                nodes=("n1",),
            )
        )
        if speaks:
            said = sorted((replace(m, at_s=start_s + m.at_s) for m in says), key=lambda m: m.at_s)
            last_s = max(said[-1].at_s if said else 0.0, end_s - 0.5 + lives_on_s)
            ended = bool(said) and said[-1].event == "end"
            marks = (
                Mark("begin", start_s + 0.3),
                *said,
                *(() if ended else (Mark("tick", last_s),)),
            )
            life = Life(label=label, restart=len(before), node="n1", pid=9, marks=marks)
            self.lives.append(life)
        had = self.ledger.get(job, Booked(0.0)).attained_gpu_s
        self.ledger[job] = Booked(had + self.gpus * for_s)
        self.now_s = end_s + 7

    def evidence(self) -> Evidence:
        """All of it."""
        return Evidence(
            submissions=tuple(self.submissions),
            runs=tuple(self.runs),
            lives=tuple(self.lives),
            deeds=tuple(self.deeds),
            faults=tuple(self.faults),
            left=tuple(self.left),
            releases=tuple(self.releases),
            ledger=self.ledger,
            handovers=1,
            min_quantum_s=QUANTUM_S,
            at_s=T0 + 1e6,
        )


def sig(at_s: float, name: str = "USR1") -> Mark:
    return Mark("signal", at_s, signal=name)


def end(at_s: float, status: int = 0) -> Mark:
    return Mark("end", at_s, status=status)


def done(t: Teller, for_s: float = 20.0, **more: object) -> None:
    """A run that comes to its end."""
    t.run(for_s, "COMPLETED", end(for_s + 0.2), **more)  # type: ignore[arg-type]


# Sound stories, each of one submission.


Story = Callable[[Teller], None]


def story(name: str, *runs: tuple[Any, ...], ends: bool = True, **submission: Any) -> Story:  # noqa: ANN401
    """A submission, its runs, and then one that comes to its end."""

    def tell(t: Teller) -> None:
        t.submit(**submission)
        for run in runs:
            t.run(*run)
        if ends:
            done(t)

    tell.__name__ = name
    return tell


ON_TERM = Terms(signal="TERM", grace_s=8.0)
BY_JOB = Terms(signal="USR1", grace_s=8.0, by="job")
PUT_BACK = (25, "REQUEUED", sig(15))
completes = story("completes")
fails = story("fails", (12, "FAILED", end(12, 3)), ends=False, expects="failed")
preempted = story("preempted", PUT_BACK)
preempted_twice = story("preempted_twice", PUT_BACK, PUT_BACK)
acknowledged = story("acknowledged", (14, "REQUEUED", sig(12), Mark("ack", 12.5)))
# Under dlrun: the program ends, what is around it waits to be put back.
ended_and_waited = story("ended_and_waited", (14, "REQUEUED", sig(12), end(12.7, 75)))
told_by_term = story(
    "told_by_term", (25, "REQUEUED", sig(15, "TERM"), sig(25.1, "TERM")), terms=ON_TERM
)
finishes_in_grace = story("finishes_in_grace", (17, "COMPLETED", sig(15), end(17.1)), ends=False)
fails_in_grace = story(
    "fails_in_grace", (17, "FAILED", sig(15), end(17.1, 9)), ends=False, expects="any"
)
# Slurm was told to requeue it before it could know that the program had ended.
ends_as_it_is_put_back = story("ends_as_it_is_put_back", (25, "REQUEUED", sig(15), end(25.4)))
put_back_by_itself = story(
    "put_back_by_itself",
    (13, "REQUEUED", sig(11), Mark("requeues_itself", 12.8)),
    kind="self",
    terms=BY_JOB,
)


def a_record_is_lost(t: Teller) -> None:
    """The record went with a slurmctld that was killed: slurmdbd never had it."""
    t.submit()
    t.run(25, "REQUEUED", sig(15))
    done(t)
    del t.runs[-2]


def a_lower_bound(t: Teller) -> None:
    """A run came and went while no daemon looked, and the ledger says so."""
    preempted(t)
    t.ledger[t.job] = Booked(t.ledger[t.job].attained_gpu_s / 2, incomplete=True)


def deaf(t: Teller) -> None:
    """It works on through the signal and through SIGTERM, until it is killed."""
    t.submit()
    t.run(25, "REQUEUED", sig(15), sig(25.2, "TERM"), lives_on_s=5.0)
    done(t)
    # Its GPUs are given back when it is dead, and the ledger counts up to there.
    t.runs[-1] = replace(t.runs[-1], submit_s=t.runs[-2].end_s + 5)
    t.ledger[t.job] = Booked(t.ledger[t.job].attained_gpu_s + 5 * t.gpus)


def put_back_by_user(t: Teller) -> None:
    t.submit()
    t.run(5, "REQUEUED", sig(5.1, "TERM"), end(5.2, 143))
    t.deeds.append(Deed("user_requeue", str(t.job), t.now_s - 6))
    done(t)


def unwilling_put_back_by_user(t: Teller) -> None:
    t.submit(terms=None)
    t.run(5, "REQUEUED")
    t.deeds.append(Deed("user_requeue", str(t.job), t.now_s - 6))
    done(t)


def completed_put_back_by_user(t: Teller) -> None:
    """Slurm's record of the first run is overwritten: it ends when the user did it."""
    t.submit()
    t.run(40, "REQUEUED", end(20))
    t.deeds.append(Deed("user_requeue", str(t.job), t.now_s - 6.5))
    done(t)
    had = t.ledger[t.job].attained_gpu_s
    t.ledger[t.job] = Booked(had - 20 * t.gpus)


def cancelled_while_waiting(t: Teller) -> None:
    job = t.submit(expects="cancelled")
    at_s = t.now_s
    t.runs.append(
        Run(label=str(job), job=job, submit_s=at_s, start_s=0, end_s=at_s + 5, state="CANCELLED")
    )
    t.deeds.append(Deed("cancel", str(job), at_s + 5))


def cancelled_in_grace(t: Teller) -> None:
    t.submit(expects="any")
    t.run(18, "CANCELLED", sig(15), sig(18.2, "TERM"), end(18.2, 143))
    t.deeds.append(Deed("cancel", str(t.job), t.now_s - 7))


def suspended(t: Teller) -> None:
    t.submit()
    done(t, 40)
    t.runs[-1] = replace(t.runs[-1], elapsed_s=30.0)
    t.ledger[t.job] = Booked(60.0)


def array(t: Teller) -> None:
    """One task is preempted, one is cancelled while all of the waiting ones are one record."""
    job = t.submit(terms=None, tasks=(0, 1, 2), expects="any")
    for task in (0, 1):
        done(t, label=f"{job}_{task}", job=500 + 10 * job + task)
    t.runs.append(
        Run(
            label=f"{job}_2",
            job=job,
            submit_s=t.now_s,
            start_s=0,
            end_s=t.now_s + 3,
            state="CANCELLED",
        )
    )
    t.deeds.append(Deed("cancel", f"{job}_2", t.now_s + 3))


def het(t: Teller) -> None:
    job = t.submit(terms=None, requeueable=False)
    t.submissions[-1] = replace(t.submissions[-1], het=(job, job + 1))
    start_s = t.now_s
    done(t, label=f"{job}+0", job=job)
    t.now_s = start_s
    t.run(20, "COMPLETED", label=f"{job}+1", job=job + 1, speaks=False)
    t.job += 1


def node_lost(t: Teller) -> None:
    """Slurm takes the node for dead and starts the job elsewhere; what was there goes on."""
    t.submit()
    start_s = t.now_s
    t.faults.append(Fault("node_loss", start_s + 4, start_s + 6, frozenset({"n1"})))
    t.run(5, "NODE_FAIL", lives_on_s=20.0)
    done(t)


def half_of_a_het_job_lost(t: Teller) -> None:
    """The node of one component breaks, and Slurm ends the other one with it."""
    job = t.submit(terms=None, requeueable=False)
    t.submissions[-1] = replace(t.submissions[-1], het=(job, job + 1))
    start_s = t.now_s
    t.faults.append(Fault("slurmd_kill", start_s + 4, start_s + 6, frozenset({"n1"})))
    t.run(5, "NODE_FAIL", label=f"{job}+0", job=job)
    t.now_s = start_s
    t.run(5, "NODE_FAIL", label=f"{job}+1", job=job + 1, speaks=False)
    t.runs[-1] = replace(t.runs[-1], nodes=("n2",))
    t.job += 1


def no_requeue_node_lost(t: Teller) -> None:
    t.submit(requeueable=False)
    t.faults.append(Fault("slurmd_kill", t.now_s + 4, t.now_s + 6))
    t.run(5, "NODE_FAIL")


def signal_not_delivered(t: Teller) -> None:
    """The slurmd that was to deliver it was dead."""
    t.submit()
    t.faults.append(Fault("slurmd_kill", t.now_s + 14, t.now_s + 20, frozenset({"n1"})))
    t.run(25, "REQUEUED")
    done(t)


def ended_untold(t: Teller) -> None:
    """It completed while slurmctld was away, which then forgot it and ran it again."""
    t.submit()
    t.faults.append(Fault("slurmctld_kill", t.now_s + 15, t.now_s + 20))
    t.run(30, "REQUEUED", end(16))
    done(t)


def forgotten(t: Teller) -> None:
    """A slurmctld that was killed had forgotten that it started the job, and did once more."""
    t.submit()
    t.faults.append(Fault("slurmctld_kill", t.now_s + 3, t.now_s + 5))
    done(t, 30)
    life = t.lives.pop()
    before = (life.marks[0], Mark("tick", life.first_s + 15))
    after = (Mark("begin", life.first_s + 6), *life.marks[1:])
    t.lives += [replace(life, pid=8, marks=before), replace(life, marks=after)]


def elastic(t: Teller) -> None:
    """It gives half of its GPUs back inside its quantum, which protects the least size alone."""
    t.submit(sizes=("1x2", "1x1", "1x4"))
    t.gpus = 4.0
    t.run(14, "REQUEUED", sig(3))
    t.gpus = 2.0
    done(t)
    for n, size in ((-2, "1x4"), (-1, "1x2")):
        begin, *rest = t.lives[n].marks
        t.lives[n] = replace(t.lives[n], marks=(replace(begin, size=size), *rest))
    t.releases.append(Release(t.now_s - 30, {str(t.job): "1x2", "77": "1x9"}))


def size_known_to_the_job_alone(t: Teller) -> None:
    """A slurmctld that came back recorded a run without its GPUs."""
    elastic(t)
    t.runs[-2] = replace(t.runs[-2], gpus=0.0)


def size_known_to_nobody(t: Teller) -> None:
    """Neither did its node tell the program: it may have run in any of its sizes."""
    size_known_to_the_job_alone(t)
    t.lives[-2] = replace(
        t.lives[-2], marks=(replace(t.lives[-2].marks[0], size=""), *t.lives[-2].marks[1:])
    )


STORIES: Sequence[Story] = (
    size_known_to_nobody,
    elastic,
    size_known_to_the_job_alone,
    a_record_is_lost,
    a_lower_bound,
    half_of_a_het_job_lost,
    completes,
    fails,
    preempted,
    preempted_twice,
    acknowledged,
    ended_and_waited,
    deaf,
    told_by_term,
    finishes_in_grace,
    fails_in_grace,
    ends_as_it_is_put_back,
    put_back_by_user,
    unwilling_put_back_by_user,
    completed_put_back_by_user,
    put_back_by_itself,
    cancelled_while_waiting,
    cancelled_in_grace,
    suspended,
    array,
    het,
    node_lost,
    no_requeue_node_lost,
    signal_not_delivered,
    ended_untold,
    forgotten,
)


def told(*stories: Story) -> Evidence:
    teller = Teller()
    for story in stories:
        story(teller)
    return teller.evidence()


def verdict(report: Report) -> str:
    return "\n".join(report.lines())


@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
def test_a_sound_story_passes(story: Story) -> None:
    """What happens by right, under faults too, breaks nothing."""
    report = judge(told(preempted, story))

    assert report.ok, verdict(report)


# What must be caught: a sound story, and what is changed in it.

Twist = Callable[[Evidence], Evidence]


def last_run(evidence: Evidence, **changes: object) -> Evidence:
    *runs, last = evidence.runs
    return replace(evidence, runs=(*runs, replace(last, **changes)))  # type: ignore[arg-type]


def first_run(evidence: Evidence, **changes: object) -> Evidence:
    first, *runs = evidence.runs
    return replace(evidence, runs=(replace(first, **changes), *runs))  # type: ignore[arg-type]


def marks(evidence: Evidence, change: Callable[[Mark], Mark | None]) -> Evidence:
    """Every mark of every life changed, or left out."""
    lives = []
    for life in evidence.lives:
        kept = tuple(m for mark in life.marks if (m := change(mark)) is not None)
        lives.append(replace(life, marks=tuple(sorted(kept, key=lambda m: m.at_s))))
    return replace(evidence, lives=tuple(lives))


def without(event: str) -> Twist:
    return lambda e: marks(e, lambda m: None if m.event == event else m)


def moved(event: str, by_s: float) -> Twist:
    return lambda e: marks(e, lambda m: replace(m, at_s=m.at_s + by_s) if m.event == event else m)


def terms(**changes: object) -> Twist:
    def twist(e: Evidence) -> Evidence:
        return replace(e, submissions=tuple(replace(s, **changes) for s in e.submissions))  # type: ignore[arg-type]

    return twist


def no_records(e: Evidence) -> Evidence:
    return replace(e, runs=(), lives=())


def never_put_back(e: Evidence) -> Evidence:
    return replace(e, runs=e.runs[:1], lives=e.lives[:1], ledger={1: Booked(50.0)})


def still(state: str, *, held: bool) -> Twist:
    def twist(e: Evidence) -> Evidence:
        left = Left(
            label="1", job=1, state=state, reason="JobHeldUser" if held else "Priority", held=held
        )
        return replace(e, left=(left,))

    return twist


def second_life(restart: int, at_s: float) -> Twist:
    """One more process of the job, at once with the first."""

    def twist(e: Evidence) -> Evidence:
        life = e.lives[0]
        other = Mark("begin", life.first_s + at_s)
        return replace(e, lives=(*e.lives, replace(life, restart=restart, pid=77, marks=(other,))))

    return twist


def again_after_the_end(e: Evidence) -> Evidence:
    """The record is overwritten by the requeue, and the job runs once more."""
    run, life = e.runs[0], e.lives[0]
    e = first_run(e, state="REQUEUED", end_s=run.end_s + 5, elapsed_s=run.elapsed_s + 5)
    at_s = run.end_s + 12
    more = replace(run, submit_s=run.end_s + 5, start_s=at_s, end_s=at_s + 20)
    begun = (Mark("begin", at_s + 0.2), Mark("end", at_s + 20.2, status=0))
    again = replace(life, restart=1, marks=begun)
    booked = {1: Booked(2 * (run.elapsed_s + 20))}
    return replace(e, runs=(e.runs[0], more), lives=(life, again), ledger=booked)


def record_after_completed(e: Evidence) -> Evidence:
    """The same, with the first record as it was."""
    run, twice = e.runs[0], again_after_the_end(e)
    more = replace(twice.runs[1], submit_s=run.end_s + 3)
    return replace(twice, runs=(run, more), lives=twice.lives[1:])


def put_back_after_the_end(e: Evidence) -> Evidence:
    """Only the record tells: it was requeued, and cancelled before it ran again."""
    run = e.runs[0]
    e = first_run(e, state="REQUEUED", end_s=run.end_s + 4, elapsed_s=run.elapsed_s + 4)
    gone = replace(
        run, submit_s=run.end_s + 4, start_s=0.0, end_s=run.end_s + 6, state="CANCELLED", gpus=0.0
    )
    deed = Deed("cancel", "1", run.end_s + 6)
    return replace(e, runs=(*e.runs, gone), deeds=(deed,))


def booked(gpu_s: Callable[[float], float], *, bound: bool = False) -> Twist:
    """Other service in the ledger; *bound*: called a lower bound."""

    def twist(e: Evidence) -> Evidence:
        had = {j: gpu_s(b.attained_gpu_s) for j, b in (e.ledger or {}).items()}
        return replace(e, ledger={j: Booked(s, incomplete=bound) for j, s in had.items()})

    return twist


def untimely(e: Evidence) -> Evidence:
    """Put back without a word three seconds after it began."""
    e = without("signal")(e)
    run = e.runs[0]
    e = first_run(e, end_s=run.start_s + 3, elapsed_s=3.0)
    kept = tuple(m for m in e.lives[0].marks if m.at_s < run.start_s + 3)
    lives = (replace(e.lives[0], marks=kept), *e.lives[1:])
    return replace(e, lives=lives, ledger={1: Booked(2 * 23.0)})


def to_another(e: Evidence) -> Evidence:
    """What its user did was done to another job."""
    return replace(e, deeds=tuple(replace(d, job="999") for d in e.deeds))


def no_fault(e: Evidence) -> Evidence:
    return replace(e, faults=())


def fault_elsewhere(e: Evidence) -> Evidence:
    return replace(e, faults=tuple(replace(f, nodes=frozenset({"n2"})) for f in e.faults))


def saw(size: str) -> Twist:
    return lambda e: marks(e, lambda m: replace(m, size=size) if m.event == "begin" else m)


def released(size: str, error: str = "") -> Twist:
    def twist(e: Evidence) -> Evidence:
        return replace(e, releases=(Release(e.runs[-1].end_s, {"1": size}, error),))

    return twist


CAUGHT: Sequence[tuple[str, Story, Twist, set[str]]] = (
    ("no record at all", completes, no_records, {"lost"}),
    ("never put back", preempted, never_put_back, {"lost"}),
    (
        "never put back, however it should end",
        preempted,
        lambda e: terms(expects="any")(never_put_back(e)),
        {"lost"},
    ),
    ("waits for ever", completes, still("PENDING", held=False), {"lost"}),
    ("still runs", completes, still("RUNNING", held=False), {"lost"}),
    ("unknown end", completes, lambda e: last_run(e, state="RUNNING", end_s=0.0), {"lost"}),
    ("cancelled by nobody", cancelled_in_grace, to_another, {"lost"}),
    ("killed", completes, lambda e: last_run(e, state="FAILED"), {"lost"}),
    ("timed out", completes, lambda e: last_run(e, state="TIMEOUT"), {"lost"}),
    ("node failed by no fault", completes, lambda e: last_run(e, state="NODE_FAIL"), {"lost"}),
    ("ended early", completes, without("end"), {"lost"}),
    ("wrong end", fails, lambda e: last_run(e, state="COMPLETED"), {"lost"}),
    ("two lives", completes, second_life(1, 5.0), {"twice"}),
    ("started twice by no slurmctld", forgotten, no_fault, {"twice"}),
    ("two lives of one run", completes, second_life(0, 5.0), {"twice"}),
    (
        "records overlap",
        preempted_twice,
        lambda e: replace(
            e, runs=(e.runs[0], replace(e.runs[1], start_s=e.runs[0].end_s - 2), e.runs[2])
        ),
        {"twice"},
    ),
    ("node lost by no fault", node_lost, no_fault, {"twice", "signal", "quantum"}),
    ("another node was lost", node_lost, fault_elsewhere, {"twice", "signal", "quantum"}),
    ("runs again", completes, again_after_the_end, {"completed"}),
    ("a record follows", completes, record_after_completed, {"completed"}),
    ("put back only", completes, put_back_after_the_end, {"completed"}),
    ("not by its user", completed_put_back_by_user, to_another, {"completed"}),
    ("no signal", preempted, without("signal"), {"signal"}),
    ("another signal", preempted, terms(terms=Terms(signal="USR2", grace_s=8.0)), {"signal"}),
    ("no contract", preempted, terms(terms=None), {"signal"}),
    ("no requeue", preempted, terms(requeueable=False), {"signal"}),
    ("told without contract", finishes_in_grace, terms(terms=None), {"signal"}),
    ("user was elsewhere", put_back_by_user, to_another, {"signal", "quantum"}),
    ("user had nothing to do with it", unwilling_put_back_by_user, to_another, {"signal"}),
    (
        "only what ends it",
        told_by_term,
        lambda e: marks(e, lambda m: None if m.event == "signal" and m.at_s % 1 < 0.05 else m),
        {"signal"},
    ),
    ("untold and untimely", preempted, untimely, {"signal", "quantum"}),
    ("no slurmd was dead", signal_not_delivered, no_fault, {"signal"}),
    ("told at once", preempted, moved("signal", -12.0), {"quantum"}),
    ("told at once, finished", finishes_in_grace, moved("signal", -7.0), {"quantum"}),
    ("no patience", preempted, moved("signal", 8.0), {"grace"}),
    ("acknowledged nothing", acknowledged, without("ack"), {"grace"}),
    (
        "answered to its end alone",
        ended_and_waited,
        lambda e: marks(
            e,
            lambda m: (
                replace(m, at_s=m.at_s + 1.7)
                if m.status == 75
                else Mark("signal", m.at_s + 13.8, signal="TERM")
                if m.event == "begin" and m.at_s < e.runs[0].end_s
                else m
            ),
        ),
        {"grace"},
    ),
    ("held", completes, still("PENDING", held=True), {"held"}),
    ("half of it", completes, booked(lambda s: s / 2), {"service"}),
    ("too much", preempted, booked(lambda s: s * 1.2), {"service"}),
    ("a lost record counted twice", a_record_is_lost, booked(lambda s: s * 1.5), {"service"}),
    ("a lost record not counted", a_record_is_lost, booked(lambda s: s * 0.4), {"service"}),
    (
        "more than it was, called less",
        a_lower_bound,
        booked(lambda s: s * 4, bound=True),
        {"service"},
    ),
    ("nothing", preempted_twice, booked(lambda s: s * 0), {"service"}),
    ("more than its last breath", deaf, booked(lambda s: s + 2 * 12.0), {"service"}),
    ("a size not named", elastic, terms(sizes=("1x2", "1x1")), {"sizes"}),
    ("the job saw another size", completes, saw("2x2"), {"sizes"}),
    ("not the size asked for", elastic, released("1x4"), {"sizes"}),
    ("release-all failed", elastic, released("1x2", "no answer"), {"sizes"}),
    ("inside the quantum of its least size", elastic, terms(sizes=("1x4",)), {"sizes", "quantum"}),
    ("more than any size", size_known_to_nobody, booked(lambda s: 2 * s), {"service"}),
    ("booked by the GPUs asked for", elastic, booked(lambda _: 2 * 34.0), {"service"}),
    (
        "a reservation stands",
        completes,
        lambda e: replace(e, reservations={"slurm_dl_1": e.at_s + 60}),
        {"reservations"},
    ),
)


@pytest.mark.parametrize(
    ("story", "twist", "names"), [c[1:] for c in CAUGHT], ids=[c[0] for c in CAUGHT]
)
def test_what_is_wrong_is_caught_and_named(story: Story, twist: Twist, names: set[str]) -> None:
    """Each invariant fails for what breaks it, and the others do not."""
    sound = told(story)
    assert not judge(sound).violated

    report = judge(twist(sound))

    assert report.violated == names, verdict(report)
    assert not report.ok
    assert all(violation.what and violation.by for violation in report.violations)


@settings(deadline=None)
@given(
    stories=st.lists(st.sampled_from(STORIES), max_size=6),
    wrong=st.sampled_from(CAUGHT),
    at=st.integers(0, 6),
)
def test_one_wrong_among_many_sound_ones(
    stories: list[Story],
    wrong: tuple[str, Story, Twist, set[str]],
    at: int,
) -> None:
    """Any mixture of sound stories passes; one wrong one is caught for what is wrong with it."""
    _, story, twist, names = wrong
    sound = told(*stories)
    assert not judge(sound).violated

    # The wrong one has numbers and times of its own; it is told between the others.
    one = _far_from(twist(told(story)))
    told_between = ("submissions", "runs", "lives")
    added = ("deeds", "faults", "left", "releases")
    parts = {name: (getattr(sound, name), getattr(one, name)) for name in told_between + added}
    mixed = replace(
        sound,
        **{name: a[:at] + b + a[at:] for name, (a, b) in parts.items() if name in told_between},
        **{name: a + b for name, (a, b) in parts.items() if name in added},
        reservations=one.reservations,
        ledger={**(sound.ledger or {}), **(one.ledger or {})},
    )
    report = judge(mixed)

    assert report.violated == names, verdict(report)


MOVED = {"at_s", "submit_s", "start_s", "begin_s", "end_s"}


def _far_from(told: Any) -> Any:  # noqa: ANN401 - evidence, or a part of it
    """The same story, 100,000 s before and of job 901 instead of 1."""
    changes: dict[str, Any] = {}
    for name, value in ((f.name, getattr(told, f.name)) for f in dataclasses.fields(told)):
        if name in {"job", "label"}:
            changes[name] = type(value)(f"90{value}")
        elif name in MOVED and value:
            changes[name] = value - 100_000.0
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            changes[name] = tuple(map(_far_from, value))
        elif name in {"sizes", "ledger"} and isinstance(value, dict):
            changes[name] = {type(job)(f"90{job}"): of for job, of in value.items()}
    return replace(told, **changes)


def test_an_invariant_that_looked_at_nothing_fails() -> None:
    """A campaign in which nobody was told to go proves nothing of quanta."""
    report = judge(told(completes))

    assert not report.violated
    assert not report.ok
    assert "none preempted inside its quantum: NOTHING TO LOOK AT" in verdict(report)


def test_the_report_counts_and_is_json() -> None:
    """Faults, deeds, jobs and runs by kind; every violation is told."""
    report = judge(without("signal")(told(preempted, node_lost, put_back_by_user)))
    plain = json.loads(json.dumps(report.as_json()))

    assert plain["faults"] == {"node_loss": 1}
    assert plain["deeds"] == {"user_requeue": 1}
    assert plain["jobs"] == {"job": 3}
    assert plain["runs"] == {"REQUEUED": 2, "NODE_FAIL": 1, "COMPLETED": 3}
    (wrong,) = plain["invariants"]["signal"]["violations"]
    assert wrong["job"] == "1"
    assert "    1 at 14:03:45: REQUEUED without USR1 [sacct, the job's output]" in report.lines()


# What is read of each witness.


def _record(line: str) -> tuple[Run, ...]:
    return tuple(runs_of(line.split("|")))


def test_a_record_of_sacct() -> None:
    """As 22.05.8 writes them; a job that was cancelled while it waited never started."""
    (run,) = runs_of(
        [
            *("5_3", "7", "100", "101", "109", "CANCELLED by 0", "8", "cpu=1,gres/gpu=2,node=2"),
            "n[1-2]",
        ]
    )
    assert (run.label, run.job, run.state, run.gpus) == ("5_3", 7, "CANCELLED", 2)
    assert (run.start_s, run.end_s, run.elapsed_s, run.nodes) == (101, 109, 8, ("n1", "n2"))

    never = [*_record("5_[1-2,4]|5|100|109|109|CANCELLED by 0|0||None assigned")]
    assert [(r.label, r.start_s) for r in never] == [("5_1", 0), ("5_2", 0), ("5_4", 0)]

    # The last task keeps the record of all, if slurmdbd was away when it started.
    last = "5_[0-4]|5|100|None|109|COMPLETED|0|gres/gpu=2|None assigned"
    assert [r.label for r in runs_of(last.split("|"), {"5_0", "5_1", "5_2", "5_3", "5_[0-4]"})] == [
        "5_4"
    ]

    (open_run,) = _record("7|7|100|101|Unknown|RUNNING|8|gres/gpu=1|n3")
    assert not open_run.is_over
    with pytest.raises(ValueError, match="unpack"):
        [*runs_of(["7", "7"])]


def test_labels_of_records_that_stand_for_many() -> None:
    assert labels_in("6_[1-3]") == ["6_1", "6_2", "6_3"]
    assert labels_in("6_2") == ["6_2"]
    assert labels_in("6+1") == ["6+1"]


@pytest.mark.parametrize(
    ("state", "priority", "reason", "held"),
    [
        ("PENDING", 0, "JobHeldUser", True),
        ("PENDING", 0, "JobHeldAdmin", True),
        ("PENDING", 0, "job requeued in held state", True),
        ("PENDING", 0, "launch failed requeued held", True),
        ("PENDING", 0, "BadConstraints", True),
        ("PENDING", 0, "Dependency", False),
        ("PENDING", 0, "BeginTime", False),
        ("PENDING", 7, "Resources", False),
        ("RUNNING", 0, "None", False),
    ],
)
def test_who_is_held(state: str, priority: int, reason: str, held: bool) -> None:  # noqa: FBT001
    (left,) = left_of("3", 3, state, priority, reason)
    assert left.held is held


def test_what_the_campaign_wrote(tmp_path: Path) -> None:
    """Submissions, deeds, faults by their begin and end, and the jobs' lives by process."""
    contract = {"signal": "USR1", "target": "batch", "grace_s": 9, "by": "job"}
    line = {"job": 8, "tasks": None, "het": [8, 9], "kind": "het", "gpus": 1, "contract": contract}
    submission = submission_of({**line, "requeueable": False, "expects": "any", "t": 3})
    assert submission.labels == ("8+0", "8+1")
    assert submission.terms == Terms(signal="USR1", grace_s=9.0, by="job")

    on_n2 = {"node": "n2"}
    events = [
        {"t": 1, "event": "fault", "fault": "node_loss", "phase": "begin", "detail": on_n2},
        {"t": 2, "event": "cancel", "job": 8},
        {"t": 5, "event": "fault", "fault": "node_loss", "phase": "end", "detail": on_n2},
        {"t": 6, "event": "fault", "fault": "takeover", "phase": "begin", "detail": {}},
        {"t": 7, "event": "fault", "fault": "takeover", "phase": "end", "detail": {"x": 1}},
        {"t": 9, "event": "fault", "fault": "schedd_kill", "phase": "begin", "detail": None},
    ]
    released = {"sizes": {"8": "1x2"}, "error": "no"}
    end = {"t": 9, "event": "fault", "fault": "release_all", "phase": "end", "detail": released}
    assert [*releases_of([*events, end])] == [Release(9.0, {"8": "1x2"}, "no")]
    assert [*deeds_of(events)] == [Deed("cancel", "8", 2.0)]
    assert [*faults_of(events)] == [
        Fault("node_loss", 1, 5, frozenset({"n2"})),
        Fault("takeover", 6, 7),
        Fault("schedd_kill", 9, 9),
    ]

    said = [
        {"event": e, "t": t, "job": 8, "run": run, "node": "n1", "pid": pid, **more}
        for e, t, run, pid, more in [
            ("begin", 1.0, 0, 7, {}),
            ("tick", 1.5, 0, 7, {}),
            ("tick", 2.0, 0, 7, {}),
            ("tick", 2.5, 0, 7, {}),
            ("signal", 2.7, 0, 7, {"signal": "USR1"}),
            ("begin", 9.0, 1, 8, {}),
            ("end", 9.9, 1, 8, {"status": 0}),
        ]
    ]
    said[5]["size"] = "1x2"
    text = "".join(json.dumps(one) + "\n" for one in said) + '{"half": '
    (tmp_path / "8.jsonl").write_text(text, encoding="utf-8")
    lives, bad = lives_in(tmp_path, [submission])
    assert bad == 1
    assert [(x.label, x.restart, x.first_s, x.last_s) for x in lives] == [
        ("8+0", 0, 1.0, 2.7),
        ("8+0", 1, 9.0, 9.9),
    ]
    assert [x.size for x in lives] == ["", "1x2"]
    assert [m.event for m in lives[0].marks] == ["begin", "tick", "signal"]
