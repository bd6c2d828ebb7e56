from __future__ import annotations

from collections.abc import Mapping

import pytest
from squeue_records import NONCE, RUNNING, records, words

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.slurm.controller import SiteConfig
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.conditions import ConditionReader
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_choices import NodeChoices
from slurm_dl.slurm.read.node_reader import NODE_FIELDS, ClusterReading, read_nodes, site_of
from slurm_dl.slurm.read.record_parser import JOB_FIELDS
from slurm_dl.slurm.releases import Release
from slurm_dl.slurm.tool_runner import Slurm

FEATURES = {"n1": "big,new", "n2": "big", "n3": "new", "n4": "(null)"}

PENDING = RUNNING | words(
    "State=PENDING Reason=Priority NodeList= ReqNodes= Feature=(null) HetJobID=0 tres-alloc="
)


def site() -> ClusterReading:
    plain = {"StateComplete": "idle", "Partition": "gpu", "CPUs": "16", "Memory": "9", "Gres": ""}
    nodes = [plain | {"NodeList": name, "features_act": f} for name, f in FEATURES.items()]
    return site_of(
        read_nodes(records(NODE_FIELDS, nodes), NONCE),
        topology="",
        reservations=(),
        config=SiteConfig(release=Release(22, 5, 8), tracks_memory=False),
        type_row={},
    )


SITE = site()


def queue(*jobs: int, **fields: str) -> JobTable:
    """Pending jobs of these ids, all with the same *fields*."""
    rows = [PENDING | {"JobID": str(job), "JobArrayID": str(job)} | fields for job in jobs]
    reader = JobReader(ClaimReader(max_grace_s=600))
    return reader.read(records(JOB_FIELDS, rows), NONCE, SITE, now_s=0.0)


class Queue(Slurm):
    """Says what its jobs exclude, as squeue does."""

    def __init__(self, excluded: Mapping[int, str]) -> None:
        self.excluded = dict(excluded)
        self.asked: list[str] = []
        self.is_down = False
        self.said = ""

    def run(self, tool: str, *args: str) -> str:
        """The exclusions of the one job named, or of all."""
        assert tool == "squeue"
        named = next((a for a in args if a.startswith("--jobs=")), "all")
        self.asked.append(named)
        if self.is_down:
            msg = "squeue failed"
            raise ClusterError(msg)
        ids = sorted(set(named.removeprefix("--jobs=").split(",")))
        which = self.excluded if named == "all" else map(int, ids)
        return self.said or "".join(
            f"{j} {self.excluded[j]} 1 0 * * * N/A 0 (null)\n" for j in which if j in self.excluded
        )


def known(table: JobTable, **excluded: str) -> ConditionReader:
    """What the jobs of *table* exclude: j5="n1" for job 5, the others nothing."""
    named = {int(name[1:]): nodes for name, nodes in excluded.items()}
    exclusions = ConditionReader(Queue(dict.fromkeys(table.job_id, "") | named))
    exclusions.learn(table)
    return exclusions


def excluding(conditions: ConditionReader) -> dict[int, str]:
    """Node list by job id, of the jobs that are known to exclude any."""
    return {int(job): c.excluded for job, c in conditions.items() if c.excluded}


def told(exclude: str = "", **fields: str) -> tuple[list[str] | None, list[str] | None]:
    """Names of the nodes that one pending job may use, and of those it excludes; None if free."""
    table = queue(5, 6, **fields)
    asked = NodeChoices(SITE).of(table, known(table, j5=exclude))
    masks = [of.get(5) for of in (asked.choices, asked.excluded)]
    choices, excluded = (
        None if m is None else [name for name, may in zip(FEATURES, m, strict=True) if may]
        for m in masks
    )
    return choices, excluded


def choice(exclude: str = "", **fields: str) -> list[str] | None:
    """Names of the nodes that one pending job may use, whatever it excludes; None if it is free."""
    return told(exclude, **fields)[0]


def test_job_without_restriction_is_not_listed() -> None:
    """Most jobs take any node: they cost nothing here."""
    assert told() == (None, None)
    assert told(ReqNodes="(null)", Feature="", HetJobID="N/A") == (None, None)


