"""The daemon's word on a submission: when it would start, and with ``--by``, if it is promised."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from slurm_dl.daemon.control.client import Client, DaemonError, daemon_at
from slurm_dl.forecast.start_time_text import preview_text
from slurm_dl.json_types import JsonObject, as_list, number
from slurm_dl.model.errors import ConfigError, ElsewhereError
from slurm_dl.submit import slurm_calls
from slurm_dl.submit.host_resources import Wanted
from slurm_dl.submit.job_request import JobRequest, qos_of
from slurm_dl.submit.job_shape import GpuPartition, JobShape
from slurm_dl.submit.option_values import due_by, time_limit_s
from slurm_dl.submit.script_job import ScriptJob
from slurm_dl.submit.user_script import GPU_OPTIONS, ScriptRequest
from slurm_dl.text import ago, safe

if TYPE_CHECKING:
    from slurm_dl.slurm.tool_runner import Slurm

TIMEOUT_S = 3.0  # So long a submission waits for the answer in all

RUN_S = 1.5
"""So long the daemon runs forward for it; its process takes about one more second to start."""

NOT_FORETOLD = frozenset(
    {
        "begin", "constraint", "dependency", "exclude", "hold", "nodefile", "nodelist",
        "reservation",
    }
)  # fmt: skip
"""Options of sbatch that change when a job starts and that the forecast does not know."""


def preview(
    request: JobRequest,
    chosen: Wanted,
    partitions: Sequence[GpuPartition],
    *,
    no_preempt: bool,
) -> str:
    """One line: when the job would start as it is, and with the other choice of ``--no-preempt``.

    Empty if the forecast does not know such jobs, or if no daemon answers soon: it is absent, of an
    earlier release, busy or slow, does not act, or is asked by ssh alone.
    """
    fields = shape_fields(request, chosen, partitions)
    if isinstance(fields, str):
        return ""
    try:
        answer = Client(daemon_at(), TIMEOUT_S).ask("when", **fields, within_s=RUN_S)
    except (DaemonError, ConfigError, ElsewhereError):
        return ""
    text = preview_text(answer, no_preempt=no_preempt)
    if not text or not str(answer.get("doing", "")).startswith("acting"):
        return ""
    who = "" if request.array is None else "the first task "
    if request.sizes:
        who = f"in the size {as_list(fields['shapes'])[0]} it "
    return safe(f"{who}{text}", 200)


def shape_fields(
    request: JobRequest, chosen: Wanted, partitions: Sequence[GpuPartition]
) -> JsonObject | str:
    """The job in the words of the daemon's requests; or why it is not asked about such a job."""
    names = {word.partition("=")[0].removeprefix("--") for word in request.sbatch}
    if other := sorted(names & NOT_FORETOLD):
        return f"dlschedd is not asked about jobs with --{other[0]}"
    if not isinstance(chosen, JobShape) or len(partitions) > 1:
        return "dlschedd is asked about whole GPUs on a number of nodes of one partition alone"
    limit_s = math.inf if request.time is None else time_limit_s(request.time)
    return {
        "shapes": [f"{chosen.nodes}x{chosen.gpus_per_node}"],
        "partition": partitions[0].name,
        "gpu_type": chosen.gpu_type or "",
        "limit_s": None if math.isinf(limit_s) else limit_s,
        "name": request.name,
    }


NOT_PROMISED: Final = 3  # Exit status if a deadline is not promised
WAIT_S: Final = 30.0  # So long a job with ``--or-else cancel`` waits for its verdict
ODDS_S: Final = 10.0  # So long ``--quote`` lets the daemon run forward

Question: TypeAlias = "JsonObject | str"
"""Fields of the request; or the reason why there is none, of which no verdict can be had."""

_NO_ARRAYS: Final = "arrays are never promised anything"
_GPUS = re.compile(r"(?:gres[:/])?(?:gpu[:/=])?(?:(?P<type>[A-Za-z_][\w.-]*)[:=])?(?P<n>\d{1,6})")


def of_command(
    request: JobRequest,
    chosen: Wanted,
    partitions: Sequence[GpuPartition],
    *,
    no_preempt: bool,
) -> Question:
    """The question about a command's job."""
    fields = shape_fields(request, chosen, partitions)
    if isinstance(fields, str):
        return fields
    if request.array is not None:
        return _NO_ARRAYS
    accounts = [w.partition("=")[2] for w in request.sbatch if w.startswith("--account=")]
    return {
        **fields, "due_s": request.due_s, "account": "".join(accounts[-1:]),
        "qos": request.qos or qos_of(request.sbatch) or "", "no_preempt": no_preempt,
    }  # fmt: skip


