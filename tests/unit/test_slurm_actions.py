from __future__ import annotations

import itertools
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from pwd import struct_passwd
from types import SimpleNamespace

import pytest
from squeue_records import answer

from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import (
    Attach,
    ClearSteer,
    ClusterAction,
    Detach,
    Requeue,
    Reserve,
    SetSiteFactor,
    SetSteer,
    Shrink,
    Signal,
    Unseal,
)
from slurm_dl.model.steer import Steer
from slurm_dl.model.throttle import Throttled
from slurm_dl.slurm.read.conditions import CONDITION_ARGUMENTS
from slurm_dl.slurm.read.queue_reader import ExitStatuses, shell_status
from slurm_dl.slurm.tool_runner import TOOLS, Slurm
from slurm_dl.slurm.write import handover_reservations
from slurm_dl.slurm.write.actions import Actor, update_job
from slurm_dl.slurm.write.release_all import release_all, set_by_hand, site_factors
from slurm_dl.text import escaped

HANDOVER = HandoverId(4)
JOB = JobId(11)
RUN = Run(JOB, 200.0, 1)
NOW = ["11", "11", "RUNNING", "200", "1", "1", "(null)"]


class Script(Slurm):
    """Answers as told and remembers what changed Slurm."""

    def __init__(self, queue: list[list[str]] | None = None, **refused: bool) -> None:
        self.calls = Counter()
        self.timeout_s = 30.0
        self.queue = [NOW] if queue is None else queue
        self.refused = refused
        self.comment = "(null)"
        self.reservations = ""
        self.waiting: list[dict[str, str]] = []
        self.done: list[str] = []

    def run(self, tool: str, *args: str) -> str:
        """Slurm's answer."""
        if "--states=PENDING" in args:
            return answer(args, self.waiting)
        if tool == "squeue":
            if not self.queue:
                msg = "squeue failed (exit 1): Invalid job id specified"
                raise ClusterError(msg)
            nonce = args[-1].rpartition(":")[2].removesuffix("r")
            last = [self.comment] if args[-1].rpartition(",")[2].startswith("Comment") else []
            fields = args[-1].count(",") + 1
            rows = [[*job, *[""] * (fields - len(job) - len(last)), *last] for job in self.queue]
            return "".join(f"{nonce}f".join(row) + f"{nonce}r\n" for row in rows)
        if args[:2] == ("show", "reservation"):
            return self.reservations
        if args == ("ping",):
            if self.refused.get("ping"):
                msg = "scontrol ping failed"
                raise ClusterError(msg)
            return ""
        if self.refused.get("now") and "EndTime=now" in args:
            msg = "scontrol update refused"
            raise ClusterError(msg)
        if self.refused.get(args[0].partition("=")[0].strip("-")):
            msg = f"{tool} {args[0]} refused"
            raise ClusterError(msg)
        self.done.append(" ".join([tool, *args]))
        return ""

    def start(self, tool: str, *args: str) -> subprocess.Popen[bytes]:
        """A command that ends at once and well."""
        self.run(tool, *args)
        return subprocess.Popen(["true"], stderr=subprocess.PIPE)  # noqa: S607


def apply(slurm: Slurm, action: ClusterAction, *, no_preemption: str = "") -> None:
    actor = Actor(slurm)
    labels = {JOB: "11", JobId(6): "6_[0-20:5%2]", JobId(9): "9_3"}
    actor.know(labels, no_preemption=no_preemption)
    finish = actor.apply(action)
    if finish is not None:
        finish(30.0)


def refused(action: ClusterAction, queue: list[list[str]] | None = None) -> str:
    """The error of *action*, which changes nothing."""
    slurm = Script(queue)
    with pytest.raises(ClusterError) as caught:
        apply(slurm, action)
    assert slurm.done == []
    return str(caught.value)


def signal(signal: str = "USR1", target: str = "batch") -> Signal:
    return Signal(handover_id=HANDOVER, run=RUN, signal=signal, target=target, why="")


OURS = '{"slurm_dl":{"v":1,"sig":"USR1"},"mine":1}'


