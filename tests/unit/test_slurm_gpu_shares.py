"""Which device a job has, out of Slurm's own words: recorded on 22.05.8 and 26.05.5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.nodes import SharedGpu
from slurm_dl.slurm.controller import SiteConfig, read_config
from slurm_dl.slurm.read.gpu_holdings import Shares, devices_in
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading, NodeSeen, NodesSeen, site_of
from slurm_dl.slurm.read.tres import parse_gres
from slurm_dl.slurm.releases import Release

DATA = Path(__file__).parents[1] / "data"


def detail(job_id: int, nodes: str, gres: str, more: str = "") -> str:
    """One line of ``scontrol show job -d -o``."""
    return (
        f"JobId={job_id} JobName=x JobState=RUNNING NodeList={nodes} JOB_GRES=shard:2 {more}"
        f"Nodes={nodes} CPU_IDs=0 Mem=0 GRES={gres} MinCPUsNode=1\n"
    )


class Told:
    """In place of Slurm: prints *text*, or is silent."""

    def __init__(self, *texts: str) -> None:
        self.text = "".join(texts)
        self.asked: list[tuple[str, ...]] = []

    def run(self, *argv: str) -> str:
        """See `Slurm.run`."""
        self.asked.append(argv)
        if not self.text:
            msg = "silent"
            raise ClusterError(msg)
        one = argv[-1]
        if not one.isdecimal():
            return self.text
        lines = self.text.splitlines(keepends=True)
        return "".join(line for line in lines if line.startswith(f"JobId={one} ")) or self.text


def site(*, spreads_shares: bool = False) -> ClusterReading:
    """Three nodes of two GPUs with four shards each; the fourth has no shards."""
    shared, plain = parse_gres("gpu:a100:2,shard:a100:8"), parse_gres("gpu:a100:2")
    nodes = {
        f"n{i}": NodeSeen("idle", 16, 64_000, plain if i == 4 else shared, frozenset())
        for i in range(1, 5)
    }
    return site_of(
        NodesSeen(nodes=nodes, members={"gpu": frozenset(nodes)}, unreadable=0),
        topology="",
        reservations=(),
        config=SiteConfig(Release(22, 5, 8), tracks_memory=False, spreads_shares=spreads_shares),
        type_row={},
    )


def table(*jobs: tuple[int, str, float], state: JobState = JobState.RUNNING) -> JobTable:
    """Running jobs: id, nodes and GPUs in all."""
    n = len(jobs)
    counts = [len(nodes.split(",")) for _, nodes, _ in jobs]
    return JobTable(
        job_id=[j for j, _, _ in jobs],
        state=[state] * n,
        held=[Held.NO] * n,
        partition=[0] * n,
        uid=[0] * n,
        tasks=[1] * n,
        n_nodes=counts,
        gpus=[g for _, _, g in jobs],
        gpu_type=[""] * n,
        cpus=[1] * n,
        mem_mb=[0] * n,
        submit_s=[0.0] * n,
        start_s=[1.0] * n,
        end_s=[0.0] * n,
        limit_s=[60.0] * n,
        restarts=[0] * n,
        priority=[1] * n,
        requeueable=[True] * n,
        exclusive=[False] * n,
        nodes=["" if state is JobState.PENDING else nodes for _, nodes, _ in jobs],
        even=[True] * n,
        counted=[True] * n,
        claims={},
        texts={},
        reserved={},
        inside={},
        also_in={},
        begins={},
        restricted={},
        gang_parts=set(),
    )


def seen(told: Told, jobs: JobTable, polls: int = 1, **more: bool) -> list[tuple[object, ...]]:
    """Node, index, jobs, shares and whether it is the first with room, after some polls."""
    shares = Shares(told)  # type: ignore[arg-type]
    for _ in range(polls):
        shares.learn(jobs)
    return [_plain(gpu) for gpu in shares.gpus(jobs, site(**more))]


def _plain(gpu: SharedGpu) -> tuple[object, ...]:
    return gpu.node, gpu.index, gpu.jobs, gpu.shares, gpu.first


FOUR = (
    detail(1, "n1", "shard:2(IDX:0)"),
    detail(2, "n1", "shard:2(IDX:0)"),
    detail(3, "n1", "shard:2(IDX:1)"),
    detail(4, "n2", "gpu:a100:1(IDX:0)"),
    detail(5, "n2", "shard:1(IDX:1)"),
    detail(6, "n3", "shard:3(IDX:1)"),
)
JOBS = (
    (1, "n1", 0.5),
    (2, "n1", 0.5),
    (3, "n1", 0.5),
    (4, "n2", 1),
    (5, "n2", 0.25),
    (6, "n3", 0.75),
)


def test_who_shares_which_device() -> None:
    """As 22.05.8 tells it; a device is the first with room if all before it are taken."""
    assert seen(Told(*FOUR), table(*JOBS)) == [
        (0, 0, (1, 2), (0.5, 0.5), True),
        (0, 1, (3,), (0.5,), True),
        (1, 1, (5,), (0.25,), True),
        (2, 1, (6,), (0.75,), False),
    ]


def test_the_least_loaded_is_never_the_first() -> None:
    """With LL_SHARED_GRES another device may be taken."""
    assert not any(gpu[4] for gpu in seen(Told(*FOUR), table(*JOBS), spreads_shares=True))


def test_one_command_for_all_and_none_when_all_is_known() -> None:
    """A job keeps its device as long as it runs."""
    told = Told(*FOUR)
    seen(told, table(*JOBS), polls=5)

    assert told.asked == [("scontrol", "show", "job", "--details", "--oneliner")]


def test_nothing_is_asked_where_nobody_shares() -> None:
    """Whole GPUs, no GPUs, and jobs that wait."""
    told = Told(*FOUR)
    seen(told, table((1, "n1", 2), (2, "n2", 0)))
    seen(told, table((1, "n1", 0.5), state=JobState.PENDING))

    assert not told.asked


def test_few_new_jobs_are_asked_about_one_at_a_time() -> None:
    """Whole-GPU jobs elsewhere are not asked about at all."""
    told = Told(detail(1, "n1", "shard:2(IDX:1)"))
    found = seen(told, table((1, "n1", 0.5), (9, "n2", 1)), polls=3)

    assert told.asked == [("scontrol", "show", "job", "--details", "--oneliner", "1")]
    assert found == [(0, 1, (1,), (0.5,), False)]


def test_two_new_jobs_are_both_known_after_two_polls() -> None:
    """One command in each."""
    told = Told(*FOUR)

    assert seen(told, table(*JOBS[:2]), polls=1) == [(0, 0, (1,), (0.5,), True)]
    assert seen(told, table(*JOBS[:2]), polls=3) == [(0, 0, (1, 2), (0.5, 0.5), True)]
    assert [argv[-1] for argv in told.asked] == ["1", "1", "2"]


def test_silence_is_asked_again() -> None:
    """Until it is known no device is."""
    told = Told()

    assert seen(told, table((1, "n1", 0.5)), polls=2) == []
    assert len(told.asked) == 2


def test_a_job_with_a_forged_line_in_the_dump_is_asked_for_alone() -> None:
    """Its device is the one that Slurm tells when it is asked for that job."""
    forged = detail(3, "n3", "shard:3(IDX:1)", "\n" + detail(1, "n1", "shard:2(IDX:1)"))
    told = Told(*FOUR[:2], forged)
    jobs = table((1, "n1", 0.5), (2, "n1", 0.5), (3, "n3", 0.75))

    assert seen(told, jobs, polls=3) == [(0, 0, (1, 2), (0.5, 0.5), True)]
    assert [argv[-1] for argv in told.asked] == ["--oneliner", "1"]


@pytest.mark.parametrize(
    "told",
    [
        detail(1, "n2", "shard:2(IDX:0)"),
        detail(1, "n1", "shard:2(IDX:0-1)"),
        detail(1, "n1", "shard:2"),
        detail(1, "n1", "(null)"),
        detail(1, "n1", "shard:2(IDX:x)"),
        detail(2, "n1", "shard:2(IDX:0)"),
        detail(1, "n1", "shard:2(IDX:0)", "\nJobId=1 "),
        detail(1, "n1", "shard:2(IDX:0)", "Nodes=n9 CPU_IDs=0 Mem=0 GRES=shard:1(IDX:0) "),
    ],
)
def test_what_does_not_add_up_is_not_believed(told: str) -> None:
    """Other nodes, several devices, none, another job, or a record that is cut short."""
    asked = Told(told)

    assert seen(asked, table((1, "n1", 0.5)), polls=2) == []
    assert len(asked.asked) == 1, "it is not asked about again"


def test_a_job_that_runs_again_is_asked_about_again() -> None:
    """Another run, another device."""
    told = Told(detail(1, "n1", "shard:2(IDX:0)"))
    shares = Shares(told)  # type: ignore[arg-type]
    jobs = table((1, "n1", 0.5))
    shares.learn(jobs)
    told.text = detail(1, "n1", "shard:2(IDX:1)")
    jobs.start_s[0] = 2.0
    shares.learn(jobs)

    assert [gpu.index for gpu in shares.gpus(jobs, site())] == [1]


def test_a_job_on_two_nodes() -> None:
    """One share on each; they may be told in one group or in two."""
    one = detail(1, "n[1-2]", "shard:2(IDX:0)")
    two = detail(1, "n1", "shard:2(IDX:0)", "Nodes=n2 CPU_IDs=0 Mem=0 GRES=shard:2(IDX:1) ")
    jobs = table((1, "n1,n2", 1.0))

    assert [gpu[:2] for gpu in seen(Told(one), jobs)] == [(0, 0), (1, 0)]
    assert [gpu[:2] for gpu in seen(Told(two), jobs)] == [(0, 0), (1, 1)]
    assert [gpu[3] for gpu in seen(Told(one), jobs)] == [(0.5,), (0.5,)]


@pytest.mark.parametrize(
    ("gres", "indices"),
    [
        ("shard:2(IDX:1)", (1,)),
        ("shard:a100:2(IDX:1)", (1,)),
        ("shard:1(0/4,1/4,0/4,0/4)", (1,)),
        ("gpu:a100:3(IDX:0-1,3)", (0, 1, 3)),
        ("gpu:2(IDX:0,2)", (0, 2)),
        ("gpu:1(IDX:N/A)", ()),
        ("gpu:1(IDX:3-999999999999)", tuple(range(3, 1025))),
        ("", ()),
    ],
)
def test_how_devices_are_spelled(gres: str, indices: Sequence[int]) -> None:
    """``IDX`` up to 23.02, later what each device gives; nothing huge is built from either."""
    assert devices_in(detail(7, "n1", gres), {7}) == {7: {"n1": indices}}


@pytest.mark.parametrize("release", ["22.05", "26.05"])
def test_the_recorded_job(release: str) -> None:
    """The one that holds a shard of the second GPU of n6."""
    raw = (DATA / f"slurm-{release}" / "job.txt").read_bytes()

    assert devices_in(raw.decode("utf-8", errors="replace"), {11})[11] == {"n6": (1,)}


def test_nodes_that_hand_out_shares() -> None:
    """By their own GRES."""
    np.testing.assert_array_equal(site().sharable, [True, True, True, False])


def test_how_slurm_chooses_a_device_is_read() -> None:
    """From SelectTypeParameters, where other words may stand too."""
    text = "SLURM_VERSION = 24.11.5\nSelectTypeParameters    = CR_CORE_MEMORY,LL_SHARED_GRES\n"

    assert read_config(text).spreads_shares
    assert not read_config("SLURM_VERSION = 24.11.5\n").spreads_shares
