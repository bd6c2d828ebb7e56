from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from squeue_records import NONCE, RUNNING, records

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.slurm.controller import SiteConfig
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.gpu_holdings import Holdings, splits_in
from slurm_dl.slurm.read.job_reader import _CHUNK, JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import (
    NODE_FIELDS,
    ClusterReading,
    ReservationSeen,
    is_up,
    read_nodes,
    read_reservations,
    site_of,
)
from slurm_dl.slurm.read.queue_reader import CliQueue
from slurm_dl.slurm.read.record_parser import JOB_FIELDS, new_nonce, output_format, split_records
from slurm_dl.slurm.releases import Release, no_preemption, parse_release, unsupported
from slurm_dl.slurm.tool_runner import Slurm

NOW_S = 500.0
CONFIG = SiteConfig(release=Release(22, 5, 8), tracks_memory=True)

PENDING = {"State": "PENDING", "Reason": "Priority", "NodeList": ""}


def job(job_id: int, **fields: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return RUNNING | {"JobID": str(job_id), "JobArrayID": str(job_id)} | named


def node(name: str, **fields: str) -> dict[str, str]:
    plain = {"StateComplete": "idle", "Partition": "gpu*", "CPUs": "16", "Memory": "1000"}
    return plain | {"NodeList": name, "Gres": "gpu:a100:4", "features_act": "(null)"} | fields


def site(*nodes: dict[str, str], **given: Any) -> ClusterReading:  # noqa: ANN401 (fields of four types)
    seen = read_nodes(records(NODE_FIELDS, list(nodes) or [node("n1"), node("n2")]), NONCE)
    plain: dict[str, Any] = {"topology": "", "reservations": (), "config": CONFIG, "type_row": {}}
    return site_of(seen, **plain | given)


def read(*rows: dict[str, str], at: ClusterReading | None = None) -> JobTable:
    reader = JobReader(ClaimReader(max_grace_s=600))
    return reader.read(records(JOB_FIELDS, list(rows)), NONCE, at or site(), now_s=NOW_S)


def test_separators_differ_from_call_to_call() -> None:
    """A name written down before a call cannot contain its separators."""
    nonces = {new_nonce() for _ in range(1000)}

    assert len(nonces) == 1000
    assert all(nonce.isalnum() and nonce[0].isalpha() for nonce in nonces)


def test_separators_stand_behind_each_field() -> None:
    """Fields carry one separator, the record's end another; no width, so nothing is cut."""
    assert output_format(("A", "B"), "xn") == "A:xnf,B:xnr"


def test_empty_output_is_an_empty_queue() -> None:
    """No jobs is an answer, not an error."""
    assert split_records("", NONCE, 2) == ([], 0)
    assert read().job_id == []


def test_output_without_one_readable_record_is_refused() -> None:
    """A Slurm that prints other fields than asked for must not look like an empty cluster."""
    with pytest.raises(ClusterError, match="none of 2 records"):
        split_records(f"a{NONCE}r\nb{NONCE}r\n", NONCE, 2)
    with pytest.raises(ClusterError, match="none of 1 records"):
        read(job(1, State="NEW_STATE"))


@pytest.mark.parametrize(
    "broken",
    [
        {"JobID": "x"},
        {"JobArrayID": "1_x"},
        {"State": "NEW_STATE"},
        {"UserID": "root"},
        {"NumNodes": "1-4"},
        {"NumTasks": ""},
        {"NumCPUs": "1K"},
        {"RestartCnt": "-1"},
        {"PriorityLong": "0.5"},
        {"SubmitTime": "yesterday"},
        {"StartTime": "soon"},
        {"EndTime": "later"},
        {"EligibleTime": "sometime"},
        {"TimeLimit": "long"},
    ],
)
def test_record_with_a_wrong_type_is_dropped_and_counted(broken: dict[str, str]) -> None:
    """One bad field takes its record out and no other."""
    table = read(job(1), job(2) | broken, job(3))

    assert table.job_id == [1, 3]
    assert table.unreadable == 1
    assert sorted(table.texts) == [1, 3]
    # Without an id nobody can say which job it is.
    assert [one.field for one in table.left_out.values()] == [f for f in broken if f != "JobID"]


def test_record_with_too_many_or_too_few_fields_is_dropped() -> None:
    """A record is exactly the fields asked for."""
    text = records(JOB_FIELDS, [job(1)])
    more = records(JOB_FIELDS, [job(2)]).replace(f"{NONCE}r", f"{NONCE}fmore{NONCE}r")
    fewer = records(JOB_FIELDS, [job(3)]).replace(f"{NONCE}f", "", 1)
    reader = JobReader(ClaimReader(max_grace_s=600))

    table = reader.read(more + text + fewer, NONCE, site(), now_s=NOW_S)

    assert (table.job_id, table.unreadable) == ([1], 2)


def test_no_job_appears_twice() -> None:
    """Of two records with one id the first counts; the rest is counted as unreadable."""
    table = read(job(1, Name="first"), job(2), job(1, Name="second"))

    assert (table.job_id, table.unreadable) == ([1, 2], 1)
    assert table.texts[1].name == "first"


def test_long_queue_is_read_like_short_ones() -> None:
    """The queue is read in chunks; no record is lost or mixed up between them."""
    numbers = sorted(range(1, _CHUNK + 10), key=lambda n: n * 7919 % 10007)
    rows = [job(n, PriorityLong=str(2 * n), Name=f"job-{n}") for n in numbers]

    table = read(*rows)

    assert table.job_id == numbers
    assert table.priority == [2 * n for n in numbers]
    assert [table.texts[n].name for n in numbers] == [f"job-{n}" for n in numbers]
    assert {len(getattr(table, name)) for name in ("state", "gpus", "even")} == {len(numbers)}
    assert table.unreadable == 0


def test_start_of_a_pending_job_is_a_prediction() -> None:
    """Slurm shows when a pending job may start; that is no start."""
    table = read(job(1, **PENDING))

    assert (table.start_s, table.end_s) == ([0.0], [0.0])


def test_requeued_job_that_completes_has_no_run() -> None:
    """Until its processes are gone a requeued job shows the requeue as its start, and no end."""
    requeued = job(1, State="COMPLETING", StartTime="900", EndTime="NONE", RestartCnt="1")
    ending = job(2, State="COMPLETING", StartTime="200", EndTime="900")

    table = read(requeued, ending)

    assert table.start_s == [0.0, 200.0]
    assert table.nodes == ["n1", "n1"]


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({"Reason": "Priority"}, Held.NO),
        ({"Reason": "Priority", "PriorityLong": "0"}, Held.USER_OR_ADMIN),
        ({"Reason": "Dependency", "PriorityLong": "0"}, Held.DEPENDENCY),
        ({"Reason": "Reservation"}, Held.RESERVATION),
        ({"Reason": "Reservation", "Reservation": "slurm_dl_4"}, Held.NO),
        ({"Reason": "Resources", "Reservation": "slurm_dl_4"}, Held.NO),
        ({"Reason": "Resources", "Reservation": "course"}, Held.RESERVATION),
        ({"Reason": "BeginTime", "Reservation": "slurm_dl_4"}, Held.BEGIN_TIME),
        ({"Reason": "None", "EligibleTime": "501"}, Held.BEGIN_TIME),
        ({"Reason": "None", "EligibleTime": "500"}, Held.NO),
        ({"Reason": "None", "EligibleTime": "N/A"}, Held.NO),
    ],
)
def test_hold_depends_on_more_than_the_reason(fields: dict[str, str], held: Held) -> None:
    """Priority 0, a begin time to come and somebody else's reservation hold a job as well."""
    assert read(job(1, **PENDING | fields)).held == [held]