@pytest.mark.parametrize(
    ("comment", "refused", "written"),
    [
        (OURS, "", '{"slurm_dl":{"v":1,"sig":"USR1","preempted":[3,1]},"mine":1}'),
        (
            '{"slurm_dl":{"preempted":[9,0],"unhandled":[3,1]},"theirs":"\\u0000 x=y"}',
            "",
            '{"slurm_dl":{"preempted":[3,1]},"theirs":"\\u0000 x=y"}',
        ),
        ("(null)", "", None),
        ('{"slurm_dl":3}', "", None),
        ('{"slurm_dl":{},"mine":"\ufffd"}', "", None),
        ('{"slurm_dl":{},"mine":"' + "x" * 480 + '"}', "", None),
        (OURS, "refused", None),
    ],
    ids=["ours", "forged", "none", "not ours", "not UTF-8", "too long", "refused"],
)
def test_victim_is_told_how_often_it_is_preempted_before_it_is_asked(
    comment: str, refused: str, written: str | None
) -> None:
    """What others have in the comment stays; it is asked to save in any case."""
    slurm = Script(update=bool(refused))
    slurm.comment = comment

    apply(slurm, replace(signal(), preemptions=3))

    told = [] if written is None else [f"scontrol update JobId=11 Comment={written}"]
    assert slurm.done == [*told, "scancel --verbose --signal=USR1 --batch 11"]


REQUEUE = Requeue(handover_id=HANDOVER, run=RUN, why="")
SHRINK = Shrink(handover_id=HANDOVER, run=RUN, nodes=("n1", "n3"), why="")
RESERVE = Reserve(
    handover_id=HANDOVER, nodes=("n1", "n2"), uids=(os.getuid(),), duration_s=61, why=""
)
UNSEAL = Unseal(name="slurm_dl_4", handover_id=HANDOVER, why="")
STANDING = (
    "ReservationName=slurm_dl_4 StartTime=1 EndTime=99 Duration=1 Nodes=n1 X=1 State=ACTIVE\n"
)


@pytest.mark.parametrize(
    ("action", "command"),
    [
        (SetSiteFactor(job_id=JOB, value=-5, why=""), "scontrol update JobId=11 SiteFactor=-5"),
        (
            SetSiteFactor(job_id=JobId(6), value=7, why=""),
            "scontrol update JobId=6_[0,5,10,15,20] SiteFactor=7",
        ),
        (SetSiteFactor(job_id=JobId(9), value=7, why=""), "scontrol update JobId=9_3 SiteFactor=7"),
        (
            Attach(handover_id=HANDOVER, job_id=JOB, why=""),
            "scontrol update JobId=11 ReservationName=slurm_dl_4",
        ),
        (signal(), "scancel --verbose --signal=USR1 --batch 11"),
        (signal(target="steps"), "scancel --verbose --signal=USR1 11"),
        (signal("TERM", "full"), "scancel --verbose --signal=TERM --full 11"),
        (REQUEUE, "scontrol requeue Incomplete 11"),
        (SHRINK, "scontrol update JobId=11 NodeList=n[1,3]"),
        (UNSEAL, "scontrol delete ReservationName=slurm_dl_4"),
    ],
)
def test_each_action_is_one_command(action: ClusterAction, command: str) -> None:
    """Exactly this is run, and nothing else that changes Slurm."""
    slurm = Script()

    apply(slurm, action)

    assert slurm.done == [command]


def test_a_shrink_takes_the_acknowledgement_back() -> None:
    """In the same update: it is of the run that goes on."""
    slurm = Script()
    slurm.comment = '{"slurm_dl":{"sig":"USR1","ack":2},"theirs":[1]}'

    apply(slurm, SHRINK)

    comment = '{"slurm_dl":{"sig":"USR1"},"theirs":[1]}'
    assert slurm.done == [f"scontrol update JobId=11 NodeList=n[1,3] Comment={comment}"]


@pytest.mark.parametrize(
    ("queue", "nodes"),
    [
        *((None, ()), (None, ("n1", "n2,n3")), (None, ("n1 Gres=gpu:9",)), ([], ("n1",))),
        *(([[*NOW, asked]], ("n1",)) for asked in ("gres/gpu:6", "gres:gpu:a100:6", "gpu:6")),
    ],
)
def test_nothing_is_shrunk_to_what_is_no_list_of_nodes(
    queue: list[list[str]] | None, nodes: tuple[str, ...]
) -> None:
    """Nor a job that is gone, or one with --gpus, of which Slurm would start no step any more."""
    slurm = Script(queue)
    with pytest.raises(ClusterError):
        apply(slurm, replace(SHRINK, nodes=nodes))
    assert slurm.done == []


