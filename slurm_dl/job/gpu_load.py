"""The job's load on its GPUs: a sample a second, in windows of 30 s, into its run directory.

A window is *alone* if no process of another job was on the GPUs in any of its samples, else
*shared*. Windows begin with the script's first report of its run, or a minute after the start
where it does not report: importing and warming up say nothing of the training. dlrun wakes for each
sample; there is no thread. The file is for ``dlctl profile learn``, the job's comment tells the
scheduler two figures.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from slurm_dl.job.comment_report import (
    NEWS,
    Kind,
    Progress,
    last_memory_mb,
    last_progress,
    rate_between,
)
from slurm_dl.job.gpu_source import MPS_VARIABLE, GpuSource, Sample, named_in
from slurm_dl.job.progress import older_runs, placed
from slurm_dl.job.run_files import RunId, write_whole

LOAD_FILE = "slurm_dl.load.json"
"""Windows of this job's runs, with the node and the GPUs of each."""

SAMPLE_EVERY_S = 1.0
WINDOW_S = 30.0
START_S = 60.0  # Without a report the windows begin so long after the start
KEPT_WINDOWS = 64  # When there are so many, every second one is dropped
KEPT_SPANS = 64  # Stretches of time beside another job, the last ones
LEAST_TOLD = 2  # Alone windows before the scheduler is told


class Window(NamedTuple):
    """Samples of half a minute; in the file a list of these, in this order."""

    start_s: float  # Seconds since the epoch
    seconds: float
    alone: bool
    busy: float  # Median, 0 to 1
    memory_busy: float  # Median, 0 to 1
    sm_active: float | None  # Median, 0 to 1; None if not known
    own_mb: float | None  # Most memory of the job on the fullest GPU, MB; None: unknown
    samples: int
    clock_mhz: float  # Median
    power_w: float  # Median
    rate: float | None  # Steps a second, by the script's reports; None if they do not tell


