"""dlctl doctor: each check on what Slurm's tools and the daemon said, and on any text at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
from fake_cluster import FakeCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from slurm_dl import __version__, logging_setup
from slurm_dl.daemon.audit_log import AuditLine, AuditLog
from slurm_dl.daemon.published_state import WATCHED
from slurm_dl.doctor import all_checks, installation_checks
from slurm_dl.doctor.all_checks import CHECKS, ProblemWatch, examine
from slurm_dl.doctor.site import Account, CheckResult, Severity, Site
from slurm_dl.engine.cycle import run_cycle
from slurm_dl.engine.settings import Settings
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.booking import entry
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.report.terminal_table import Column, rich_table
from slurm_dl.slurm.tool_runner import Slurm

DATA = Path(__file__).parents[1] / "data" / "doctor"
RELEASES = ("22.05.8", "24.11.5", "26.05.5")
USERS = "slurm_dl|Operator\nroot|None\n"
QOS = "normal|cluster|00:00:00|\ndl|within,requeue|00:10:00|01:00:00\n"
MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:30 / /run rw,nosuid - tmpfs tmpfs rw
31 22 0:31 / /srv/big\\040disk rw - nfs4 head:/x rw
32 22 0:32 / /srv rw - xfs /dev/sdb rw
33 22 0:33 / /srv rw shared:1 - fuse.sshfs /dev/sdc rw
broken line
"""
SERVICE = Account(name="slurm_dl", uid=880, gids=frozenset({880}), why="test")
ROOT = replace(SERVICE, name="root", uid=0)
SLURM_USER = replace(SERVICE, uid=64030)
SERVICES = 65534
STATUS: Mapping[str, Any] = {
    "doing": "acting",
    "version": __version__,
    "paused": None,
    "failures": 0,
    "bugs": 0,
    "trouble": None,
    "audit": {"path": "/a", "error": None},
    "actions": {"done": 3, "failed": 0},
    "age_s": 12.0,
    "cycles": 40,
}
Change = dict[str, Any]


NODES = (
    "NodeName=n1 CPUEfctv=8 CPUTot=8 Gres=gpu:a:4 RealMemory=100 Partitions=cpu,gpu\n"
    "NodeName=n2 CPUEfctv=16 CPUTot=16 Gres=gpu:a:4 RealMemory=100 Partitions=gpu"
)
ASKED = ("config", "partition", "user", "qos", "node")


class Recorded(Slurm):
    """Slurm's tools, which print what they are told to; None: they fail."""

    def __init__(self, **said: str | None) -> None:
        self.said = said
        self.runs: Counter[tuple[str, ...]] = Counter()

    @property
    def slurm_conf(self) -> str:
        """There is none that could be read."""
        return "/nonexistent"

    def run(self, tool: str, *args: str, **_: float) -> str:
        """What is recorded of it; jobs get the nonce that is asked for."""
        self.runs[tool, *args[:4]] += 1
        text = self.said[next(k for k in (*ASKED, tool) if k in (tool, *args))]
        if text is None:
            msg = f"{tool} is silent"
            raise ClusterError(msg)
        if tool == "squeue" and args[-1].startswith("--format="):
            # Without a partition Slurm tells jobs that are not managed, too.
            others = "" if "--partition=gpu" in args else "9 (null) 1 0 * * * 4 1 (null)\n"
            return (self.said.get("conditions") or "") + others
        if tool != "squeue":
            return text
        nonce = args[-1].rpartition(":")[2].removesuffix("r")
        return "".join(f"{i}{nonce}f{line}{nonce}r\n" for i, line in enumerate(text.split("\n")))


def site_of(
    home: Path,
    *,
    release: str = "24.11.5",
    conf: Mapping[str, str] | None = None,
    parts: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    account: Account | str = SERVICE,
    status: Mapping[str, Any] | None = STATUS,
    files: Mapping[str, str] | None = None,
    ledger: StoreChange | None = None,
    **said: str | None,
) -> Site:
    """A site whose tools print what *release* did, on a host where nothing is wrong."""
    config, partitions = (
        (DATA / f"{what}-{release}.txt").read_text("utf-8") for what in ("config", "partitions")
    )
    for key, value in (parts or {}).items():
        name, word = f"gpu:{key}".split(":")[-2:]
        partitions, n = re.subn(
            rf"(?m)(^PartitionName={name}\b.*) {word}=\S+", rf"\1 {word}={value}", partitions
        )
        if not n:
            partitions = partitions.replace(f"={name} ", f"={name} {word}={value} ", 1)
    for name in ("state", "profiles", "site"):
        (home / name).mkdir(parents=True, exist_ok=True)
    paths = f"state_dir: {home}/state, audit_log: {home}/state/audit.jsonl, "
    paths += f"profile_dir: {home}/profiles, template_dir: {home}/site"
    written = {"dl.yaml": f"manage: {{partitions: [gpu]}}\npaths: {{{paths}}}\n"}
    for name, text in (written | dict(files or {})).items():
        (home / name).write_text(text, "utf-8")
        (home / name).chmod(0o600)
    if ledger is not None:
        store = SqliteStore(home / "state" / "ledger.sqlite")
        store.save(ledger)
        store.close()
    site = Site(
        config=home / "dl.yaml",
        settings=sets,
        socket=home / "none",
        account=account if isinstance(account, str) else None,
        environ={
            "SLURM_DL_TEMPLATES": str(home / "site"),
            "SLURM_DL_CLIENT": str(home / "client.yaml"),
        },
    )
    # Of two equal keys the first counts.
    config = "".join(f"{key} = {value}\n" for key, value in (conf or {}).items()) + config
    texts = {"config": config, "partition": partitions, "user": USERS, "qos": QOS, "node": NODES}
    site.slurm = Recorded(**{**texts, "sinfo": "gpu 1\ncpu 9\n", "squeue": "", **said})
    if isinstance(account, Account):
        site.account = account
    if status is not None:
        site.status = dict(status)
    return site


