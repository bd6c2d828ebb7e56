"""What a submission says first: when the job would start, with and without ``--no-preempt``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_dl.daemon.control.client import Client, DaemonError, daemon_at
from slurm_dl.forecast.start_time_text import preview_text
from slurm_dl.json_types import JsonObject, as_list
from slurm_dl.model.errors import ConfigError, ElsewhereError
from slurm_dl.submit.host_resources import Wanted
from slurm_dl.submit.job_request import JobRequest
from slurm_dl.submit.job_shape import GpuPartition, JobShape
from slurm_dl.submit.option_values import time_limit_s
from slurm_dl.text import safe

TIMEOUT_S = 3.0
"""So long a submission waits for the answer in all."""

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