def test_begin_times_are_those_that_jobs_wait_for() -> None:
    """Also one that is over, as long as Slurm says so; none of others."""
    told = {
        1: {"Reason": "None", "EligibleTime": "501"},
        2: {"Reason": "BeginTime", "EligibleTime": "499"},
        3: {"Reason": "BeginTime", "EligibleTime": "N/A"},
        4: {"Reason": "Priority", "EligibleTime": "400"},
    }
    table = read(*(job(i, **PENDING | fields) for i, fields in told.items()))
    assert table.begins == {1: 501.0, 2: 499.0}
    assert table.eligible == {1: 501.0, 2: 499.0, 4: 400.0}
    over = {"State": "COMPLETED", "EligibleTime": "400"}
    assert not read(job(1, **PENDING | {"EligibleTime": "100"}), job(2, **over)).eligible


def test_running_job_is_not_held() -> None:
    """The reason of a running job says nothing about starting it."""
    assert read(job(1, Reason="Licenses")).held == [Held.NO]


@pytest.mark.parametrize(
    ("fields", "requeueable"),
    [
        ({}, True),
        ({"Requeue": "0"}, False),
        ({"BatchFlag": "0"}, False),
        ({"HetJobID": "7"}, False),
        ({"HetJobID": "0"}, True),
        ({"Requeue": "yes"}, False),
    ],
)
def test_only_plain_batch_jobs_can_be_requeued(
    fields: dict[str, str],
    requeueable: bool,  # noqa: FBT001
) -> None:
    """No interactive job, none with --no-requeue, no part of a het job; unknown words mean no."""
    assert read(job(1, **fields)).requeueable == [requeueable]