def said_by(name: str, home: Path, **changes: Any) -> CheckResult:  # noqa: ANN401 - of site_of
    """What one check says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slurm_dl.doctor.all_checks.CHECKS", {name: CHECKS[name]})
        return examine(site_of(home, **changes))[name]


def slurm(**conf: str) -> Change:
    """Settings that ``scontrol show config`` prints."""
    return {"conf": conf}


def part(**parts: str) -> Change:
    """Values of partition gpu."""
    return {"parts": parts}


def sets(*values: str) -> Change:
    """Settings of slurm_dl.yaml."""
    return {"sets": values}


CHAT = (
    "replicas.services={chat: {user: ann, rate: /none, service_s: 1, sla_s: 9, most_replicas: 4}}"
)


def status(**values: object) -> Change:
    """The daemon's answer with some *values* replaced."""
    return {"status": {**STATUS, **values}}


def ended(**opted_in: bool) -> Change:
    """A job of each user that is over, and whether it had a contract; one of dan's had no GPU."""
    endings = [
        JobEnding(
            job_id=JobId(number), label=str(number), user=user, account=f"of_{user}",
            uid=1000 + number,
            state=JobState.COMPLETED, gpus=float(user != "dan"), seen_s=time.time(),
            preemptible=may,
        )
        for number, (user, may) in enumerate([*opted_in.items(), ("dan", False)], start=1)
    ]  # fmt: skip
    return {"ledger": StoreChange(endings=endings)}


BROKEN = [entry("broken_contract", 1000, {"job_id": 7, "at_s": 3.0})]


def jobs_of(*models: str) -> Change:
    """Jobs whose comments name *models*."""
    return {"squeue": "\n".join(json.dumps({"slurm_dl": {"model": m}}) for m in models)}


def model_of(load: str) -> Change:
    """A model of the site with this load."""
    return {"files": {"profiles/a.yaml": f"name: ours\nload: {{{load}}}\n"}}


USUAL = "paths.profile_dir=/etc/slurm_dl/profiles"


NATIVE = ("preemption.mode=native", "preemption.qos=dl")
PREEMPTS = {
    "PreemptType": "preempt/qos",
    "PreemptMode": "REQUEUE",
    "PreemptParameters": "send_user_signal",
    "AuthInfo": "cred_expire=40",
}
NO_DBD = {"AccountingStorageType": "accounting_storage/none"}
PASSES = {"SchedulerParameters": "BF_CONTINUE", "PriorityCalcPeriod": "1", **NO_DBD}
NOT_YET = QOS.replace("within,", "")
PRIO = {"PreemptType": "preempt/partition_prio"}
DELAY = {"AuthInfo": "x", "SchedulerParameters": "requeue_delay=9"}
TWO = "manage.partitions=[gpu, debug]"
SHARED = {"node": NODES.replace("cpu,gpu", "debug,gpu")}
BEST_FIT = ("placement.scheme=best_fit",)
PACKS = (*BEST_FIT, "placement.steer=true", "placement.pack=true", "placement.sharing_mode=mps")
OK, WARNING, ERROR, SKIPPED = Severity.OK, Severity.WARNING, Severity.ERROR, Severity.SKIPPED
SILENT: Change = {"config": None}
NO_YAML: Change = {"files": {"dl.yaml": "a"}}

