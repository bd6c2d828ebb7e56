from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurm_dl.backends.slurm.choices import Excluded, NodeChoices
from slurm_dl.backends.slurm.claims import ClaimReader
from slurm_dl.backends.slurm.command import Slurm
from slurm_dl.backends.slurm.job_table import JobTable
from slurm_dl.backends.slurm.read_jobs import JOB_FIELDS, JobReader
from slurm_dl.backends.slurm.read_nodes import (
    NODE_FIELDS,
    Site,
    SiteConfig,
    read_nodes,
    site_of,
)
from slurm_dl.backends.slurm.versions import Release
from slurm_dl.model.errors import ClusterError

NONCE = "xnonce"
FEATURES = {"n1": "big,new", "n2": "big", "n3": "new", "n4": "(null)"}

PENDING = dict.fromkeys(JOB_FIELDS, "") | {
    "State": "PENDING",
    "Reason": "Priority",
    "Partition": "gpu",
    "UserID": "1000",
    "NumNodes": "1",
    "NumTasks": "1",
    "NumCPUs": "8",
    "RestartCnt": "0",
    "PriorityLong": "5",
    "HetJobID": "0",
    "Feature": "(null)",
    "TimeLimit": "10:00",
}


def records(fields: tuple[str, ...], rows: list[dict[str, str]]) -> str:
    return "".join(f"{NONCE}f".join(row[name] for name in fields) + f"{NONCE}r\n" for row in rows)


def site() -> Site:
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

    def run(self, tool: str, *args: str) -> str:
        """The exclusions of the one job named, or of all."""
        assert tool == "squeue"
        self.asked.append(args[0] if args[0].startswith("--jobs=") else "all")
        if self.is_down:
            msg = "squeue failed"
            raise ClusterError(msg)
        which = [int(args[0].removeprefix("--jobs="))] if "--jobs" in args[0] else self.excluded
        return "".join(f"{j} {self.excluded[j]}\n" for j in which if j in self.excluded)


def known(table: JobTable, **excluded: str) -> Excluded:
    """What the jobs of *table* exclude: j5="n1" for job 5, the others nothing."""
    named = {int(name[1:]): nodes for name, nodes in excluded.items()}
    exclusions = Excluded(Queue(dict.fromkeys(table.job_id, "") | named))
    exclusions.learn(table)
    return exclusions


def choice(exclude: str = "", **fields: str) -> list[str] | None:
    """Names of the nodes that one pending job may use; None if it is free."""
    table = queue(5, 6, **fields)
    mask = NodeChoices(SITE).of(table, known(table, j5=exclude)).get(5)
    if mask is None:
        return None
    return [name for name, may in zip(FEATURES, mask, strict=True) if may]


def test_job_without_restriction_is_not_listed() -> None:
    """Most jobs take any node: they cost nothing here."""
    assert choice() is None
    assert choice(ReqNodes="(null)", Feature="", HetJobID="N/A") is None


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("n1", ["n2", "n3", "n4"]),
        ("n[1-2,4]", ["n3"]),
        ("n[1-4]", []),
        ("n9", []),
        ("n[1,9]", []),
        ("n[1", []),
    ],
)
def test_excluded_nodes_are_taken_away(exclude: str, left: list[str]) -> None:
    """All but those; a list with a node that nobody knows is not understood."""
    assert choice(exclude) == left


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
    assert choice("n2", Feature="big") == ["n1"]
    assert choice("n3", ReqNodes="n[1,3]", NumNodes="2") == ["n1"]
    assert choice("n2", Feature="new", ReqNodes="n[1,3]", NumNodes="2") == ["n1", "n3"]
    assert choice("n9", Feature="big") == []


def test_part_of_a_gang_has_no_node() -> None:
    """A component alone starts nothing, whatever else it says."""
    assert choice(HetJobID="5") == []
    assert choice("n1", HetJobID="5", Feature="big") == []


