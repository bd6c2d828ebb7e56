"""dlctl doctor: each check both ways, on what real controllers print, and on any text at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.config import Config
from slurm_dl.daemon.audit_log import AuditLine, AuditLog
from slurm_dl.doctor import gather as gathering
from slurm_dl.doctor.all_checks import CHECKS, examine
from slurm_dl.doctor.check_result import CannotTellError, CheckResult, Severity
from slurm_dl.doctor.controller_config import (
    ControllerConfig,
    PartitionRecord,
    read_controller,
    read_partitions,
)
from slurm_dl.doctor.directories import filesystem_of
from slurm_dl.doctor.findings import (
    Account,
    ConfigFile,
    ControllerReply,
    Directory,
    Findings,
    Missing,
    OwnPreemption,
    Profiles,
    Template,
)
from slurm_dl.doctor.gather import DoctorOptions, gather
from slurm_dl.engine.cycle import run_cycle
from slurm_dl.engine.settings import Settings
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.profiles import shipped_profiles
from slurm_dl.report import terminal_table
from slurm_dl.report.terminal_table import Column
from slurm_dl.slurm.read.queue_reader import ReaderChoice
from slurm_dl.testing.in_memory.fake_cluster import FakeCluster

DATA = Path(__file__).parents[1] / "data" / "doctor"
RELEASES = ("22.05.8", "24.11.5", "26.05.5")
SERVICE = Account(name="slurm_dl", uid=880, gids=frozenset({880}), why="owner of the daemon")
ROOTS, SERVICES = 0, 65534
STATE = Directory(
    key="paths.state_dir",
    path=Path("/var/lib/slurm_dl"),
    mode=0o750,
    uid=880,
    gid=880,
    filesystem="ext4",
)
STATUS: Mapping[str, Any] = {
    "doing": "acting",
    "version": "1.0",
    "paused": None,
    "failures": 0,
    "bugs": 0,
    "trouble": None,
    "audit": {"path": "/a", "error": None},
    "actions": {"done": 3, "failed": 0},
    "age_s": 12.0,
    "cycles": 40,
}


@cache
def recorded(release: str) -> tuple[str, str]:
    """What that release printed of its configuration and its partitions."""
    names = (f"config-{release}.txt", f"partitions-{release}.txt")
    config, partitions = [(DATA / name).read_text("utf-8") for name in names]
    return config, partitions


def config_of(**sections: dict[str, object]) -> Config:
    """The defaults, with *sections* on top."""
    return Config.model_validate({"manage": {"partitions": ["gpu"]}, **sections})


@cache
def seen(release: str) -> tuple[ControllerConfig, tuple[PartitionRecord, ...]]:
    """That, read."""
    config, partitions = recorded(release)
    return read_controller(config), read_partitions(partitions)


def findings(release: str = "24.11.5", **changes: Any) -> Findings:  # noqa: ANN401 - fields of Findings
    """A cluster on which nothing is wrong but Slurm's own defaults."""
    controller, partitions = seen(release)
    assert controller.as_of_s is not None
    whole = Findings(
        file=ConfigFile(path=Path("/etc/slurm_dl/slurm_dl.yaml"), config=config_of()),
        account=SERVICE,
        slurm=ControllerReply(
            controller=controller, before_s=controller.as_of_s, after_s=controller.as_of_s + 0.5
        ),
        partitions=partitions,
        admin_level="Operator",
        native=Missing("preemption.mode is not native"),
        reader=ReaderChoice("cli", "there is no pyslurm for Slurm 24.11.5"),
        weights=(1,),
        profiles=Profiles(models=9, of_site=2),
        directories=(STATE, replace(STATE, key="paths.audit_log")),
        templates=(Template(name="plain", owner="wheel"), Template(name="_header", owner="wheel")),
        template_dir=Path("/etc/slurm_dl/templates"),
        status=dict(STATUS),
        version="1.0",
    )
    return replace(whole, **changes)


def slurm(text: str = "", **values: str) -> dict[str, Any]:
    """The recorded controller with some of its *values* replaced, and by what *text* says."""
    controller, _ = seen("24.11.5")
    lines = [*text.split("\n"), *(f"{key} = {value}" for key, value in values.items())]
    changed = read_controller("\n".join(lines)).values
    merged = ControllerConfig({**controller.values, **changed}, 1000.0)
    return {"slurm": ControllerReply(controller=merged, before_s=1000.0, after_s=1000.1)}


def partition(**values: str) -> dict[str, Any]:
    """The recorded partition gpu with some of its *values* replaced."""
    _, text = recorded("24.11.5")
    for key, value in values.items():
        text, n = re.subn(rf"(?m)(^PartitionName=gpu .*) {key}=\S+", rf"\1 {key}={value}", text)
        if not n:
            text = re.sub(r"(?m)^(PartitionName=gpu )", rf"\1{key}={value} ", text)
    return {"partitions": read_partitions(text)}


def file(**sections: dict[str, object]) -> dict[str, Any]:
    """A configuration with *sections*."""
    return {"file": ConfigFile(path=Path("/c.yaml"), config=config_of(**sections))}


def status(**values: object) -> dict[str, Any]:
    """The daemon's answer with some *values* replaced."""
    return {"status": {**STATUS, **values}}


NATIVE: dict[str, object] = {"mode": "native", "qos": "dl"}
BEST_FIT: dict[str, object] = {"scheme": "best_fit"}
ROOT = replace(SERVICE, name="root", uid=0)
OK, WARNING, ERROR, SKIPPED = Severity.OK, Severity.WARNING, Severity.ERROR, Severity.SKIPPED

HIDDEN = Missing("/c may not be read by alice")