Case = tuple[str, Change, Severity, str]
CASES: list[Case] = [
    ("configuration", {}, OK, "/dl.yaml"),
    ("configuration", {"files": {"dl.yaml": "x: 1\n"}}, ERROR, "(and 1 more)"),
    ("configuration", sets("daemon.poll_s=-1"), ERROR, "daemon.poll_s"),
    ("slurm", {}, OK, "cluster dl answered in 0."),
    ("slurm", SILENT, ERROR, "scontrol is silent"),
    ("slurm", {"config": ""}, ERROR, "nothing"),
    ("release", {}, OK, "24.11.5, tested"),
    ("release", slurm(SLURM_VERSION="24.11.1"), OK, "tested with 24.11.5"),
    ("release", slurm(SLURM_VERSION="23.11.3"), OK, "documentation"),
    ("release", slurm(SLURM_VERSION="22.05.8"), OK, "--ntasks-per-node"),
    ("release", slurm(SLURM_VERSION="23.02.1"), ERROR, "loses its GPUs"),
    ("release", slurm(SLURM_VERSION="21.08.8"), WARNING, "outside the supported range"),
    ("release", slurm(SLURM_VERSION="26.11.0"), WARNING, "outside the supported range"),
    ("release", slurm(SLURM_VERSION="(null)"), SKIPPED, "no Slurm version"),
    ("release", SILENT, SKIPPED, "Slurm was not reached"),
    ("reader", {}, OK, "cli: cluster.reader is cli"),
    ("reader", status(reader={"name": "p", "reason": "it fits"}), OK, "dlschedd uses p: it fits"),
    ("reader", {"status": None} | sets("cluster.reader=cli"), OK, "cluster.reader is cli"),
    ("reader", SILENT, SKIPPED, "Slurm was not reached"),
    ("reader", sets("cluster.reader=pyslurm"), ERROR, "there is no pyslurm for Slurm"),
    ("partitions", {}, OK, "gpu UP"),
    ("partitions", sets("manage.partitions=[gpu, a100]"), ERROR, "no partition a100 in"),
    ("partitions", part(State="DRAIN"), WARNING, "gpu is DRAIN"),
    ("partitions", {"partition": None}, SKIPPED, "scontrol is silent"),
    ("partitions", NO_YAML, SKIPPED, "the configuration has mistakes"),
    ("rights", {}, OK, "AdminLevel Operator"),
    ("rights", {"user": "slurm_dl|None\n"}, ERROR, "has AdminLevel None"),
    ("rights", {"user": ""}, ERROR, "is no user of slurmdbd"),
    ("rights", {"user": None}, SKIPPED, "sacctmgr is silent"),
    ("rights", {"account": SLURM_USER}, OK, "is SlurmUser"),
    ("rights", {"account": ROOT}, WARNING, "refuses to run as root"),
    ("rights", {"account": ROOT, **slurm(SlurmUser="root(0)")}, OK, "is SlurmUser"),
    ("rights", {"conf": NO_DBD}, ERROR, "without slurmdbd"),
    ("rights", slurm(SlurmUser="slurm"), SKIPPED, "cannot be read"),
    ("private data", slurm(PrivateData="accounts,usage,users"), OK, "hides no jobs"),
    ("private data", slurm(PrivateData="jobs,users"), OK, "PrivateData=jobs: as Operator"),
    ("private data", {**slurm(PrivateData="jobs"), "account": ROOT}, OK, "root sees all"),
    ("private data", {**slurm(PrivateData="jobs,nodes"), "user": ""}, ERROR, "sees its own alone"),
    ("private data", {"conf": {"PrivateData": "jobs", **NO_DBD}}, ERROR, "without slurmdbd"),
    ("private data", {**slurm(PrivateData="jobs"), "user": None}, SKIPPED, "is silent"),
    ("priority plugin", {}, OK, "priority/multifactor"),
    ("priority plugin", slurm(PriorityType="priority/basic"), ERROR, "ignored"),
    ("site factor", slurm(PrioritySiteFactorPlugin="site_factor/none"), OK, "nobody else"),
    ("site factor", slurm(PrioritySiteFactorPlugin="site_factor/x"), ERROR, "overwrites"),
    ("priority weights", {}, OK, "add up to 12000, ranking.band_width is 10000000"),
    ("priority weights", slurm(PriorityWeightAge="9987999"), OK, "add up to 9998999"),
    ("priority weights", slurm(PriorityWeightAge="9990000"), ERROR, "they change the order"),
    ("priority weights", slurm(PriorityWeightTRES="cpu=1,gres/gpu=9999999.0"), ERROR, "10012000"),
    # The other weights add up to 11,000; beyond the widest band only lower weights help.
    ("priority weights", slurm(PriorityWeightAge="30493000"), ERROR, "30504000"),
    ("priority weights", sets("ranking.equals=site"), OK, "policy does not tell apart"),
    ("priority weights", sets(*NATIVE), OK, "inside a tier the weights decide"),
    ("priority weights", sets(*NATIVE) | slurm(PriorityWeightAge="5000000"), ERROR, "tiers mix"),
    ("priority weights", slurm(PriorityFlags="NO_NORMAL_QOS"), WARNING, "may exceed 1"),
    ("priority weights", slurm(PriorityWeightQOS="many"), SKIPPED, "no weight"),
    ("priority flags", slurm(PriorityFlags="MAX_TRES,NO_FAIR_TREE"), OK, "may fall"),
    ("priority flags", slurm(PriorityFlags="MAX_TRES,INCR_ONLY"), ERROR, "keeps its priority"),
    ("partition tiers", {}, OK, "PriorityTier 1"),
    ("partition tiers", sets(TWO) | part(PriorityTier="5"), WARNING, "gpu 5, debug 1"),
    ("partition tiers", part(PriorityTier="5"), OK, "PriorityTier 5"),
    ("partition tiers", part(PriorityTier="5") | SHARED, WARNING, "gpu 5, debug 1"),
    ("partition tiers", sets("manage.partitions=[a100]"), SKIPPED, "none of the managed"),
    ("gpus", {}, OK, "select/cons_tres"),
    ("gpus", slurm(GresTypes="(null)"), ERROR, "no gpu"),
    ("gpus", slurm(SelectType="select/linear"), WARNING, "select/cons_tres"),
    ("backfill depth", slurm(SchedulerParameters="bf_max_job_test=1000"), OK, "at 1000 jobs"),
    ("backfill depth", slurm(SchedulerParameters="BF_MAX_JOB_TEST=1001"), WARNING, "at 1001 jobs"),
    ("backfill depth", slurm(SchedulerParameters="bf_max_job_test=x"), SKIPPED, "no number"),
    ("backfill depth", slurm(SchedulerType="sched/builtin"), WARNING, "holds up"),
    ("backfill window", part(MaxTime="1-00:00:00"), OK, "at most 1440 min"),
    ("backfill window", part(MaxTime="1-00:01:00"), WARNING, "MaxTime of gpu"),
    ("backfill window", {}, WARNING, "UNLIMITED"),
    ("backfill window", slurm(SchedulerParameters="Defer,bf_window=60,X=a=b"), WARNING, "60 min"),
    ("backfill window", part(MaxTime="soon"), SKIPPED, "no time limit"),
    ("backfill passes", {}, WARNING, "no bf_continue"),
    ("backfill passes", slurm(SchedulerParameters="bf_continue"), WARNING, "00:05:00"),
    ("backfill passes", slurm(**PASSES, SLURM_VERSION="23.11.10"), OK, "this release never"),
    ("backfill passes", slurm(**PASSES), OK, "each minute"),
    ("backfill passes", slurm(PriorityCalcPeriod="soon"), SKIPPED, "no time limit"),
    ("contracts", {}, OK, "there is no ledger yet"),
    ("contracts", ended(ann=True, bob=True), OK, "each of 2 users"),
    ("contracts", ended(ann=True, bob=True, eve=False), WARNING, "1 of 3 users"),
    ("contracts", ended(eve=False) | sets("preemption.exempt_accounts=[OF_eve]"), OK, "each of 0"),
    ("contracts", ended(bob=False) | sets("preemption.commitment=ignored"), OK, "do not count"),
    ("contracts", ended(bob=False) | sets("preemption.enabled=false"), OK, "do not count"),
    ("contracts", {"ledger": StoreChange(booked=BROKEN)}, WARNING, "ran with a contract: 7"),
    ("contracts", {"files": {"state/ledger.sqlite": "no ledger"}}, SKIPPED, "ledger.sqlite"),
    ("preemption", {}, OK, "dlschedd preempts, Slurm does not"),
    ("preemption", sets("preemption.enabled=false"), OK, "nobody is preempted"),
    ("preemption", slurm(PreemptType="preempt/qos"), WARNING, "in gpu Slurm may stop"),
    ("preemption", slurm(**PRIO), OK, "Slurm does not"),
    ("preemption", slurm(**PRIO) | part(PreemptMode="REQUEUE"), WARNING, "in gpu Slurm may stop"),
    ("preemption", slurm(PreemptMode="SUSPEND,GANG"), WARNING, "keep their GPUs"),
    ("preemption", sets(*NATIVE) | slurm(**PREEMPTS), OK, "inside QOS dl"),
    ("preemption", sets(*NATIVE) | slurm(**PREEMPTS) | {"qos": None}, WARNING, "not checked"),
    ("preemption", sets(*NATIVE) | slurm(**PREEMPTS) | {"qos": ""}, ERROR, "no QOS dl: sacctmgr"),
    ("preemption", sets(*NATIVE) | {"qos": None}, ERROR, "PreemptType=preempt/qos; slurm.conf has"),
    ("preemption", sets(*NATIVE) | slurm(**PREEMPTS) | {"qos": NOT_YET}, WARNING, "nobody yet"),
    ("preemption", sets(*NATIVE) | SILENT, SKIPPED, "not reached"),
    ("requeue", {}, OK, "JobRequeue=1"),
    ("requeue", slurm(SLURM_VERSION="25.11.0"), OK, "--requeue=expedite goes before all others"),
    ("requeue", slurm(JobRequeue="0"), WARNING, "--requeue"),
    ("requeue hold", {}, OK, "waits 6 s"),
    ("requeue hold", slurm(AuthInfo="(null)"), WARNING, "waits 121 s"),
    ("requeue hold", slurm(AuthInfo="socket=/x,cred_expire=70"), OK, "waits 71 s"),
    ("requeue hold", slurm(**DELAY, SLURM_VERSION="25.11.0"), OK, "waits 10 s before it may start"),
    ("requeue hold", slurm(**DELAY, SLURM_VERSION="25.05.9"), WARNING, "waits 121 s"),
    ("requeue hold", slurm(KillWait="6 sec"), WARNING, "they may meet"),
    ("requeue hold", slurm(KillWait="100", AuthInfo="cred_expire=125"), OK, "waits 126 s"),
    ("requeue hold", slurm(KillWait="a bit"), SKIPPED, "no number"),
    ("kill wait", slurm(KillWait="29 sec"), WARNING, "has 29 s"),
    ("kill wait", slurm(KillWait="30 sec"), OK, "has 30 s"),
    ("grace", sets("preemption.max_grace_s=120"), OK, "within max_grace_s"),
    ("grace", sets("preemption.max_grace_s=60"), WARNING, "below dlsubmit's default grace"),
    ("node sharing", part(OverSubscribe="YES:4", Exclusive="NO"), OK, "shared by GPU"),
    ("node sharing", part(OverSubscribe="FORCE:4"), WARNING, "share their CPUs"),
    ("node sharing", part(OverSubscribe="EXCLUSIVE"), WARNING, "whole nodes"),
    ("node sharing", part(Exclusive="NODE"), WARNING, "whole nodes"),
    ("node sharing", part(LLN="YES"), WARNING, "spreads small jobs"),
    ("node sharing", part(GraceTime="30"), OK, "gpu 30 s"),
    ("placement", {}, OK, "left to Slurm"),
    ("placement", sets(*BEST_FIT), OK, "leaf switches are known (topology/tree)"),
    ("placement", sets(*BEST_FIT, "placement.steer=true"), OK, "best_fit; jobs are steered;"),
    ("placement", sets(*BEST_FIT) | slurm(TopologyPlugin="topology/block"), OK, "blocks are known"),
    ("placement", sets(*BEST_FIT) | slurm(TopologyPlugin="(null)"), WARNING, "Plugin=none"),
    ("fragments", slurm(SelectTypeParameters="CR_CORE"), OK, "no LLN"),
    ("fragments", slurm(SelectTypeParameters="CR_CORE,CR_LLN"), WARNING, "(CR_LLN)"),
    ("fragments", slurm(SelectTypeParameters="CR_LLN") | part(LLN="YES"), WARNING, "partition gpu"),
    ("node weights", {}, OK, "the same Weight"),
    ("node weights", {"sinfo": "gpu 5\ngpu 1\ncpu 9\ngpu 5\n"}, WARNING, "Weight 1, 5: Slurm"),
    ("node weights", {"sinfo": "gpu many\n"}, SKIPPED, "Weights of nodes cannot be read"),
    ("nodes", {}, OK, "no node keeps"),
    ("nodes", {"node": NODES.replace("Efctv=8", "Efctv=7")}, OK, "1 nodes keep"),
    ("nodes", {"node": NODES + " MemSpecLimit=9"}, OK, "such as n2"),
    ("nodes", {}, OK, "of one type"),
    ("nodes", {"node": NODES.replace("a:4", "a:2,gpu:b:2")}, OK, "such as n1 (a, b)"),
    ("nodes", {"node": NODES.replace("a:4", "a:2,gpu:a_1g.5gb:2")}, WARNING, "a_1g.5gb, a part"),
    ("nodes", {"node": f"{NODES}\nNodeName=n3 Gres=gpu:a:2,gpu:b:2 Partitions=cpu"}, OK, "of one"),
    ("unknown conditions", {}, OK, "no pending job"),
    (
        "unknown conditions",
        {"conditions": "7 (null) 1 0 2 * * N/A 1 (null)\n8 (null) 1 0 * * * N/A 1 (null)\n"},
        WARNING,
        "--contiguous (2), --sockets-per-node (1)",
    ),
    ("profiles", {"files": {"profiles/a.yaml": "name: ours\naliases: [b]\n"}}, OK, "1 of them by"),
    ("profiles", {"files": {"profiles/a.yaml": "nam: ours\n"}}, ERROR, "a.yaml:1: name"),
    ("profiles", jobs_of("gpt9", "a", "gpt9", "resnet50"), WARNING, "profile: gpt9 (2), a (1)"),
    ("profiles", jobs_of(*"abcdefg"), WARNING, "e (1) and 2 more"),
    ("profiles", {"squeue": None}, SKIPPED, "squeue is silent"),
    ("profiles", NO_YAML, SKIPPED, "no valid configuration"),
    ("pairs", {}, OK, "no jobs are put on one GPU"),
    ("pairs", sets(*PACKS) | model_of("gpu_util: 0.2, gpu_mem_mb: 9"), OK, "1 models can"),
    ("pairs", sets(*PACKS) | model_of("gpu_util: 0.2, gpu_type: t4, gpu_mem_mb: 9"), WARNING, "no"),
    ("pairs", sets(*PACKS) | model_of("gpu_util: 0.2"), WARNING, "every job with a share"),
    ("pairs", sets(*PACKS) | {"files": {"profiles/a.yaml": "nam: ours\n"}}, SKIPPED, "not read"),
    ("job records", slurm(MinJobAge="60 sec"), OK, "60 s"),
    ("job records", slurm(MinJobAge="59 sec"), WARNING, "one failed look"),
    ("job records", slurm(MinJobAge="30 sec"), ERROR, "are missed"),
    ("service rates", {}, OK, "0 services"),
    ("service rates", sets(CHAT), WARNING, "chat: /none: cannot be read: No such file"),
    ("call limit", {}, OK, "not limited (no rl_enable)"),
    ("call limit", slurm(SLURM_VERSION="22.05.9"), OK, "does not limit"),
    ("call limit", slurm(SlurmctldParameters="rl_enable"), WARNING, "60 writes at once, 30 calls"),
    ("call limit", slurm(SlurmctldParameters="rl_enable,rl_bucket_size=70"), OK, "70 calls"),
    ("call limit", slurm(SlurmctldParameters="rl_enable") | {"account": ROOT}, OK, "are not"),
    ("accounting", {}, OK, "knows GPUs"),
    ("accounting", slurm(AccountingStorageTRES="cpu,mem"), WARNING, "no gres/gpu"),
    ("accounting", {"conf": NO_DBD}, OK, "no slurmdbd"),
    ("enforcement", slurm(AccountingStorageEnforce="none"), OK, "none"),
    ("enforcement", slurm(AccountingStorageEnforce="none") | sets(*NATIVE), WARNING, "QOS dl"),
    ("enforcement", sets(*NATIVE), OK, "qos"),
    ("enforcement", slurm(PrivateData="users"), OK, "limits"),
    ("enforcement", {**slurm(PrivateData="users"), "user": ""}, WARNING, "one at a time"),
    ("client file", sets(USUAL), OK, "not needed"),
    ("client file", {"files": {"client.yaml": "max_grace_s: 9"}}, WARNING, "max_grace_s"),
    ("client file", sets(USUAL, "preemption.qos=dl"), WARNING, "configuration in qos"),
    ("client file", sets(USUAL, "paths.run_dir=/elsewhere"), WARNING, "in socket"),
    ("client file", sets(USUAL, "control.listen=127.0.0.1:6822"), WARNING, "in server"),
    ("directories", {"account": ROOT}, OK, "can write"),
    ("directories", {"account": ROOT, **sets("paths.state_dir=/none")}, WARNING, "not there yet"),
    ("directories", {}, ERROR, "cannot write"),
    ("state disk", sets("paths.state_dir=/running"), OK, "ext4"),
    ("state disk", sets("paths.state_dir=/run/x"), WARNING, "tmpfs: attained service is lost"),
    ("state disk", sets("paths.state_dir=/srv/big disk/x"), WARNING, "nfs4, over the network"),
    ("state disk", sets("paths.state_dir=/srv/x"), WARNING, "fuse.sshfs, over the network"),
    ("command lines", slurm(PrivateData="users"), OK, "does not hide jobs"),
    ("command lines", slurm(PrivateData="jobs,users"), WARNING, "no hidepid"),
    ("templates", {}, OK, "plain ("),
    ("templates", sets("paths.template_dir=/elsewhere"), WARNING, "paths.template_dir is /else"),
    ("templates", NO_YAML, OK, "plain ("),
    ("daemon", status(doing="shadow mode: plans"), OK, "shadow mode"),
    ("daemon", {"status": None}, WARNING, "does not listen"),
    ("daemon", status(version="0.9"), WARNING, "version 0.9 runs"),
    ("daemon", status(paused={"by": "root", "reason": "heat"}), WARNING, "paused by root: heat"),
    ("cycles", {}, OK, "number 40, 12 s ago"),
    ("cycles", {"status": None}, SKIPPED, "did not answer"),
    ("cycles", status(failures=3, trouble={"message": "squeue: no"}), ERROR, "squeue: no"),
    ("cycles", status(bugs=1, trouble={"message": "KeyError"}), ERROR, "KeyError"),
    ("cycles", status(age_s=None), WARNING, "not looked"),
    ("cycles", status(age_s=90.5), WARNING, "90 s ago"),
    ("cycles", status(age_s=91.0) | NO_YAML, OK, "91 s ago"),
    ("cycles", status(actions={"done": 1, "failed": 2}), WARNING, "2 actions were refused"),
]
FILES = [
    ("state", 0, 0o755, "cannot write to"),
    ("state", SERVICES, 0o570, "mode 0570"),
    ("state", 12345, 0o757, "belongs to uid 12345"),
    ("state", SERVICES, 0o777, "mode 0777"),
    ("state/ledger.sqlite", 0, 0o600, "ledger.sqlite"),
    ("state/ledger.sqlite", 0, 0o666, ""),
    ("state/audit.jsonl", 0, 0o640, "audit.jsonl"),
    ("state/notes.bak", 0, 0o600, ""),
    (".", 0, 0o777, "mode 0777"),
    ("dl.yaml", 0, 0o666, "can be written by group or others"),
    ("site", 0, 0o777, "mode 0777"),
    ("site/mine.sbatch.j2", 12345, 0o644, "belongs to uid 12345"),
    ("site/mine.sbatch.j2", 0, 0o664, "mode 0664"),
    ("site/mine.sbatch.j2", SERVICES, 0o644, ""),
    ("profiles/p.yaml", 12345, 0o644, "neither root nor nobody"),
    ("profiles/p.yaml", SERVICES, 0o644, ""),
]
CHECK_OF = {"site": "templates", "profiles": "profiles", "state": "directories"}
CLOCK = [(1003.5, 1004.0, WARNING, "2 s"), (1002.9, 1004, OK, "2 s"), (900, 940, ERROR, "60 s")]