@pytest.mark.parametrize(
    ("exclude", "excluded"),
    [
        ("n1", ["n1"]),
        ("n[1-2,4]", ["n1", "n2", "n4"]),
        ("n[1-4]", ["n1", "n2", "n3", "n4"]),
        ("n1,n1,n3", ["n1", "n3"]),
        ("n[1,9]", ["n1"]),
        ("n9", None),
    ],
)
def test_excluded_nodes_are_told_apart(exclude: str, excluded: list[str] | None) -> None:
    """They may be ours; a node that is not there any more cannot be excluded."""
    assert told(exclude) == (None, excluded)


def test_exclusion_that_is_no_node_list_is_not_understood() -> None:
    """Then no node is left: nobody gives way for such a job."""
    assert told("n[1") == ([], None)


@pytest.mark.parametrize(
    ("required", "n_nodes", "left"),
    [
        ("n2", "1", ["n2"]),
        ("n[2-3]", "2", ["n2", "n3"]),
        ("n2", "2", []),
        ("n[2-3]", "1", []),
        ("n9", "1", []),
        ("n[2", "1", []),
    ],
)
def test_required_nodes_are_all_of_them_or_not_understood(
    required: str, n_nodes: str, left: list[str]
) -> None:
    """Where fewer nodes are named than wanted, Slurm chooses the others."""
    assert choice(ReqNodes=required, NumNodes=n_nodes) == left


@pytest.mark.parametrize(
    ("features", "left"),
    [
        ("big", ["n1", "n2"]),
        ("big&new", ["n1"]),
        ("new,big", ["n1"]),
        ("old", []),
        ("bi", []),
        ("(null)&(null)", []),
        ("big|new", []),
        ("[big|new]", []),
        ("[big&new]", []),
        ("big*2", []),
        ("big*2&new*1", []),
        ("(big)", []),
        ("(big|new)&new", []),
        ("big&", []),
        ("!big", []),
    ],
)
def test_features_are_plain_names_that_all_must_be_active(features: str, left: list[str]) -> None:
    """A node must have each of them; every other form is not understood."""
    assert choice(Feature=features) == left


def test_restrictions_add_up() -> None:
    """A node must be left by every one of them."""
    assert choice(Feature="new", ReqNodes="n[1,2]", NumNodes="2") == ["n1"]
    assert told("n2", Feature="big") == (["n1", "n2"], ["n2"])
    assert told("n[1", Feature="big") == ([], None)


def test_part_of_a_gang_has_no_node() -> None:
    """A component alone starts nothing, whatever else it says."""
    assert choice(HetJobID="5") == []
    assert choice("n1", HetJobID="5", Feature="big") == []


def test_of_a_running_job_it_is_known_where_else_it_may_run() -> None:
    """It may be moved, also to nodes that it was kept from before it started."""
    table = queue(5, State="RUNNING", ReqNodes="n1", Feature="big", HetJobID="5")
    conditions = known(table, j5="n[1-2]")
    conditions.learn_whole([JobId(5)], table)

    asked = NodeChoices(SITE).of(table, conditions)

    assert asked.choices[JobId(5)].tolist() == [name == "n1" for name in SITE.nodes.name]
    assert not asked.excluded


def test_finished_jobs_have_no_choices() -> None:
    """Nothing is decided about them."""
    table = queue(5, State="COMPLETED", ReqNodes="n1", Feature="big")

    asked = NodeChoices(SITE).of(table, known(table, j5="n2"))
    assert (asked.choices, asked.excluded) == ({}, {})


def test_equal_restrictions_share_one_array_that_nobody_can_change() -> None:
    """100,000 jobs with the same words cost one mask, and one cannot spoil another's."""
    table = queue(*range(1, 100), Feature="big")
    choices = NodeChoices(SITE)
    exclusions = known(table, **{f"j{job}": "n2" for job in range(1, 100)})
    once, twice = choices.of(table, exclusions), choices.of(table, exclusions)
    first, without = once.choices, once.excluded
    again, without_again = twice.choices, twice.excluded

    assert len(first) == len(without) == 99
    assert len({id(mask) for mask in [*first.values(), *again.values()]}) == 1
    assert len({id(mask) for mask in [*without.values(), *without_again.values()]}) == 1
    gang = choices.of(queue(1, HetJobID="1"), known(table)).choices
    for mask in (first[1], gang[1], without[1]):
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = True