def test_reservation_is_sealed_and_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may stand over busy nodes and holds nobody after; whole minutes, rounded up.

    A user that cannot be named does not keep it from the others.
    """
    slurm = Script()
    names = {0: "ada", 5: "-evil", 7: "bob"}
    monkeypatch.setattr(
        handover_reservations.pwd, "getpwuid", lambda uid: struct_passwd((names[uid], *"xxxxxx"))
    )

    apply(
        slurm,
        Reserve(
            handover_id=HANDOVER, nodes=("n1", "n2"), uids=(0, 404, 5, 7), duration_s=61, why=""
        ),
    )

    assert " ".join(slurm.done) == (
        "scontrol create reservation ReservationName=slurm_dl_4 Nodes=n1,n2 Users=ada,bob "
        "StartTime=now Duration=2 Flags=IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER"
    )


def test_existing_reservation_is_success_only_if_it_is_the_one_wanted() -> None:
    """A refusal is looked into: the same nodes, active, or the refusal counts."""
    slurm = Script(create=True)
    with pytest.raises(ClusterError, match="create refused"):
        apply(slurm, RESERVE)

    slurm.reservations = STANDING.replace("slurm_dl_4", "slurm_dl_44")
    with pytest.raises(ClusterError, match="create refused"):
        apply(slurm, RESERVE)

    slurm.reservations = STANDING.replace("Nodes=n1", "Nodes=n[1-2]")
    apply(slurm, RESERVE)
    assert slurm.done == []


@pytest.mark.parametrize(
    ("nodes", "state", "why"),
    [
        ("n1", "ACTIVE", "it lacks n2"),
        ("n[1-4]", "ACTIVE", "it also has n3,n4"),
        ("n[2-3]", "ACTIVE", "it also has n3; it lacks n1"),
        ("n[1-2]", "INACTIVE", "it is not active"),
        ("(null)", "ACTIVE", "it lacks n1,n2"),
    ],
)
def test_another_reservation_of_that_name_is_refused(nodes: str, state: str, why: str) -> None:
    """Victims must not be told for nodes that are not sealed."""
    slurm = Script(create=True)
    slurm.reservations = STANDING.replace("Nodes=n1", f"Nodes={nodes}").replace("ACTIVE", state)

    with pytest.raises(ClusterError) as caught:
        apply(slurm, RESERVE)

    assert str(caught.value) == f"reservation slurm_dl_4 stands already and is another: {why}"


def test_reservation_in_use_is_ended_and_a_missing_one_is_done() -> None:
    """In use: it ends now, or within seconds. Not there: nothing to do. None is an error."""
    slurm = Script(delete=True)
    apply(slurm, UNSEAL)
    assert slurm.done == []

    slurm.reservations = STANDING
    apply(slurm, UNSEAL)
    assert slurm.done == ["scontrol update ReservationName=slurm_dl_4 EndTime=now"]

    young = Script(delete=True, now=True)
    young.reservations = STANDING
    apply(young, UNSEAL)
    assert young.done == ["scontrol update ReservationName=slurm_dl_4 EndTime=now+5"]


def listed(*state: str, job: str = "11", label: str = "11", requeue: str = "1") -> list[list[str]]:
    """A queue of one job with this state, start and number of restarts."""
    return [[job, label, *state, requeue, "(null)"]]


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        (listed("RUNNING", "201", "1"), "any more (running, start 201 not 200); nothing was done"),
        (listed("RUNNING", "200", "2"), "(running, restarts 2 not 1)"),
        (listed("RUNNING", "201", "2"), "(running, restarts 2 not 1, start 201 not 200)"),
        (listed("SUSPENDED", "200", "1"), "(suspended)"),
        (listed("COMPLETING", "200", "1"), "(completing)"),
        (listed("COMPLETING", "200", "2"), "(completing, restarts 2 not 1)"),
        (listed("CONFIGURING", "200", "1"), "(configuring)"),
        (listed("COMPLETED", "200", "1"), "(completed)"),
        (listed("RUNNING", "200", "1", job="12", label="11_1"), "job 11 "),
        ([], "job 11 "),
        (listed("NEW_STATE", "200", "1"), "job 11 "),
        (listed("RUNNING", "soon", "1"), "job 11 "),
        (listed("RUNNING", "200", "1", label="11;12"), "job 11 "),
        *((listed(*NOW[2:5], requeue=r), "may not be requeued any more") for r in ("0", "", "N/A")),
    ],
)
@pytest.mark.parametrize("action", [signal(), REQUEUE], ids=["signal", "requeue"])
def test_nothing_is_done_to_another_run(
    action: Signal | Requeue, queue: list[list[str]], why: str
) -> None:
    """Only the run that was chosen, while it runs and may be requeued; what differs is named."""
    assert why in refused(action, queue)


def test_predicted_start_of_a_pending_job_is_no_difference() -> None:
    """Slurm shows when it might start again."""
    assert "(pending, restarts 2 not 1)" in refused(signal(), listed("PENDING", "900", "2"))


def test_array_task_is_named_as_slurm_names_it_now() -> None:
    """The label is taken from the reading just before the act, not from an older one."""
    slurm = Script([["12", "11_1", "RUNNING", "200", "1", "1", ""], ["11", "11_2", *NOW[2:]]])

    apply(slurm, REQUEUE)
    apply(slurm, signal())

    assert slurm.done == [
        "scontrol requeue Incomplete 11_2",
        "scancel --verbose --signal=USR1 --batch 11_2",
    ]


def test_requeue_of_a_pending_job_is_done_already() -> None:
    """Frameworks requeue themselves; then there is nothing left to do."""
    slurm = Script([["11", "11", "PENDING", "N/A", "2", "1", "(null)"]])

    apply(slurm, REQUEUE)

    assert slurm.done == []


@pytest.mark.parametrize(
    ("label", "dependency", "again"),
    [
        ("30", "afterok:11(failed)", "afterok:11"),
        (
            "30_[0-3]",
            "afterok:11(failed),afterany:12+5(unfulfilled),singleton(unfulfilled)",
            "afterok:11,afterany:12+5,singleton",
        ),
        ("30", "aftercorr:11_*(failed)?afterok:12_3(unfulfilled)", "aftercorr:11_*?afterok:12_3"),
        ("30", "afterok:12(failed)", ""),
        ("30", "afterok:11(failed),afterok:12(failed)", ""),
        ("30", "afterok:11(unfulfilled)", ""),
        ("30", "afterok:11(failed),new:12:x(failed)", ""),
    ],
)
def test_what_waits_for_a_job_that_failed_waits_again(
    label: str, dependency: str, again: str
) -> None:
    """One write for each that Slurm has given up for this job alone, after the requeue."""
    slurm = Script([["11", "11", "FAILED", *NOW[3:]]])
    row = {"JobArrayID": label, "Reason": "DependencyNeverSatisfied", "Dependency": dependency}
    slurm.waiting = [row, row | {"Reason": "Dependency"}]

    apply(slurm, replace(REQUEUE, ended=1))

    told = [f"scontrol update JobId={label} Dependency={again}"] if again else []
    assert slurm.done == ["scontrol requeue 11", *told]


def test_few_writes_restore_the_first_of_many_that_wait() -> None:
    """Users may have any number of jobs wait; a label that squeue cut holds up no other."""
    slurm = Script([["11", "11", "FAILED", *NOW[3:]]])
    row = {"Reason": "DependencyNeverSatisfied", "Dependency": "afterok:11(failed)"}
    slurm.waiting = [row | {"JobArrayID": str(job)} for job in range(100, 1100)]
    slurm.waiting[1] |= {"Dependency": "afterok:11_*(failed)"}
    slurm.waiting[2] |= {"JobArrayID": "102_[0,2,..."}

    with pytest.raises(ClusterError, match="not all that wait for it"):
        apply(slurm, replace(REQUEUE, ended=1))

    rest = ",".join(map(str, range(103, 150)))
    assert slurm.done == [
        "scontrol requeue 11",
        f"scontrol update JobId=100,{rest} Dependency=afterok:11",
        "scontrol update JobId=101 Dependency=afterok:11_*",
    ]


@pytest.mark.parametrize("now", [["PENDING", "N/A", "2"], ["RUNNING", "900", "2"]])
def test_a_requeue_that_was_done_in_part_is_completed(now: list[str]) -> None:
    """The job is back in the queue or in its next run; what waits for it was not reached."""
    slurm = Script([["11", "11", *now, "1", "(null)"]])
    slurm.waiting = [
        {"JobArrayID": "30", "Reason": "DependencyNeverSatisfied"}
        | {"Dependency": "afterok:11(failed)"}
    ]

    apply(slurm, replace(REQUEUE, ended=1))

    assert slurm.done == ["scontrol update JobId=30 Dependency=afterok:11"]


def test_a_refused_dependency_is_told_once_all_are_written() -> None:
    """The job has been requeued all the same."""
    slurm = Script([["11", "11", "FAILED", *NOW[3:]]], update=True)
    row = {"Reason": "DependencyNeverSatisfied", "Dependency": "afterok:11(failed)"}
    slurm.waiting = [row | {"JobArrayID": job} for job in ("30", "31")]

    with pytest.raises(ClusterError, match="requeued, but not all that wait for it"):
        apply(slurm, replace(REQUEUE, ended=1))

    assert slurm.done == ["scontrol requeue 11"]


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED", "COMPLETING"])
def test_a_run_that_has_not_failed_is_not_requeued_for_that(state: str) -> None:
    """Plain requeue would run also a job again that has completed."""
    assert refused(replace(REQUEUE, ended=1), [["11", "11", state, *NOW[3:]]])


@pytest.mark.parametrize(
    ("text", "status"),
    [("256", 1), ("10", 138), ("0", 0), ("1:0", 1), ("0:10", 138), ("93:0", 93), ("23808", 93)]
    + [(wrong, None) for wrong in ("", "N/A", "-1", "1:", ":1", "1:x", "1:2:3")],
)
def test_exit_statuses_are_those_of_a_shell(text: str, status: int | None) -> None:
    """As 22.05 and as later releases write them."""
    assert shell_status(text) == status


def test_an_exit_status_that_squeue_did_not_tell_is_asked_for_again() -> None:
    """One command that fails fails no poll; what was told is not asked for again."""
    table = SimpleNamespace(
        job_id=[JOB],
        restarts=[1],
        claims={JOB: SimpleNamespace(contract=True)},
        texts={JOB: SimpleNamespace(ending="FAILED")},
    )
    slurm, seen = Script([]), []
    statuses = ExitStatuses(slurm)
    for rows in ([], [["11", "256"]], []):
        slurm.queue = rows
        statuses.learn(table)  # type: ignore[arg-type]
        seen.append(statuses.known)

    assert seen == [{JOB: None}, {JOB: 1}, {JOB: 1}]


@pytest.mark.parametrize("name", ["KILL", "STOP", "9", "USR1 --batch", ""])
def test_only_checkpoint_signals_are_sent(name: str) -> None:
    """Scancel without a good signal ends jobs."""
    assert "is not one of" in refused(signal(name))


@pytest.mark.parametrize("action", [signal(), REQUEUE], ids=["signal", "requeue"])
def test_no_preemption_on_a_release_that_loses_gpus(action: Signal | Requeue) -> None:
    """What the release table forbids is not done, whatever was planned."""
    slurm = Script()

    with pytest.raises(ClusterError, match="loses its GPUs"):
        apply(slurm, action, no_preemption="Slurm 23.02.0: a requeued job loses its GPUs")
    with pytest.raises(ClusterError, match="not been read"):
        Actor(slurm).apply(action)

    assert slurm.done == []


@pytest.mark.parametrize(
    ("now", "done"),
    [
        (["11", "11", "PENDING", "0", "0", "1", "slurm_dl_4"], ["ReservationName="]),
        (["11", "11", "PENDING", "0", "0", "1", "course"], []),
        (["11", "11", "PENDING", "0", "0", "1", "(null)"], []),
        (["11", "11", "RUNNING", "200", "0", "1", "slurm_dl_4"], []),
        ([], []),
    ],
)
def test_detach_clears_our_name_on_pending_jobs_only(now: list[str], done: list[str]) -> None:
    """Slurm would take a running job out of its reservation too."""
    slurm = Script([now] if now else [])

    apply(slurm, Detach(job_id=JOB, why=""))

    assert [command.split()[-1] for command in slurm.done] == done


WAITS = ["11", "11", "PENDING", "0", "0", "1", "(null)"]


def steered(*avoid: str, own: tuple[str, ...] = (), lift: bool = False, **more: float) -> SetSteer:
    steer = Steer(
        job_id=JOB, kind="spot", avoid=avoid, own=own, since_s=0, until_s=0, why="", **more
    )
    return SetSteer(steer=steer, why="", lift=lift)


@pytest.mark.parametrize(
    ("action", "settings"),
    [
        (steered("n1"), "ExcNodeList=n1,n1"),
        (steered("n1", "n2", "n4"), "ExcNodeList=n1,n[1-2,4]"),
        (steered("n2", own=("n3", "n1")), "ExcNodeList=n2,n2,n1,n[1,3]"),
        (steered(own=("n3", "n1")), "ExcNodeList=n[1,3]"),
        (steered(not_before_s=1000.5), "ExcNodeList= StartTime=uts1001"),
        (steered("n1", not_before_s=1000.0), "ExcNodeList=n1,n1 StartTime=uts1000"),
        (steered("n1", not_before_s=1000.0, lift=True), "ExcNodeList=n1,n1 StartTime=uts1000"),
        (steered("n1", lift=True), "ExcNodeList=n1,n1 StartTime=now"),
        (ClearSteer(job_id=JOB, own=("n1", "n2"), why=""), "ExcNodeList=n[1-2]"),
        (ClearSteer(job_id=JOB, own=(), why="", lift=True), "ExcNodeList= StartTime=now"),
    ],
)
def test_steer_is_one_update_of_a_job_that_waits(
    action: SetSteer | ClearSteer, settings: str
) -> None:
    """Ours can be told from the owner's; a job that runs or is gone is left alone."""
    slurm = Script([WAITS])
    apply(slurm, action)
    assert slurm.done == [f"scontrol update JobId=11 {settings}"]

    for other in ([NOW], []):
        slurm = Script(other)
        apply(slurm, action)
        assert slurm.done == []