def test_pending_job_may_name_several_partitions() -> None:
    """The first is its partition, the others stand beside; one that is unknown spoils them all."""
    at = site(node("n1"), node("n1", Partition="debug"), node("n1", Partition="long"))
    assert at.partitions == ("debug", "gpu", "long")

    table = read(
        job(1),
        job(2, Partition="gone"),
        job(3, **PENDING | {"Partition": "gpu,long,debug"}),
        job(4, **PENDING | {"Partition": "gpu,gone"}),
        job(5, **PENDING | {"Partition": "gpu,gpu"}),
        job(6, Partition="gpu,debug"),
        at=at,
    )

    assert table.partition == [1, -1, 1, -1, 1, -1]
    assert table.also_in == {3: (2, 0)}


def test_unset_task_number_is_one() -> None:
    """Slurm writes 2**32 - 2 for a job that ended before it started."""
    unset = job(1, NumTasks="4294967294", tres_per_node="N/A", tres_per_task="gres:gpu:3")

    assert read(unset).gpus == [3.0]


def test_memory_counts_only_where_slurm_tracks_it() -> None:
    """Without memory in SelectTypeParameters a pending job seems to ask for whole nodes."""
    untracked = site(config=SiteConfig(release=Release(22, 5), tracks_memory=False))

    assert read(job(1)).mem_mb == [8192]
    assert read(job(1), at=untracked).mem_mb == [0]


def test_shares_are_fractions_of_a_gpu() -> None:
    """A shard is the part of a GPU that the nodes say; where they say nothing it is none."""
    asks = job(1, tres_per_node="gres:shard:6")
    shared = site(node("n1", Gres="gpu:a100:4,shard:a100:16"), node("n2"))

    assert read(asks, at=shared).gpus == [1.5]
    assert read(asks).gpus == [0.0]


@pytest.mark.parametrize(
    ("state", "up"),
    [
        ("idle", True),
        ("mixed+reserved", True),
        ("allocated+planned", True),
        ("idle+cloud+powered_down", True),
        ("IDLE+DRAIN", False),
        ("allocated+drain", False),
        ("idle+not_responding", False),
        ("mixed+maintenance+reserved", False),
        ("idle+reboot_requested", False),
        ("down", False),
        ("down+not_responding", False),
        ("unknown", False),
        ("future", False),
        ("a state of the future", False),
        ("", False),
    ],
)
def test_node_is_up_if_jobs_may_start_there(state: str, up: bool) -> None:  # noqa: FBT001
    """Draining, silent, rebooting and unknown nodes are not offered to anybody."""
    assert is_up(state) is up


def test_nodes_of_foreign_reservations_are_not_up() -> None:
    """Jobs cannot start in somebody else's reservation; ours and inactive ones do not count."""
    reservations = tuple(
        ReservationSeen(name=name, start_s=0.0, end_s=0.0, nodes=(on,), active=active, cpus=4)
        for name, on, active in [
            ("course", "n1", True),
            ("slurm_dl_3", "n2", True),
            ("tomorrow", "n3", False),
        ]
    )
    at = site(node("n1"), node("n2"), node("n3"), reservations=reservations)

    assert at.nodes.up.tolist() == [False, True, True]


TREE = """\
SwitchName=a Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=b Level=0 LinkSpeed=1 Nodes=n3
SwitchName=c Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=a,b
"""
BLOCKS = """\
BlockName=b1 BlockIndex=0 Nodes=n1
BlockName=b2 BlockIndex=1 Nodes=n[2-3] BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-3]
"""