def of_script(request: ScriptRequest, job: ScriptJob, slurm: Slurm) -> Question:
    """The question about a batch script's job."""
    if job.contract is None:
        return "a script that is submitted as it is has no deadline"

    def said(name: str) -> str:
        return (request.said(name) or ("", ""))[1] or ""

    if other := sorted(n for n in NOT_FORETOLD if request.said(n) is not None):
        return f"dlschedd is not asked about jobs with --{other[0]}"
    gpus, nodes = request.said(*GPU_OPTIONS), said("nodes")
    found = _GPUS.fullmatch((gpus and gpus[1]) or "")
    each = gpus is not None and gpus[0] in {"gpus-per-node", "gres"}
    if gpus is None or found is None or not (each or gpus[0] == "gpus"):
        return "it cannot be told how many GPUs the script asks for; give --gpus"
    if nodes and not nodes.isdecimal():
        return "dlschedd is not asked about jobs with a range of nodes"
    partition = said("partition") or slurm_calls.read_partitions(slurm).default or ""
    shape = found["n"]
    if each:
        shape = f"{nodes or 1}x{shape}"
    elif nodes and int(shape) % max(1, int(nodes)) == 0:
        shape = f"{nodes}x{int(shape) // max(1, int(nodes))}"
    if request.said("array") is not None:
        return _NO_ARRAYS
    limit_s = time_limit_s(said("time")) if said("time") else math.inf
    return {
        "shapes": [shape],
        "partition": partition,
        "gpu_type": found["type"] or "",
        "limit_s": None if math.isinf(limit_s) else limit_s,
        "name": said("job-name"),
        "due_s": due_by(request.text("by", ""), time.time())[0],
        "account": said("account"),
        "qos": said("qos") or request.site.qos or "",
        "no_preempt": False,
    }


def is_told(params: Mapping[str, Any]) -> bool:
    """True if notes of the daemon's word are printed: as the options say, else on a terminal."""
    if params["quiet"] or params["parsable"] or params["as_json"]:
        return False
    return bool(sys.stderr.isatty() if params["previews"] is None else params["previews"])


def after(slurm: Slurm, job_id: int) -> int:
    """Wait for the verdict on a job that was submitted, and cancel it if it is a no.

    Returns:
        The exit status.
    """
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        try:
            answer = Client(daemon_at(), TIMEOUT_S).ask("quote", job=str(job_id))
        except DaemonError:
            answer = {}  # It has not seen the job yet.
        if answer.get("says") == "yes":
            return 0
        if answer.get("says") == "no":
            slurm.run("scancel", str(job_id))
            say(f"job {job_id} is cancelled (--or-else cancel): {verdict_line(answer)}")
            return NOT_PROMISED
        time.sleep(1.0)
    say(f"note: no verdict on the deadline of job {job_id} within {WAIT_S:.0f} s; it stays")
    return 0


def ask(question: Question, *, within_s: float) -> JsonObject:
    """The daemon's answer, with the odds of what is not promised.

    Args:
        within_s: So long the daemon may run forward for them, seconds.

    Raises:
        DaemonError: There is no answer, or no question.
    """
    if isinstance(question, str):
        raise DaemonError(question)
    more = len(as_list(question["shapes"])) - 1  # Each verdict takes as long as a decision.
    client = Client(daemon_at(), TIMEOUT_S + more + 2 * (within_s - RUN_S))
    return client.ask("quote", **question, odds=True, within_s=within_s)


def is_promised(answer: JsonObject) -> bool:
    """A yes to the first shape, by a daemon that acts."""
    acts = str(answer.get("doing", "")).startswith("acting")
    return acts and _one(answer).get("says") == "yes"


def _one(answer: JsonObject) -> JsonObject:
    shape = next(iter(as_list(answer.get("shapes"))), answer)
    return shape if isinstance(shape, dict) else {}


def verdict_line(answer: JsonObject) -> str:
    """The verdict as one line; the text is not made safe yet."""
    one, now_s = _one(answer), number(answer["now_s"])
    due = local_time(number(answer["due_s"]), now_s)
    if one["says"] == "yes":
        promised = "promised" if is_promised(answer) else "would be promised if dlschedd acted"
        line = (
            f"{promised}: done by {due}; starts by {local_time(number(one['begin_s']), now_s)} at "
            f"the latest, {ago(number(one['spare_s']))} to spare"
        )
        guess = "; it goes by how long jobs like it took"
        return line + (guess if one["rests_on"] == "history" else "")
    parts = ["not promised: best effort"]
    if one["says"] is None:
        parts[0] += f", as the site's policy ({answer['policy']}) promises nothing"
    elif one["why"]:
        parts[0] += f", as {one['why']}"
    if isinstance(odds := one.get("odds"), dict):
        share, runs = number(odds["share"]), number(odds["runs"])
        parts.append(f"{share:.0%} of {runs:.0f} forward runs are done by {due}")
    if (nearest_s := one["nearest_s"]) is not None:
        parts.append(f"could be promised by {local_time(number(nearest_s), now_s)}")
    return "; ".join(parts)


def local_time(at_s: float, now_s: float) -> str:
    """``14:20`` of today, ``Fri 18:00`` within the week, else the date as well."""
    at, now = time.localtime(at_s), time.localtime(now_s)
    if at[:3] == now[:3]:
        return time.strftime("%H:%M", at)
    soon = 0 <= at_s - now_s < 6 * 86_400
    return time.strftime("%a %H:%M" if soon else "%a %Y-%m-%d %H:%M", at)


def say(text: str) -> None:
    """Print *text* as a line on the standard error."""
    click.echo(f"dlsubmit: {safe(text, 500)}", err=True)