Case = tuple[str, dict[str, Any], Severity, str]
CASES: list[Case] = [
    ("configuration", {}, OK, "/etc/slurm_dl/slurm_dl.yaml"),
    (
        "configuration",
        {"file": ConfigFile(path=Path("/c"), mistakes=("c:3: a", "c:4: b", "c:9: c"))},
        ERROR,
        "c:3: a (and 2 more)",
    ),
    ("configuration", {"file": ConfigFile(path=Path("/c"), mistakes=("c: d",))}, ERROR, "c: d"),
    ("configuration", {"file": HIDDEN}, SKIPPED, "by alice"),
    ("slurm", {}, OK, "cluster dl answered in 0.50 s"),
    ("slurm", {"slurm": Missing("scontrol: no answer")}, ERROR, "scontrol: no answer"),
    (
        "slurm",
        {"slurm": ControllerReply(controller=ControllerConfig({}), before_s=0, after_s=0)},
        ERROR,
        "nothing",
    ),
    ("release", {}, OK, "24.11.5, tested"),
    ("release", slurm(SLURM_VERSION="24.11.1"), OK, "tested with 24.11.5"),
    ("release", slurm(SLURM_VERSION="23.11.3"), OK, "documentation"),
    ("release", slurm(SLURM_VERSION="22.05.8"), OK, "--ntasks-per-node"),
    ("release", slurm(SLURM_VERSION="23.02.1"), ERROR, "loses its GPUs"),
    ("release", slurm(SLURM_VERSION="21.08.8"), WARNING, "outside the supported range"),
    ("release", slurm(SLURM_VERSION="26.11.0"), WARNING, "outside the supported range"),
    ("release", slurm(SLURM_VERSION="(null)"), SKIPPED, "no Slurm version"),
    ("release", {"slurm": Missing("no")}, SKIPPED, "Slurm was not reached"),
    ("reader", {}, OK, "cli: there is no pyslurm"),
    (
        "reader",
        status(reader={"name": "pyslurm", "reason": "it belongs"}),
        OK,
        "dlschedd uses pyslurm: it belongs",
    ),
    ("reader", status(reader="?"), OK, "cli: there is no pyslurm"),
    ("reader", {"reader": Missing("sinfo is silent")}, SKIPPED, "sinfo is silent"),
    (
        "reader",
        {**file(cluster={"reader": "pyslurm"}), "reader": Missing("but there is none")},
        ERROR,
        "but there is none",
    ),
    ("partitions", {}, OK, "gpu UP"),
    ("partitions", file(manage={"partitions": ["gpu", "a100"]}), ERROR, "no partition a100 in"),
    ("partitions", partition(State="DRAIN"), WARNING, "gpu is DRAIN"),
    ("partitions", {"partitions": Missing("denied")}, SKIPPED, "denied"),
    ("rights", {}, OK, "AdminLevel Operator"),
    ("rights", {"admin_level": "Administrator"}, OK, "Administrator"),
    ("rights", {"admin_level": "None"}, ERROR, "has AdminLevel None"),
    ("rights", {"admin_level": ""}, ERROR, "is no user of slurmdbd"),
    ("rights", {"admin_level": Missing("hidden")}, SKIPPED, "hidden"),
    ("rights", {"account": replace(SERVICE, uid=64030), "admin_level": ""}, OK, "is SlurmUser"),
    ("rights", {"account": ROOT}, WARNING, "refuses to run as root"),
    ("rights", {"account": ROOT, **slurm(SlurmUser="root(0)")}, OK, "is SlurmUser"),
    ("rights", slurm(AccountingStorageType="accounting_storage/none"), ERROR, "without slurmdbd"),
    (
        "rights",
        {"account": ROOT, **slurm(AccountingStorageType="accounting_storage/none")},
        ERROR,
        "without slurmdbd",
    ),
    ("rights", slurm(SlurmUser="slurm"), SKIPPED, "cannot be read"),
    ("private data", {}, OK, "hides no jobs"),
    ("private data", slurm(PrivateData="accounts,usage,users"), OK, "hides no jobs"),
    ("private data", slurm(PrivateData="jobs,users"), OK, "PrivateData=jobs: as Operator"),
    ("private data", {**slurm(PrivateData="jobs"), "account": ROOT}, OK, "root sees all"),
    (
        "private data",
        {**slurm(PrivateData="jobs"), "account": replace(SERVICE, uid=64030)},
        OK,
        "sees all",
    ),
    (
        "private data",
        {**slurm(PrivateData="jobs,nodes"), "admin_level": "None"},
        ERROR,
        "PrivateData=jobs,nodes: slurm_dl (owner of the daemon) sees its own alone",
    ),
    ("private data", {**slurm(PrivateData="all"), "admin_level": ""}, ERROR, "looks empty"),
    (
        "private data",
        slurm(PrivateData="jobs", AccountingStorageType="accounting_storage/none"),
        ERROR,
        "without slurmdbd",
    ),
    (
        "private data",
        {**slurm(PrivateData="jobs"), "admin_level": Missing("hidden")},
        SKIPPED,
        "hidden",
    ),
    ("clock", {}, OK, "agree"),
    (
        "clock",
        {
            "slurm": ControllerReply(
                controller=ControllerConfig({}, 1000.0), before_s=1003.5, after_s=1004.0
            )
        },
        WARNING,
        "2 s apart",
    ),
    (
        "clock",
        {
            "slurm": ControllerReply(
                controller=ControllerConfig({}, 1000.0), before_s=1002.9, after_s=1004.0
            )
        },
        OK,
        "agree to 2 s",
    ),
    (
        "clock",
        {
            "slurm": ControllerReply(
                controller=ControllerConfig({}, 1000.0), before_s=900, after_s=940.0
            )
        },
        ERROR,
        "60 s apart",
    ),
    (
        "clock",
        {
            "slurm": ControllerReply(
                controller=ControllerConfig({}, None), before_s=900, after_s=940.0
            )
        },
        SKIPPED,
        "did not tell its time",
    ),
    ("priority plugin", {}, OK, "priority/multifactor"),
    ("priority plugin", slurm(PriorityType="priority/basic"), ERROR, "ignored"),
    ("site factor", {}, OK, "nobody else"),
    ("site factor", slurm(PrioritySiteFactorPlugin="site_factor/none"), OK, "nobody else"),
    ("site factor", slurm(PrioritySiteFactorPlugin="site_factor/x"), ERROR, "overwrites"),
    ("priority weights", {}, OK, "add up to 12000, ranking.band_width is 10000000"),
    ("priority weights", slurm(PriorityWeightAge="9987999"), OK, "add up to 9998999"),
    (
        "priority weights",
        slurm(PriorityWeightAge="9990000"),
        ERROR,
        "add up to 10001000, ranking.band_width is 10000000: they change the order",
    ),
    (
        "priority weights",
        file(ranking={"equals": "site"}),
        OK,
        "they decide between jobs that the policy does not tell apart",
    ),
    ("priority weights", file(preemption=NATIVE), OK, "inside a tier the weights decide"),
    (
        "priority weights",
        slurm(PriorityWeightTRES="cpu=9000000,gres/gpu=1000000.0"),
        ERROR,
        "add up to 10012000",
    ),
    (
        "priority weights",
        {**file(preemption=NATIVE), **slurm(PriorityWeightAge="5000000")},
        ERROR,
        "half of ranking.band_width is 5000000: jobs of different tiers mix",
    ),
    ("priority weights", slurm(PriorityFlags="NO_NORMAL_QOS"), WARNING, "may exceed 1"),
    ("priority weights", slurm(PriorityWeightQOS="many"), SKIPPED, "no weight"),
    ("priority flags", {}, OK, "may fall"),
    ("priority flags", slurm(PriorityFlags="MAX_TRES,NO_FAIR_TREE"), OK, "may fall"),
    ("priority flags", slurm(PriorityFlags="MAX_TRES,INCR_ONLY"), ERROR, "keeps its priority"),
    ("partition tiers", {}, OK, "PriorityTier 1"),
    (
        "partition tiers",
        {**file(manage={"partitions": ["gpu", "debug"]}), **partition(PriorityTier="5")},
        WARNING,
        "gpu 5, debug 1",
    ),
    ("gpus", {}, OK, "select/cons_tres"),
    ("gpus", slurm(GresTypes="(null)"), ERROR, "no gpu"),
    ("gpus", slurm(SelectType="select/linear"), WARNING, "select/cons_tres"),
    ("backfill depth", {}, OK, "looks at 500 jobs"),
    ("backfill depth", slurm(SchedulerParameters="bf_max_job_test=1000"), OK, "at 1000 jobs"),
    ("backfill depth", slurm(SchedulerParameters="BF_MAX_JOB_TEST=1001"), WARNING, "at 1001 jobs"),
    ("backfill depth", slurm(SchedulerParameters="bf_max_job_test=lots"), SKIPPED, "no number"),
    ("backfill depth", slurm(SchedulerType="sched/builtin"), WARNING, "holds up"),
    ("backfill window", partition(MaxTime="1-00:00:00"), OK, "at most 1440 min"),
    ("backfill window", partition(MaxTime="1-00:01:00"), WARNING, "MaxTime of gpu"),
    ("backfill window", {}, WARNING, "UNLIMITED"),
    (
        "backfill window",
        {**slurm(SchedulerParameters="bf_window=60"), **partition(MaxTime="02:00:00")},
        WARNING,
        "looks 60 min ahead",
    ),
    ("backfill window", partition(MaxTime="soon"), SKIPPED, "no time limit"),
    ("backfill passes", {}, WARNING, "no bf_continue"),
    ("backfill passes", slurm(SchedulerParameters="bf_continue"), WARNING, "00:05:00"),
    (
        "backfill passes",
        slurm(
            SchedulerParameters="BF_CONTINUE",
            PriorityCalcPeriod="00:01:00",
            SLURM_VERSION="23.11.10",
            AccountingStorageType="accounting_storage/none",
        ),
        OK,
        "this release never computes",
    ),
    (
        "backfill passes",
        slurm(
            SchedulerParameters="bf_continue",
            PriorityCalcPeriod="00:01:00",
            SLURM_VERSION="24.11.5",
            AccountingStorageType="accounting_storage/none",
        ),
        OK,
        "each minute",
    ),
    ("backfill passes", slurm(PriorityCalcPeriod="soon"), SKIPPED, "no time limit"),
    ("preemption", {}, OK, "dlschedd preempts, Slurm does not"),
    ("preemption", file(preemption={"enabled": False}), OK, "nobody is preempted"),
    ("preemption", slurm(PreemptType="preempt/none"), OK, "Slurm does not"),
    ("preemption", slurm(PreemptType="preempt/qos"), WARNING, "in gpu Slurm may stop"),
    (
        "preemption",
        {**slurm(PreemptType="preempt/partition_prio"), **partition(PreemptMode="OFF")},
        OK,
        "Slurm does not",
    ),
    (
        "preemption",
        {**slurm(PreemptType="preempt/partition_prio"), **partition(PreemptMode="REQUEUE")},
        WARNING,
        "in gpu Slurm may stop",
    ),
    ("preemption", slurm(PreemptMode="SUSPEND,GANG"), WARNING, "keep their GPUs"),
    ("preemption", {**file(preemption=NATIVE), "native": OwnPreemption()}, OK, "inside QOS dl"),
    (
        "preemption",
        {**file(preemption=NATIVE), "native": OwnPreemption(remark="nobody yet")},
        WARNING,
        "nobody yet",
    ),
    (
        "preemption",
        {**file(preemption=NATIVE), "native": OwnPreemption(lacks=("a", "b"))},
        ERROR,
        "a; b",
    ),
    ("preemption", {**file(preemption=NATIVE), "native": Missing("dbd down")}, SKIPPED, "dbd down"),
    ("requeue", {}, OK, "JobRequeue=1"),
    ("requeue", slurm(SLURM_VERSION="25.11.0"), OK, "--requeue=expedite goes before all others"),
    ("requeue", slurm(JobRequeue="0"), WARNING, "--requeue"),
    ("requeue hold", {}, OK, "waits 6 s"),
    ("requeue hold", slurm(AuthInfo="(null)"), WARNING, "waits 121 s"),
    ("requeue hold", slurm(AuthInfo="socket=/x,cred_expire=120"), WARNING, "waits 121 s"),
    ("requeue hold", slurm(AuthInfo="socket=/x,cred_expire=70"), OK, "waits 71 s"),
    (
        "requeue hold",
        slurm(AuthInfo="(null)", SchedulerParameters="requeue_delay=9", SLURM_VERSION="25.11.0"),
        OK,
        "waits 10 s before it may start (SchedulerParameters=requeue_delay)",
    ),
    (
        "requeue hold",
        slurm(AuthInfo="(null)", SchedulerParameters="requeue_delay=9", SLURM_VERSION="25.05.9"),
        WARNING,
        "waits 121 s",
    ),
    ("requeue hold", slurm(KillWait="60 sec"), WARNING, "up to 60 s to end (KillWait)"),
    ("requeue hold", slurm(KillWait="6 sec"), WARNING, "they may meet"),
    ("requeue hold", slurm(KillWait="100", AuthInfo="cred_expire=125"), OK, "waits 126 s"),
    ("requeue hold", slurm(KillWait="a bit"), SKIPPED, "no number"),
    ("kill wait", {}, WARNING, "has 5 s from SIGTERM"),
    ("kill wait", slurm(KillWait="29 sec"), WARNING, "has 29 s"),
    ("kill wait", slurm(KillWait="30 sec"), OK, "has 30 s"),
    ("grace", {}, OK, "within max_grace_s"),
    ("grace", file(preemption={"max_grace_s": 120}), OK, "within max_grace_s"),
    ("grace", file(preemption={"max_grace_s": 60}), WARNING, "below dlsubmit's default grace"),
    ("node sharing", {}, OK, "shared by GPU"),
    ("node sharing", partition(OverSubscribe="FORCE:4"), WARNING, "share their CPUs"),
    ("node sharing", partition(OverSubscribe="YES:4"), OK, "shared by GPU"),
    ("node sharing", partition(OverSubscribe="EXCLUSIVE"), WARNING, "whole nodes"),
    ("node sharing", partition(Exclusive="NODE"), WARNING, "whole nodes"),
    ("node sharing", partition(Exclusive="NO"), OK, "shared by GPU"),
    ("node sharing", partition(LLN="YES"), WARNING, "spreads small jobs"),
    ("node sharing", partition(GraceTime="30"), OK, "gpu 30 s"),
    ("placement", {}, OK, "left to Slurm"),
    ("placement", slurm(TopologyPlugin="(null)"), OK, "left to Slurm"),
    ("placement", file(placement=BEST_FIT), OK, "leaf switches are known (topology/tree)"),
    ("placement", file(placement={**BEST_FIT, "steer": True}), OK, "best_fit; jobs are steered;"),
    (
        "placement",
        {**file(placement=BEST_FIT), **slurm(TopologyPlugin="topology/block")},
        OK,
        "blocks are known",
    ),
    (
        "placement",
        {**file(placement=BEST_FIT), **slurm(TopologyPlugin="topology/default")},
        WARNING,
        "TopologyPlugin=topology/default: all nodes count as one leaf switch",
    ),
    (
        "placement",
        {**file(placement=BEST_FIT), **slurm(TopologyPlugin="(null)")},
        WARNING,
        "TopologyPlugin=none",
    ),
    ("fragments", {}, OK, "no LLN"),
    ("fragments", slurm(SelectTypeParameters="CR_CORE"), OK, "no LLN"),
    ("fragments", slurm(SelectTypeParameters="CR_CORE,CR_LLN"), WARNING, "(CR_LLN)"),
    ("fragments", partition(LLN="YES"), WARNING, "LLN in partition gpu"),
    (
        "fragments",
        {**slurm(SelectTypeParameters="CR_LLN"), **partition(LLN="YES")},
        WARNING,
        "LLN in SelectTypeParameters (CR_LLN), partition gpu",
    ),
    ("node weights", {}, OK, "the same Weight"),
    ("node weights", {"weights": (1, 5)}, WARNING, "Weight 1, 5: Slurm takes the lowest first"),
    ("node weights", {"weights": (1, 2, 3, 4, 5)}, WARNING, "Weight 1, 2, 3, 4, ...:"),
    ("node weights", {"weights": Missing("sinfo is silent")}, SKIPPED, "sinfo is silent"),
    ("profiles", {}, OK, "9 models, 2 of them by files in /etc/slurm_dl/profiles"),
    (
        "profiles",
        {"profiles": Profiles(mistakes=("/p/a.yaml:3: x", "/p/b.yaml: y"))},
        ERROR,
        "/p/a.yaml:3: x (and 1 more)",
    ),
    ("profiles", {"profiles": Profiles(mistakes=("/p/a.yaml:3: x",))}, ERROR, "a.yaml:3: x"),
    (
        "profiles",
        {"profiles": Profiles(models=9, unknown={"gpt9": 12, "a": 1})},
        WARNING,
        "without a profile: gpt9 (12), a (1)",
    ),
    (
        "profiles",
        {"profiles": Profiles(unknown={f"m{i}": 1 for i in range(7)})},
        WARNING,
        "m4 (1) and 2 more",
    ),
    (
        "profiles",
        {"profiles": Profiles(models=9, unknown=Missing("squeue is silent"))},
        SKIPPED,
        "squeue is silent",
    ),
    ("profiles", {"profiles": HIDDEN, "file": HIDDEN}, SKIPPED, "by alice"),
    ("job records", {}, OK, "listed for 300 s"),
    ("job records", slurm(MinJobAge="60 sec"), OK, "60 s"),
    ("job records", slurm(MinJobAge="59 sec"), WARNING, "one failed look"),
    ("job records", slurm(MinJobAge="30 sec"), ERROR, "are missed"),
    ("job records", slurm(MinJobAge="a while"), SKIPPED, "no number"),
    ("call limit", {}, OK, "not limited (no rl_enable)"),
    ("call limit", slurm(SLURM_VERSION="22.05.9"), OK, "does not limit"),
    ("call limit", slurm(SlurmctldParameters="rl_enable"), WARNING, "60 writes at once, 30 calls"),
    (
        "call limit",
        {**slurm(SlurmctldParameters="rl_enable"), **file(writes={"rate_per_s": 0.6})},
        OK,
        "20 writes at once",
    ),
    (
        "call limit",
        slurm(SlurmctldParameters="rl_enable,rl_bucket_size=70"),
        OK,
        "70 calls are allowed",
    ),
    (
        "call limit",
        {**slurm(SlurmctldParameters="rl_enable"), "account": ROOT},
        OK,
        "dlschedd's are not",
    ),
    ("accounting", {}, OK, "knows GPUs"),
    ("accounting", slurm(AccountingStorageTRES="cpu,mem"), WARNING, "no gres/gpu"),
    ("accounting", slurm(AccountingStorageType="accounting_storage/none"), OK, "no slurmdbd"),
    ("enforcement", {}, OK, "associations,limits,qos"),
    ("enforcement", slurm(AccountingStorageEnforce="none"), OK, "none"),
    (
        "enforcement",
        {**slurm(AccountingStorageEnforce="none"), **file(preemption=NATIVE)},
        WARNING,
        "may submit to QOS dl",
    ),
    ("enforcement", file(preemption=NATIVE), OK, "qos"),
    ("directories", {}, OK, "can write"),
    ("directories", {"account": replace(SERVICE, uid=7)}, ERROR, "cannot write"),
    ("directories", {"account": replace(SERVICE, uid=7, gids=frozenset())}, ERROR, "mode 0750"),
    ("directories", {"account": ROOT}, OK, "can write"),
    ("directories", {"directories": (replace(STATE, mode=0o770, uid=1),)}, OK, "can write"),
    ("directories", {"directories": (replace(STATE, open_to="/a can be"),)}, ERROR, "/a can be"),
    ("directories", {"directories": (replace(STATE, closed=("/a/lock",)),)}, ERROR, "/a/lock"),
    ("directories", {"directories": (replace(STATE, mode=0o570),)}, ERROR, "cannot write"),
    ("directories", {"directories": (replace(STATE, mode=0o270),)}, ERROR, "cannot write"),
    ("directories", {"directories": (replace(STATE, writable=False),)}, ERROR, "cannot write"),
    ("directories", {"directories": (replace(STATE, mode=None),)}, WARNING, "not there yet"),
    ("directories", {"directories": Missing("denied")}, SKIPPED, "denied"),
    ("state disk", {}, OK, "ext4"),
    ("state disk", {"directories": (replace(STATE, filesystem="nfs4"),)}, WARNING, "network"),
    ("state disk", {"directories": (replace(STATE, filesystem="fuse.sshfs"),)}, WARNING, "network"),
    ("state disk", {"directories": (replace(STATE, filesystem="tmpfs"),)}, WARNING, "reboot"),
    ("state disk", {"directories": (replace(STATE, filesystem=""),)}, SKIPPED, "not known"),
    ("templates", {}, OK, "plain (wheel)"),
    ("templates", {"templates": ()}, ERROR, "no template"),
    ("templates", {"templates": (Template(name="_header", owner="wheel"),)}, ERROR, "no template"),
    (
        "templates",
        {"templates": (Template(name="plain", owner="site", trouble="by everyone"),)},
        ERROR,
        "by everyone",
    ),
    ("templates", {"template_dir": Path("/elsewhere")}, WARNING, "looks in /elsewhere"),
    ("templates", {"file": HIDDEN}, OK, "plain (wheel)"),
    ("daemon", {}, OK, "acting"),
    ("daemon", {"status": Missing("does not listen")}, WARNING, "does not listen"),
    ("daemon", status(version="0.9"), WARNING, "version 0.9 runs, 1.0 is installed"),
    ("daemon", status(paused={"by": "root", "reason": "heat"}), WARNING, "paused by root: heat"),
    ("daemon", status(doing="shadow mode: plans"), OK, "shadow mode"),
    ("cycles", {}, OK, "number 40, 12 s ago"),
    ("cycles", {"status": Missing("no")}, SKIPPED, "did not answer"),
    ("cycles", status(failures=3, trouble={"message": "squeue: no"}), ERROR, "squeue: no"),
    ("cycles", status(bugs=1, trouble={"message": "KeyError"}), ERROR, "KeyError"),
    ("cycles", status(audit={"error": "disk full"}), ERROR, "disk full"),
    ("cycles", status(age_s=None), WARNING, "not looked"),
    ("cycles", status(age_s=90.5), WARNING, "90 s ago"),
    ("cycles", status(age_s=89.0), OK, "89 s ago"),
    ("cycles", {**status(age_s=91.0), "file": HIDDEN}, OK, "91 s ago"),
    ("cycles", status(actions={"done": 1, "failed": 2}), WARNING, "2 actions were refused"),
]


