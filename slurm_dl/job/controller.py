"""The few things dlrun asks of Slurm about its own job: its comment, time and nodes, a requeue.

The job's Comment carries the contract as JSON (``{"slurm_dl": {"v": 1, ...}}``), and the
acknowledgement goes there too: the owner may change it while the job runs, the daemon reads it
with every poll, and it survives requeues. Measured on Slurm 22.05.8: 10 ms a call as an
unprivileged user, and ``<array>_<task>`` changes that task's record alone.

The Comment also has the job's preemptions, because Slurm's restart count mixes them with failures.
The daemon writes ``"preempted": [3, 7]`` before it asks run 7 to stop: once that run is over the
job has been preempted three times. So the count is there when the next run begins, whoever requeues
the job. Operators may not write AdminComment (22.05.8).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from slurm_dl.job import tool_process
from slurm_dl.job.tool_process import arguments_and_input, one_word

CALL_LIMIT_S = 10.0
"""How long one call may take; scontrol by itself waits minutes for a controller that is down."""

PREEMPTED_KEY = "preempted"
"""Here the daemon writes of its request: how often the job was preempted, and the run's number."""

_PAUSES_S = (0.0, 1.0, 2.0)  # Before each try to write what is written once

MOST_BYTES = 511  # Longest comment that is written; a longer one some releases would cut

_HALF_CHARACTER = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates but for those that stand for bytes which are not UTF-8."""

_ENDING = re.compile(
    "BOOT_FAIL|CANCELLED|COMPLETED|COMPLETING|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PENDING|"
    "PREEMPTED|REQUEUED|REQUEUE_FED|REQUEUE_HOLD|REVOKED|SPECIAL_EXIT|TIMEOUT"
)
"""State words of a job whose processes Slurm is ending. PENDING: it was requeued just now."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT", re.ASCII)
_TIME_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", re.ASCII)


class CallFailedError(Exception):
    """Slurm refused or was silent; the message is one printable line."""


class JobStatus(NamedTuple):
    """What Slurm says of this job at one instant."""

    state: str  # Slurm's state word, such as ``RUNNING`` or ``COMPLETING``
    left_s: float | None  # Seconds to the time limit; None if there is none or it is not known
    comment: str  # The comment as it is

    @property
    def is_ending(self) -> bool:
        """True if Slurm has begun to end this run: no answer of ours can change that."""
        return _ENDING.fullmatch(self.state) is not None


class JobController:
    """This job as scontrol and squeue reach it.

    Args:
        label: How Slurm names the job, ``123`` or ``123_7``. The bare id of an array task can
            be that of the whole array, and then an update would hit all its tasks.
        scontrol: Absolute path.
        squeue: Absolute path.
        environ: Environment for both, without what changes their output.
        prepare: Called in each new process before the program starts.
    """

    def __init__(
        self,
        label: str,
        *,
        scontrol: str,
        squeue: str,
        environ: Mapping[str, str],
        prepare: Callable[[], None],
    ) -> None:
        self.label = label
        self._scontrol = scontrol
        self._squeue = squeue
        self._environ = _clean(environ)
        self._prepare = prepare

    def standing(self) -> JobStatus:
        """What Slurm says of the job now.

        Raises:
            CallFailedError: It does not say.
        """
        text = self._call([self._squeue, "-h", "-j", self.label, "-o", "%T %L %k"])
        words = text.rstrip("\n").split(" ", 2)
        if len(words) != 3:  # noqa: PLR2004 -- as many as in the format above
            msg = f"squeue says nothing of job {self.label}"
            raise CallFailedError(msg)
        return JobStatus(words[0], time_left_s(words[1]), words[2])

    def is_preempted(self) -> bool:
        """True if Slurm itself is preempting the job, and ends it when its grace is over.

        Raises:
            CallFailedError: Slurm does not say.
        """
        # "N/A" but between Slurm's signal and the end (measured on 22.05.8, 24.11.5 and 26.05.5).
        text = self._call([self._squeue, "-h", "-j", self.label, "-O", "PreemptTime:40"])
        return _TIME.match(text.strip()) is not None

    def set_ack(self, standing: JobStatus, ack: int | None) -> bool:
        """Write *ack* into the comment, or take it out if None. False: no comment of ours.

        Raises:
            CallFailedError: Slurm refused or was silent; it may have been done all the same.
        """
        return self._set_comment(standing, with_ack(standing.comment, ack))

    def report(
        self,
        key: Literal["rate", "saved", "progress", "steps", "use", "unhandled", "final", "failed"],
        value: float | Sequence[float | str] | None,
        *,
        asked: bool = False,
    ) -> bool:
        """Write one of our keys into the comment, or take it out if None.

        False: no comment of ours, or no room there.

        Args:
            asked: Answer the daemon: write what it wrote of its request for the run *value*.

        Raises:
            CallFailedError: Slurm refused or was silent; it may have been done all the same.
        """
        standing = self.standing()
        ours = (comment_of_ours(standing.comment) or {}).get("slurm_dl", {})
        request = ours.get(PREEMPTED_KEY) if asked else None
        answers = isinstance(request, list) and request[1:] == [value]
        comment = with_key(standing.comment, key, request if answers else value)
        if comment is not None and len(one_word(comment)) > MOST_BYTES:
            return False
        return self._set_comment(standing, comment)

    def insist(
        self,
        key: Literal["final", "failed"],
        value: int | Sequence[str | int],
        pause: Callable[[float], object],
        log: Callable[[str], None],
    ) -> None:
        """`report` *key*, again if Slurm does not take it at once; a line in the log if never."""
        for delay_s in _PAUSES_S:
            pause(delay_s)
            try:
                self.report(key, value)
            except CallFailedError as err:
                log(f"the scheduler is not told that this is {key}: {err}")
            else:
                return

    def described(self) -> str:
        """All that Slurm says of the job, with its nodes and what it has there.

        Raises:
            CallFailedError: It does not say.
        """
        return self._call([self._scontrol, "show", "job", "-d", self.label])

    def nodes(self) -> str:
        """The nodes that the job has now, a list in Slurm's words.

        Raises:
            CallFailedError: It does not say.
        """
        return self._call([self._squeue, "-h", "-j", self.label, "-o", "%N"]).strip()

    def topology(self) -> str:
        """All that Slurm says of its switches or blocks.

        Raises:
            CallFailedError: It says nothing, as where no topology is configured.
        """
        return self._call([self._scontrol, "show", "topology"])

    def requeue(self) -> None:
        """Put the job back into the queue; Slurm then ends it with SIGTERM.

        Raises:
            CallFailedError: Slurm refused or was silent; it may have been done all the same.
        """
        # Incomplete: never bring a job back that has been cancelled or timed out meanwhile.
        self._call([self._scontrol, "requeue", "Incomplete", self.label])

    def _set_comment(self, standing: JobStatus, comment: str | None) -> bool:
        if comment is None:
            return False
        if comment != standing.comment:
            self._call([self._scontrol, "update", f"JobId={self.label}", f"Comment={comment}"])
        return True

    def _call(self, argv: list[str]) -> str:
        name = os.path.basename(argv[0])  # noqa: PTH119 -- a word for the message
        try:
            args, told = arguments_and_input(argv[1:])
            done = tool_process.run(
                [argv[0], *args],
                told,
                timeout_s=CALL_LIMIT_S,
                errors="surrogateescape",  # A comment may not be UTF-8.
                env=self._environ,
                preexec_fn=self._prepare,
            )
        except subprocess.TimeoutExpired:
            msg = f"{name} did not answer within {CALL_LIMIT_S:g} s"
            raise CallFailedError(msg) from None
        except (OSError, ValueError) as err:
            msg = f"{name} cannot be run: {err}"
            raise CallFailedError(msg) from err
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or ["no message"]
            msg = f"{name} failed with status {done.returncode}: {said[-1]}"
            raise CallFailedError(msg)
        return done.stdout


