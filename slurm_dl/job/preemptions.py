"""How often the scheduler has preempted this job, so that a preemption does not count as a failure.

Slurm's restart count has both. The daemon writes ``"preempted": [3, 7]`` into our part of the job's
comment before it asks run 7 to stop: once that run is over the job has been preempted three times.
Written then, it is there when the next run begins, whoever requeues the job, and dlrun writes
nothing into the comment at that moment. Users can write to the comments of their own jobs only.
AdminComment would be out of their reach too, but Operators may not write there (22.05.8).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_dl.job.controller import (
    PREEMPTED_KEY,
    CallFailedError,
    JobController,
    comment_of_ours,
    with_key,
)

PREEMPTIONS_VARIABLE = "SLURM_DL_PREEMPTIONS"
FAILURES_VARIABLE = "SLURM_DL_FAILURES"

_TRIES = 3
_TRY_AGAIN_S = 2.0


def with_preemption(comment: str, times: int, run: int) -> str | None:
    """*comment* saying that the job has been preempted *times* times once *run* is over.

    None if it is no comment of ours. What it says of the signal is older than this request.

    Args:
        run: Slurm's restart count of the run that is asked to stop.
    """
    told = with_key(comment, PREEMPTED_KEY, [times, run])
    return None if told is None else with_key(told, "unhandled", None)


def preemptions_in(comment: str, restarts: int) -> int:
    """How often the job has been preempted before its run *restarts*; 0 if *comment* has no word.

    Never more than *restarts*: a comment may be a copy of another job's.
    """
    content = comment_of_ours(comment)
    told = None if content is None else content["slurm_dl"].get(PREEMPTED_KEY)
    if not isinstance(told, list) or [type(part) for part in told] != [int, int]:
        return 0
    times, run = int(told[0]), int(told[1])
    # Not over yet: that run was asked to stop and let go again.
    return max(0, min(times if restarts > run else times - 1, restarts))


def preemption_variables(
    controller: JobController | None, restarts: int, log: Callable[[str], None]
) -> dict[str, str]:
    """The variables that tell a command how often it was preempted and how often it failed.

    Args:
        controller: Slurm's view of the job; None if there is none, then nothing was a preemption.
        restarts: Slurm's restart count.
        log: Told if Slurm does not answer; then all restarts count as failures.
    """
    times = 0
    if controller is not None and restarts > 0:
        times = preemptions_in(_comment(controller, log), restarts)
    return {PREEMPTIONS_VARIABLE: str(times), FAILURES_VARIABLE: str(restarts - times)}


def _comment(controller: JobController, log: Callable[[str], None]) -> str:
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_TRY_AGAIN_S)
        try:
            return controller.standing().comment
        except CallFailedError as err:
            log(f"how often this job was preempted is not known: {err}")
    return ""