@pytest.mark.parametrize(
    ("topology", "leaf"),
    [
        ("", [0, 0, 0]),
        (TREE, [0, 0, 1]),
        (BLOCKS, [0, 1, 1]),
        ("SwitchName=a Level=0 LinkSpeed=1 Nodes=n2\n", [1, 0, 1]),
    ],
    ids=["none", "tree", "block", "part"],
)
def test_leaves_are_the_lowest_switches_or_blocks(topology: str, leaf: list[int]) -> None:
    """Without topology there is one leaf; a node outside all of them is beside them."""
    assert site(node("n1"), node("n2"), node("n3"), topology=topology).nodes.leaf.tolist() == leaf


def test_gpu_type_keeps_its_number() -> None:
    """A number given to a type in one reading means the same type in the next."""
    rows: dict[str, int] = {"v100": 0}
    at = site(node("n1"), node("n2", Gres="gpu:v100:4"), type_row=rows)

    assert rows == {"v100": 0, "a100": 1}
    assert at.nodes.gpu_type.tolist() == [1, 0]


def test_reservations_of_two_releases_are_read() -> None:
    """Fields between the known ones may come and go."""
    text = (
        "ReservationName=a StartTime=100 EndTime=200 Duration=00:01:40 Nodes=n[1-2] NodeCnt=2 "
        "Flags=FLEX TRES=cpu=2 Users=root State=ACTIVE BurstBuffer=(null)\n"
        "ReservationName=b StartTime=100 EndTime=2026-11-20T14:44:24 Nodes=(null) NewField=1 "
        "State=INACTIVE\n"
    )

    assert read_reservations(text) == (
        ReservationSeen("a", 100.0, 200.0, nodes=("n1", "n2"), active=True, cpus=2),
        ReservationSeen("b", 100.0, 1795185864.0, nodes=(), active=False, cpus=None),
    )
    assert read_reservations("No reservations in the system\n") == ()


UNEVEN = {
    "NumNodes": "2",
    "NodeList": "n[1-2]",
    "NumCPUs": "5",
    "tres-alloc": "cpu=5,mem=7M,node=2,gres/gpu=4",
    "tres-per-node": "N/A",
    "tres-per-job": "gres:gpu:4",
}
COUNTED = {"tres-alloc": "cpu=1,mem=7M,node=1,gres/gpu=2"}
"""Of a job with two GPUs on one node, at a site that accounts for them."""


def split(holdings: Holdings, table: JobTable) -> list[float]:
    return holdings.allocations(table, site()).gpus.tolist()


def detail(job_id: int, first: int, second: int, extra: str = "") -> str:
    return (
        f"JobId={job_id} JobName=x NodeList=n[1-2] JOB_GRES=gpu:a100:4 "
        f"Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:a100:{first}(IDX:0-1) "
        f"Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:a100:{second}(IDX:0) MinCPUsNode=1 {extra}\n"
    )


def test_uneven_split_is_learnt_once() -> None:
    """A job that asked in all is asked about once, and keeps its split while it runs."""
    table = read(job(1) | COUNTED, job(2) | UNEVEN)
    holdings = Holdings()

    assert holdings.unknown(table, site()) == [1]
    assert split(holdings, table) == [2, 2, 2]
    holdings.learn(splits_in(detail(2, 3, 1), {2}), table, [1], site())
    assert split(holdings, table) == [2, 3, 1]
    assert holdings.unknown(table, site()) == []
    assert split(holdings, table) == [2, 3, 1]

    restarted = read(job(2, StartTime="777") | UNEVEN | {"StartTime": "777"})
    assert holdings.unknown(restarted, site()) == [0]


@pytest.mark.parametrize(
    "text",
    [
        detail(2, 4, 4),
        detail(2, 3, 1, "\n" + detail(2, 1, 3)),
        detail(3, 3, 1),
        detail(2, 3, 1, "Nodes=n9 CPU_IDs=0 Mem=0 GRES=gpu:0"),
        "",
    ],
)
def test_split_that_does_not_add_up_is_not_believed(text: str) -> None:
    """Forged text can at most leave a job spread evenly over its own nodes."""
    table = read(job(2) | UNEVEN)
    holdings = Holdings()

    holdings.learn(splits_in(text, {2}), table, [0], site())

    assert split(holdings, table) == [2, 2]
    assert holdings.unknown(table, site()) == []


