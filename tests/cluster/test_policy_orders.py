"""On a real Slurm jobs start in the order of the policy in force, and not in that of another.

Each policy is put in force while eight jobs of one of the `situations` are there: two on all GPUs,
six that wait. slurmdbd knows three accounts and sixty jobs that are over. Once Slurm has been told
the order the daemon is killed, the two jobs end, and a licence lets one job run after the other.

``pytest -m "" -n 0 -s tests/cluster/test_policy_orders.py`` prints the table of all policies.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from pasts import Over
from patience import PATIENCE
from schedd import Schedd, schedd_in
from situations import (
    ACCOUNTS,
    AGE_S,
    CPUS,
    DEADLINES,
    GPUS,
    MEM_MB,
    NODES,
    PARAMETERS,
    ROWS,
    RUNNING,
    SITUATIONS,
    TYPES,
    USER,
    Queued,
    overs,
    profiles,
)  # fmt: skip

from slurm_dl.ledger.attained_service import DTYPES
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.policies import registry
from slurm_dl.profiles.directory import write_profile
from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("needs the database, which `make test` does not install"),
    pytest.mark.sixth,
]

ON_SLURM: Final = sorted(
    n
    for n, p in registry.POLICIES.items()
    if registry.runs_on_slurm(p) and "sizes" not in p.about.needs
)
"""Those that choose sizes have their own case in test_elastic."""
FULL: Final = tuple(name for name in SITUATIONS if name != "room")
STATIC: Final = "static"
"""A policy of the tests: the last submitted first."""
MUTANTS: Final = ("fifo", "las", STATIC)
LIKE_FIFO: Final = {"fifo", "fifo_skip", "gavel_fifo", "gavel_proportional"} | {
    "conservative_backfill",
    "easy_backfill",
}
"""Policies that order a full queue by arrival; `SHOWN_BY` names the tests of what is their own."""

LAST_FIRST: Final = f"{Path(__file__).parents[1] / 'last_first.py'}:LastFirst"


def situation_of(policy: str) -> str:
    """The first full situation in which the policy differs from all mutants; else the first."""

    def differs(place: int) -> bool:
        mine = ROWS[policy][place]
        others = {ROWS[name][place] for name in ("fifo", "las") if name != policy}
        return mine not in {*others, "876543"}

    return next((name for place, name in enumerate(FULL) if differs(place)), FULL[0])


def row_of(policy: str, situation: str) -> str:
    """The waiting jobs as they are to start."""
    return "876543" if policy == STATIC else ROWS[policy][FULL.index(situation)]


@dataclass
class Orders:
    """A cluster on which one policy after the other is in force, and what started under each."""

    place: Schedd
    profile_dir: Path
    got: dict[tuple[str, str], str] = field(default_factory=dict)

    def starts(self, policy: str, situation: str) -> str:
        """The waiting jobs of *situation*, by their starts under *policy*."""
        if (policy, situation) not in self.got:
            self.got[policy, situation] = self._starts(policy, SITUATIONS[situation])
        return self.got[policy, situation]

    def _starts(self, policy: str, queue: Sequence[Queued]) -> str:
        place = self.place
        started = place.home / "starts"
        started.write_text("", encoding="ascii")
        # What ran here is not to be learnt from.
        _query(place.box, FORGET)
        now_s = time.time()
        ids = {one.job: self._submit(one, now_s, started) for one in queue}
        try:
            for job in RUNNING:
                place.until_state(str(ids[job]), "RUNNING")
            self._remember(queue, ids, now_s)
            named = LAST_FIRST if policy == STATIC else policy
            parameters = PARAMETERS.get(policy, {})
            paths = {"profile_dir": str(self.profile_dir)}
            place.configure(
                **SECTIONS, paths=paths, policy={"order": named, "parameters": dict(parameters)}
            )
            place.start()
            waits = [str(ids[one.job]) for one in queue if one.job not in RUNNING]
            place.until("all to have places", lambda: self._told(waits), 60)
            place.kill()
            place.box.run(["scancel", *(str(ids[job]) for job in RUNNING)])
            place.until("all to start", lambda: len(started.read_text("ascii")) == len(waits), 90)
        finally:
            if place.process is not None:
                place.kill()
            place.box.run(["scancel", *map(str, ids.values())])
        return started.read_text("ascii")

    def _submit(self, one: Queued, now_s: float, started: Path) -> int:
        argv = [
            "sbatch", "--parsable", "--output=/dev/null", f"--job-name={one.name}",
            f"--nodes={one.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={one.cpus}",
            f"--gres=gpu:{one.gpus // one.nodes}", "--mem=1000", f"--time={one.limit_s // 60}",
            f"--account={one.account}", f"--qos={one.qos}", f"--comment={one.comment(now_s)}",
        ]  # fmt: skip
        waits = ["--licenses=turn", f"--wrap=printf {one.job} >>{started}"]
        argv += ["--wrap=exec sleep 900"] if one.job in RUNNING else waits
        return int(self.place.box.run(argv).stdout)

    def _remember(self, queue: Sequence[Queued], ids: Mapping[int, int], now_s: float) -> None:
        """Give each job its past."""
        rows = []
        for one in queue:
            told: dict[str, float] = dict.fromkeys(DTYPES, 0)
            told |= {
                "job_id": ids[one.job],
                "first_submit_s": now_s - one.first_submit_s,
                "queued_s": now_s - one.first_submit_s,
                "waiting_since_s": now_s - one.waits_s,
                "ran_s": one.had_s,
                "attained_gpu_s": one.had_s * one.gpus,
                "first_run_s": now_s - AGE_S / 2 if one.had_s else 0,
                "last_seen_s": now_s + 5,
            }
            rows.append(tuple(told.values()))
        path = self.place.home / "state" / "ledger.sqlite"
        path.unlink(missing_ok=True)
        SqliteStore(path).close()
        marks = ", ".join("?" * len(DTYPES))
        with sqlite3.connect(path) as db:
            db.executemany(f"INSERT INTO job ({', '.join(DTYPES)}) VALUES ({marks})", rows)  # noqa: S608
        db.close()

    def _told(self, waits: Sequence[str]) -> bool:
        """True once a second look, which has the past, has been written as a whole."""
        if self.place.cycles() < 3:
            return False
        argv = ["squeue", "--noheader", "--format=%Q", f"--jobs={','.join(waits)}"]
        return len(set(self.place.box.run(argv).stdout.split())) == len(waits)


SECTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "daemon": {"poll_s": 0.5, "fast_poll_s": 0.25},
    "deadlines": DEADLINES,
    "estimates": {"history_days": 2},
    "placement": {"settle_s": 0},
    "ranking": {"pass_s": 0, "overdue_share": 0},
}


FIRST_PAST_JOB: Final = 9_000
FORGET: Final = f"DELETE FROM {{cluster}}_job_table WHERE id_job < {FIRST_PAST_JOB};"  # noqa: S608


def _query(box: Sandbox, *statements: str) -> None:
    """Run SQL on slurmdbd's database; ``{cluster}`` is the prefix of the cluster's tables."""
    cluster = box.run(["sacctmgr", "-nP", "show", "cluster", "format=cluster"]).stdout.strip()
    socket = box.directory / "database" / "mysqld.sock"
    subprocess.run(
        [
            shutil.which("mariadb") or "mariadb", "--no-defaults", f"--socket={socket}",
            "--user=root", "slurm_acct_db",
        ],
        input="SET SESSION sql_mode='';\n" + "\n".join(statements).replace("{cluster}", cluster),
        text=True,
        check=True,
        timeout=60 * PATIENCE,
    )  # fmt: skip


def _give_a_past(box: Sandbox, past: Sequence[Over]) -> None:
    """Write the jobs that are over into slurmdbd's database, which has no other way in."""
    gpu = "(SELECT id FROM tres_table WHERE type='gres' AND name='gpu')"
    columns = (
        "account, job_name, id_assoc, id_job, id_qos, nodelist, nodes_alloc, `partition`, state, "
        "time_submit, time_eligible, time_start, time_end, tres_alloc, tres_req"
    )
    rows = []
    for number, job in enumerate(past, FIRST_PAST_JOB):
        whose = f"WHERE acct='{job.account}' AND user='{job.user}' AND deleted=0"
        assoc = f"(SELECT id_assoc FROM {{cluster}}_assoc_table {whose})"  # noqa: S608 - our words
        tres = f"CONCAT('1=1,', {gpu}, '={job.gpus:g}')"
        begin_s, end_s = int(job.end_s - job.ran_s), int(job.end_s)
        rows.append(
            f"('{job.account}', '{job.name}', {assoc}, {number}, 1, 'n1', 1, 'gpu', 3, "
            f"{begin_s}, {begin_s}, {begin_s}, {end_s}, {tres}, {tres})"
        )
    into = f"INSERT INTO {{cluster}}_job_table ({columns}) VALUES"
    _query(box, f"{into} {', '.join(rows)};")