def test_steer_of_an_array_is_of_all_its_pending_tasks() -> None:
    """The plain id would reach the tasks that run, too."""
    slurm = Script([["11", "11_[3-5]", *WAITS[2:]], ["12", "11_2", *NOW[2:]]])

    apply(slurm, steered("n1"))

    assert slurm.done == ["scontrol update JobId=11_[3-5] ExcNodeList=n1,n1"]


@pytest.mark.parametrize("node", ["n1,n2", "-n1", "n1 StartTime=now", "", "n[1-3]", "n1\n"])
def test_steer_names_nothing_but_nodes(node: str) -> None:
    """Names come from Slurm and from the ledger; neither may say more than a name."""
    for action in (steered("n1", node), ClearSteer(job_id=JOB, own=(node,), why="")):
        assert "is no node name" in refused(action, [WAITS])


def test_list_of_nodes_that_no_command_takes_is_refused() -> None:
    """Linux takes no argument of that length."""
    names = ("x" * 500 + "".join(word) for word in itertools.product("ab", repeat=8))
    assert "too long a list of nodes" in refused(steered(*names), [WAITS])


def test_silent_controller_is_not_a_missing_job() -> None:
    """That Slurm does not list a job is believed only while the controller answers."""
    with pytest.raises(ClusterError, match="ping failed"):
        apply(Script([], ping=True), Detach(job_id=JOB, why=""))