class Details(Slurm):
    """Knows the splits of the jobs it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def run(self, tool: str, *args: str) -> str:
        """The details of the one job named, or of all."""
        self.asked.append((tool, *args))
        which = args[4:] or ("2", "3", "4")
        return "".join(detail(int(job_id), 3, 1) for job_id in which)


class Forged(Details):
    """Job 2 has a name with lines of the two others, in which they are on other GPUs."""

    def run(self, tool: str, *args: str) -> str:
        """The details of the one job named, or of all."""
        lines = "".join("\n" + detail(victim, 1, 3) for victim in (3, 4))
        own = "JobId=2 JobName="
        return super().run(tool, *args).replace(own, f"{own}{lines}", 1)


@pytest.mark.parametrize(("starting", "calls"), [((2, 3), 2), ((2, 3, 4), 1)])
def test_splits_cost_one_call_a_poll(starting: tuple[int, ...], calls: int) -> None:
    """A few jobs are asked for one by one in successive polls, many in one dump."""
    slurm = Details()
    queue, holdings = CliQueue(slurm), Holdings()
    table = read(*(job(job_id) | UNEVEN for job_id in starting))

    for poll in range(1, calls + 2):
        queue.learn_splits(holdings, table, site())
        assert len(slurm.asked) == min(poll, calls)

    assert split(holdings, table) == [3, 1] * len(starting)
    assert all(call[0] == "scontrol" for call in slurm.asked)


def test_jobs_with_forged_lines_in_the_dump_are_asked_for_alone() -> None:
    """One a poll; then each has its own split, but for the one that forges: its lines hide it."""
    slurm = Forged()
    queue, holdings = CliQueue(slurm), Holdings()
    table = read(*(job(job_id) | UNEVEN for job_id in (2, 3, 4)))

    for _ in range(6):
        queue.learn_splits(holdings, table, site())
        holdings.allocations(table, site())

    assert split(holdings, table) == [2, 2, 3, 1, 3, 1]
    assert [call[5:] for call in slurm.asked] == [(), ("3",), ("4",)]


ASKED = {
    "NumNodes": "2",
    "NodeList": "n[1-2]",
    "tres-alloc": "cpu=2,node=2",
    "tres-per-node": "gres:gpu:1",
}
"""What a job shows on two nodes after an update that had no effect: one GPU on each."""


@pytest.mark.parametrize(
    ("fields", "text", "gpus"),
    [
        (ASKED, detail(2, 2, 2), [2, 2]),
        (ASKED, detail(2, 1, 1), [1, 1]),
        (ASKED | {"tres-per-node": "gres:nvme:1"}, detail(2, 2, 2), [2, 2]),
        (ASKED | {"tres-per-node": "gres:gpu:4"}, detail(2, 1, 1), [1, 1]),
        # What the owner adds counts where it makes the job larger, up to the node's four GPUs.
        (ASKED, detail(2, 2, 2, "Comment=Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES="), [2, 2]),
        (ASKED, detail(2, 2, 2, "Comment=Nodes=n9 CPU_IDs=0 Mem=0 GRES=gpu:9"), [2, 2]),
        (ASKED, detail(2, 2, 2, "Comment=Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:9"), [2, 4]),
        # Nothing is known of it, or not of all of its nodes.
        (ASKED, detail(3, 2, 2), [1, 1]),
        (ASKED, detail(2, 2, 2).replace("Nodes=n2", "Nodes=n3"), [1, 1]),
        # Slurm accounts for its GPUs: then its own count is the truth.
        (ASKED | {"tres-alloc": "cpu=2,node=2,gres/gpu=2"}, detail(2, 2, 2), [1, 1]),
    ],
)
def test_a_job_holds_what_its_details_tell(
    fields: dict[str, str], text: str, gpus: list[float]
) -> None:
    """In the column of jobs, too."""
    table, holdings = read(job(2) | fields), Holdings()
    holdings.learn(splits_in(text, {2}), table, [0], site())
    holdings.correct(table)
    assert (split(holdings, table), table.gpus) == (gpus, [sum(gpus)])


def test_what_a_job_that_runs_shows_later_changes_nothing() -> None:
    """Its details were read in this run."""
    table, holdings = read(job(2) | ASKED), Holdings()
    holdings.learn(splits_in(detail(2, 2, 2), {2}), table, [0], site())
    later = read(job(2) | ASKED | {"tres-per-node": "gres:gpu:3"})
    assert holdings.unknown(later, site()) == []
    holdings.correct(later)
    assert (split(holdings, later), later.gpus) == ([2, 2], [4])


@pytest.mark.parametrize(
    ("fields", "counts", "asked"),
    [
        (ASKED, False, True),
        (ASKED, True, False),
        (ASKED | {"tres-per-node": "N/A"}, False, True),
        (ASKED | {"tres-per-node": "gres:shard:1"}, False, False),
        (ASKED | PENDING, False, False),
        (ASKED | {"State": "COMPLETING"}, False, False),
        ({"NodeList": "n3", "tres-per-node": "N/A"}, False, False),
        (COUNTED, False, False),
    ],
)
def test_who_is_asked_for_what_he_holds(
    fields: dict[str, str],
    counts: bool,  # noqa: FBT001 - drawn
    asked: bool,  # noqa: FBT001
) -> None:
    """Whoever runs on nodes with GPUs, once, where Slurm does not account for GPUs; no others."""
    nodes = [node("n1"), node("n2"), node("n3", Gres="(null)")]
    at = site(*nodes, config=dataclasses.replace(CONFIG, counts_gpus=counts))
    table, holdings = read(job(2) | fields, at=at), Holdings()

    assert bool(holdings.unknown(table, at)) == asked
    holdings.learn({}, table, [0], at)
    assert holdings.unknown(table, at) == []


def test_jobs_that_give_nodes_back_hold_less() -> None:
    """The same run on fewer nodes: what is left of the split that was learnt."""
    holdings = Holdings()
    holdings.learn(splits_in(detail(2, 3, 1), {2}), read(job(2) | ASKED), [0], site())
    for change in ({"NumNodes": "1"}, {"NumNodes": "1", "State": "COMPLETING"}):
        table = read(job(2) | ASKED | change | {"NodeList": "n2"})
        holdings.correct(table)
        assert (table.gpus, split(holdings, table)) == ([1], [1])


def test_cpus_and_memory_are_split_without_loss() -> None:
    """What a job holds in all is what it holds on its nodes together."""
    held = Holdings().allocations(read(job(2) | UNEVEN), site())

    assert held.cpus.tolist() == [3, 2]
    assert held.mem_mb.tolist() == [4, 3]
    assert held.node.tolist() == [0, 1]


def test_only_jobs_that_hold_nodes_have_allocations() -> None:
    """A finished job's node list is history."""
    table = read(job(1, State="COMPLETED"), job(2), job(3, **PENDING), job(4, NodeList="gone"))

    assert Holdings().allocations(table, site()).job.tolist() == [1]
    assert table.state == [JobState.COMPLETED, JobState.RUNNING, JobState.PENDING, JobState.RUNNING]