def verdict(name: str, found: Findings) -> CheckResult:
    """What one check says."""
    return next(row.verdict for row in examine(found) if row.name == name)


@pytest.mark.parametrize(
    ("name", "changes", "level", "words"),
    CASES,
    ids=[f"{i}-{case[0]}-{case[2]}" for i, case in enumerate(CASES)],
)
def test_each_check_both_ways(
    name: str, changes: dict[str, Any], level: Severity, words: str
) -> None:
    """It tells what it found, and what to do wherever something is to be done."""
    said = verdict(name, findings(**changes))

    assert (said.level, words in said.found) == (level, True), said
    assert bool(said.advice) is (level in {WARNING, ERROR})


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_named_and_slurm_is_not_blamed(tmp_path: Path) -> None:
    """For the ledger and for the audit log: which disk, and that room is to be made there."""
    tmpfs = ["/bin/mount", "-t", "tmpfs", "-o", "size=400k", "none", str(tmp_path)]
    subprocess.run(tmpfs, check=True)
    try:
        ledger = Ledger(SqliteStore(tmp_path / "ledger.sqlite"))
        with contextlib.suppress(OSError):
            (tmp_path / "rest").write_bytes(bytes(400_000))
        cluster, policy = FakeCluster(nodes=2, gpus=4), DiscreteLas(thresholds_gpu_s=(60.0,))
        settings = Settings(partitions=frozenset({"gpu"}))
        for uid in range(400):
            cluster.submit(4, work_s=7200, uid=uid)
        with pytest.raises(StoreError) as full:
            run_cycle(cluster, ledger, policy, settings, clock=cluster.clock, acting=False)
        with contextlib.suppress(StoreError):
            ledger.close()
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(tmp_path)], check=True)
    audit = AuditLog(Path("/dev/full"))
    audit.write(AuditLine(actor="a", action="start"))

    for words, where in (
        (status(failures=2, trouble={"message": str(full.value)}), "paths.state_dir"),
        (status(audit={"path": "/dev/full", "error": audit.error}), "paths.audit_log"),
    ):
        said = verdict("cycles", findings(**words))
        assert (said.level, "full" in said.advice, where in said.advice) == (ERROR, True, True)
        assert "Slurm" not in said.advice