@pytest.mark.parametrize(
    "action",
    [
        SetSiteFactor(job_id=JobId(404), value=1, why=""),
        SetSiteFactor(job_id=JOB, value=2**31, why=""),
        Attach(handover_id=HANDOVER, job_id=JobId(404), why=""),
        Reserve(handover_id=HANDOVER, nodes=("n1,ALL",), uids=(0,), duration_s=1, why=""),
        Reserve(handover_id=HANDOVER, nodes=("-n",), uids=(0,), duration_s=1, why=""),
        Reserve(handover_id=HANDOVER, nodes=("n1",), uids=(4_000_000_111,), duration_s=1, why=""),
        Unseal(name="course", handover_id=None, why=""),
        Unseal(name="slurm_dl_1,course", handover_id=None, why=""),
        Unseal(name="slurm_dl_", handover_id=None, why=""),
    ],
)
def test_what_cannot_be_named_safely_is_refused(action: ClusterAction) -> None:
    """Unknown jobs, odd node names, users without a name and foreign reservations."""
    assert refused(action)


def test_array_too_long_to_name_is_refused() -> None:
    """Linux limits one argument to 128 KiB; half the tasks would be split off the array."""
    slurm = Script()

    with pytest.raises(ClusterError, match="too long"):
        update_job(slurm, "6_[0-99998:2]", "SiteFactor=1")

    assert slurm.done == []


