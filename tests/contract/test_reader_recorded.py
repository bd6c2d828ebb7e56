"""The reader over what real Slurm releases printed; each folder tests/data/slurm-* is one."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from bad_inputs import row
from contract.described import unsound, wrong_in
from contract.on_slurm import looked_at

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.snapshot import Observed
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.read.conditions import CONDITION_ARGUMENTS
from slurm_dl.slurm.releases import NEWEST, OLDEST, parse_release, unsupported
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped

RELEASES = sorted(Path(__file__).parents[1].glob("data/slurm-*"))


class Recorded(Slurm):
    """Answers with the recorded output, under the separators of the present call."""

    def __init__(self, folder: Path) -> None:
        self.calls = Counter()
        self.spent_s = 0.0
        self.expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
        self.text = {
            path.stem: path.read_bytes().decode("utf-8", errors="replace")
            for path in folder.glob("*.txt")
        }

    @property
    def slurm_conf(self) -> str:
        """There is none that could be read."""
        return "/nonexistent"

    def run(self, tool: str, *args: str) -> str:
        """What Slurm said then."""
        self.calls[tool] += 1
        if args[-1] == CONDITION_ARGUMENTS[-1]:
            return self.text["excluded"]
        text = self.text.get(args[1] if tool == "scontrol" else tool, "")
        if args[:2] == ("show", "job") and args[-1] != "--oneliner":
            return re.findall(rf"^JobId={args[-1]} .*", text, re.MULTILINE)[0]
        if tool == "squeue" and args[0].startswith("--jobs="):
            text = self.text["arrays"]
        separators = re.search(r"--Format=.*:(\w+)r$", args[-1])
        return text.replace(self.expected["nonce"], separators[1]) if separators else text


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return Recorded(request.param)


def observe(recorded: Recorded) -> Observed:
    return looked_at(
        SlurmCluster(recorded, max_grace_s=600, clock=lambda: recorded.expected["now_s"])
    )


def rows_by_name(seen: Observed) -> dict[tuple[str, str], int]:
    """Row by name and the end of the label: ``_0``, ``+1`` or nothing."""
    return {
        (text.name, text.label.lstrip("0123456789")): row
        for job_id, row in seen.jobs.row_of().items()
        for text in [seen.texts[job_id]]
    }


def test_oldest_and_newest_supported_release_are_recorded() -> None:
    """The recordings are found; without any, the tests below would test nothing."""
    recorded = {f"{major}.{minor:02}" for major, minor in (OLDEST, NEWEST)} | {"24.11"}

    assert {path.name.removeprefix("slurm-") for path in RELEASES} >= recorded


def test_every_recorded_job_reads_as_what_was_submitted(recorded: Recorded) -> None:
    """GPUs by node, job, task and socket, arrays, het jobs, states and holds are read right."""
    seen = observe(recorded)
    rows = rows_by_name(seen)

    wrong = []
    for case in recorded.expected["jobs"]:
        name = escaped(case["name"].encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        problems = wrong_in(seen, rows[name, case["label"]], case["expected"])
        wrong += [f"{name[:20]}{case['label']}: {problem}" for problem in problems]

    assert wrong == []
    assert unsound(seen) == []
    assert len(rows) == len(recorded.expected["jobs"]) == len(seen.jobs)


def test_how_jobs_ended_is_told_in_slurms_words(recorded: Recorded) -> None:
    """Of those that are over, and of no other."""
    seen = observe(recorded)
    states = [JobState(s) for s in seen.jobs.state.tolist()]
    endings = [seen.texts[JobId(j)].ending for j in seen.jobs.job_id.tolist()]

    assert [bool(e) for e in endings] == [s >= JobState.COMPLETED for s in states]
    assert {"CANCELLED", "COMPLETED"} <= set(endings)


def test_nodes_read_as_they_are(recorded: Recorded) -> None:
    """Drained nodes and nodes of foreign reservations are not up; what jobs may use of each."""
    seen = observe(recorded)
    expected = recorded.expected["nodes"]
    names = seen.nodes.name

    assert dict(zip(names, seen.nodes.up.tolist(), strict=True)) == expected["up"]
    assert dict(zip(names, seen.nodes.leaf.tolist(), strict=True)) == expected["leaf"]
    assert {
        partition: [name for name, inside in zip(names, row, strict=True) if inside]
        for partition, row in zip(seen.partitions, seen.node_in.tolist(), strict=True)
    } == expected["partitions"]
    most = {p: one and one.max_time_s for p, one in zip(seen.partitions, seen.limits, strict=True)}
    assert most == {p: s or math.inf for p, s in expected["max_time_s"].items()}
    assert dict(zip(names, seen.nodes.cpus.tolist(), strict=True)) == expected["cpus"]
    assert dict(zip(names, seen.nodes.mem_mb.tolist(), strict=True)) == expected["mem_mb"]
    assert dict(zip(seen.gres.names, seen.gres.total.tolist(), strict=True)) == expected["gres"]
    assert seen.nodes.gpus.tolist() == [4.0] * len(names)
    assert {seen.gpu_types[i] for i in seen.nodes.gpu_type} == {"a100"}


def test_blocks_are_leaves(recorded: Recorded) -> None:
    """Where the topology is made of blocks, nodes of a block stand together."""
    release = parse_release(recorded.text["config"])
    assert ("blocks" in recorded.text) == ((release.major, release.minor) >= (23, 11))
    recorded.text["topology"] = recorded.text.get("blocks", recorded.text["topology"])

    seen = observe(recorded)

    leaf = dict(zip(seen.nodes.name, seen.nodes.leaf.tolist(), strict=True))
    assert leaf == recorded.expected["nodes"]["leaf"]


def test_only_our_reservations_are_reported(recorded: Recorded) -> None:
    """Nobody else's reservation may ever look as if it were ours to delete."""
    assert [r.name for r in observe(recorded).reservations] == ["slurm_dl_5"]


