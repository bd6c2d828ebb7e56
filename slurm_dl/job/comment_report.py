"""Reports of dlrun in the job's comment while the command runs: save, progress, rate, and more.

The scheduler prefers victims that have just saved, because they lose least, and compares the speed
of a job that shares a GPU with the model's speed alone, to see whether sharing pays. Of a job that
adapts its batch it fits the goodput to the times of steps. Users see in ``dlqueue`` how far a job
is, and its remaining time is estimated from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from slurm_dl.job.controller import CallFailedError, JobController, lacks_contract
from slurm_dl.job.elastic import Split
from slurm_dl.job.run_files import PROGRESS_FILE, STATE_FILE, RunId, read_object

LOOK_S = 15.0  # How often to look at what the script's side writes

DEFAULT_EVERY_S = 300.0
"""Least time from one report to the next, seconds.

Each is one squeue and one update at slurmctld: 10,000 jobs make at most 33 of both a second with
each kind of report.
"""

STEP = 0.0099  # Not 0.01, by which rounded shares differ a little less
"""A smaller change of the share that is done is not reported."""

NEWS = 0.1
"""A smaller change of a step's time or of the noise is not reported, as a share of it."""

_LATEST_S = 2**40
_SHARES = 1000
_DIGITS = 4
_MOST_STEPS = 2**53
_MOST_SAMPLES = 10**9
_MOST_NOISE = 1e12  # The scheduler believes no more


class Progress(NamedTuple):
    """Last report of the script."""

    restart: int  # In which run
    step: int  # How many steps are done
    time_s: float  # When, seconds since the epoch
    part: Split | None = None  # How a step is divided; None if the script does not tell
    part_step: int = 0  # Since which step
    noise: float | None = None  # Noise scale, samples; None if it is not known


class Kind(NamedTuple):
    """A key of the comment: where its value comes from, and when it is worth an update."""

    key: Literal["saved", "progress", "rate", "steps", "use"]
    name: str  # In messages
    read: Callable[[Path, RunId], Any]  # A value; a `Progress` if there is *between*; or None
    is_news: Callable[[Any, Any], bool]  # Of a value and the one that was told before
    between: Callable[[Progress, Progress], Any] | None = None
    """The value of a stretch from its first report to its last; None if they give none."""
    only_opted_in: bool = False  # Tell nothing of a job that has not opted in to preemption


class CommentReport:
    """Writes one key into the job's comment, at most once in *every_s* seconds.

    The value of a stretch comes *every_s* seconds after `start` at the earliest. `look` is called
    while the command runs, and so never while an acknowledgement stands.

    Args:
        run_dir: The job's directory, with the files that the script's side writes.
        every_s: Least time from one report to the next, seconds.
        log: Where to say what went wrong.
    """

    def __init__(
        self,
        kind: Kind,
        run_dir: Path,
        controller: JobController,
        *,
        every_s: float,
        log: Callable[[str], None],
    ) -> None:
        self._kind = kind
        self._run_dir = run_dir
        self._controller = controller
        self._every_s = every_s
        self._log = log
        self._next_s = 0.0
        self._tell_s = 0.0
        self._told: Any = None
        self._since: Progress | None = None
        self._started_s = 0.0

    def due_in_s(self, now_s: float) -> float:
        """Seconds until it is to look again, by a clock that is never set."""
        return max(0.0, self._next_s - now_s)

    def start(self, now_s: float, time_s: float) -> None:
        """The command starts now: a stretch that was begun before counts no more.

        Args:
            now_s: By a clock that is never set.
            time_s: By the clock of the day, as reports have it.
        """
        if self._kind.between is not None:
            self._since, self._started_s = None, time_s
            self._next_s, self._tell_s = now_s, now_s + self._every_s

    def look(self, run: RunId, now_s: float) -> None:
        """Report, if it is time to and there is something to report.

        Args:
            now_s: By a clock that is never set.
        """
        if now_s < self._next_s:
            return
        self._next_s = now_s + min(LOOK_S, self._every_s)
        if now_s < self._tell_s:
            self._next_s = min(self._next_s, self._tell_s)
        value = self._kind.read(self._run_dir, run)
        if value is not None and self._kind.between is not None:
            value = self._of_stretch(value, self._kind.between, now_s)
        is_first = self._told is None
        if value is None or not (is_first or self._kind.is_news(value, self._told)):
            return
        if self._kind.between is None:
            self._next_s = now_s + self._every_s
        try:
            asks = is_first and self._kind.only_opted_in
            if asks and lacks_contract(self._controller.standing().comment):
                self._next_s = math.inf
                return
            told = self._controller.report(self._kind.key, value)
        except CallFailedError as err:
            self._log(f"{self._kind.name} could not be reported: {err}")
            return
        self._told = value
        if not told:
            if self._kind.between is None:
                self._next_s = math.inf
            why = "no comment of slurm_dl's, or one that is too long"
            self._log(f"{self._kind.name} is not reported: {why}")

    def _of_stretch(
        self, last: Progress, between: Callable[[Progress, Progress], Any], now_s: float
    ) -> Any:  # noqa: ANN401 -- what the kind reads
        if last.time_s < self._started_s:
            return None
        if self._since is not None and last.noise is None:
            last = last._replace(noise=self._since.noise)
        # It begins with the first report: what comes before is start-up, or steps of another size.
        # A script may count its steps anew, and a clock may be set back.
        since = self._since or last
        is_back = min(last.step - since.step, last.time_s - since.time_s) < 0
        is_other = (last.part, last.part_step) != (since.part, since.part_step)
        if self._since is None or is_other or is_back:
            self._since = since = last
        if now_s < self._tell_s:
            return None
        self._tell_s = now_s + self._every_s
        value = between(since, last)
        if value is not None:
            self._since = last
        return value