OWN = {"account": replace(SERVICE, uid=os.geteuid())}
GOOD: Mapping[str, Change] = {
    "directories": OWN,
    "clock": {"config": "Configuration data as of 1000\n"},
}
BAD = {case[0]: case[1] for case in reversed(CASES) if case[2] is ERROR}
BAD |= {"clock": {}, "templates": {"files": {"site/own.sbatch.j2": ""}}}
"""An error of each check that the daemon makes."""


@pytest.fixture(autouse=True)
def _mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounts").write_text(MOUNTS, "utf-8")
    monkeypatch.setattr(installation_checks, "MOUNTS", tmp_path / "mounts")


@pytest.mark.parametrize(
    ("name", "changes", "level", "words"),
    CASES,
    ids=[f"{i}-{case[0]}-{case[2]}" for i, case in enumerate(CASES)],
)
def test_each_check_both_ways(
    tmp_path: Path, name: str, changes: Change, level: Severity, words: str
) -> None:
    """It tells what it found, and what to do wherever something is to be done."""
    said = said_by(name, tmp_path, **changes)

    assert (said.level, words in said.found) == (level, True), said
    assert bool(said.advice) is (level in {WARNING, ERROR})


@pytest.mark.parametrize(
    ("options", "level"),
    [("rw", WARNING), ("rw,hidepid=0", WARNING), ("hidepid=off,gid=4", WARNING)]
    + [(f"rw,gid=4,hidepid={how}", OK) for how in ("1", "2", "invisible", "ptraceable")],
)
def test_command_lines_are_seen_by_all_unless_proc_hides_them(
    tmp_path: Path, options: str, level: Severity
) -> None:
    """The last mount on /proc counts."""
    lines = f"40 22 0:21 / /proc - proc x hidepid=2\n41 40 0:21 / /proc - proc x {options}\n"
    (tmp_path / "mounts").write_text(MOUNTS + lines, "utf-8")

    assert said_by("command lines", tmp_path, **slurm(PrivateData="jobs")).level is level


