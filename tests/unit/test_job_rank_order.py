"""Which rank is where: from Slurm's words on nodes and switches to the files and to srun."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.job import rank_order
from slurm_dl.job.controller import CallFailedError, JobController
from slurm_dl.job.rank_order import (
    RankLayout,
    as_allotted,
    find_layout,
    gpus_on,
    hosts,
    write_layout,
)

TREE = "SwitchName=a Level=0 LinkSpeed=1 Nodes=n[1,3]\nSwitchName=b Level=0 LinkSpeed=1 Nodes=n2\n"

UNEVEN = """\
JobId=7 JobName=x Nodes=n1 GRES=gpu:99
   NodeList=n[1-3]
   JOB_GRES=gpu:a100:7
     Nodes=n1 CPU_IDs=4-15 Mem=0 GRES=gpu:a100:3(IDX:1-3)
     Nodes=n[2-3] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:2(IDX:0-1),shard:0
   MinCPUsNode=1
"""


class Answers(JobController):
    """A controller that says what it is told to, or nothing."""

    def __init__(self, described: str | None, topology: str | None) -> None:
        self.asked: list[str] = []
        self._answers = {"described": described, "topology": topology}

    def _answer(self, name: str) -> str:
        self.asked.append(name)
        answer = self._answers[name]
        if answer is None:
            msg = "it is silent"
            raise CallFailedError(msg)
        return answer

    def described(self) -> str:
        """What it says of the job."""
        return self._answer("described")

    def topology(self) -> str:
        """What it says of the switches."""
        return self._answer("topology")


def job(**more: str) -> dict[str, str]:
    return {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "2(x3)", **more}


def test_gpus_of_each_node() -> None:
    """Only the job's own nodes count; what else a line says does not."""
    assert gpus_on(UNEVEN, ["n1", "n2", "n3"]) == {"n1": 3, "n2": 2, "n3": 2}
    assert gpus_on(UNEVEN, ["n2"]) == {"n2": 2}
    assert gpus_on("   Nodes=n1 CPU_IDs=0 Mem=0 GRES=\n", ["n1"]) == {"n1": 0}
    mixed = "   Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:h:2(IDX:0-1),gpu:a:1(IDX:2)\n"
    assert gpus_on(mixed, ["n1"]) == {"n1": 3}


@pytest.mark.parametrize("ntasks", ["6", "1"])
def test_tasks_of_srun_in_the_order_of_switches(ntasks: str) -> None:
    """Where each node has its tasks Slurm need not be asked for GPUs.

    The number in all is that of the submission, and the job may have another size since.
    """
    asked = Answers(None, TREE)

    layout, why = find_layout(job(SLURM_NTASKS=ntasks), "srun", asked)

    assert (layout, why) == (RankLayout(("n1", "n3", "n2"), (2, 2, 2), reordered=True), "")
    assert asked.asked == ["topology"]


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "plain"])
def test_one_rank_for_each_gpu(launcher: str) -> None:
    layout, _ = find_layout(job(SLURM_DL_RANKS="gpu"), launcher, Answers(UNEVEN, TREE))

    assert layout == RankLayout(("n1", "n3", "n2"), (3, 2, 2), reordered=True)


def test_no_topology_is_one_switch() -> None:
    layout, _ = find_layout(job(), "torchrun", Answers(UNEVEN, None))

    assert layout == RankLayout(("n1", "n2", "n3"), (3, 2, 2), reordered=False)