def _bad(*names: str) -> list[Case]:
    return [case for case in CASES if case[2] in {WARNING, ERROR} and case[0] in names]


LINE = re.compile(r"in slurm\.conf: (\w+)=([^;]*)")
PARTITION_LINE = re.compile(r"in slurm\.conf, partitions ([^:]+): (\w+)=([^;]*)")
YAML_LINE = re.compile(r"in slurm_dl\.yaml: (\w+): \{([^}]*)\}")
TELLS_A_LINE = (
    *("priority plugin", "site factor", "priority weights", "priority flags", "partition tiers"),
    *(
        "gpus",
        "backfill depth",
        "backfill window",
        "backfill passes",
        "requeue",
        "requeue hold",
        "kill wait",
        "grace",
    ),
    *("node sharing", "fragments", "job records", "call limit", "accounting", "enforcement"),
)
"""Checks of what stands in slurm.conf or slurm_dl.yaml, as opposed to what has to be done."""


def mended(found: Findings, advice: str) -> Findings:
    """*found* after the lines that *advice* tells have been put in place."""
    values = dict(found.controller.values)
    values |= {key.lower(): value for key, value in LINE.findall(advice)}
    partitions = list(found.partitions) if not isinstance(found.partitions, Missing) else []
    for names, key, value in PARTITION_LINE.findall(advice):
        partitions = [
            replace(p, values={**p.values, key: value}) if p.name in names.split(", ") else p
            for p in partitions
        ]
    assert isinstance(found.file, ConfigFile)
    config = found.config
    for section, pairs in YAML_LINE.findall(advice):
        changes = {k: float(v) for k, v in (pair.split(": ") for pair in pairs.split(", "))}
        raw = config.model_dump()
        raw[section] = {**raw[section], **changes}
        config = Config.model_validate(raw)
    assert isinstance(found.slurm, ControllerReply)
    return replace(
        found,
        slurm=replace(found.slurm, controller=ControllerConfig(values, found.controller.as_of_s)),
        partitions=tuple(partitions),
        file=replace(found.file, config=config),
    )