@pytest.mark.parametrize("case", CLOCK)
def test_clocks_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[float, float, Severity, str]
) -> None:
    """Slurmctld tells whole seconds, rounded down, at some time between our two."""
    before_s, after_s, level, words = case
    times = iter((before_s, after_s))
    monkeypatch.setattr("slurm_dl.doctor.site.time", SimpleNamespace(time=lambda: next(times)))

    said = said_by("clock", tmp_path, config="Configuration data as of 1000\nA = 1\n")

    assert (said.level, words in said.found) == (level, True), said


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_named_and_slurm_is_not_blamed(tmp_path: Path) -> None:
    """For the ledger and for the audit log: which disk, and that room is to be made there."""
    disk = tmp_path / "disk"
    disk.mkdir()
    tmpfs = ["/bin/mount", "-t", "tmpfs", "-o", "size=400k", "none", str(disk)]
    subprocess.run(tmpfs, check=True)
    try:
        ledger = Ledger(SqliteStore(disk / "ledger.sqlite"))
        with contextlib.suppress(OSError):
            (disk / "rest").write_bytes(bytes(400_000))
        cluster, policy = FakeCluster(nodes=2, gpus=4), DiscreteLas(thresholds_gpu_s=(60.0,))
        for uid in range(400):
            cluster.submit(4, work_s=7200, uid=uid)
        managed = Settings(partitions=frozenset({"gpu"}))
        with pytest.raises(StoreError) as full:
            run_cycle(cluster, ledger, policy, managed, clock=cluster.clock, acting=False)
        with contextlib.suppress(StoreError):
            ledger.close()
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(disk)], check=True)
    audit = AuditLog(Path("/dev/full"))
    audit.write(AuditLine(actor="a", action="start"))

    for words, where in (
        (status(failures=2, trouble={"message": str(full.value)}), "paths.state_dir"),
        (status(audit={"path": "/dev/full", "error": audit.error}), "paths.audit_log"),
    ):
        said = said_by("cycles", tmp_path, **words)
        assert (said.level, "full" in said.advice, where in said.advice) == (ERROR, True, True)
        assert "Slurm" not in said.advice