@pytest.mark.parametrize("name", ["-evil", "a,b", "a b", "a=b", "", "a\nb"])
def test_user_name_that_means_more_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In Slurm's Users= a leading minus excludes and a comma separates."""
    entry = type("Entry", (), {"pw_name": name})
    monkeypatch.setattr(handover_reservations.pwd, "getpwuid", lambda _: entry)

    assert "cannot be written" in refused(RESERVE)


def fake_tools(folder: Path, script: str) -> Slurm:
    for tool in TOOLS:
        path = folder / tool
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
    return Slurm(bin_dir=folder, slurm_conf=folder / "slurm.conf", timeout_s=5)


def test_command_gets_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of ours changes what the tools print; the cluster is the one configured."""
    for name in ("SQUEUE_FORMAT", "SLURM_CLUSTERS", "SLURM_CONF", "SCONTROL_ALL", "LANG"):
        monkeypatch.setenv(name, "inherited")

    slurm = fake_tools(tmp_path, "env; echo $@")
    text = slurm.run("squeue", "--jobs", "a b;c")

    assert "inherited" not in text
    assert f"SLURM_CONF={tmp_path}/slurm.conf" in text
    assert {"LC_ALL=C", "TZ=UTC", "SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=0"} <= set(
        text.splitlines()
    )
    assert text.splitlines()[-1] == "--jobs a b;c"
    assert slurm.calls == Counter(squeue=1)


def test_failure_is_one_printable_line(tmp_path: Path) -> None:
    """Command, exit status and Slurm's last words, nothing that moves a cursor."""
    slurm = fake_tools(tmp_path, r"echo first >&2; printf 'bad \033[2J thing\n\n' >&2; exit 3")

    with pytest.raises(ClusterError) as caught:
        slurm.run("scontrol", "update", "JobId=1")

    assert str(caught.value) == (r"scontrol update JobId=1 failed (exit 3): bad \x1b[2J thing")