@pytest.mark.parametrize(
    ("name", "changes"), [(case[0], case[1]) for case in _bad(*TELLS_A_LINE, "placement")]
)
def test_the_line_that_is_told_mends_it(name: str, changes: dict[str, Any]) -> None:
    """Copied as it stands, it makes the check content; sprio's case has no line."""
    found = findings(**changes)
    advice = verdict(name, found).advice
    if advice.startswith("see with sprio"):
        return

    assert LINE.search(advice) or PARTITION_LINE.search(advice) or YAML_LINE.search(advice), advice
    assert verdict(name, mended(found, advice)).level is OK, advice


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("rights", {"admin_level": "None"}),
        ("private data", {**slurm(PrivateData="jobs"), "admin_level": "None"}),
    ],
)
def test_the_command_that_makes_an_operator_is_told(name: str, changes: dict[str, Any]) -> None:
    """As sacctmgr takes it."""
    said = verdict(name, findings(**changes))

    assert said.advice == "sacctmgr modify user slurm_dl set adminlevel=Operator"


@pytest.mark.parametrize(
    ("weight", "wide"),
    # The other weights add up to 11,000. A tenth more than the sum is advised.
    [(30_493_000, 33_554_401), (30_494_000, None), (90_000_000, None)],
)
def test_no_band_is_advised_that_the_configuration_refuses(weight: int, wide: int | None) -> None:
    """Beyond the widest band only lower weights help."""
    said = verdict("priority weights", findings(**slurm(PriorityWeightAge=str(weight))))

    assert said.level is ERROR
    assert (f"band_width: {wide}" in said.advice) == (wide is not None)
    assert ("33554431 at most" in said.advice) == (wide is None)
    assert "lower the PriorityWeight settings" in said.advice


