"""Classes of failures, and what follows from them: tables, and a fake Slurm."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import build
import pytest
from fake_cluster import FakeCluster
from fake_slurm import FakeJob

from slurm_dl.engine.failed_jobs import Failed, failure_reasons, verdict, with_run
from slurm_dl.engine.settings import Settings
from slurm_dl.job.failure_class import BUILT_IN, TAIL_BYTES, classify, site_rows, table
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.booking import entry
from slurm_dl.model.breaker import Restart
from slurm_dl.model.contract import Contract
from slurm_dl.model.failure import Failure, FailureClass, Retries
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.snapshot import Observed
from slurm_dl.policies.fifo import Fifo
from slurm_dl.slurm.read.comment_claims import ClaimReader

RULES = Retries(infrastructure=2, window_s=1000.0)
SETTINGS = Settings(partitions=frozenset({"gpu"}), retries=RULES)

LOGS = [
    (1, "x\nModuleNotFoundError: No module named 'a'\n", "user"),
    (1, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "user"),
    (1, "[rank3]: RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1", "infrastructure"),
    (1, "ConnectionResetError: Connection reset by peer", "infrastructure"),
    (1, "OSError: [Errno 116] Stale file handle: '/nfs/a'", "infrastructure"),
    # A rank that fails by itself breaks the connections of the others.
    (1, "ValueError: bad shape\nNCCL error\nConnection reset by peer", "user"),
    (1, "kernel: NVRM: Xid (PCI:0000:3b:00): 79\nTypeError: None", "infrastructure"),
    (1, "NCCL INFO comm 0x1 rank 0\nKilled\n", "unknown"),
    (1, "dlrun: 2026-01-01 failure of class user: ValueError: a\n", "unknown"),
    (127, "", "user"),
    (135, "", "infrastructure"),
    (137, "", "unknown"),
    (1, "", "unknown"),
]


@pytest.mark.parametrize(("status", "log", "kind"), LOGS)
def test_class_by_status_and_log(status: int, log: str, kind: str) -> None:
    """The first row of the table that matches counts."""
    assert classify(status, log.encode(), BUILT_IN).kind == kind


def test_the_mark_is_of_the_line_without_its_numbers() -> None:
    """Equal errors have one mark, whatever addresses and counts are in them."""

    def mark(line: str) -> str:
        return classify(1, f"step 1\n{line}\nbye".encode(), BUILT_IN).mark

    assert mark("ValueError: 3 of 0x7f3a") == mark("ValueError: 14 of 0x1122")
    assert mark("ValueError: a") != mark("ValueError: b")


def test_rows_of_a_site_come_first_and_bad_lines_are_told(tmp_path: Path) -> None:
    """It changes a class, adds a status, and a wrong file leaves the built-in rows."""
    path = tmp_path / "failures.yaml"
    path.write_text("# ours\n\n- unknown: 'ValueError: flaky'\n- user: status 41\n- what: x\n")
    rows, told = table({"SLURM_DL_FAILURE_FILE": str(path)})

    assert "line 5" in told
    assert classify(1, b"ValueError: flaky", rows).kind == "unknown"
    assert classify(1, b"ValueError: other", rows).kind == "user"
    assert classify(41, b"", rows).kind == "user"
    assert site_rows("- user:\nuser: x\n- user: x\n- user: ''")[1] == [1, 2, 4]
    rows, _ = site_rows("- user: status 41 # so\n- user: 'a # b'  # c\n- user: a#b 'c'")
    assert [(row.text, row.status) for row in rows] == [("", 41), ("a # b", 0), ("a#b 'c'", 0)]
    for bad in (b"\xff\xfe- user: x", None):
        path.unlink()
        os.mkfifo(path) if bad is None else path.write_bytes(bad)
        rows, told = table({"SLURM_DL_FAILURE_FILE": str(path)})
        assert (rows, bool(told)) == ([*BUILT_IN], bad is not None)
    assert table({"SLURM_DL_FAILURE_FILE": str(tmp_path / "none")}) == ([*BUILT_IN], "")


READ = """
import os, sys
from slurm_dl.job.failure_class import OwnLog
os.write(1, b"ValueError: of the run before\\n")
log = OwnLog()
os.write(1, b"first\\n" + b"x" * int(sys.argv[1]) + b"\\nlast\\n")
tail = log.tail()
os.write(2, f"{len(tail)} {tail[:5]!r} {tail[-5:]!r}".encode())
"""


@pytest.mark.parametrize(("size", "says"), [(10, "22 b'first' b'last\\n'"), (10**6, None)])
def test_only_the_end_of_the_own_log_is_read(tmp_path: Path, size: int, says: str | None) -> None:
    """The output of a run before does not count; a pipe is not read."""
    program = [sys.executable, "-c", READ, str(size)]
    with (tmp_path / "log").open("ab") as log:
        done = subprocess.run(program, stdout=log, stderr=subprocess.PIPE, check=True)

    assert done.stderr.decode() == (says or f"{TAIL_BYTES} b'xxxxx' b'last\\n'")


@pytest.mark.parametrize("kinds", list(product("ui", repeat=6)))
def test_verdicts_are_bounded(kinds: tuple[str, ...]) -> None:
    """Every second user error holds, and the budget of the infrastructure is kept, in any order."""
    words = {"u": "user", "i": "infrastructure"}
    past: tuple[Failed, ...] = ()
    does = []
    for run, kind in enumerate(kinds):
        past = with_run(past, Failed(float(run), run, words[kind], "m"), RULES)
        does.append(verdict(past, RULES).does)
    users, others = ([d for d, k in zip(does, kinds, strict=True) if k == w] for w in "ui")
    assert users == (["retry", "hold"] * 3)[: len(users)]
    assert others == (["retry", "retry", *["leave"] * 4])[: len(others)]
    assert len([f for f in past if f.kind != "user"]) <= RULES.infrastructure + 2


@pytest.mark.parametrize(("failed", "told"), [((), [0, 1, 2]), ((1,), [2]), ((2,), [])])
def test_no_retry_is_told_as_a_requeue_by_slurm(failed: tuple[int, ...], told: list[int]) -> None:
    """Runs that failed are forgotten; requeues are followed for a day, whoever asked for them."""
    requeued = [Restart(job_id=JobId(1), restarts=r, gpus=1.0, requeued_s=1.0) for r in range(3)]
    snap = build.snapshot(build.observed([build.pending(1)]), restarts=tuple(requeued))
    body = {"runs": [[1.0, run, "user", "m"] for run in failed]}
    said = failure_reasons(snap, [entry("failed", 1, body)], JobId(1), RULES)

    assert [int(s.split()[2]) for s in said if "by Slurm" in s] == told


class Claiming(FakeCluster):
    """A cluster whose jobs say of which class they failed."""

    said: FailureClass = "infrastructure"
    ending: str = "FAILED"

    def observe(self) -> Observed:
        """As it is, with the claim of each job about its present run."""
        seen = super().observe()
        rows = zip(seen.jobs.job_id.tolist(), seen.jobs.restarts.tolist(), strict=True)
        claims = {
            JobId(job): dataclasses.replace(
                seen.claim(JobId(job)), failed=Failure(kind=self.said, mark=f"m{run}", run=run)
            )
            for job, run in rows
        }
        texts = {j: dataclasses.replace(t, ending=self.ending) for j, t in seen.texts.items()}
        return dataclasses.replace(seen, claims=claims, texts=texts)


def failing(
    cluster: Claiming, path: Path, settings: Settings = SETTINGS, *, status: int = 1, gap_s: int = 0
) -> FakeJob:
    """A job that fails in each of its runs, under a daemon that is new in each cycle."""
    job = cluster.submit(1, work_s=1e6, contract=Contract(), on_signal="ignore")
    for _ in range(30):
        cluster.advance(10)
        if cluster.jobs[job].state is JobState.RUNNING:
            cluster.advance(gap_s)
            cluster.crash(job, status)
        with closing(SqliteStore(path / "ledger")) as store:
            build.cycle(cluster, Ledger(store), Fifo(), settings)
    return cluster.jobs[job]


LEFT = (0, JobState.FAILED, False)
HELD = (2, JobState.PENDING, True)


@pytest.mark.parametrize(
    ("said", "ending", "more", "ends"),
    [
        ("infrastructure", "FAILED", {}, (2, JobState.FAILED, False)),
        # Two in its window.
        ("infrastructure", "FAILED", {"gap_s": 600}, (30, JobState.PENDING, False)),
        ("user", "FAILED", {}, HELD),
        ("user", "FAILED", {"status": 93}, LEFT),
        ("user", "FAILED", {"status": 0}, LEFT),
        ("user", "FAILED", {"settings": dataclasses.replace(SETTINGS, retries=None)}, LEFT),
        # Slurm's word where there is no status: memory is the user's, a time limit ends as ever.
        ("infrastructure", "OUT_OF_MEMORY", {"status": 0}, HELD),
        ("user", "NODE_FAIL", {"status": 0}, (2, JobState.FAILED, False)),
        ("user", "TIMEOUT", {"status": 0}, LEFT),
    ],
)
def test_a_job_that_claims_gets_no_more_than_its_budget(
    tmp_path: Path, said: FailureClass, ending: str, more: dict[str, Any], ends: tuple[object, ...]
) -> None:
    """The ledger remembers over restarts of the daemon; a held job stays so until its release."""
    cluster = Claiming(nodes=1, gpus=4)
    cluster.said, cluster.ending = said, ending
    job = failing(cluster, tmp_path, **more)

    assert (job.restarts, job.state, job.hold) == ends


@pytest.mark.parametrize(
    ("word", "read"),
    [
        (["user", "1f2e3d4c", 2], Failure(kind="user", mark="1f2e3d4c", run=2)),
        *((bad, None) for bad in (["root", "1f", 2], [["user"], "1f", 2], ["user", "<b>", 2])),
        *((bad, None) for bad in (["user", "1f", -1], ["user", "1f", True], ["user"], "user", {})),
    ],
)
def test_only_a_well_formed_report_is_believed(word: object, read: Failure | None) -> None:
    """A comment is anybody's text."""
    comment = json.dumps({"slurm_dl": {"v": 1, "failed": word}})
    assert ClaimReader(max_grace_s=600).read(comment).failed == read