@pytest.mark.parametrize(
    ("environ", "launcher", "why"),
    [
        ({}, "srun", ""),
        ({"SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "4"}, "srun", ""),
        (job(SLURM_TASKS_PER_NODE="2(x9)"), "srun", "how many ranks"),
        (job(SLURM_TASKS_PER_NODE="2(x99999999)"), "srun", "how many ranks"),
        (job(SLURM_TASKS_PER_NODE="two"), "srun", "how many ranks"),
        (job(), "torchrun", "which GPUs this job has is not known: it is silent"),
        (job(SLURM_DL_RANKS="gpu"), "srun", "which GPUs this job has is not known"),
    ],
)
def test_what_is_not_known_is_not_guessed(
    environ: Mapping[str, str], launcher: str, why: str
) -> None:
    """No wrong number of ranks: Slurm's own order, and a word about it."""
    layout, said = find_layout(environ, launcher, Answers(None, TREE))

    assert layout is None
    assert said.startswith(why)
    assert bool(said) == bool(why)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"SLURM_NTASKS": "1", "SLURM_NPROCS": "1", "SLURM_GPUS_PER_NODE": "a100:1"},
            {"SLURM_NTASKS": "6", "SLURM_NPROCS": "6", "SLURM_GPUS_PER_NODE": "a100:2"},
        ),
        ({"SLURM_GPUS_PER_NODE": "4"}, {"SLURM_GPUS_PER_NODE": "2"}),
        ({"SLURM_NTASKS": "6", "SLURM_NPROCS": "6", "SLURM_GPUS_PER_NODE": "2"}, {}),
        ({"SLURM_TASKS_PER_NODE": "2", "SLURM_NTASKS": "2"}, {}),
        ({"SLURM_GPUS_PER_NODE": "a:1,b:1"}, {}),
        ({"SLURM_GPUS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "0"}, {}),
        ({"SLURM_GPUS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "x"}, {}),
        ({}, {}),
    ],
)
def test_what_is_old_after_another_size(environ: Mapping[str, str], told: dict[str, str]) -> None:
    """Said anew only where it was said, and where the allocation is surely another."""
    assert as_allotted(job(**{"SLURM_GPUS_ON_NODE": "2", **environ})) == told
    assert not as_allotted({})


MOVED = RankLayout(("n1", "n3", "n2"), (2, 1, 1), reordered=True)
AS_IT_IS = RankLayout(("n1", "n2", "n3"), (2, 1, 1), reordered=False)


@pytest.mark.parametrize(
    ("layout", "launcher", "environ", "told"),
    [
        (MOVED, "srun", {}, ("slurm_dl.ranks", "4")),
        (MOVED, "torchrun", {}, ("slurm_dl.nodes", "3")),
        (MOVED, "plain", {}, None),
        (MOVED, "srun", {"SLURM_DISTRIBUTION": "cyclic"}, None),
        (MOVED, "srun", {"SLURM_DISTRIBUTION": "cyclic", "SLURM_DL_RANKS": "gpu"},
         ("slurm_dl.ranks", "4")),
        (AS_IT_IS, "srun", {}, None),
        (AS_IT_IS, "srun", {"SLURM_DL_RANKS": "gpu"}, ("slurm_dl.ranks", "4")),
        (AS_IT_IS, "torchrun", {"SLURM_DL_RANKS": "gpu"}, None),
    ],
)  # fmt: skip
def test_what_srun_is_told(
    tmp_path: Path,
    layout: RankLayout,
    launcher: str,
    environ: Mapping[str, str],
    told: tuple[str, str] | None,
) -> None:
    """Only where Slurm's own order would be another; the order a user asks for wins."""
    added = write_layout(layout, tmp_path, environ, launcher)

    file, tasks = told or (None, None)
    assert added.get("SLURM_HOSTFILE") == (None if file is None else str(tmp_path / file))
    assert added.get("SLURM_NTASKS") == added.get("SLURM_NPROCS") == tasks
    ranks = (tmp_path / "slurm_dl.ranks").read_text().split()
    assert ranks == [n for n, k in zip(*layout[:2], strict=True) for _ in range(k)]
    assert added["SLURM_DL_RANK_FILE"] == str(tmp_path / "slurm_dl.ranks")
    assert Path(added["SLURM_DL_NODE_FILE"]).read_text() == "".join(f"{n}\n" for n in layout.nodes)


@pytest.mark.parametrize(
    ("ranks", "environ", "told"),
    [
        ((2, 2), {"SLURM_DL_RANKS": "gpu"}, "2"),
        ((2, 1), {"SLURM_DL_RANKS": "gpu"}, None),
        ((2, 2), {}, None),
    ],
)
def test_tasks_of_each_node_are_told_where_they_are_as_many(
    tmp_path: Path, ranks: tuple[int, ...], environ: Mapping[str, str], told: str | None
) -> None:
    """Lightning refuses two tasks or more without it; elsewhere the job's own number stands."""
    added = write_layout(RankLayout(("n2", "n1"), ranks, reordered=True), tmp_path, environ, "srun")

    assert added.get("SLURM_NTASKS_PER_NODE") == told


DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_gpus_as_slurm_says_them(release: str) -> None:
    """In the recorded words of three releases each running job has its GPUs."""
    seen = 0
    for line in (DATA / f"slurm-{release}" / "job.txt").read_text(errors="replace").split("\n"):
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        in_all = re.fullmatch(r"gpu:a100:(\d+)", fields.get("JOB_GRES", ""))
        if in_all is not None and fields["JobState"] == "RUNNING":
            nodes = hosts(fields["NodeList"])
            found = gpus_on(line, nodes)
            assert list(found) == nodes
            assert sum(found.values()) == int(in_all[1])
            seen += len(nodes)
    assert seen > 3


TWO_LEVELS = """\
SwitchName=top Level=2 LinkSpeed=1 Nodes=n[1-8]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1,3,5,7]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[2,4,6,8]
SwitchName=core Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]
"""
BLOCKS = """\
BlockName=block1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=block2 BlockIndex=1 Nodes=n[3-4] BlockSize=2
"""


def test_leaves_of_a_tree() -> None:
    """Switches above the leaves name all nodes too, and are passed over."""
    found = rank_order.leaves(TWO_LEVELS)

    assert {node for node, leaf in found.items() if leaf == "leaf1"} == {"n1", "n3", "n5", "n7"}
    assert len(found) == 8
    assert rank_order.is_tree(TWO_LEVELS)


def test_blocks_are_leaves_too() -> None:
    assert rank_order.leaves(BLOCKS) == {
        "n1": "block1",
        "n2": "block1",
        "n3": "block2",
        "n4": "block2",
    }
    assert not rank_order.is_tree(BLOCKS)


@pytest.mark.parametrize("text", ["", "No topology information available\n", "SwitchName=\n"])
def test_no_topology(text: str) -> None:
    assert rank_order.leaves(text) == {}
    assert not rank_order.is_tree(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("n[1-3],gpu7", ["n1", "n2", "n3", "gpu7"]),
        ("n[01-02,9]-ib", ["n01-ib", "n02-ib", "n9-ib"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
        ("(null)", []),
        ("n[1-", []),
        ("n]1[", []),
        ("n[3-1]", []),
        ("n[a-b,5]", ["n5"]),
        ("n[1-999999999]", []),
        ("n[1-90000]m[1-90000]", []),
    ],
)
def test_lists_of_nodes(text: str, expected: list[str]) -> None:
    """What is no list of nodes has none, and nothing makes it endless."""
    assert rank_order.hosts(text) == expected


@given(st.text(alphabet="n[]1-,09 (", max_size=30))
def test_any_text_is_read(text: str) -> None:
    """Text that nobody expected ends, and gives names or none."""
    assert all(isinstance(name, str) for name in rank_order.hosts(text))


def test_the_order_of_switches() -> None:
    """Nodes of one switch together, else as Slurm counts them."""
    nodes = [f"n{i}" for i in range(1, 9)]

    ordered = rank_order.switch_order(nodes, rank_order.leaves(TWO_LEVELS))

    assert ordered == ["n1", "n3", "n5", "n7", "n2", "n4", "n6", "n8"]
    assert rank_order.switch_order(nodes, {}) == nodes


@given(st.lists(st.integers(0, 40), unique=True, min_size=1), st.data())
def test_orders_keep_the_first_node_and_each_leaf_together(
    numbers: list[int], data: st.DataObject
) -> None:
    """The batch script runs on the first node; no leaf is left and entered again."""
    nodes = [f"n{i}" for i in numbers]
    leaf_of = {n: data.draw(st.sampled_from("abc")) for n in nodes if data.draw(st.booleans())}

    ordered = rank_order.switch_order(nodes, leaf_of)

    assert sorted(ordered) == sorted(nodes)
    assert ordered[0] == nodes[0]
    leaves = [leaf_of.get(node, "") for node in ordered]
    changes = sum(a != b for a, b in itertools.pairwise(leaves))
    assert changes == len(set(leaves)) - 1
    for leaf in set(leaves):
        of_leaf = [n for n in ordered if leaf_of.get(n, "") == leaf]
        assert of_leaf == [n for n in nodes if leaf_of.get(n, "") == leaf]


@pytest.mark.parametrize(
    ("file", "leaf", "tree"),
    [
        ("slurm-22.05/topology.txt", "leaf", True),
        ("slurm-24.11/topology.txt", "leaf", True),
        ("slurm-26.05/topology.txt", "leaf", True),
        ("slurm-24.11/blocks.txt", "block", False),
        ("slurm-26.05/blocks.txt", "block", False),
    ],
)
def test_topologies_as_slurm_says_them(file: str, leaf: str, tree: bool) -> None:  # noqa: FBT001
    """In the recorded words of three releases: two nodes under each leaf or in each block."""
    text = (Path(__file__).parents[1] / "data" / file).read_text()

    assert rank_order.leaves(text) == {f"n{i}": f"{leaf}{(i + 1) // 2}" for i in range(1, 7)}
    assert rank_order.is_tree(text) == tree