def test_a_line_keeps_what_is_in_the_list() -> None:
    """Words of the site stay, in their spelling and order; a word is there once."""
    controller = read_controller(
        "SchedulerParameters = Defer,bf_window=60,X=a=b\nAuthInfo = (null)"
    )

    assert (
        controller.line_with("SchedulerParameters", "bf_window", 90)
        == "SchedulerParameters=Defer,X=a=b,bf_window=90"
    )
    assert controller.line_with("AuthInfo", "cred_expire", 30) == "AuthInfo=cred_expire=30"
    assert controller.line_without("SchedulerParameters", "defer", "x") == (
        "SchedulerParameters=bf_window=60"
    )
    assert controller.line_without("AuthInfo", "x", none="none") == "AuthInfo=none"


PAGE = Path(__file__).parents[2] / "docs" / "operate" / "doctor.md"


def test_the_page_lists_every_check_in_order() -> None:
    """docs/operate/doctor.md has one row for each, none that is gone, and its worst result."""
    text = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| `([a-z ]+)` \| (error|warning) \|", text, re.MULTILINE)

    assert [name for name, _ in rows] == [check.name for check in CHECKS]
    order = [OK, WARNING, ERROR]
    for name, worst in rows:
        levels = {case[2] for case in CASES if case[0] == name} - {SKIPPED}
        assert max(levels, key=order.index) == worst, name


def test_every_check_is_among_the_cases_both_ways() -> None:
    """No check without a case in which all is well and one in which something is not."""
    for check in CHECKS:
        levels = {case[2] for case in CASES if case[0] == check.name}
        assert OK in levels, check.name
        assert levels & {WARNING, ERROR}, check.name
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_is_skipped_on_what_real_releases_print(release: str) -> None:
    """All that the checks ask for is there, in words that they know."""
    rows = examine(findings(release))

    assert [r.name for r in rows if r.verdict.level is SKIPPED] == []
    assert verdict("release", findings(release)).found.startswith(f"{release}, tested")


def test_without_anything_every_check_says_so() -> None:
    """Nothing is read: no check says that all is well."""
    nothing: Any = Missing("nothing can be read")
    fields: dict[str, Any] = dict.fromkeys(
        (
            *("file", "account", "slurm", "partitions", "admin_level"),
            *("native", "reader", "weights", "profiles", "directories", "templates", "status"),
        ),
        nothing,
    )

    rows = examine(findings(**fields))

    assert {r.verdict.level for r in rows} <= {SKIPPED, ERROR, WARNING}
    assert {r.name for r in rows if r.verdict.level is not SKIPPED} == {"slurm", "daemon"}


class Spy(dict[str, str]):
    """Remembers which keys it was asked for."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Hold *values*."""
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - as of dict
        """As a dict does."""
        self.asked.add(key)
        return super().get(key, default)


def asked_keys() -> list[str]:
    """The keys of slurm.conf that any check asks for."""
    spy = Spy(seen("24.11.5")[0].values)
    asked = ControllerReply(controller=ControllerConfig(spy, 1.0), before_s=1.0, after_s=1.0)
    examine(findings(slurm=asked, account=replace(SERVICE, uid=3)))
    return sorted(spy.asked)


