"""A hand-over begins only where it can succeed: the tools' words in, a decision out.

Each row changes what Slurm's tools say in one place; see `told_cluster`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from scripted_slurm import (
    CONFIG,
    HOUR_S,
    LEAVES,
    NOW_S,
    ONE_NODE,
    PARTITION,
    TELLS,
    TWO_LEAVES,
    VICTIM,
    Tools,
    cycles,
    decided,
    opened,
)
from squeue_records import words

from slurm_dl.model.plan import OpenHandover


def deadline(in_s: int) -> dict[str, str]:
    return {"Deadline": str(NOW_S + in_s)}


HOLD_S = 601
SOON_S = HOUR_S + 60 + HOLD_S
"""The grace, the hold after a requeue and the time limit of job 1."""
DOWN_N2 = {"n2": {"StateComplete": "drained"}}
ONE = {"waits": ONE_NODE}
ASSOCIATIONS = (
    "Association Records\n\n"
    + "".join(
        f"ClusterName=c Account={account} UserName={user} Partition= Priority=0 ID=1\n"
        f"    ParentAccount={parent} Lft=1 DefAssoc=Yes\n    GrpWall=N(0.00)\n    GrpTRES=\n"
        f"    GrpTRESMins={{{minutes}}}\n"
        for account, user, parent, minutes in (
            ("root", "", "", "plain"),
            ("ml", "", "root(1)", "account"),
            ("ml", "ada(1000)", "", "plain"),
        )
    )
    + "\nQOS Records\n\nQOS=normal(1)\n    GrpWall=N(0.00)\n    GrpTRES=\n"
    "    GrpTRESMins={qos}\n"
)
ENFORCING = CONFIG.replace("AccountingStorageEnforce = none", "AccountingStorageEnforce = safe")


def assoc(text: str = ASSOCIATIONS, **minutes: str) -> dict[str, Any]:
    plain = dict.fromkeys(("plain", "account", "qos"), "cpu=N(0),gres/gpu=N(0)")
    enforcing = CONFIG + "\nAccountingStorageType = accounting_storage/slurmdbd\n"
    lines = [
        line
        for line in enforcing.splitlines()
        if not line.startswith(("AccountingStorageType ", "AccountingStorageEnforce "))
    ]
    lines += ["AccountingStorageType = accounting_storage/slurmdbd"]
    lines += ["AccountingStorageEnforce = associations,limits,qos,safe"]
    return {"config": "\n".join(lines), "assoc_mgr": text.format(**plain | minutes)}


COULD_NOT_START_AGAIN: dict[str, dict[str, Any]] = {
    "deadline before its limit": {"victim": deadline(HOUR_S)},
    "deadline within grace and hold": {"victim": deadline(SOON_S - 1)},
    "deadline, and no time limit": {"victim": deadline(9 * HOUR_S) | {"TimeLimit": "UNLIMITED"}},
    "partition down": {"partition": PARTITION.replace("UP", "DOWN", 1)},
    "partition inactive": {"partition": PARTITION.replace("UP", "INACTIVE", 1)},
    "MaxTime lowered": {"partition": PARTITION.replace("MaxTime=UNLIMITED", "MaxTime=00:59:00")},
    "MaxNodes lowered": {"partition": PARTITION.replace("MaxNodes=UNLIMITED", "MaxNodes=1"), **ONE},
    "MinNodes raised": {"partition": PARTITION.replace("MinNodes=0", "MinNodes=3"), **ONE},
    "a node of it drains": {"nodes": DOWN_N2, **ONE},
    "a node of it is down": {"nodes": {"n2": {"StateComplete": "down*"}}, **ONE},
    "a node of it left the partition": {"nodes": {"n2": {"Partition": "other"}}, **ONE},
    "its reservation is gone": {"victim": {"Reservation": "gone"}},
    "its association is gone": assoc(ASSOCIATIONS.replace("UserName=ada(1000)", "UserName=x(9)")),
    "its account has used up its minutes": assoc(account="gres/gpu=10(10)"),
    "its QOS has used up its minutes": assoc(qos="cpu=5(7)"),
    "its QOS is gone": assoc(ASSOCIATIONS.replace("QOS=normal", "QOS=other")),
}
NVME = {"tres-per-node": "gres:gpu:4,gres:nvme:1"}
SLOW = {"tres-per-node": "gres/gpu:4,gres/nvme:slow:1"}
KEEPS_NVME = VICTIM | words("JobID=3 JobArrayID=3 NumNodes=1 NodeList=n2 tres-per-node=gres:nvme:1")
KEEPS_NVME |= {"Comment": "(null)"}
KEEPS_CPUS = KEEPS_NVME | words("tres-per-node= tres-alloc=cpu=2,node=1 NumTasks=1 NumCPUs=2")
TWO = {"tres-alloc": "cpu=6,mem=4G,node=2"}
MANY = {"waits": {"NumNodes": "40000"}}
COULD_NOT_START_THERE: dict[str, dict[str, Any]] = {
    "--tmp": {"asks": "(null) 1 1001M * * * N/A 0 (null)"},
    "--gres of a name that nodes lack": {"waits": {"tres-per-node": "gres:gpu:4,gres:ib:1"}},
    "--gres of a type that nodes lack": {"waits": SLOW},
    "--gres of more than nodes have": {"waits": {"tres-per-node": "gres:gpu:4,gres:nvme:2"}},
    "--gres that another job keeps": {"waits": NVME, "more": [KEEPS_NVME]},
    "CPUs kept by CoreSpecCount": {
        "tells": {"n2": TELLS.replace("Efctv=16", "Efctv=14")},
        "waits": {"NumCPUs": "32"},
    },
    "memory kept by MemSpecLimit": {
        "tells": {"n2": TELLS + " MemSpecLimit=16000"},
        "waits": {"tres-alloc": "cpu=2,mem=120G,node=2"},
        "config": CONFIG.replace("CR_CORE", "CR_CORE_MEMORY"),
    },
    "MaxCPUsPerNode": {"partition": PARTITION + " MaxCPUsPerNode=4", "waits": {"NumCPUs": "16"}},
    "--mincpus": {"asks": "(null) 17 0 * * * N/A 0 (null)"},
    "--sockets-per-node": {"asks": "(null) 1 0 2 * * N/A 0 (null)"},
    "--cores-per-socket": {"asks": "(null) 1 0 * 4 * N/A 0 (null)"},
    "--threads-per-core": {"asks": "(null) 1 0 * * 1 N/A 0 (null)"},
    "--core-spec": {"asks": "(null) 1 0 * * * 2 0 (null)"},
    "--thread-spec": {"asks": "(null) 1 0 * * * 1 Threads 0 (null)"},
    "more CPUs than a number holds": {"asks": "(null) 65000 0 * * * N/A 0 (null)", **MANY},
    "--cpus-per-gpu": {"job": "JobId=2 JobName=a CpusPerTres=gres:gpu:5 CpusPerTres=gres:gpu:1"},
    "--ntasks-per-core": {"job": "JobId=2 NtasksPerN:B:S:C=0:0:*:1 CoreSpec=*"},
    "--switches of two leaves": {"job": "JobId=2 Switches=1@00:05:00", "topology": TWO_LEAVES},
    "MaxCPUsPerNode that others keep": {
        "partition": PARTITION + " MaxCPUsPerNode=4",
        "waits": {"NumCPUs": "6"},
        "more": [KEEPS_CPUS],
    },
    "--contiguous": {"asks": "(null) 1 0 * * * N/A 1 (null)"},
    "--licenses": {"asks": "(null) 1 0 * * * N/A 0 matlab: 2"},
    "--gres-flags": {"job": "JobId=2 Power= GresEnforceBind=Yes TresPerNode=gres:gpu:4"},
    "--segment": {"job": "JobId=2 SegmentSize=1"},
    "--spread-job": {"job": "JobId=2 Power= SpreadJob=Yes"},
    "--network": {"job": "JobId=2 Network=ib Command=x"},
    "--bb": {"job": "JobId=2 BurstBuffer=capacity=1G"},
    "--switches": {"job": "JobId=2 Switches=1@00:05:00"},
    "--cluster-constraint": {"job": "JobId=2 ClusterFeatures=knl"},
    "--ntasks-per-socket": {"job": "JobId=2 NtasksPerN:B:S:C=0:0:2:* CoreSpec=*"},
    "--exclusive=user": {"waits": {"OverSubscribe": "USER"}},
    "--exclusive=mcs": {"waits": {"OverSubscribe": "MCS"}},
    "its own deadline": {"waits": deadline(HOUR_S + 59)},
    "a deadline that would protect it": {"waits": deadline(SOON_S)},
    "a deadline that would protect it late": {"waits": deadline(SOON_S + HOUR_S - 1)},
}
SUCCEEDS: dict[str, dict[str, Any]] = {
    "nothing is in the way": {},
    "deadlines are far": {"victim": deadline(SOON_S), "waits": deadline(9 * HOUR_S)},
    "limits are met": {"partition": PARTITION.replace("MaxTime=UNLIMITED", "MaxTime=1:00:00")},
    "a draining partition": {"partition": PARTITION.replace("UP", "DRAIN", 1)},
    "its account has minutes left": assoc(account="gres/gpu=489(9)", qos="cpu=245(4)"),
    "disk enough": {"asks": "(null) 1 1000M * * * N/A 0 (null)"},
    "GRES that is free": {"waits": NVME},
    "GRES of the victim": {
        "victim": NVME,
        "waits": {"tres-per-node": "gres/gpu:4,gres/nvme:fast:1"},
    },
    "CPUs that are left": {
        "tells": dict.fromkeys(("n1", "n2"), TELLS.replace("Efctv=16", "Efctv=14")),
        "waits": {"NumCPUs": "28"},
    },
    "two switches are enough": {"job": "JobId=2 Switches=2@00:05:00", "topology": TWO_LEAVES},
    "switches that are known": {"job": "JobId=2 Switches=1@00:05:00", "topology": LEAVES},
    "one thread per core anyway": {
        "tells": dict.fromkeys(("n1", "n2"), TELLS + " ThreadsPerCore=1"),
        "asks": "(null) 1 0 * * 1 N/A 0 (null)",
    },
    "GRES that are not consumed": {
        "nodes": {n: {"Gres": "gpu:4,nvme:no_consume:1"} for n in ("n1", "n2")},
        "waits": NVME,
        "more": [KEEPS_NVME],
    },
    "NumNodes that 22.05 counts too large": {"waits": {"NumNodes": "3", **TWO}},
    "CPUs per GPU that are there": {"job": "JobId=2 CpusPerTres=gres/gpu:4"},
    "MaxCPUsPerNode of another partition": {
        "partition": PARTITION + "\n" + PARTITION.replace("=gpu", "=cpu", 1) + " MaxCPUsPerNode=1",
        "waits": {"NumCPUs": "16"},
    },
    "GRES flags that ask for less": {"job": "JobId=2 GresEnforceBind=No"},
}


@pytest.mark.parametrize("told", COULD_NOT_START_AGAIN.values(), ids=COULD_NOT_START_AGAIN.keys())
def test_a_victim_that_could_not_start_again_is_left_alone(told: Mapping[str, Any]) -> None:
    """It would lose its work, or wait for an admin."""
    assert opened(decided(**told)) == []


@pytest.mark.parametrize("told", COULD_NOT_START_THERE.values(), ids=COULD_NOT_START_THERE.keys())
def test_nobody_is_stopped_for_a_job_that_slurm_would_not_start(told: Mapping[str, Any]) -> None:
    """GPUs would be free, and not the rest of what it asks for."""
    assert opened(decided(**told)) == []


@pytest.mark.parametrize("told", SUCCEEDS.values(), ids=SUCCEEDS.keys())
def test_where_all_conditions_are_met_gpus_change_hands(told: Mapping[str, Any]) -> None:
    """The counterpart of each kind of row above."""
    assert opened(decided(**told)) == [(2,)]


def test_a_word_in_a_job_name_takes_no_condition_away() -> None:
    """The text of one job is its owner's: only what is asked for too much can be written there."""
    forged = "JobId=2 JobName=x GresEnforceBind=No SpreadJob=No\nJobId=3 SpreadJob=Yes"
    assert opened(decided(job=forged)) == []


def test_a_job_that_leaves_while_it_is_asked_about_fails_no_poll() -> None:
    """Its owner chooses the moment; nothing is done for it, and all others go on."""
    assert opened(decided(job=None)) == []


def test_a_daemon_that_only_looks_asks_once_about_the_same_hand_over() -> None:
    """It decides the same in each cycle; a shadow costs slurmctld no more than a live daemon."""
    once, often = Tools({}), Tools({})
    cycles(once, acting=[False])
    looks = cycles(often, acting=[False] * 3)
    planned = [action for look in looks for action in look.plan.actions]
    assert len([a for a in planned if isinstance(a, OpenHandover)]) == len(looks)
    assert often.calls - once.calls == Counter(squeue=2)