def find_controller(
    environ: Mapping[str, str], prepare: Callable[[], None]
) -> tuple[JobController | None, str]:
    """The controller for the job that *environ* describes; or None and why there is none."""
    label = job_label(environ)
    if label is None:
        return None, "not in a Slurm job"
    path = environ.get("PATH", os.defpath)
    scontrol, squeue = shutil.which("scontrol", path=path), shutil.which("squeue", path=path)
    if scontrol is None or squeue is None:
        return None, "scontrol and squeue are not on PATH; make them visible inside the container"
    controller = JobController(
        label,
        scontrol=os.path.abspath(scontrol),  # noqa: PTH100 -- a link must keep its name
        squeue=os.path.abspath(squeue),  # noqa: PTH100
        environ=environ,
        prepare=prepare,
    )
    return controller, ""


def job_label(environ: Mapping[str, str]) -> str | None:
    """How Slurm names this job, ``123`` or ``123_7``; None outside a job."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    if _is_number(array) and _is_number(task):
        return f"{array}_{task}"
    job = environ.get("SLURM_JOB_ID", "")
    return job if _is_number(job) else None


def lacks_contract(comment: str) -> bool:
    """Whether *comment* is ours and does not opt the job in to preemption."""
    content = comment_of_ours(comment)
    return content is not None and "sig" not in content["slurm_dl"]


def comment_of_ours(comment: str) -> dict[str, Any] | None:
    """The JSON object *comment*, whose key ``slurm_dl`` holds our object; None if it is none."""
    try:
        content: object = json.loads(comment)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("slurm_dl"), dict):
        return None
    return content


def with_ack(comment: str, ack: int | None) -> str | None:
    """*comment* with the acknowledgement set or removed; None if it is no comment of ours."""
    return with_key(comment, "ack", ack)


def with_key(comment: str, key: str, value: float | Sequence[float | str] | None) -> str | None:
    """*comment* with one of our keys set, or removed if None; None if it is none of ours."""
    content = comment_of_ours(comment)
    if content is None:
        return None
    ours = content["slurm_dl"]
    if ours.get(key) == value and (value is not None or key not in ours):
        return comment
    if value is None:
        del ours[key]
    else:
        ours[key] = value
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    # JSON may spell half a character, which no argument can have; so it stays spelled.
    return _HALF_CHARACTER.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def time_left_s(text: str) -> float | None:
    """Seconds from Slurm's ``days-hours:minutes:seconds``; None for UNLIMITED and the like."""
    match = _TIME_LEFT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    unwanted = ("SQUEUE_", "SCONTROL_")
    exact = ("SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(unwanted) and name not in exact
    }
    # The user's inputrc could give keys other meanings in what scontrol reads.
    return {**kept, "LC_ALL": "C", "INPUTRC": "/dev/null"}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


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