def test_releases_are_compared_by_number() -> None:
    """The supported range and the known bad releases are told apart."""
    assert parse_release("slurm 22.05.8") == Release(22, 5, 8)
    assert parse_release("25.11.0-0rc1") == Release(25, 11, 0)
    assert str(Release(22, 5, 8)) == "22.05.8"
    assert unsupported(Release(22, 5, 0)) == unsupported(Release(26, 5, 5)) == ""
    assert "21.08.8 is outside" in unsupported(Release(21, 8, 8))
    assert "26.11.0 is outside" in unsupported(Release(26, 11, 0))
    assert "loses its GPUs" in no_preemption(Release(23, 2, 1))
    assert no_preemption(Release(23, 2, 2)) == no_preemption(Release(22, 5, 8)) == ""
    with pytest.raises(ClusterError, match="no Slurm version"):
        parse_release("(null)")


def test_the_wckey_of_submitit_bounds_the_claim_and_no_other() -> None:
    """80 % of 100 min, for a job that has opted in; one without a contract claims nothing."""
    opted_in = '{"slurm_dl":{"v":1,"sig":"USR2"}}'
    rows = [
        job(1, WCKey="*submitit", Comment=opted_in, TimeLimit="1:40:00"),
        job(2, WCKey="submitit"),
        job(3, WCKey="theirs", Comment=opted_in),
    ]

    assert {j: c.until for j, c in read(*rows).claims.items()} == {1: 0.8, 3: None}