KEYS = asked_keys()
JUNK = st.one_of(
    st.text(max_size=40),
    st.from_regex(
        r"[a-z_]{1,8}(=[0-9]{0,40})?(,[A-Za-z_/]{0,8}(=[^ ]{0,5})?){0,3}", fullmatch=True
    ),
    st.sampled_from(
        ["", "(null)", "-1", "9" * 400, "1e9", "NaN", "\u0663 sec", "0", "\x00\x1b[2J"]
    ),
)


@given(values=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=12), native=st.booleans())
def test_no_value_of_slurm_conf_makes_a_check_raise(values: dict[str, str], native: bool) -> None:  # noqa: FBT001
    """Whatever stands behind a key, each check answers or says that it cannot."""
    junk = "\n".join(f"{key} = {value}" for key, value in values.items())
    changes = file(preemption=NATIVE) if native else {}

    assert len(examine(findings(**slurm(junk), **changes))) == len(CHECKS)


@given(config=st.text(max_size=300), partitions=st.text(max_size=300))
def test_no_text_makes_a_check_raise(config: str, partitions: str) -> None:
    """Neither of the two answers has to be one."""
    asked = ControllerReply(controller=read_controller(config), before_s=1.0, after_s=2.0)
    known = read_partitions(partitions + "\nPartitionName=gpu " + partitions)

    assert len(examine(findings(slurm=asked, partitions=known))) == len(CHECKS)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(answer=st.dictionaries(st.sampled_from([*STATUS, "x"]), JSON))
def test_no_answer_of_a_daemon_makes_a_check_raise(answer: dict[str, Any]) -> None:
    """It may be of another version, or no dlschedd at all."""
    assert len(examine(findings(status=answer))) == len(CHECKS)


def test_the_first_of_two_equal_keys_counts() -> None:
    """What is appended to the output, such as the controllers' state, changes nothing."""
    controller = read_controller("MinJobAge = 5 sec\nminjobage = 9 sec\n")

    assert controller.whole("MINJOBAGE") == 5
    with pytest.raises(CannotTellError, match="has no KillWait"):
        controller.whole("KillWait")


MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:30 / /run rw,nosuid - tmpfs tmpfs rw
31 22 0:31 / /srv/big\\040disk rw - nfs4 head:/x rw
32 22 0:32 / /srv rw - xfs /dev/sdb rw
33 22 0:33 / /srv rw shared:1 - btrfs /dev/sdc rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/slurm_dl", "ext4"),
        ("/run/slurm_dl", "tmpfs"),
        ("/running", "ext4"),
        ("/srv/big disk/state", "nfs4"),
        ("/srv/state", "btrfs"),
    ],
)
def test_the_deepest_mount_tells_the_file_system(path: str, kind: str) -> None:
    """Of two on one point, the later one."""
    assert filesystem_of(Path(path), MOUNTS) == kind
    assert filesystem_of(Path(path), "") == ""


@given(st.text(max_size=200))
def test_any_table_of_mounts_is_read(text: str) -> None:
    """Lines that are none are passed over."""
    assert isinstance(filesystem_of(Path("/a"), text), str)


@pytest.fixture
def yaml(tmp_path: Path) -> Callable[..., Path]:
    """Writes a configuration whose Slurm is an executable that prints *text*."""

    def write(text: str) -> Path:
        bin_dir = tmp_path / "bin"
        bin_dir.mkdir()
        (tmp_path / "shown").write_text(text, "utf-8")
        for tool in ("squeue", "sinfo", "scontrol", "scancel", "sprio", "sacctmgr"):
            script = bin_dir / tool
            script.write_text(f"#!/bin/sh\ncat {tmp_path}/shown\n", "utf-8")
            script.chmod(0o755)
        path = tmp_path / "dl.yaml"
        path.write_text(
            f"cluster: {{bin_dir: {bin_dir}}}\nmanage: {{partitions: [gpu]}}\n"
            f"paths: {{state_dir: {tmp_path}/state, run_dir: {tmp_path}/run}}\n",
            "utf-8",
        )
        path.chmod(0o600)
        return path

    return write


def test_what_is_read_is_what_slurm_says(yaml: Callable[..., Path]) -> None:
    """Configuration, controller, account and directories, each where it belongs."""
    path = yaml("SLURM_VERSION = 24.11.5\nAccountingStorageType = accounting_storage/slurmdbd\n")

    found = gather(DoctorOptions(config=path, account="root"), {})

    assert found.controller.release.major == 24
    assert found.config.manage.partitions == ("gpu",)
    assert isinstance(found.account, Account)
    assert found.account.uid == 0
    assert found.admin_level == ""
    assert found.partitions == ()
    assert isinstance(found.status, Missing)
    assert [d.mode for d in found.directories if d.key == "paths.state_dir"] == [None]  # type: ignore[union-attr]
    assert len(examine(found)) == len(CHECKS)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for other users' files")
@pytest.mark.parametrize(
    ("path", "uid", "mode", "said"),
    [
        ("state", ROOTS, 0o755, "cannot write to"),
        ("state", 12345, 0o757, "belongs to uid 12345"),
        ("state", SERVICES, 0o777, "mode 0777"),
        ("state/ledger.sqlite", ROOTS, 0o600, "ledger.sqlite"),
        ("state/ledger.sqlite", ROOTS, 0o666, ""),
        ("state/audit.jsonl", ROOTS, 0o640, "audit.jsonl"),
        ("state/shadow/open", ROOTS, 0o640, "shadow/open"),
        ("state/notes.bak", ROOTS, 0o600, ""),
        (".", ROOTS, 0o777, "mode 0777"),
        ("site", ROOTS, 0o777, "mode 0777"),
        ("site/mine.sbatch.j2", 12345, 0o644, "belongs to uid 12345"),
        ("site/mine.sbatch.j2", ROOTS, 0o664, "mode 0664"),
        ("site/mine.sbatch.j2", SERVICES, 0o644, ""),
    ],
)
def test_whose_files_are(
    yaml: Callable[..., Path], path: str, uid: int, mode: int, said: str
) -> None:
    """The account can write to what is its own, and others can neither there nor to templates."""
    config = yaml("")
    home = config.parent
    for name in ("state/shadow", "site"):
        (home / name).mkdir(parents=True)
    for name in ("state", "state/shadow"):
        os.chown(home / name, SERVICES, 0)
    (home / "site" / "mine.sbatch.j2").touch()
    (home / path).touch()
    os.chown(home / path, uid, 0)
    (home / path).chmod(mode)

    found = gather(
        DoctorOptions(
            config=config,
            settings=(f"paths.state_dir={home}/state", f"paths.audit_log={home}/state/audit.jsonl"),
            account="nobody",
        ),
        {"SLURM_DL_TEMPLATES": str(home / "site")},
    )
    if path == ".":
        # Its configuration is not believed there either.
        assert isinstance(found.file, ConfigFile)
        assert said in found.file.mistakes[0]
        return
    check = "templates" if path.startswith("site") else "directories"
    verdict = next(row.verdict for row in examine(found) if row.name == check)
    assert (verdict.level == ERROR, said in verdict.found) == (bool(said), True), verdict