LINE = re.compile(r"in slurm\.conf: (\w+)=([^;]*)")
PARTITION_LINE = re.compile(r"in slurm\.conf, partitions ([^:]+): (\w+)=([^;]*)")
YAML_LINE = re.compile(r"in slurm_dl\.yaml: (\w+): \{([^}]*)\}")


def mended(changes: Change, advice: str) -> Change:
    """*changes* after the lines that *advice* tells have been put in place."""
    pairs = [(section, p) for section, body in YAML_LINE.findall(advice) for p in body.split(", ")]
    lines = {
        f"{name}:{key}": value
        for names, key, value in PARTITION_LINE.findall(advice)
        for name in names.split(", ")
    }
    return {
        **changes,
        "conf": {**changes.get("conf", {}), **dict(LINE.findall(advice))},
        "parts": {**changes.get("parts", {}), **lines},
        "sets": (*changes.get("sets", ()), *(f"{s}.{p.replace(': ', '=')}" for s, p in pairs)),
    }


BY_HAND = {
    *("configuration", "slurm", "release", "reader", "partitions", "rights", "private data"),
    *("node weights", "profiles", "directories", "state disk", "command lines", "templates"),
    *("nodes", "unknown conditions", "client file"),
    *("daemon", "cycles"),
}
TOLD = [case for case in CASES if case[2] in {WARNING, ERROR}]