@pytest.mark.parametrize(
    ("script", "timeout_s", "error"),
    [("echo 1; exit 1", 30.0, r"exit 1\): 1"), ("exec sleep 60", 0.2, r"no answer in 0\.2 s")],
)
def test_half_a_list_is_none(tmp_path: Path, script: str, timeout_s: float, error: str) -> None:
    """A list that ends in an error is not used; a tool that hangs is killed at the deadline."""
    fake_tools(tmp_path, script)

    with pytest.raises(ClusterError, match=error):
        Slurm(bin_dir=tmp_path, timeout_s=timeout_s).run("squeue")


def test_missing_tool_is_the_admins_to_mend(tmp_path: Path) -> None:
    """The message names the tool and the place searched."""
    with pytest.raises(ConfigError, match=f"squeue not found in {tmp_path}"):
        Slurm(bin_dir=tmp_path)


def test_undecodable_bytes_do_not_stop_the_reading(tmp_path: Path) -> None:
    """Names are bytes to Slurm."""
    assert fake_tools(tmp_path, r"printf 'a\377b'").run("squeue") == "a\ufffdb"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größe", "größe"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b2J", r"\x9b2J"),
        ("a\u202eb\u2028c", r"a\u202eb\u2028c"),
    ],
)
def test_text_of_users_cannot_act_on_a_terminal(text: str, shown: str) -> None:
    """Control characters, C1 too, line separators and writing directions are shown, not sent."""
    assert escaped(text) == shown


class Printing(Script):
    """A queue for release-all."""

    def run(self, tool: str, *args: str) -> str:
        """Two managed jobs, one of them in our reservation, one elsewhere, one finished."""
        if tool == "sprio":
            return "1 0\n2 500\n"
        if args == CONDITION_ARGUMENTS:
            return "".join(f"{job} n[1-2] 1 0 * * * N/A 0 (null)\n" for job in (1, 2))
        if args[:2] == ("show", "job"):
            nodes = "n1,n[1-2]" if args[-1] == "2" else "n[1-2]"
            return f"JobId={args[-1]} ArrayJobId=2 ExcNodeList={nodes} NodeList=\n"
        return super().run(tool, *args)


QUEUE = [
    ["1", "1", "PENDING", "gpu", "slurm_dl_4", "dl", "100"],
    ["3", "3", "RUNNING", "gpu", "slurm_dl_4", "dl", "100"],
    ["2", "2_[0-2]", "PENDING", "gpu,debug", "(null)", "dl", "100"],
    ["4", "4", "RUNNING", "cpu", "(null)", "dl", "100"],
    ["5", "5", "COMPLETED", "gpu", "(null)", "dl", "100"],
]