def test_exclusions_are_asked_for_once() -> None:
    """One new job is asked for alone, several in one call, none not at all."""
    slurm = Queue({1: "n1", 2: "", 3: "n[1-2]"})
    excluded = ConditionReader(slurm)

    excluded.learn(queue(1, 2))
    assert slurm.asked == ["all"]
    excluded.learn(queue(1, 2))
    assert slurm.asked == ["all"]
    excluded.learn(queue(1, 2, 3))
    assert slurm.asked == ["all", "--jobs=3"]
    assert excluding(excluded) == {1: "n1", 3: "n[1-2]"}

    slurm.excluded = {1: "", 2: "n4", 3: ""}
    excluded.forget()
    excluded.learn(queue(1, 2, 3))
    assert excluding(excluded) == {2: "n4"}
    slurm.excluded = {2: ""}
    excluded.forget()
    excluded.learn(queue(2))
    assert excluding(excluded) == {}
    assert slurm.asked == ["all", "--jobs=3", "all", "--jobs=2"]


def test_job_that_waits_again_is_asked_about_again() -> None:
    """Its owner may have changed the list while it ran."""
    slurm = Queue({1: "n1"})
    excluded = ConditionReader(slurm)
    excluded.learn(queue(1))
    excluded.learn(queue(1, State="RUNNING"))
    excluded.learn(queue(1))

    assert excluding(excluded) == {1: "n1"}
    assert len(slurm.asked) == 2


def test_job_of_which_nothing_is_known_has_no_node() -> None:
    """Until Slurm has said what it excludes, nobody gives way for it."""
    slurm = Queue({1: "", 3: ""})
    excluded = ConditionReader(slurm)
    excluded.learn(table := queue(1, 2, 3))
    assert [*NodeChoices(SITE).of(table, excluded).choices] == [2]

    excluded.learn(table := queue(1, 2))
    assert not NodeChoices(SITE).of(table, excluded).choices[2].any()
    slurm.is_down = True
    excluded.learn(table := queue(1, 2))
    assert not NodeChoices(SITE).of(table, excluded).choices[2].any()


def test_job_that_was_changed_is_asked_about_again() -> None:
    """That one alone, and what is said of it then counts."""
    slurm = Queue({1: "", 2: "n3"})
    excluded = ConditionReader(slurm)
    excluded.learn(queue(1, 2))
    slurm.excluded[1] = "n4,n4"

    excluded.ask_again(JobId(1))
    excluded.learn(queue(1, 2))

    assert excluding(excluded) == {1: "n4,n4", 2: "n3"}
    assert slurm.asked == ["all", "--jobs=1"]


def test_silence_is_an_error_after_which_all_is_asked_again() -> None:
    """A call that failed must not leave jobs that seem to exclude nothing."""
    slurm = Queue({1: "n1", 2: "", 3: ""})
    excluded = ConditionReader(slurm)
    excluded.learn(queue(1))
    slurm.is_down = True
    with pytest.raises(ClusterError, match="squeue failed"):
        excluded.learn(queue(1, 2, 3))

    slurm.is_down = False
    excluded.learn(table := queue(1))

    assert excluding(excluded) == {1: "n1"}
    assert NodeChoices(SITE).of(table, excluded).excluded[1].tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    "line",
    ["x n1 1 0 * * * N/A 0 a", "1 n1", "", "-1 n1 1 0 * * * N/A 0 a", "1 n1 x 0 * * * N/A 0 a"],
)
def test_job_whose_conditions_cannot_be_read_has_no_node(line: str) -> None:
    """Whoever brings about such a line must not stop the reading of all others' jobs."""
    slurm = Queue({})
    slurm.said = f"{line}\n"
    conditions = ConditionReader(slurm)
    conditions.learn(table := queue(1, 2))
    choices = NodeChoices(SITE).of(table, conditions).choices
    assert not (choices[1] | choices[2]).any()


def test_reserved_threads_are_a_condition() -> None:
    """Threads are: ``--thread-spec=1`` is written by squeue 22.05 as two words."""
    slurm = Queue({})
    slurm.said = "1 (null) 1 0 * * * 1 Threads 0 (null)\n2 (null) 60000 0 * * * N/A 0 (null)\n"
    conditions = ConditionReader(slurm)
    conditions.learn(table := queue(1, 2, NumNodes="100000"))
    asked = NodeChoices(SITE).of(table, conditions)
    assert asked.unmodelled == {1: "--core-spec"}
    assert table.cpus[1] == 2**31 - 1
