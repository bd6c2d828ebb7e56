"""``dlctl can-requeue``: whether a job would be put back and start again, in words."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from itertools import chain

import click

from slurm_dl.cli import completion
from slurm_dl.cli.commandline import AS_JSON, EXIT_FAILED, print_json
from slurm_dl.client_config import read_client_config
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.controller import config_values, partition_values
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.requeue_facts import Fact, job_words, particular, usual
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import safe

_JOB = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?", re.ASCII)
_WAIT_S = 20.0


@click.command("can-requeue")
@click.option(
    "--partition",
    "-p",
    metavar="P",
    shell_complete=completion.partitions,
    help="A job that would run there; else in the default partition.",
)
@AS_JSON
@click.argument("job", metavar="[JOB]", required=False, shell_complete=completion.job_ids)
def can_requeue(*, partition: str | None, as_json: bool, job: str | None) -> None:
    """Say whether Slurm would put a job back and start it again, and what to do if not.

    It asks Slurm as any user may, changes nothing and needs no daemon. The exit status is 0 for
    yes, with or without a but, and 1 for no.

    \b
    Examples:
      dlctl can-requeue 1234
      dlctl can-requeue --partition gpu
    """  # noqa: D301 - \b is click's mark
    if job is not None and (partition is not None or not _JOB.fullmatch(job)):
        msg = "name one JOB, such as 1234 or 1234_5, or a --partition"
        raise click.UsageError(msg)
    slurm = Slurm(environ=os.environ, timeout_s=_WAIT_S)
    facts = list(dict.fromkeys(_facts(slurm, job, partition)))
    why_not = [fact for fact in facts if fact.level == "no"]
    but = [fact for fact in facts if fact.level == "warning"]
    verdict = "no" if why_not else "yes, but" if but else "yes"
    if as_json:
        print_json({"verdict": verdict, "facts": [fact._asdict() for fact in facts]})
    else:
        for fact in facts:
            advice = f"; {fact.advice}" if fact.advice else ""
            click.echo(safe(f"{fact.level:<9}{fact.found}{advice}", 1000))
        click.echo(safe(": ".join([verdict, *(fact.found for fact in (why_not or but)[:1])]), 1000))
    raise SystemExit(EXIT_FAILED if why_not else 0)


def _facts(slurm: Slurm, job: str | None, partition: str | None) -> Iterator[Fact]:
    values = config_values(slurm.run("scontrol", "show", "config"))
    there = partition_values(slurm.run("scontrol", "--all", "--oneliner", "show", "partition"))
    words = {} if job is None else job_words(slurm.run("scontrol", "show", "job", job))
    default = next((name for name, of in there.items() if of.get("Default") == "YES"), "")
    mode, qos = "", words.get("QOS") or read_client_config().qos
    if qos and values.get("PreemptType", "").lower() == "preempt/qos":
        with contextlib.suppress(ClusterError):
            asked = ("show", "qos", "where", f"name={qos}", "format=preemptmode")
            mode = slurm.run("sacctmgr", "-nP", *asked).strip()
    each = []
    for name in (words.get("Partition") or partition or default).split(","):
        if name not in there:
            msg = f"there is no partition {name[:80]!r}; there are: {', '.join(there) or 'none'}"
            raise ConfigError(msg)
        now_s = time.time()
        each.append([*particular(values, there[name], words, now_s=now_s, qos_mode=mode)])
    # One of several partitions is enough.
    enough = any(all(fact.level != "no" for fact in facts) for facts in each)
    for fact in chain.from_iterable(each):
        yield fact._replace(level="warning") if enough and fact.level == "no" else fact
    yield from usual(values, words)
    if words and ClaimReader(max_grace_s=86_400).read(words["Comment"]).contract is None:
        told = f"job {words['JobId']} has no contract, so dlschedd never preempts it"
        yield Fact("warning", told, "submit it by dlsubmit")
