"""Facts on a start after a requeue, from what Slurm prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from slurm_dl.slurm.requeue_facts import job_words, lost, particular, usual

CONFIG = {"SLURM_VERSION": "22.05.8", "AuthInfo": "cred_expire=29", "PreemptType": "preempt/none"}
GPU = {"PartitionName": "gpu", "State": "UP", "MaxTime": "UNLIMITED", "PreemptMode": "OFF"}
OURS = {"v": 1, "sig": "USR1", "grace_s": 120}
SENT = json.dumps({"slurm_dl": OURS})
JOB = f"""\
JobId=7 JobName=x Requeue
   JobState=PENDING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A
   StartTime=Unknown EndTime=Unknown Deadline=N/A
   Partition=gpu AllocNode:Sid=n1:1
   Comment={SENT} Requeue=0
"""


def levels(
    job: str = JOB,
    partition: Mapping[str, str] = GPU,
    qos_mode: str = "",
    **config: str,
) -> dict[str, str]:
    """Facts that are not ok, with their levels; each says what to do."""
    values, words = CONFIG | config, job_words(job) if job else {}
    facts = [
        *particular(values, {**GPU, **partition}, words, now_s=1000.0, qos_mode=qos_mode),
        *usual(values, words),
    ]
    assert all(fact.advice for fact in facts if fact.level != "ok")
    return {fact.found: fact.level for fact in facts if fact.level != "ok"}


PRIO = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
QOS = {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}


@pytest.mark.parametrize(
    ("given", "level", "said"),
    [
        ({}, "", ""),
        ({"job": ""}, "", ""),
        ({"job": JOB.replace("Requeue=1", "Requeue=0")}, "no", "Requeue=0 for job 7"),
        ({"job": JOB.replace("BatchFlag=1", "BatchFlag=0")}, "no", "job 7 is no batch job"),
        # 1000 + 30 + 3600
        ({"job": JOB.replace("Deadline=N/A", "Deadline=4629")}, "no", "before its deadline"),
        ({"job": JOB.replace("Deadline=N/A", "Deadline=4630")}, "", ""),
        ({"job": "", "JobRequeue": "0"}, "warning", "only jobs submitted with --requeue"),
        ({"JobRequeue": "0"}, "", ""),  # its own flag counts
        ({"partition": {"State": "DOWN"}}, "no", "partition gpu is DOWN"),
        ({"partition": {"State": "INACTIVE"}}, "no", "partition gpu is INACTIVE"),
        ({"partition": {"State": "DRAIN"}}, "", ""),
        ({"partition": {"MaxTime": "00:59:59"}}, "no", "above MaxTime=00:59:59"),
        ({"partition": {"MaxTime": "01:00:00"}}, "", ""),
        (QOS, "", ""),
        (QOS | {"qos_mode": "cluster"}, "", ""),
        (QOS | {"qos_mode": "cancel"}, "warning", "PreemptMode=CANCEL"),
        (QOS | {"PreemptMode": "GANG,SUSPEND"}, "warning", "PreemptMode=SUSPEND"),
        (PRIO, "", ""),  # the partition's OFF counts
        (PRIO | {"partition": {"PreemptMode": "CANCEL"}}, "warning", "PreemptMode=CANCEL"),
        ({"PreemptMode": "CANCEL"}, "", ""),  # no plug-in, nobody preempts
        ({"RequeueExit": "75"}, "", ""),
        ({"RequeueExit": "0-3"}, "warning", "RequeueExit=0-3: Slurm puts back each job that ends"),
        ({"RequeueExitHold": "1,70-80"}, "warning", "puts back and holds each job that has saved"),
        ({"RequeueExitHold": "74,76-80"}, "", ""),
        ({"AuthInfo": "(null)"}, "warning", "waits 121 s before it may start"),
        ({"job": "", "JobSubmitPlugins": "lua"}, "warning", "JobSubmitPlugins=lua may change"),
        ({"JobSubmitPlugins": "lua", "Epilog": "/x", "Prolog": "/y"}, "", ""),  # it was looked at
    ],
)
def test_each_fact_is_judged(given: dict[str, Any], level: str, said: str) -> None:
    """Nothing is told but the one thing that is amiss."""
    found = levels(**given)

    assert [*found.values()] == [level] * bool(level)
    assert said in "".join(found)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (JOB, ""),
        (JOB.replace("120}}", '120, "ack": 0}, "mine": 1}'), ""),  # dlrun was quick
        (JOB.replace("Requeue=1", "Requeue=0"), "never preempted"),
        (JOB.replace("USR1", "USR2"), "comment of job 7 is not as it was sent"),
        (JOB.replace("Comment=", "AdminComment="), "comment of job 7 is not as it was sent"),
        (JOB.replace(SENT, "[1]"), "comment of job 7 is not as it was sent"),
    ],
)
def test_what_a_site_took_away_is_told(changed: str, said: str) -> None:
    """With the plug-in that may have done it."""
    words = job_words(changed.replace("} Requeue=0", "}"))

    why = lost(words, SENT, CONFIG | {"JobSubmitPlugins": "lua"})

    assert said in why
    assert bool(why) == bool(said) == ("such as JobSubmitPlugins=lua," in why)