@pytest.fixture(scope="module")
def orders(module_directory: Path) -> Iterator[Orders]:
    """The cluster, three accounts, a past; at the end the table of what was seen."""
    spec = SandboxSpec(
        groups=tuple(
            SandboxNodes(nodes=NODES, gpus=GPUS, gpu_type=kind, cpus=CPUS, mem_mb=MEM_MB)
            for kind in TYPES
        ),
        nodes_per_leaf=0,
        scheduler_parameters=(
            "bf_interval=30,sched_interval=2,batch_sched_delay=0,sched_min_interval=100000"
        ),
        slurm_conf_extra=("Licenses=turn:1",),
        accounting=True,
    )
    box = Sandbox.up(module_directory / "box", spec)
    try:
        for words in (
            *(("add", "account", account) for account in ACCOUNTS),
            ("add", "user", USER, f"account={','.join(ACCOUNTS)}"),
            ("add", "qos", "high"),
            ("modify", "user", USER, "set", "qos+=high"),
        ):
            box.run(["sacctmgr", "-i", *words])
        _give_a_past(box, overs(time.time()))
        models = module_directory / "profiles"
        models.mkdir()
        for profile in profiles().values():
            write_profile(models / f"{profile.name}.yaml", profile)
        with schedd_in(box, module_directory) as place:
            found = Orders(place, models)
            yield found
            sys.stdout.write(_table(found))
    finally:
        box.down(remove=True)


def _table(orders: Orders) -> str:
    """Policy, situation, what was expected, what started, and what mutants start there."""
    lines = [f"{'policy':24}{'situation':10}{'expected':10}{'got':10}fifo    las     static"]
    for policy, situation in sorted(orders.got):
        others = [orders.got.get((name, situation), "-") for name in MUTANTS]
        want, got = row_of(policy, situation), orders.got[policy, situation]
        lines.append(f"{policy:24}{situation:10}{want:10}{got:10}{'  '.join(others)}")
    return "\n".join(["", *lines, ""])


@pytest.mark.parametrize("policy", ON_SLURM)
def test_jobs_start_in_the_order_of_the_policy_and_of_no_mutant(
    orders: Orders, policy: str
) -> None:
    """A policy that orders by arrival alone has its own case elsewhere, and starts as FIFO here."""
    situation = situation_of(policy)
    want = row_of(policy, situation)

    assert orders.starts(policy, situation) == want

    for mutant in MUTANTS:
        started = orders.starts(mutant, situation)
        assert started == row_of(mutant, situation)
        may_be_alike = mutant == policy or (mutant == "fifo" and policy in LIKE_FIFO)
        assert started != want or may_be_alike