def test_only_pending_jobs_have_choices() -> None:
    """Of a running job it is known where it runs."""
    table = queue(5, State="RUNNING", ReqNodes="n1", Feature="big", HetJobID="5")

    assert NodeChoices(SITE).of(table, known(table, j5="n2")) == {}


def test_equal_restrictions_share_one_array_that_nobody_can_change() -> None:
    """100,000 jobs with the same words cost one mask, and one cannot spoil another's."""
    table = queue(*range(1, 100), Feature="big")
    choices = NodeChoices(SITE)
    first = choices.of(table, known(table))
    again = choices.of(table, known(table))

    assert len(first) == 99
    assert len({id(mask) for mask in [*first.values(), *again.values()]}) == 1
    for mask in (first[1], choices.of(queue(1, HetJobID="1"), known(table))[1]):
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = True


def test_exclusions_are_asked_for_once() -> None:
    """One new job is asked for alone, several in one call, none not at all."""
    slurm = Queue({1: "n1", 2: "", 3: "n[1-2]"})
    excluded = Excluded(slurm)

    excluded.learn(queue(1, 2))
    assert slurm.asked == ["all"]
    excluded.learn(queue(1, 2))
    assert slurm.asked == ["all"]
    excluded.learn(queue(1, 2, 3))
    assert slurm.asked == ["all", "--jobs=3"]
    assert excluded.nodes == {1: "n1", 3: "n[1-2]"}

    slurm.excluded = {1: "", 2: "n4", 3: ""}
    excluded.forget()
    excluded.learn(queue(1, 2, 3))
    assert excluded.nodes == {2: "n4"}
    slurm.excluded = {2: ""}
    excluded.forget()
    excluded.learn(queue(2))
    assert excluded.nodes == {}
    assert slurm.asked == ["all", "--jobs=3", "all", "--jobs=2"]


def test_job_that_waits_again_is_asked_about_again() -> None:
    """Its owner may have changed the list while it ran."""
    slurm = Queue({1: "n1"})
    excluded = Excluded(slurm)
    excluded.learn(queue(1))
    excluded.learn(queue(1, State="RUNNING"))
    assert excluded.nodes == {}

    excluded.learn(queue(1))

    assert excluded.nodes == {1: "n1"}
    assert len(slurm.asked) == 2


def test_job_of_which_nothing_is_known_has_no_node() -> None:
    """Until Slurm has said what it excludes, nobody gives way for it."""
    slurm = Queue({1: "", 3: ""})
    excluded = Excluded(slurm)
    excluded.learn(table := queue(1, 2, 3))
    assert [job for job, mask in NodeChoices(SITE).of(table, excluded).items()] == [2]

    excluded.learn(table := queue(1, 2))
    assert not NodeChoices(SITE).of(table, excluded)[2].any()
    slurm.is_down = True
    excluded.learn(table := queue(1, 2))
    assert not NodeChoices(SITE).of(table, excluded)[2].any()


def test_silence_is_an_error_after_which_all_is_asked_again() -> None:
    """A call that failed must not leave jobs that seem to exclude nothing."""
    slurm = Queue({1: "n1", 2: "", 3: ""})
    excluded = Excluded(slurm)
    excluded.learn(queue(1))
    slurm.is_down = True
    with pytest.raises(ClusterError, match="squeue failed"):
        excluded.learn(queue(1, 2, 3))

    slurm.is_down = False
    excluded.learn(table := queue(1))

    assert excluded.nodes == {1: "n1"}
    assert NodeChoices(SITE).of(table, excluded)[1].tolist() == [False, True, True, True]


@pytest.mark.parametrize("line", ["x n1", "1", "", "-1 n1"])
def test_answer_that_is_no_list_of_exclusions_is_refused(line: str) -> None:
    """A squeue that prints something else must not look like one where nobody excludes nodes."""

    class Other(Slurm):
        def __init__(self) -> None:
            pass

        def run(self, *_: str) -> str:
            return f"{line}\n"

    with pytest.raises(ClusterError, match="no job id and node list"):
        Excluded(Other()).learn(queue(1, 2))