def scripted(directory: Path, **said: str) -> None:
    """Slurm's commands, each of which prints what is *said* of it."""
    for tool, text in said.items():
        (directory / tool).write_text(f"#!{sys.executable}\n{text}\n", "utf-8")


def test_weights_are_those_of_the_managed_partitions(yaml: Callable[..., Path]) -> None:
    """Each once, and not what is no number."""
    path = yaml("SLURM_VERSION = 24.11.5\n")
    scripted(
        path.parent / "bin",
        sinfo="print('gpu 5'); print('cpu 9'); print('gpu 1'); print('gpu 5')",
    )
    assert gather(DoctorOptions(config=path, account="root"), {}).weights == (1, 5)

    scripted(path.parent / "bin", sinfo="print('gpu many')")
    unread = gather(DoctorOptions(config=path, account="root"), {}).weights
    assert isinstance(unread, Missing)
    assert "Weights of nodes cannot be read" in unread.why


def test_profiles_and_the_models_that_jobs_name(
    yaml: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by models, not by names; what nobody has a profile of is told with its jobs."""
    path = yaml("SLURM_VERSION = 24.11.5\n")
    site = path.parent / "profiles"
    site.mkdir(mode=0o755)
    site.chmod(0o755)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"placement: {{}}\npaths: {{profile_dir: {site}}}\n")
    path.write_text(path.read_text("utf-8").replace("\npaths: {state", "\n# {state"), "utf-8")
    (site / "ours.yaml").write_text("name: ours\naliases: [mine]\n", "utf-8")
    (site / "ours.yaml").chmod(0o644)
    comments = ["ours", "mine", "nobodys", "nobodys", "b", "resnet50"]
    records = [(str(i), json.dumps({"slurm_dl": {"model": m}})) for i, m in enumerate(comments)]
    monkeypatch.setattr(gathering, "job_records", lambda *_: ([*records, ("9", "")], 0))

    found = gather(DoctorOptions(config=path, account="root"), {}).profiles

    assert isinstance(found, Profiles)
    assert found.mistakes == ()
    assert found.of_site == 1
    assert found.models == 1 + len({p.name for p in shipped_profiles().values()})
    assert found.unknown == {"nobodys": 2, "b": 1}

    (site / "ours.yaml").write_text("nam: ours\n", "utf-8")
    bad = gather(DoctorOptions(config=path, account="root"), {}).profiles
    assert isinstance(bad, Profiles)
    assert str(site / "ours.yaml") in bad.mistakes[0]


def test_a_profile_that_is_neither_roots_nor_the_daemons(
    yaml: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dlschedd would refuse it; whose dlctl is does not matter."""
    path = yaml("SLURM_VERSION = 24.11.5\n")
    site = path.parent / "profiles"
    site.mkdir()
    site.chmod(0o755)
    other = Account(name="other", uid=os.geteuid() + 7, gids=frozenset(), why="test")
    monkeypatch.setattr(gathering, "_ROOT", os.geteuid() + 8)

    [said] = gathering._foreign(site, other)

    assert said.startswith(f"{site}: belongs to ")
    assert said.endswith("neither root nor other")


def test_junk_from_every_command_is_survived(yaml: Callable[..., Path]) -> None:
    """Bytes, bars and control characters in place of answers."""
    path = yaml("= | ||\n\x1b[2Jroot|Operator|x\nPartitionName= \x00\n" * 20)

    found = gather(DoctorOptions(config=path, account="root"), {})

    assert len(examine(found)) == len(CHECKS)


def test_a_file_that_others_may_write_to_is_a_mistake(yaml: Callable[..., Path]) -> None:
    """Dlschedd would refuse it too."""
    path = yaml("")
    path.chmod(0o666)

    found = gather(DoctorOptions(config=path), {})

    assert isinstance(found.file, ConfigFile)
    assert "can be written by group or others" in found.file.mistakes[0]


def test_a_file_that_is_closed_to_us_is_no_mistake(
    yaml: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may not read it is told so, and what needs it is skipped."""
    path = yaml("SLURM_VERSION = 24.11.5\n")
    opened = Path.open

    def closed(self: Path, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as of Path
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", closed)

    found = gather(DoctorOptions(config=path), {"PATH": ""})

    assert isinstance(found.file, Missing)
    assert "may not be read by" in found.file.why
    assert verdict("partitions", found).level is SKIPPED


def test_what_to_do_is_folded_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """On a narrow terminal advice goes on in the next line."""
    columns = (Column(title="CHECK"), Column(title="WHAT TO DO", least=10, folds=True))
    advice = f"set AccountingStorageTRES=gres/gpu and restart slurmctld {'x' * 60} restart it"

    terminal_table._rich(columns, [["accounting", advice]], header=True, styles={}, width=44)

    shown = capsys.readouterr().out
    assert "…" not in shown
    assert (shown.count("restart"), shown.count("x")) == (2, 60)
    assert max(map(len, shown.splitlines())) <= 44


def test_an_account_that_is_not_there_is_a_mistake() -> None:
    """On the command line: status 2."""
    with pytest.raises(ConfigError, match="no account 'nobody-of-that-name'"):
        gather(DoctorOptions(config=Path("/nowhere"), account="nobody-of-that-name"), {})


def test_a_bad_configuration_does_not_end_it(yaml: Callable[..., Path]) -> None:
    """Its mistakes are told, and all else is looked at."""
    path = yaml("")
    path.write_text("manage: {partitions: [gpu]}\ndaemon: {poll_s: -1}\n", "utf-8")

    found = gather(DoctorOptions(config=path), {})

    assert isinstance(found.file, ConfigFile)
    assert "daemon.poll_s" in found.file.mistakes[0]
    assert verdict("configuration", found).level is ERROR