class GpuLoad:
    """Samples while the command runs; looked at like a `CommentReport`.

    Args:
        run_dir: The job's directory.
        environ: The job's environment.
        log: Where to say what went wrong.
        source: Where samples come from; raises where there are none.
    """

    def __init__(
        self,
        run_dir: Path,
        environ: Mapping[str, str],
        log: Callable[[str], None],
        source: Callable[[Mapping[str, str]], GpuSource] = GpuSource,
    ) -> None:
        self._run_dir, self._environ, self._log = run_dir, environ, log
        self._open = source
        self._source: GpuSource | None = None
        self._next_s = 0.0 if named_in(environ) else math.inf  # Monotonic
        self._said_unknown = False
        self.start(0.0, 0.0)

    def start(self, now_s: float, time_s: float) -> None:
        """The command starts now; the seconds are as `CommentReport.start` has them."""
        self._started_s = time_s
        self._reported = False
        self._older: list[object] | None = None
        if self._next_s < math.inf:
            self._next_s = now_s
        self._begin(now_s + START_S, None)

    def _begin(self, at_s: float, since: Progress | None) -> None:
        """Windows begin at *at_s*; what there was before in this run is forgotten."""
        self._begin_s = at_s
        self._windows: list[Window] = []
        self._spans: list[list[float]] = []
        self._alone: list[Window] = []
        """The last windows alone, of which the scheduler is told."""
        self._keep_every, self._closed, self._write_at = 1, 0, 1
        self._memory_mb: tuple[float, float] | None = None
        self._open_window(at_s, since)

    def due_in_s(self, now_s: float) -> float:
        """Seconds until the next sample."""
        return max(0.0, self._next_s - now_s)

    def look(self, run: RunId, now_s: float) -> None:
        """Take a sample, if it is time to. Whatever NVML does, the training goes on."""
        if now_s < self._next_s:
            return
        # Not by one interval from the last: after a pause there is no burst of samples.
        self._next_s = now_s + SAMPLE_EVERY_S
        progress = None if self._reported else self._first_report(run)
        if progress is not None:
            self._reported = True
            self._begin(now_s, progress)
        try:
            if self._source is None:
                self._source = self._open(self._environ)
            if now_s >= self._begin_s:
                self._take(self._source.sample(), run, now_s)
        except ImportError:
            self._next_s = math.inf
        except Exception as err:  # noqa: BLE001 -- a library and a driver of others'
            self._log(f"the GPUs are not sampled: {err}")
            self._next_s = math.inf
            if self._source is not None:
                self._source.close()

    @property
    def kind(self) -> Kind:
        """Busy share in percent and MB, for the job's comment; again where one has grown."""
        return Kind("use", "the use of the GPU", lambda _place, _run: self._use(), _has_grown)

    def _use(self) -> list[int] | None:
        known = [(w.busy, w.own_mb) for w in self._alone if w.own_mb is not None]
        if len(known) < LEAST_TOLD:
            return None
        busy = statistics.median(busy for busy, _ in known)
        return [math.ceil(100 * busy), math.ceil(max(mb for _, mb in known))]

    def _first_report(self, run: RunId) -> Progress | None:
        last = last_progress(self._run_dir, run)
        return last if last is not None and last.time_s >= self._started_s else None

    def _open_window(self, now_s: float, since: Progress | None) -> None:
        self._samples: list[Sample] = []
        self._window_s, self._window_time_s = now_s, time.time()
        self._since = since

    def _take(self, sample: Sample, run: RunId, now_s: float) -> None:
        if not self._samples and not self._closed:
            self._window_s, self._window_time_s = now_s, time.time()
        self._samples.append(sample)
        if now_s - self._window_s < WINDOW_S:
            return
        last = last_progress(self._run_dir, run)
        window = self._window(last, now_s)
        self._open_window(now_s, last)
        self._add(window)
        if window.own_mb is None and not self._said_unknown:
            self._said_unknown = True
            self._log("the job's GPU memory is not known: NVML does not tell it of its processes")
        told = last_memory_mb(self._run_dir, run)
        if told is not None:
            was = self._memory_mb or told
            self._memory_mb = max(was[0], told[0]), max(was[1], told[1])
        if self._closed >= self._write_at:
            self._write(run)

    def _window(self, last: Progress | None, now_s: float) -> Window:
        samples, since = self._samples, self._since
        owned = [s.own_mb for s in samples if s.own_mb is not None]
        active = [s.sm_active for s in samples if s.sm_active is not None]
        return Window(
            start_s=round(self._window_time_s, 1),
            seconds=round(now_s - self._window_s, 1),
            alone=not any(s.is_shared for s in samples),
            busy=_median(s.busy for s in samples),
            memory_busy=_median(s.memory_busy for s in samples),
            sm_active=_median(active) if active else None,
            own_mb=round(max(owned), 1) if len(owned) == len(samples) else None,
            samples=len(samples),
            clock_mhz=_median(s.clock_mhz for s in samples),
            power_w=_median(s.power_w for s in samples),
            rate=None if since is None or last is None else rate_between(since, last),
        )

    def _add(self, window: Window) -> None:
        if self._closed % self._keep_every == 0:
            self._windows.append(window)
        self._closed += 1
        if len(self._windows) > KEPT_WINDOWS:
            self._windows = self._windows[::2]
            self._keep_every *= 2
        if window.alone:
            if window.own_mb == 0:
                return  # Nothing of it was on the GPU: that says nothing of the training.
            self._alone = [*self._alone, window][-LEAST_TOLD:]
            return
        end_s = round(window.start_s + window.seconds, 1)
        if self._spans and window.start_s - self._spans[-1][1] < WINDOW_S / 2:
            self._spans[-1][1] = end_s
        else:
            self._spans = [*self._spans, [window.start_s, end_s]][-KEPT_SPANS:]

    def _write(self, run: RunId) -> None:
        # Ever fewer writes are made, as of the speed; the least is one in five minutes.
        self._write_at = self._closed + 1 + min(self._closed // 8, 9)
        path = self._run_dir / LOAD_FILE
        if self._older is None:
            self._older = older_runs(path, run)
        this: dict[str, object] = {
            "restart": run.restart,
            "attempt": run.attempt,
            **placed(self._environ),
            "node": self._environ.get("SLURMD_NODENAME") or os.uname().nodename,
            "devices": self._source.devices if self._source else [],
            "device_mb": round(self._source.total_mb, 1) if self._source else None,
            "mode": "mps" if self._environ.get(MPS_VARIABLE) else "slices",
            "memory_mb": self._memory_mb,
            "shared": self._spans,
            "windows": self._windows,
        }
        write_whole(path, {"v": 1, "runs": [*self._older, this]}, durable=False)


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 4)


def _has_grown(new: list[int], told: list[int]) -> bool:
    # A job that takes less than it said does not have to say so: it is less fit for a pair.
    return any(one > (1 + NEWS) * other for one, other in zip(new, told))