def test_reservations_of_others_block_their_nodes(recorded: Recorded) -> None:
    """But for the jobs that are submitted into them; also in polls that read the queue only."""
    cluster = SlurmCluster(recorded, max_grace_s=600, clock=lambda: recorded.expected["now_s"])
    for _ in range(2):
        seen = cluster.observe()
        names = {job: text.name for job, text in seen.texts.items()}
        found = {
            tuple(np.array(seen.nodes.name)[one.nodes].tolist()): (
                one.start_s > seen.now_s,
                one.end_s - one.start_s,
                {names[job] for job in one.jobs},
            )
            for one in seen.blocked
        }

        assert found == {("n5",): (True, 3600.0, {"in-lecture"}), ("n3",): (False, 3600.0, set())}


def test_nothing_recorded_is_unreadable_or_forged(recorded: Recorded) -> None:
    """Every record is read, and none that a name or comment pretends to be."""
    seen = observe(recorded)

    assert seen.unreadable == 0
    assert not np.isin([77777, 99999], seen.jobs.job_id).any()
    assert seen.now_s == recorded.expected["now_s"]
    assert all(text.name.isprintable() for text in seen.texts.values())


def test_queue_cut_short_at_any_place_is_refused(recorded: Recorded) -> None:
    """Half a picture is never returned, wherever the output stops."""
    whole = recorded.text["squeue"]
    last = whole.rindex("\n", 0, -1) + 1
    cluster = SlurmCluster(recorded, max_grace_s=600)
    cluster.observe()

    for end in range(last + 1, len(whole)):
        recorded.text["squeue"] = whole[:end]
        with pytest.raises(ClusterError, match="middle of a record"):
            cluster.observe()


