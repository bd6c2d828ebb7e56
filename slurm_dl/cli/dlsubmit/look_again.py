"""A look at the job just submitted: a site may have changed it, or not start it a second time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.requeue_facts import job_words, lost, particular
from slurm_dl.slurm.running_config import config_values, partition_values
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import safe

_WITHIN_S = 2.0
_LEAST_S = 0.1


def warn(slurm: Slurm, job_id: int, args: Sequence[str], *, requeue: bool) -> None:
    """Tell what keeps a job that was sent with *args* from starting again, if *requeue* is meant.

    Nothing is told if Slurm does not answer in time.
    """
    if not requeue:
        return
    until_s = time.monotonic() + _WITHIN_S

    def show(*what: str) -> str:
        left_s = max(_LEAST_S, until_s - time.monotonic())
        return slurm.run("scontrol", *what, within_s=left_s)

    comment = [arg.removeprefix("--comment=") for arg in args if arg.startswith("--comment=")]
    try:
        job = job_words(show("show", "job", str(job_id)))
        if "JobId" not in job:
            return
        values = config_values(show("show", "config"))
        if why := lost(job, "".join(comment[-1:]), values):
            click.echo(f"dlsubmit: warning: {safe(why, 1000)}", err=True)
        there = partition_values(show("--all", "--oneliner", "show", "partition"))
        now_s, job = time.time(), job | {"Requeue": "1"}
        names = [name for name in job.get("Partition", "").split(",") if name in there]
        facts = [f for n in names for f in particular(values, there[n], job, now_s=now_s)]
    except ClusterError:
        return
    for fact in dict.fromkeys(f for f in facts if f.level != "ok"):
        click.echo(f"dlsubmit: warning: {safe(f'{fact.found}; {fact.advice}', 1000)}", err=True)
