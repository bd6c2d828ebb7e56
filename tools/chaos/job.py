"""What runs in a job of the campaign: work that can be stopped and resumed, and a diary of it.

Standard library alone, so that it starts fast and stands for anybody's program. The diary is the
truth that the checker compares with Slurm's records: one JSON object a line, each in one write.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

TICK_S = 0.5
SAVE_EVERY_S = 5.0
CALL_LIMIT_S = 10.0

MODES = ("ack", "silent", "deaf", "finish", "fail", "die", "self", "restless", "dlrun")
"""What it does when asked to stop.

ack: saves, acknowledges, waits. silent: saves and waits. deaf: works on, and on through SIGTERM.
finish: ends well a moment later. fail: ends with an error at once. die: ends of the signal at once,
as without a handler. self: saves and requeues itself. restless: as ack, and requeues itself once
unasked. dlrun: as a training under dlrun does.
"""


class Diary:
    """The job's own record of what happened to it."""

    def __init__(self, directory: Path) -> None:
        environ = os.environ
        self.label = label_of(environ.get)
        self.run = int(environ.get("SLURM_RESTART_COUNT") or 0)
        self._same = {
            "job": int(environ["SLURM_JOB_ID"]),
            "run": self.run,
            "node": environ.get("SLURMD_NODENAME", ""),
            "pid": os.getpid(),
        }
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(directory / f"{self.label}.jsonl", flags, 0o644)
        # A handler may come in the middle of a write of its own thread.
        self._lock = threading.RLock()

    def write(self, event: str, **more: object) -> None:
        """Add one line."""
        with self._lock:
            line = {"event": event, "t": time.time(), **self._same, **more}
            os.write(self._fd, json.dumps(line).encode() + b"\n")

    def end(self, status: int) -> None:
        """Write the last line and end the process at once, whatever else goes on in it."""
        with self._lock:
            self.write("end", status=status)
            os._exit(status)

    def tick(self) -> None:
        """Say for ever that the process lives, also while it waits for something."""
        while True:
            self.write("tick")
            time.sleep(TICK_S)


def label_of(get: Callable[[str], str | None]) -> str:
    """How the job names itself: its id, or ``array_task``."""
    array, task = get("SLURM_ARRAY_JOB_ID"), get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else str(get("SLURM_JOB_ID"))


class Work:
    """Seconds of work done, on disk every few seconds and whenever asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.done_s = float(path.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            self.done_s = 0.0
        self._saved_s = self.done_s

    def advance(self, seconds: float) -> None:
        """Work, and save now and then."""
        self.done_s += seconds
        if self.done_s - self._saved_s >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Write under another name, then rename: a kill leaves the last checkpoint."""
        new = self._path.with_suffix(".new")
        new.write_text(f"{self.done_s:.3f}", encoding="ascii")
        new.replace(self._path)
        self._saved_s = self.done_s

    @property
    def path(self) -> Path:
        """The checkpoint."""
        return self._path


class Program:
    """One run of the job."""

    def __init__(self, options: argparse.Namespace, diary: Diary, work: Work) -> None:
        self._options = options
        self._diary = diary
        self._work = work
        self._asked = 0
        self._told = False
        self._acknowledging = False
        self._saved_at_s = 0.0

    def listen(self) -> None:
        """Take signals from now on."""
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self._diary.write("signal", signal=signal.Signals(number).name.removeprefix("SIG"))
        if number != signal.SIGTERM:
            self._asked = number
        elif self._options.mode != "deaf":
            if self._acknowledging:
                # The requeue is here before the call is over: Slurm has heard of it.
                self._diary.write("ack")
            self._diary.end(128 + number)

    def go(self) -> None:
        """Work until it is done, or until somebody has put an end to it."""
        nodes, gpus = (os.environ.get(f"SLURM_{x}", "0") for x in ("NNODES", "GPUS_ON_NODE"))
        # A slurmctld that has come back starts some jobs without a word of their GPUs (22.05.8).
        self._diary.write("begin", size="" if "0" in (nodes, gpus) else f"{nodes}x{gpus}")
        threading.Thread(target=self._diary.tick, daemon=True).start()
        last_s = time.monotonic()
        while True:
            time.sleep(TICK_S)
            now_s = time.monotonic()
            if not self._told:
                self._work.advance(now_s - last_s)
                if self._work.done_s >= self._options.work:
                    self._diary.end(self._options.status)
            last_s = now_s
            self._react(now_s)

    def _react(self, now_s: float) -> None:
        mode = self._options.mode
        if mode == "restless" and not self._diary.run and self._is_half_done():
            self._asked = signal.SIGUSR1
            mode = "self"
        if not self._asked or mode == "deaf":
            return
        if mode == "fail":
            self._diary.end(self._options.status or 9)
        if mode == "die":
            self._diary.write("end", status=128 + self._asked)
            signal.signal(self._asked, signal.SIG_DFL)
            os.kill(os.getpid(), self._asked)
        if mode == "finish":
            self._options.work = min(self._options.work, self._work.done_s + 1.5)
        elif not self._told:
            self._stop(mode, now_s)
        elif self._saved_at_s and now_s - self._saved_at_s > self._options.ack_wait:
            # Nobody comes: go on later rather than never, as dlrun does.
            self._requeue(now_s)

    def _is_half_done(self) -> bool:
        return bool(self._work.done_s >= self._options.work / 2)

    def _stop(self, mode: str, now_s: float) -> None:
        time.sleep(self._options.save)
        self._work.save()
        if mode == "dlrun":
            from slurm_dl import job  # noqa: PLC0415 - of the standard library alone, too

            job.checkpoint_saved(self._work.path)
            self._diary.end(75)
        self._told = True
        if mode == "self":
            self._requeue(now_s)
        elif mode in {"ack", "restless"}:
            self._told = self._acknowledge()
            self._saved_at_s = now_s
        if mode == "silent":
            self._saved_at_s = now_s

    def _acknowledge(self) -> bool:
        comment = _call("squeue", "-h", "-j", self._diary.label, "-o", "%k")
        try:
            content = json.loads(comment or "")
            content["slurm_dl"]["ack"] = self._diary.run
        except (ValueError, KeyError, TypeError):
            return False
        text = json.dumps(content, separators=(",", ":"))
        self._acknowledging = True
        done = _call("scontrol", "update", f"JobId={self._diary.label}", f"Comment={text}")
        self._acknowledging = False
        if done is not None:
            self._diary.write("ack")
        return done is not None

    def _requeue(self, now_s: float) -> None:
        # Asked again later where it did not work: slurmctld may be away.
        self._saved_at_s = now_s - self._options.ack_wait + 2.0
        self._diary.write("requeues_itself")
        _call("scontrol", "requeue", "Incomplete", self._diary.label)


def _call(*argv: str) -> str | None:
    """What a command of Slurm's printed; None if it failed."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> None:
    """Run the job that the arguments describe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path, required=True, help="the campaign's directory")
    parser.add_argument("--mode", choices=MODES, default="ack")
    parser.add_argument("--work", type=float, required=True, help="seconds of work in all")
    parser.add_argument("--save", type=float, default=0.0, help="seconds that a checkpoint takes")
    parser.add_argument("--status", type=int, default=0, help="exit status when the work is done")
    parser.add_argument("--ack-wait", type=float, default=45.0, help="seconds")
    options = parser.parse_args()
    diary = Diary(options.site / "out")
    program = Program(options, diary, Work(options.site / "work" / diary.label))
    program.listen()
    program.go()


if __name__ == "__main__":
    main()
