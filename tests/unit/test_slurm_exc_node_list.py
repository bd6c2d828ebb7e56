"""How a steer stands in ExcNodeList, how it is found there again, and how it is undone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.steer import Steer
from slurm_dl.slurm.read.grammar import expand, fold
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.release_all import steer_steps
from slurm_dl.slurm.write.request_changes import ExcNodeList, exc_node_list, parts_of

NOW_S = 1000.0
NAMES = st.sampled_from([*(f"n{i}" for i in range(1, 12)), "gpu-a1", "gpu-a2", "x", "n01"])
NODES = st.sets(NAMES, max_size=8)


@given(avoid=NODES, own=NODES)
def test_both_parts_come_back(avoid: set[str], own: set[str]) -> None:
    """Whatever they are; Slurm takes the whole for the nodes of both."""
    own -= avoid

    text = exc_node_list(tuple(avoid), tuple(own))

    assert parts_of(text or "(null)") == ExcNodeList(tuple(sorted(avoid)), tuple(sorted(own)))
    assert set(expand(text)) == avoid | own


@given(own=NODES)
def test_list_that_others_wrote_is_theirs(own: set[str]) -> None:
    """Folded or not, as long as nobody names a node twice at its beginning."""
    for text in (fold(own), ",".join(sorted(own))):
        assert parts_of(text) == ExcNodeList((), tuple(sorted(own)))


def test_what_was_added_behind_ours_counts_as_ours() -> None:
    """Nothing tells it apart without the ledger."""
    assert parts_of("n1,n[1-2],n9") == ExcNodeList(("n1", "n2", "n9"), ())


class Queue(Slurm):
    """Says what its pending jobs exclude, each list as it was written."""

    def __init__(self, **lists: str) -> None:
        self.lists = {name[1:]: nodes for name, nodes in lists.items()}
        self.shown: list[str] = []
        self.name = "train"

    def run(self, tool: str, *args: str) -> str:
        """Slurm's answer."""
        if tool == "squeue":
            plain = "1 0 * * * N/A 0 (null)"
            return "".join(
                f"{j} {fold(expand(nodes))} {plain}\n" for j, nodes in self.lists.items()
            )
        self.shown.append(args[-1])
        if self.lists[args[-1]] == "x":
            msg = "Invalid job id specified"
            raise ClusterError(msg)
        return (
            f"JobId={args[-1]}9 JobName=other ExcNodeList=n8,n8 NodeList=\n"
            f"JobId={args[-1]} JobName={self.name} ReqNodeList=(null) "
            f"ExcNodeList={self.lists[args[-1]]} NodeList= NumNodes=1\n"
        )


def steps(slurm: Slurm, *steers: Steer, submit_s: float = 0.0, label: str = "5") -> list[str]:
    pending = {JobId(5): (label, submit_s)}
    return [" ".join(step) for step in steer_steps(slurm, pending, steers, now_s=NOW_S, skipped=[])]


def steer(*avoid: str, job: int = 5, **more: object) -> Steer:
    values = {"kind": "spot", "since_s": NOW_S - 50, "until_s": NOW_S, "why": ""} | more
    return Steer(job_id=JobId(job), avoid=avoid, **values)


def test_nothing_is_done_where_nothing_is_excluded() -> None:
    """And no job is shown for it."""
    slurm = Queue()

    assert steps(slurm) == []
    assert slurm.shown == []


def test_without_a_ledger_ours_is_known_by_how_it_is_written() -> None:
    """The owner's part stays; a list that somebody else wrote is left alone."""
    assert steps(Queue(j5="n1,n[1-3]")) == ["5 ExcNodeList="]
    assert steps(Queue(j5="n1,n[1-3],n7,n[7-8]")) == ["5 ExcNodeList=n[7-8]"]
    assert steps(Queue(j5="n[7-8]")) == []
    assert steps(Queue(j5="x")) == []


def test_ledger_knows_better() -> None:
    """Also of a job that was requeued, and of the tasks of an array."""
    slurm = Queue(j5="n1,n2,n7")

    assert steps(slurm, steer("n1", "n2", own=("n7",))) == ["5 ExcNodeList=n7"]
    assert steps(slurm, steer("n1", kind="started")) == ["5 ExcNodeList=n[2,7]"]
    assert steps(slurm, steer("n1", left=("n2",), job=4), label="4_3") == ["4_3 ExcNodeList=n7"]
    assert slurm.shown == []


def test_job_that_was_put_off_is_let_go_unless_it_was_requeued_since() -> None:
    """After a requeue Slurm itself makes it wait."""
    later = steer(not_before_s=NOW_S + 9)

    assert steps(Queue(), later) == ["5 StartTime=now"]
    assert steps(Queue(j5="n1,n1"), steer("n1", not_before_s=NOW_S + 9)) == [
        "5 ExcNodeList= StartTime=now"
    ]
    assert steps(Queue(), later, submit_s=NOW_S - 10) == []
    assert steps(Queue(), steer(not_before_s=NOW_S - 1)) == []


@pytest.mark.parametrize(
    "name", ["a ExcNodeList=n1,n1,n2,n2,n7 ", "a\nJobId=5 ExcNodeList=n1,n1 \nb"]
)
def test_forged_answer_is_not_believed(name: str) -> None:
    """What a job's name says of its list counts nothing."""
    slurm = Queue(j5="n[1-2,7]")
    slurm.name = name

    assert steps(slurm) == []


def test_what_cannot_be_read_is_told() -> None:
    """Half a list would make steered jobs look free."""
    skipped: list[str] = []
    list(steer_steps(Queue(jx="n1"), {JobId(5): ("5", 0.0)}, [], now_s=NOW_S, skipped=skipped))
    assert len(skipped) == 1