def test_release_all_undoes_what_may_be_ours_and_no_more() -> None:
    """Pending jobs known to have 0 are left alone, as are finished ones and other partitions."""
    slurm = Printing(QUEUE)
    slurm.reservations = STANDING + STANDING.replace("slurm_dl_4", "course")

    lines = list(release_all(slurm, ["gpu"]))

    assert lines == [
        "job 2_[0-2]: ExcNodeList=",
        "job 1: ReservationName=",
        "job 2_[0-2]: SiteFactor=0",
        "job 3: SiteFactor=0",
        "reservation slurm_dl_4: deleted",
    ]
    assert slurm.done == [
        "scontrol update JobId=2_[0-2] ExcNodeList=",
        "scontrol update JobId=1 ReservationName=",
        "scontrol update JobId=2_[0-2] SiteFactor=0",
        "scontrol update JobId=3 SiteFactor=0",
        "scontrol delete ReservationName=slurm_dl_4",
    ]


def test_release_all_goes_on_after_a_refusal_and_says_so() -> None:
    """One job that just ended must not keep the others; the end is still an error."""
    slurm = Printing(QUEUE, update=True)
    slurm.reservations = STANDING
    lines: list[str] = []

    def collect(line: Callable[[str], None]) -> None:
        for done in release_all(slurm, ["gpu"]):
            line(done)

    with pytest.raises(ClusterError, match="4 things could not be released"):
        collect(lines.append)

    assert [line.partition(": ")[0] for line in lines] == [
        "job 2_[0-2]",
        "job 1",
        "job 2_[0-2]",
        "job 3",
        "reservation slurm_dl_4",
    ]
    assert all("refused" in line for line in lines[:4])


@pytest.mark.parametrize(
    ("present", "lines"),
    [
        ("ArrayTaskThrottle=1 ", ["job 2_[0-2]: ArrayTaskThrottle=3"]),
        ("ArrayTaskThrottle=4 ", []),  # The owner's own since
        (None, ["job 2_[0-2]: skipped: its ArrayTaskThrottle cannot be read: no answer"]),
    ],
)
def test_release_all_gives_the_owners_throttle_back(present: str | None, lines: list[str]) -> None:
    """An array of which Slurm does not tell it is named, and the command fails."""

    class Throttles(Printing):
        def run(self, tool: str, *args: str) -> str:
            if args[-1] != "2_0":
                return super().run(tool, *args)
            if present is None:
                msg = "no answer"
                raise ClusterError(msg)
            return f"JobId=2 ArrayJobId=2 ArrayTaskId=0-2 {present}JobName=x"

    throttled = {JobId(2): Throttled(own=3, ours=1, before=1)}
    said: list[str] = []
    with nullcontext() if present else pytest.raises(ClusterError, match="1 things"):
        said.extend(release_all(Throttles(QUEUE), ["gpu"], throttles=throttled))
    assert [line for line in said if "Throttle" in line] == lines


def test_site_factors_that_cannot_be_read_are_an_error() -> None:
    """One line alone is left out: its job is taken for one whose SiteFactor is not known."""

    class Broken(Script):
        said = "1 n/a\n2\n"

        def run(self, *_: str) -> str:
            return self.said

    slurm = Broken()
    with pytest.raises(ClusterError, match="no job id and SiteFactor"):
        site_factors(slurm)
    slurm.said += "3 5\n"
    assert site_factors(slurm) == {3: 5}


def test_a_priority_that_was_set_by_hand_is_no_share() -> None:
    """As sprio of 22.05.8 printed them; a job that it does not list is not told about."""

    class Said(Script):
        def run(self, *_: str) -> str:
            return (
                "2 5.00000000000000 0\n4 1.00000000000000 0\n7 0.00465661287416 9\n"
                "8 0.00000000023283 0\n38 0.00000000023283 -2147483648\n"
                "Unable to find jobs matching user/id(s) specified\n9 n/a 0\n"
            )

    told = set_by_hand(Said(), [JobId(job) for job in (2, 4, 5, 7, 8, 9, 38)])
    assert told == {2: True, 4: True, 7: False, 8: False, 38: True}