def last_save_s(run_dir: Path, run: RunId) -> int | None:
    """Time at which the last checkpoint of this run was complete, whole epoch seconds."""
    content = _content(run_dir / STATE_FILE)
    checkpoints = content.get("checkpoints")
    newest = checkpoints[0] if isinstance(checkpoints, list) and checkpoints else None
    if not isinstance(newest, dict) or newest.get("restart") != run.restart:
        return None
    time_s = newest.get("time_s")
    # The user's script writes the file: bounds keep out what no whole number holds.
    if not isinstance(time_s, (int, float)) or not 0 < time_s < _LATEST_S:
        return None
    return int(time_s)


def share_done(run_dir: Path, run: RunId) -> float | None:
    """Share of its work, 0 to 1, that the script has reported in *run*; None without a total."""
    content = _progress(run_dir, run)
    step, total = content.get("step"), content.get("total")
    # The user's script writes the file. The share is below 1 until the last step is done.
    if type(step) is not int or type(total) is not int or step < 0 or total <= 0:
        return None
    return 1.0 if step >= total else step * _SHARES // total / _SHARES


def last_progress(run_dir: Path, run: RunId) -> Progress | None:
    """Last report of the script in *run*."""
    return _in_order(_progress(run_dir, run), run)


def _in_order(content: dict[str, Any], run: RunId) -> Progress | None:
    step, time_s = content.get("step"), content.get("time_s")
    # The user's script writes the file: bounds keep out what no float holds.
    if type(step) is not int or not 0 <= step <= _MOST_STEPS:
        return None
    if not isinstance(time_s, (int, float)) or not 0 <= time_s <= _LATEST_S:
        return None
    return Progress(run.restart, step, float(time_s))


def last_part(run_dir: Path, run: RunId) -> Progress | None:
    """Last report of the script in *run*, if it tells how a step is divided."""
    content = _progress(run_dir, run)
    last = _in_order(content, run)
    part, numbers = content.get("part"), content.get("numbers")
    if last is None or not isinstance(part, list) or len(part) != len(Split._fields):
        return None
    if any(type(number) is not int or not 1 <= number <= _MOST_SAMPLES for number in part):
        return None
    noise = numbers.get("noise") if isinstance(numbers, dict) else None
    if noise is not None and not (type(noise) is float and 0 <= noise <= _MOST_STEPS):
        return None
    part_step = content.get("part_step", 0)
    if type(part_step) is not int or not 0 <= part_step <= last.step:
        return None
    return last._replace(part=Split(*part), part_step=part_step, noise=noise)


def last_memory_mb(run_dir: Path, run: RunId) -> tuple[float, float] | None:
    """GPU memory between steps and the most inside one, MB, as the script last told in *run*."""
    told = _progress(run_dir, run).get("memory_mb")
    if not isinstance(told, list) or len(told) != len(("kept", "peak")):
        return None
    # The user's script writes the file.
    if not all(type(mb) in (int, float) and 0 <= mb <= _MOST_STEPS for mb in told):
        return None
    return float(told[0]), float(told[1])


def rate_between(first: Progress, last: Progress) -> float | None:
    """Steps a second; None if there were none, or the clock was set back."""
    steps, seconds = last.step - first.step, last.time_s - first.time_s
    if first.restart != last.restart or steps <= 0 or seconds <= 0:
        return None
    return _rounded(steps / seconds)


def steps_between(first: Progress, last: Progress) -> list[float] | None:
    """Run, GPUs, samples of a GPU in a pass, passes, seconds of a step, noise, and four limits.

    The noise is in samples, and 0 if it is not known. The limits are those of `Split`.
    """
    part, steps, seconds = last.part, last.step - first.step, last.time_s - first.time_s
    if part is None or rate_between(first, last) is None:
        return None
    times = _rounded(seconds / steps), _rounded(min(last.noise or 0.0, _MOST_NOISE))
    limits = part.first, part.most, part.least_local, part.most_local
    return [last.restart, part.gpus, part.local_batch, part.passes, *times, *limits]


def _is_other_step(new: list[float], told: list[float]) -> bool:
    pairs = list(zip(new, told))
    return new[:4] != told[:4] or any(abs(a - b) > NEWS * b for a, b in pairs[4:6])


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _progress(run_dir: Path, run: RunId) -> dict[str, Any]:
    """Content of the last report of the script in *run*; empty if there is none."""
    content = _content(run_dir / PROGRESS_FILE)
    return content if content.get("restart") == run.restart else {}


def _content(path: Path) -> dict[str, Any]:
    try:
        return read_object(path) or {}
    except (OSError, ValueError):
        return {}


SAVED = Kind(
    "saved", "the last checkpoint", last_save_s, lambda new, told: new > told, only_opted_in=True
)
PROGRESS = Kind(
    "progress", "the progress", share_done, lambda new, told: bool(abs(new - told) >= STEP)
)
RATE = Kind("rate", "the rate", last_progress, lambda _new, _told: True, rate_between)
STEPS = Kind("steps", "the time of a step", last_part, _is_other_step, steps_between)