@pytest.mark.parametrize(("name", "changes"), [case[:2] for case in TOLD])
def test_the_line_that_is_told_mends_it(tmp_path: Path, name: str, changes: Change) -> None:
    """Copied as it stands, it makes the check content."""
    advice = said_by(name, tmp_path, **changes).advice
    lines = [found for kind in (LINE, PARTITION_LINE, YAML_LINE) for found in kind.findall(advice)]
    assert bool(lines) or name in BY_HAND or advice.startswith("see "), advice
    if not lines or name in BY_HAND:
        return

    after = mended(changes, advice)
    assert said_by(name, tmp_path, **after).level is OK, (advice, after)


@pytest.mark.parametrize(
    ("name", "changes", "advice"),
    [
        ("rights", {"user": "slurm_dl|None\n"}, "sacctmgr modify user slurm_dl set adminlevel=Op"),
        (
            "private data",
            slurm(PrivateData="jobs") | {"user": ""},
            "sacctmgr add user slurm_dl acc",
        ),
        ("priority weights", slurm(PriorityWeightAge="30493000"), "{band_width: 33554401}"),
        ("priority weights", slurm(PriorityWeightAge="30494000"), "band_width is 33554431 at most"),
        # Words of the site stay, in their spelling and order; a word is there once.
        (
            "backfill window",
            slurm(SchedulerParameters="Defer,bf_window=60,X=a=b"),
            "SchedulerParameters=Defer,X=a=b,bf_window=10080",
        ),
        ("requeue hold", slurm(AuthInfo="(null)"), "AuthInfo=cred_expire=30;"),
        ("priority flags", slurm(PriorityFlags="INCR_ONLY,Max"), "PriorityFlags=Max;"),
    ],
)
def test_what_is_told_can_be_copied(
    tmp_path: Path, name: str, changes: Change, advice: str
) -> None:
    """As sacctmgr, slurm.conf and slurm_dl.yaml take it."""
    assert advice in said_by(name, tmp_path, **changes).advice


PAGE = Path(__file__).parents[2] / "docs" / "operate" / "doctor.md"


def test_the_page_lists_every_check_in_order() -> None:
    """docs/operate/doctor.md has each with its worst result; each is tested with it and with ok."""
    rows = re.findall(r"(?m)^\| `([a-z ]+)` \| (error|warning) \|", PAGE.read_text("utf-8"))
    told = [case[::2] for case in CASES] + [("clock", level) for _, _, level, _ in CLOCK]
    told += [(CHECK_OF.get(row[0].partition("/")[0], ""), ERROR) for row in FILES if row[3]]

    assert [name for name, _ in rows] == list(CHECKS)
    for name, worst in rows:
        levels = {level for of, level in told if of == name}
        assert {OK, Severity(worst)} <= levels, name
        assert worst == "error" or ERROR not in levels, name


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_is_skipped_on_what_real_releases_print(tmp_path: Path, release: str) -> None:
    """All that the checks ask for is there, in words that they know; no command runs twice."""
    site = site_of(tmp_path, release=release)
    rows = examine(site)

    assert [name for name, row in rows.items() if row.level is SKIPPED] == []
    assert rows["release"].found.startswith(f"{release}, tested")
    assert set(site.slurm.runs.values()) == {1}


def test_without_anything_every_check_says_so(tmp_path: Path) -> None:
    """Nothing can be read: no check says that all is well, and no command is tried twice."""
    site = site_of(tmp_path, status=None, config=None, squeue=None, files={"dl.yaml": "a"})
    rows = examine(site)

    assert {name for name, row in rows.items() if row.level is OK} == {"templates"}
    told = {name for name, row in rows.items() if row.level is not SKIPPED}
    assert told == {"configuration", "slurm", "daemon", "templates"}
    assert site.slurm.runs == {("scontrol", "show", "config"): 1}


KEYS = sorted({key for case in CASES for key in case[1].get("conf", {})})
JUNK = st.one_of(
    st.text(max_size=40),
    st.from_regex(
        r"[a-z_]{1,8}(=[0-9]{0,40})?(,[A-Za-z_/]{0,8}(=[^ ]{0,5})?){0,3}", fullmatch=True
    ),
    st.sampled_from(
        ["", "(null)", "-1", "9" * 400, "1e9", "NaN", "\u0663 sec", "0", "\x00\x1b[2J"]
    ),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    conf=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=12),
    texts=st.dictionaries(
        st.sampled_from(["config", "partition", "user", "qos", "sinfo", "squeue"]),
        st.text(max_size=300),
        max_size=2,
    ),
    answer=st.dictionaries(st.sampled_from([*STATUS, "reader", "x"]), JSON),
    native=st.booleans(),
)
def test_no_text_makes_a_check_raise(
    tmp_path: Path, conf: dict[str, str], texts: Change, answer: Change, *, native: bool
) -> None:
    """Whatever Slurm, a user or the daemon says, each check answers or says that it cannot."""
    site = site_of(tmp_path, conf=conf, sets=NATIVE if native else (), status=answer, **texts)

    assert len(examine(site)) == len(CHECKS)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for other users' files")
