"""Promises on a real Slurm: kept through preemption, dead nodes and daemons, or refused."""

from __future__ import annotations

import getpass
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeSandbox
from schedd import Schedd, schedd_in

from slurm_dl.model.promise import Promise, totals_in
from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.sandbox.spec import PartitionSpec

pytestmark = [pytest.mark.slurm, pytest.mark.sixth]

LIMIT_S = 60
LEAD_S = 20
"""So the window of a job with this time limit begins 80 s before its deadline."""

LAST = "--signal=USR1@10"
"""The usual one would come as a job with this time limit starts."""

SHARES = {"share": 1, "account_share": 1, "lead_s": LEAD_S}


def configure(place: Schedd, others: str, **sections: dict[str, Any]) -> None:
    """Promise over the policy *others*."""
    edf = {"order": "edf", "parameters": {"others": others}}
    shares = {"deadlines": SHARES, "ranking": {"overdue_share": 0}}
    place.configure(**{"policy": edf, **shares, **sections})


def answer(place: Schedd, job: str) -> Promise:
    """The verdict on the deadline of *job*."""
    place.until("an answer", lambda: job in place.promises())
    return place.promises()[job]


def asks(place: Schedd, gpus: int, ahead_s: float, *options: str, minutes: int = 1) -> str:
    """A job that nobody may preempt, which runs for two thirds of its time limit; its id."""
    limits = ["--by", f"+{ahead_s:.0f}", f"--time={minutes}", "--no-preempt", LAST, *options]
    return place.submit(gpus, "sleep", str(40 * minutes), options=limits)


def holds(place: Schedd, gpus: int, minutes: int = 10) -> str:
    """A job without a deadline that nobody may preempt, once it runs; its id."""
    job = place.submit(gpus, "sleep", "900", options=[f"--time={minutes}", "--no-preempt"])
    place.until_state(job, "RUNNING")
    return job


def epoch_s(place: Schedd, job: str, field: str) -> float:
    """A time of the job, which scontrol shows as local time."""
    return time.mktime(time.strptime(place.job(job, field)[0], "%Y-%m-%dT%H:%M:%S"))


def fail(place: Schedd, name: str) -> None:
    """A node dies, and Slurm knows it."""
    place.box.kill_daemon(f"slurmd-{name}")
    place.box.run(["scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test"])


def restarts(place: Schedd, *jobs: str) -> int:
    """Number of their requeues together."""
    return sum(int(place.job(job, "Restarts")[0]) for job in jobs)