@pytest.mark.parametrize(
    ("looked_before", "nodes_in_use", "refused"),
    [(False, True, True), (True, True, True), (False, False, False), (True, False, False)],
)
def test_an_empty_queue_is_believed_only_while_no_node_is_in_use(
    recorded: Recorded,
    looked_before: bool,  # noqa: FBT001
    nodes_in_use: bool,  # noqa: FBT001
    refused: bool,  # noqa: FBT001
) -> None:
    """At the first look too; idle nodes are what is left where slurmctld has lost its state."""
    cluster = SlurmCluster(recorded, max_grace_s=600)
    if looked_before:
        cluster.observe()
    recorded.text |= {"squeue": "", "arrays": ""}
    if not nodes_in_use:
        recorded.text["sinfo"] = re.sub(
            r"(allocated|mixed)(\+completing)?", "idle", recorded.text["sinfo"]
        )

    for _ in range(2):
        if refused:
            with pytest.raises(ClusterError) as err:
                cluster.observe()
            row("squeue lists no job while jobs run").check(str(err.value))
        else:
            assert len(cluster.observe().jobs) == 0


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING, JobState.COMPLETED])
@pytest.mark.parametrize("slurm_has_it", [True, False])
def test_a_job_that_is_not_listed_any_more_is_asked_for_by_id(
    recorded: Recorded,
    slurm_has_it: bool,  # noqa: FBT001
    state: JobState,
) -> None:
    """If it was not over and Slurm has it, the listing is not used; otherwise it has left."""
    cluster = SlurmCluster(recorded, max_grace_s=600)
    seen = cluster.observe()
    nonce = recorded.expected["nonce"]
    ids = {job for job, text in seen.texts.items() if "_" not in text.label}
    job = next(
        int(j)
        for j, s in zip(seen.jobs.job_id, seen.jobs.state, strict=True)
        if s == state and j in ids
    )
    whole = recorded.text["squeue"]
    records = whole.split(f"{nonce}r\n")
    recorded.text["squeue"] = f"{nonce}r\n".join(
        r for r in records if not r.startswith(f"{job}{nonce}f")
    )
    recorded.text["arrays"] = f"{job}{nonce}fRUNNING{nonce}r\n" if slurm_has_it else ""

    if slurm_has_it and state is not JobState.COMPLETED:
        for _ in range(2):
            with pytest.raises(ClusterError) as err:
                cluster.observe()
            row("squeue leaves out a job").check(str(err.value))
        recorded.text["squeue"] = whole
        assert job in cluster.observe().jobs.job_id
    else:
        assert job not in cluster.observe().jobs.job_id


def test_later_polls_read_the_queue_only(recorded: Recorded) -> None:
    """Once all is known an idle observation is one squeue.

    Reservations, and the nodes of ours, are read only while they are watched.
    """
    cluster = SlurmCluster(recorded, max_grace_s=600)
    cluster.observe()
    # Two jobs are on a node whose GPUs are shared: which have which is asked one at a time.
    cluster.observe()
    before = Counter(recorded.calls)

    cluster.observe()
    assert recorded.calls - before == Counter(squeue=1)
    assert cluster.observe().reservations == ()

    cluster.watch_reservations = True
    before = Counter(recorded.calls)
    assert [r.name for r in cluster.observe().reservations] == ["slurm_dl_5"]
    assert recorded.calls - before == Counter(squeue=1, scontrol=1, sinfo=1)


def test_pending_site_factors_are_read(recorded: Recorded) -> None:
    """Sprio names eligible jobs that wait or are to wait again; all are 0 in the recording."""
    factors = SlurmCluster(recorded, max_grace_s=600).site_factors()
    seen = observe(recorded)
    waits = np.isin(seen.jobs.state, [JobState.PENDING, JobState.COMPLETING])

    assert factors
    assert set(factors) <= set(seen.jobs.job_id[waits].tolist())
    assert set(factors.values()) == {0}


def test_recorded_release_is_supported(recorded: Recorded) -> None:
    """A recording of a release outside the supported range would say nothing."""
    cluster = SlurmCluster(recorded, max_grace_s=600)
    cluster.observe()

    assert unsupported(cluster.release) == ""