@pytest.mark.parametrize("case", FILES, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]:o}")
def test_whose_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, int, int, str]
) -> None:
    """The account can write to what is its own, and others neither there nor to what it reads."""
    path, uid, mode, said = case
    site = site_of(tmp_path, account="nobody", files={"profiles/p.yaml": "name: p\n"})
    for name in ("state",):
        os.chown(tmp_path / name, SERVICES, 0)
    for name in ("site/mine.sbatch.j2", path):
        (tmp_path / name).touch()
    os.chown(tmp_path / path, uid, 0)
    (tmp_path / path).chmod(mode)

    if path.startswith("profiles"):
        # What is ours is read, and told if it is not the daemon's.
        monkeypatch.setattr(os, "geteuid", lambda: uid)

    row = examine(site)[CHECK_OF.get(path.partition("/")[0], "configuration")]
    assert (row.level == ERROR, said in row.found) == (bool(said), True), row


def test_a_file_that_is_closed_to_us_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may not read it is told so, and what needs it is skipped."""

    def closed(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    site = site_of(tmp_path)
    monkeypatch.setattr(Path, "open", closed)

    rows = examine(site)

    assert "may not be read by" in rows["configuration"].found
    assert {rows[name].level for name in ("configuration", "partitions")} == {SKIPPED}


def test_what_to_do_is_folded_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """On a narrow terminal advice goes on in the next line."""
    columns = (Column(title="CHECK"), Column(title="WHAT TO DO", least=10, folds=True))
    advice = f"set AccountingStorageTRES=gres/gpu and restart slurmctld {'x' * 60} restart it"

    Console(width=44).print(rich_table(columns, [["accounting", advice]], width=44))

    shown = capsys.readouterr().out
    assert "…" not in shown
    assert (shown.count("restart"), shown.count("x")) == (2, 60)
    assert max(map(len, shown.splitlines())) <= 44


@pytest.mark.parametrize("check", WATCHED)
def test_a_problem_appears_stays_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    """While the daemon runs it is said once, and kept while Slurm is silent; cheaply."""
    good, watch = GOOD.get(check, {}), ProblemWatch(logging_setup.logger(), None, ())
    monkeypatch.setattr("slurm_dl.doctor.site.time", SimpleNamespace(time=lambda: 1000.5))

    def stands(changes: Change) -> bool:
        site = site_of(tmp_path, **changes)
        (tmp_path / "site").chmod(0o777 if "site/own.sbatch.j2" in str(changes) else 0o755)
        site.in_force = site.known_config or site_of(tmp_path / "other").config
        monkeypatch.setattr(all_checks, "Site", lambda **_: site)
        watch.look(site.in_force)
        assert {run[0] for run in site.slurm.runs} <= {"scontrol", "sacctmgr"}
        assert site.slurm.runs.total() <= 3 + 2 * (check == "preemption")
        for path in (tmp_path / "profiles").iterdir():
            path.unlink()
        return check in {problem.check for problem in watch.standing()}

    (tmp_path / "other").mkdir()
    with structlog.testing.capture_logs() as lines:
        course = [good, BAD[check], BAD[check], BAD[check] | SILENT, good, good]
        assert [stands(changes) for changes in course] == [False, True, True, True, False, False]
    told = [(x["log_level"], x["event"]) for x in lines if x["check"] == check]
    assert told == [("error", "problem"), ("info", "problem is gone")]


def test_a_check_with_a_bug_is_a_problem_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other checks are made all the same; and once they are late, that is seen."""
    site, watch = site_of(tmp_path), ProblemWatch(logging_setup.logger(), None, ())
    monkeypatch.setattr(all_checks, "Site", lambda **_: site)
    monkeypatch.setitem(CHECKS, WATCHED[0], lambda _: int("N/A"))
    monkeypatch.setitem(CHECKS, WATCHED[-1], lambda _: CheckResult(Severity.ERROR, "bad", "mend"))
    watch.look(site.config)
    found = {problem.check: problem.found for problem in watch.standing()}
    assert "N/A" in found[WATCHED[0]]
    assert found[WATCHED[-1]] == "bad"
    assert watch.checked_s() == pytest.approx(time.time(), abs=60)


def test_problems_are_looked_for_beside_the_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, after a reload, also one during a look, and in time; no cycle waits."""
    watch, looks, may_end = ProblemWatch(logging_setup.logger(), None, ()), [], threading.Event()
    clock_s = [0.0]
    monkeypatch.setattr(all_checks, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    monkeypatch.setattr(watch, "look", lambda at: (looks.append(at), may_end.wait(10)))

    def cycle(*, reloaded: object, at_s: float, looked: int) -> None:
        clock_s[0] = at_s
        watch.on_cycle(SimpleNamespace(config=at_s, reloaded=reloaded))  # type: ignore[arg-type]
        assert len(looks) == looked
        for thread in threading.enumerate():
            if thread.name == "problems" and may_end.is_set():
                thread.join(10)

    once = object()
    cycle(reloaded=None, at_s=0, looked=1)
    cycle(reloaded=once, at_s=1, looked=1)
    may_end.set()
    cycle(reloaded=once, at_s=2, looked=1)
    cycle(reloaded=once, at_s=3, looked=2)
    cycle(reloaded=once, at_s=602, looked=2)
    cycle(reloaded=once, at_s=603, looked=3)