@pytest.fixture
def place(sandbox: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A place for daemons one after the other; none has begun."""
    with schedd_in(sandbox, short_directory) as daemon:
        yield daemon


@pytest.mark.full("waits for a window and a deadline, two minutes each")
@pytest.mark.parametrize("policy", ["edf", "fifo", "discrete_las", "srsf"])
def test_gpus_are_taken_back_for_a_promise_at_its_window(place: Schedd, policy: str) -> None:
    """Preemptible jobs hold all GPUs, each with less left to do than the job with the deadline."""
    configure(place, "discrete_las")
    if policy != "edf":
        configure(place, "fifo", policy={"order": policy, "parameters": {}})
    place.start()
    toys = [place.toy(2, 5000, options=["--time=4"]) for _ in range(8)]
    for toy in toys:
        place.until_state(toy, "RUNNING")
    due = asks(place, 8, 120)
    submitted_s = epoch_s(place, due, "SubmitTime")
    if policy != "edf":
        place.until("the deadline", lambda: time.time() > submitted_s + 120, 130)
        assert place.state(due) == "PENDING"
        return
    promise = answer(place, due)
    assert promise.says == "yes"
    assert promise.begin_s is not None
    assert promise.begin_s == promise.due_s - LIMIT_S - LEAD_S
    assert place.state(due) == "PENDING"
    place.until_state(due, "RUNNING", within_s=120)
    assert epoch_s(place, due, "StartTime") >= promise.begin_s
    place.until_state(due, "COMPLETED", within_s=LIMIT_S)
    assert epoch_s(place, due, "EndTime") <= promise.due_s
    assert 4 <= restarts(place, *toys) <= 5
    place.until("it to be struck out", lambda: due not in place.promises())


@pytest.mark.full("waits until all have run")
def test_who_runs_under_a_promise_is_not_preempted(place: Schedd) -> None:
    """Four shorter jobs want a node each: three get one from jobs without a promise."""
    configure(place, "srsf")
    place.start()
    due = place.toy(4, 200, options=["--by", "+240", "--time=3"])
    assert answer(place, due).says == "yes"
    place.until_state(due, "RUNNING")
    toys = [place.toy(4, 5000, options=["--time=60"]) for _ in range(3)]
    for toy in toys:
        place.until_state(toy, "RUNNING")
    short = [place.submit(4, "sleep", "50", options=["--time=1", LAST]) for _ in range(4)]
    states = ["PENDING", "RUNNING", "RUNNING", "RUNNING"]
    place.until("three to run", lambda: sorted(map(place.state, short)) == states)
    place.until_state(due, "COMPLETED")
    assert restarts(place, due) == 0
    assert restarts(place, *toys) == 3


def test_a_spent_share_is_told_with_a_date(place: Schedd) -> None:
    """The job runs at once all the same: a node is free."""
    configure(place, "fifo", deadlines={**SHARES, "account_share": 0.25})
    place.start()
    first = asks(place, 4, 300, minutes=3)
    kept = answer(place, first)
    # While it waits the other would be promised its share before it.
    place.until_state(first, "RUNNING")
    spent = asks(place, 4, 200)
    no = answer(place, spent)
    assert (kept.says, no.says) == ("yes", "no")
    assert kept.end_s is not None
    assert no.nearest_s is not None
    assert no.due_s < no.nearest_s <= kept.end_s + LIMIT_S + LEAD_S + 1
    place.until_state(spent, "RUNNING")


def test_no_promise_is_made_on_gpus_that_do_not_come_back(place: Schedd) -> None:
    """The nearest date is told; the no stands when GPUs come free, and the job uses them."""
    configure(place, "fifo")
    place.start()
    blocker = holds(place, 16)
    back_s = epoch_s(place, blocker, "EndTime")
    due = asks(place, 4, 300)
    no = answer(place, due)
    assert no.says == "no"
    assert no.nearest_s == pytest.approx(back_s + LIMIT_S + LEAD_S, abs=3)
    place.box.run(["scancel", blocker])
    place.until_state(due, "RUNNING")
    assert answer(place, due) == no


def test_the_smallest_size_with_a_promise_is_submitted(place: Schedd) -> None:
    """Two GPUs are too slow; once eight are in use for a while, four are, too, and then all are."""
    configure(place, "fifo")
    place.start()
    holds(place, 8)
    due_s = int(time.time()) + 240
    by = time.strftime("--by=%Y-%m-%dT%H:%M:%S", time.localtime(due_s))
    sizes = ["--gpus=2,4,8", "--time=10,2,1", by, "--no-preempt", LAST]

    def asks_for_a_size() -> tuple[str, Promise]:
        done = place.ask("dlsubmit", "--parsable", *sizes, "--", "sleep", "900")
        job = done.stdout.strip()
        return job, answer(place, job)

    for _ in range(2):
        job, promise = asks_for_a_size()
        assert (promise.says, promise.gpus) == ("yes", 4)
        assert place.job(job, "TimeLimit") == ["00:02:00"]
        place.until_state(job, "RUNNING")
    # Its window ends with its deadline until it is seen to run.
    looks = place.cycles() + 2
    place.until("more looks", lambda: place.cycles() >= looks)
    job, promise = asks_for_a_size()
    assert (promise.says, promise.gpus) == ("yes", 8)
    assert place.job(job, "TimeLimit") == ["00:01:00"]
    assert promise.begin_s == due_s - LIMIT_S - LEAD_S
    refused = ["--or-else=cancel", *sizes, "--", "sleep", "900"]
    done = place.ask("dlsubmit", *refused, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    job, promise = asks_for_a_size()
    assert (promise.says, promise.gpus) == ("no", 2)


def test_windows_outlive_the_daemon(place: Schedd) -> None:
    """It is killed at five instants, and each time asked for one more promise."""
    configure(place, "fifo")
    holding = [place.toy(4, 5000, options=["--time=60"]) for _ in range(4)]
    told: dict[str, Promise] = {}
    jobs: list[str] = []
    for wait_s in (0.0, 0.3, 0.7, 1.1, 1.7):
        jobs.append(asks(place, 2, 600 + 10 * len(jobs)))
        place.start()
        time.sleep(wait_s)
        place.kill()
        now = place.promises()
        assert now.keys() <= set(jobs)
        assert {job: now[job] for job in told} == told
        told = now
    place.start()
    looks = place.cycles() + 3
    place.until("more looks", lambda: place.cycles() >= looks)
    last = place.promises()
    assert last.keys() == set(jobs)
    assert {promise.says for promise in last.values()} == {"yes"}
    assert {job: last[job] for job in told} == told
    assert restarts(place, *holding) == 0


def test_nodes_that_are_drained_or_reserved_are_not_promised(place: Schedd) -> None:
    """Windows end before the maintenance; what is too long for that is refused until it is over."""
    # A job that Slurm starts before it is looked at has its run for a window.
    configure(place, "fifo", daemon={"nodes_every_s": 1}, placement={"settle_s": 6})
    place.box.run(["scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=test"])
    starts_s = int(time.time()) + 240
    place.box.run(
        [
            *("scontrol", "create", "reservation", "ReservationName=maintenance", "Users=root"),
            *("Nodes=ALL", "Flags=MAINT,IGNORE_JOBS", "Duration=60"),
            time.strftime("StartTime=%Y-%m-%dT%H:%M:%S", time.localtime(starts_s)),
        ]
    )
    try:
        place.start()
        wide, before, over = (
            asks(place, 16, 7200),
            asks(place, 4, 500),
            asks(place, 4, 600, minutes=6),
        )
        no = answer(place, wide)
        assert (no.says, no.nearest_s) == ("no", None)
        yes = answer(place, before)
        assert (yes.says, yes.end_s) == ("yes", starts_s)
        no = answer(place, over)
        assert no.says == "no"
        assert no.nearest_s == starts_s + 3600 + 6 * LIMIT_S + LEAD_S
    finally:
        place.box.run(["scontrol", "delete", "ReservationName=maintenance"])


@pytest.mark.full("waits for a deadline, two minutes")
def test_a_dead_node_breaks_only_what_has_no_room_without_it(place: Schedd) -> None:
    """One job dies with it; the promise on all nodes holds again when it is back, and is kept."""
    configure(place, "fifo", daemon={"nodes_every_s": 1})
    place.start()
    lost = asks(place, 4, 100, "--no-requeue")
    place.until_state(lost, "RUNNING")
    assert answer(place, lost).says == "yes"
    name = place.job(lost, "NodeList")[0]
    toys = [place.toy(4, 5000, options=["--time=60"]) for _ in range(3)]
    for toy in toys:
        place.until_state(toy, "RUNNING")
    wide, narrow = asks(place, 16, 160), asks(place, 4, 300)
    before = answer(place, narrow)
    assert answer(place, wide).says == "yes"

    fail(place, name)
    place.until("it to be broken", lambda: place.promises()[wide].broken == "node")
    assert place.promises()[narrow] == before
    place.until("the loss to be counted", lambda: totals_in(place.book()).broken == {"node": 1})
    place.box.start_daemon(f"slurmd-{name}")
    place.until("it to hold again", lambda: not place.promises()[wide].broken)
    promise = place.promises()[wide]
    place.until_state(wide, "COMPLETED", within_s=160)
    assert epoch_s(place, wide, "EndTime") <= promise.due_s


Story = dict[str, list[Promise]]


def watch(place: Schedd, told: Story) -> None:
    """Add to *told* what has changed in the promises."""
    for job, promise in place.promises().items():
        if not told.setdefault(job, []) or told[job][-1] != promise:
            told[job].append(promise)


@pytest.mark.full("twenty deadlines, three minutes")
def test_promises_are_kept_or_their_break_is_told(place: Schedd) -> None:
    """Among preemptible jobs the daemon is killed, and a node that keeps promises fails."""
    configure(place, "discrete_las", daemon={"nodes_every_s": 1})
    place.start()
    toys = [place.toy(4, 5000, options=["--time=60"]) for _ in range(6)]
    place.until("full nodes", lambda: [place.state(j) for j in toys].count("RUNNING") == 4)
    begun_s = time.time()
    sizes = [4 if i == 7 else 2 if i % 5 == 2 else 1 for i in range(20)]
    jobs = [asks(place, gpus, 100 + 8 * i) for i, gpus in enumerate(sizes)]
    told: Story = {}
    down: list[str] = []

    def fail_one() -> None:
        running = [job for job in jobs if place.state(job) == "RUNNING"]
        where = Counter(place.job(job, "NodeList")[0] for job in running)
        down.append(where.most_common(1)[0][0])
        fail(place, down[0])

    events: list[tuple[float, Callable[[], object]]] = [
        (60, place.kill),
        (63, place.start),
        (100, fail_one),
        (140, lambda: place.box.start_daemon(f"slurmd-{down[0]}")),
    ]

    def over() -> bool:
        while events and time.time() > begun_s + events[0][0]:
            events.pop(0)[1]()
        watch(place, told)
        return not events and told.keys() == set(jobs) and not place.promises()

    place.until("all to be over", over, within_s=360)
    broken = dict[str, str]()
    assert {job: story for job, story in told.items() if {p.says for p in story} != {"yes"}} == {}
    for job, story in told.items():
        ended_s = epoch_s(place, job, "EndTime")
        if place.state(job) != "COMPLETED" or ended_s > story[0].due_s:
            broken[job] = story[-1].broken
    assert set(broken.values()) <= {"node"}, broken
    assert len(broken) <= 4
    assert restarts(place, *toys) >= 2
    assert restarts(place, *jobs) >= 1


USER = getpass.getuser()
ACCOUNTS = (
    ("add", "account", "free"),
    ("add", "account", "lab"),
    ("add", "user", USER, "account=free,lab"),
    ("modify", "account", "lab", "set", "GrpTRES=gres/gpu=4"),
)
BOUNDED = SandboxSpec(
    groups=(SandboxNodes(nodes=3),),
    partitions=(PartitionSpec("gpu"), PartitionSpec("urgent", "n1", ("PriorityTier=2",))),
    slurm_conf_extra=("AccountingStorageEnforce=limits",),
    accounting=True,
)


@pytest.mark.full("needs the database, which `make test` does not install")
def test_tiers_and_limits_bound_what_is_promised(
    make_sandbox: MakeSandbox, short_directory: Path
) -> None:
    """On n1 urgent comes first; account lab may use four GPUs at a time, and wants them twice."""
    box = make_sandbox(BOUNDED)
    for words in ACCOUNTS:
        box.run(["sacctmgr", "-i", *words])
    with schedd_in(box, short_directory) as place:
        configure(place, "fifo", manage={"partitions": ["gpu", "urgent"]})
        place.start()
        of = ("--partition=gpu", "--account=free")
        toys = [place.toy(4, 5000, options=["--time=60", *of]) for _ in range(3)]
        for toy in toys:
            place.until_state(toy, "RUNNING")
        below = asks(place, 4, 300, "--nodelist=n1", *of)
        assert answer(place, below).says == "no"
        above = asks(place, 4, 300, "--partition=urgent", "--account=free")
        assert answer(place, above).says == "yes"
        place.box.run(["scancel", below, above])

        lab = ("--partition=gpu", "--account=lab")
        other = place.submit(4, "sleep", "900", options=["--time=10", "--no-preempt", *lab])
        due = asks(place, 4, 150, *lab)
        promise = answer(place, due)
        assert promise.says == "yes"
        place.until("it to be put off", lambda: place.job(other, "Reason") == ["BeginTime"])
        place.box.run(["scancel", toys[-1]])
        place.until_state(due, "COMPLETED", within_s=150)
        assert epoch_s(place, due, "EndTime") <= promise.due_s
        place.until_state(other, "RUNNING")
