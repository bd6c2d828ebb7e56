"""What a daemon costs a large slurmctld, and whether it grows: 100,000 queued jobs, 2,500 nodes.

Two parts, each with a slurmctld of its own and no slurmd, so nothing starts. In *sides* the daemon
is stopped and let go on by turns (SIGSTOP, SIGCONT) under the same load of users' ``squeue -j``,
and slurmctld tells by ``sdiag`` what each window cost it. In *memory* a daemon looks as often as it
may at a smaller queue, in which jobs come and go, and its resident memory is read.

Needs root and Debian's Slurm packages, as the sandbox does.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import measure
from bench_poll import PARTITION, PARTS, Poll, Subject
from queues import large_site, shell

from slurm_dl.daemon.control.client import Client
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.sandbox import Sandbox
from slurm_dl.sandbox.process_control import eventually
from slurm_dl.slurm.controller import rpcs_of

AIM_PLAN_S = 1.5
AIM_MB = 500.0
FLAT_FRAC = 0.05
FLAT_FROM = 100
MARKS = (1, 10, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000)
TASKS = 1000
_OWN_CALL = "REQUEST_STATS_INFO"
"""The call of sdiag, which the windows themselves begin and end with."""

# An update of some tasks of an array gives each of them a record of its own: 1,000 in 40 ms, where
# one sbatch takes 20 ms. The last task keeps the record that they shared.
_FILL = r"""
for ((a = 0; a < $1; a++)); do
  job=$(one "$a" --parsable --array=0-$(($2 - 1))) || exit 1
  scontrol update JobId="${job}_[0-$(($2 - 2))]" Nice=0 || exit 1
done
"""

# Jobs come and go: five at a time, the oldest of these go again.
_CHURN = r"""
gone=()
while sleep 2; do
  for i in 1 2 3 4 5; do
    gone+=("$(sbatch --parsable --gpus-per-node=1 --comment="churn $RANDOM" --output=/dev/null \
      <<<$'#!/bin/sh\nexec sleep 60')")
  done
  ((${#gone[@]} > 50)) && scancel --quiet "${gone[@]:0:5}" && gone=("${gone[@]:5}")
done
"""

# It does not slow down by itself: what it costs at the configured pace is the worst case.
_DAEMON = """\
cluster: {{slurm_conf: {slurm_conf}}}
manage: {{partitions: [{partition}]}}
daemon: {{poll_s: {poll_s}, fast_poll_s: {fast_poll_s}, slow_poll_s: {poll_s}, shadow: false}}
paths:
  state_dir: {directory}/state
  run_dir: {directory}/run
  audit_log: {directory}/state/audit.jsonl
"""


def _site(nodes: int, jobs: int) -> AbstractContextManager[Sandbox]:
    # slurmctld lists cancelled jobs for a while: until then its own list grows.
    return large_site(nodes, f"MaxJobCount={2 * jobs + 10_000}", "MinJobAge=30")


def _fill(box: Sandbox, jobs: int) -> float:
    """Fill the queue with records of single jobs; how long that took, seconds."""
    tasks = min(TASKS, jobs)
    began = time.perf_counter()
    if shell(box, _FILL, jobs // tasks, tasks).wait() != 0:
        msg = "the queue could not be filled; sbatch's message is above"
        raise RuntimeError(msg)
    return time.perf_counter() - began


class Daemon:
    """A live dlschedd beside it."""

    def __init__(self, box: Sandbox, directory: Path, *, poll_s: float) -> None:
        directory.mkdir()
        (directory / "state").mkdir()
        self._socket = directory / "run/dlschedd.sock"
        self._log = directory / "dlschedd.log"
        config = directory / "dl.yaml"
        config.write_text(
            _DAEMON.format(
                slurm_conf=box.env["SLURM_CONF"],
                partition=PARTITION,
                poll_s=poll_s,
                fast_poll_s=min(5.0, poll_s),
                directory=directory,
            ),
            encoding="utf-8",
        )
        config.chmod(0o640)
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    Path(sys.executable).parent / "dlschedd",
                    "--live",
                    "--config",
                    config,
                    "--allow-root",
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def status(self) -> JsonObject | None:
        """What ``dlctl status`` prints; None while it does not answer."""
        if self.process.poll() is not None:
            msg = f"dlschedd ended: {self._log.read_text(encoding='utf-8')[-500:]}"
            raise RuntimeError(msg)
        try:
            return Client(self._socket, 10.0).ask("status")
        except SlurmDlError:
            return None

    def cycles(self) -> int:
        """Polls that came to their end."""
        now = self.status()
        return int(str(now["cycles"])) if now else 0

    def after(self, cycles: int, within_s: float) -> None:
        """Wait until it has looked so often."""
        eventually(lambda: self.cycles() >= cycles, within_s, 0.5, what=f"{cycles} polls")

    def end(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(60)


# Part one: beside each other.


def _by_hand(box: Sandbox, directory: Path, polls: int, writes: int) -> dict[str, object]:
    """Poll, plan, diff and apply, in this process."""
    subject = Subject(box, directory / "ledger.sqlite")
    measure.say("first look")
    first, actions = subject.poll()
    measure.say(f"writing {min(writes, len(actions))} of {len(actions)} SiteFactors")
    each_s = [subject.write((action,)) for action in actions[:writes]]
    measure.say(f"{polls} polls")
    found: list[Poll] = [subject.poll()[0] for _ in range(polls)]
    now_mb, peak_mb = measure.memory_mb()
    subject.ledger.close()
    return {
        "first": {part: getattr(first, part) for part in (*PARTS, "writes")},
        "steady": {part: measure.Seconds.of([getattr(p, part) for p in found]) for part in PARTS},
        "apply": measure.Seconds.of(each_s or [0.0]),
        "bytes": found[-1].bytes_read,
        "resident_mb": round(now_mb, 1),
        "resident_peak_mb": round(peak_mb, 1),
    }


def _window(box: Sandbox, job: str, window_s: float) -> dict[str, object]:
    """One window: what slurmctld says of it, and how long a user waits for ``squeue -j``."""
    waits: list[float] = []
    box.run(["sdiag", "--reset"])
    began = time.perf_counter()
    while time.perf_counter() - began < window_s:
        waits.append(measure.timed(lambda: box.run(["squeue", "-h", "-j", job])))
        time.sleep(1.0)  # As a user's script does; this is what is measured, not waited for.
    took_s = time.perf_counter() - began
    text = box.run(["sdiag"]).stdout
    return {
        "seconds": round(took_s, 1),
        "squeue_j": waits,
        "rpcs": {k: v for k, v in rpcs_of(text).items() if k != _OWN_CALL},
        "users_calls": len(waits),
    }


def _sides(box: Sandbox, directory: Path, pairs: int, window_s: float) -> dict[str, object]:
    """Windows with the daemon off and on, by turns."""
    job = box.run(["squeue", "-h", "-o", "%A"]).stdout.split()[0]
    daemon = Daemon(box, directory, poll_s=30.0)
    windows: dict[str, list[dict[str, object]]] = {"off": [], "on": []}
    try:
        measure.say("a daemon looks for the first two times")
        daemon.after(2, 1800.0)
        for number in range(pairs):
            for side in ("off", "on"):
                # Stopped between two polls: none is cut in two.
                cycles = daemon.cycles()
                daemon.after(cycles + 1, 1800.0)
                if side == "off":
                    daemon.process.send_signal(signal.SIGSTOP)
                measure.say(f"window {number + 1} of {pairs}, daemon {side}")
                windows[side].append(_window(box, job, window_s))
                daemon.process.send_signal(signal.SIGCONT)
        now = daemon.status() or {}
        resident = [round(mb, 1) for mb in measure.memory_mb(daemon.process.pid)]
    finally:
        daemon.end()
    return {
        "windows": windows,
        "status": {k: now.get(k) for k in ("cycles", "durations_ms", "slurmctld", "actions")},
        "resident_mb": resident[0],
        "resident_peak_mb": resident[1],
        **{side: _sum(found) for side, found in windows.items()},
    }


def _sum(windows: list[dict[str, object]]) -> dict[str, object]:
    """All windows of one side: calls a minute, and slurmctld's mean time for each kind."""
    counts: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    waits: list[float] = []
    minutes = 0.0
    for window in windows:
        rpcs, squeue_j = window["rpcs"], window["squeue_j"]
        assert isinstance(rpcs, dict)  # noqa: S101 - narrows the type
        assert isinstance(squeue_j, list)  # noqa: S101
        for name, (count, total_s) in rpcs.items():
            counts[name] += count
            spent[name] += total_s
        waits += squeue_j
        minutes += float(str(window["seconds"])) / 60.0
    return {
        "per_minute": {name: round(n / minutes, 2) for name, n in sorted(counts.items())},
        "mean_ms": {name: round(spent[name] / n * 1e3, 1) for name, n in sorted(counts.items())},
        "busy_frac": round(sum(spent.values()) / (60.0 * minutes), 4),
        "squeue_j": measure.Seconds.of(waits),
    }


# Part two: memory.


def _memory(box: Sandbox, directory: Path, polls: int) -> dict[str, object]:
    """Resident memory of a daemon after so many polls of a queue in which jobs come and go."""
    churn = shell(box, _CHURN)
    daemon = Daemon(box, directory, poll_s=1.0)
    resident: dict[int, float] = {}
    marks = [m for m in MARKS if m < polls] + [polls]
    try:
        for mark in marks:
            daemon.after(mark, 120.0 + 10.0 * polls)
            resident[mark] = round(measure.memory_mb(daemon.process.pid)[0], 1)
            measure.say(f"{mark} polls: {resident[mark]} MB")
        now = daemon.status() or {}
        peak_mb = round(measure.memory_mb(daemon.process.pid)[1], 1)
    finally:
        daemon.end()
        os.killpg(churn.pid, signal.SIGTERM)
        churn.wait(30)
    return {
        "polls": now.get("cycles"),
        "actions": now.get("actions"),
        "resident_mb_after_polls": resident,
        "resident_peak_mb": peak_mb,
        "growth_frac": round(_growth(resident), 4),
    }


def _growth(resident: dict[int, float]) -> float:
    """By how much it ever was larger than at `FLAT_FROM` polls; 0 is not at all."""
    base = max((m for m in resident if m <= FLAT_FROM), default=min(resident))
    return max(mb for mark, mb in resident.items() if mark >= base) / resident[base] - 1.0


def main() -> None:
    """Measure, print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="queued jobs of part one")
    parser.add_argument("--nodes", type=int, default=2_500, help="nodes of 4 GPUs each")
    parser.add_argument("--polls", type=int, default=10, help="polls by hand")
    parser.add_argument("--writes", type=int, default=100, help="SiteFactors written by hand")
    parser.add_argument("--pairs", type=int, default=3, help="windows with and without the daemon")
    parser.add_argument("--window-s", type=float, default=90.0, help="length of one, seconds")
    parser.add_argument("--memory-jobs", type=int, default=10_000, help="queued jobs of part two")
    parser.add_argument("--memory-polls", type=int, default=1_000, help="polls of part two")
    parser.add_argument("--part", choices=("sides", "memory"), help="only this one")
    args = parser.parse_args()
    values: dict[str, object] = {
        "gpus": args.nodes * 4,
        "aims": {"plan_s": AIM_PLAN_S, "resident_mb": AIM_MB, "flat_frac": FLAT_FRAC},
    }
    rows = [("what", "measured", "aim")]
    if args.part != "memory":
        with _own() as own, _site(args.nodes, args.jobs) as box:
            values |= _part_one(box, own, args)
        rows += _rows_of_sides(values)
    if args.part != "sides":
        with _own() as own, _site(args.nodes, args.memory_jobs) as box:
            measure.say(f"filling a queue with {args.memory_jobs} jobs")
            _fill(box, args.memory_jobs)
            found = _memory(box, own / "d", args.memory_polls)
        values["memory"] = {"queued": args.memory_jobs, **found}
        rows += _rows_of_memory(found, args.memory_jobs)
    name = "bench_load" if args.part is None else f"bench_load_{args.part}"
    measure.report(name, values, rows)


@contextmanager
def _own() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sdl-", dir="/tmp") as own:
        yield Path(own)


def _part_one(box: Sandbox, own: Path, args: argparse.Namespace) -> dict[str, object]:
    measure.say(f"filling a queue with {args.jobs} jobs")
    filled_s = _fill(box, args.jobs)
    return {
        "queued": args.jobs,
        "filled_s": round(filled_s, 1),
        "by_hand": _by_hand(box, own, args.polls, args.writes),
        "sides": _sides(box, own / "d", args.pairs, args.window_s),
    }


def _rows_of_sides(values: dict[str, object]) -> list[tuple[str, str, str]]:
    hand, sides = values["by_hand"], values["sides"]
    assert isinstance(hand, dict)  # noqa: S101 - narrows the type
    assert isinstance(sides, dict)  # noqa: S101
    steady = hand["steady"]
    plan: Callable[[float], str] = lambda s: f"{measure.aim(s, AIM_PLAN_S)} ({AIM_PLAN_S} s)"  # noqa: E731
    rows = [
        (f"queue of {values['queued']} records", f"filled in {values['filled_s']} s", ""),
        (f"squeue, {hand['bytes'] / 1024**2:.0f} MB", str(steady["squeue"]), ""),
        ("parse", str(steady["parse"]), ""),
        ("book", str(steady["book"]), ""),
        ("plan and diff", str(steady["plan"]), plan(steady["plan"].median)),
        ("apply, one SiteFactor", str(hand["apply"]), ""),
        ("whole poll", str(steady["cycle"]), ""),
        ("resident, by hand", _mb(hand), measure.aim(hand["resident_mb"], AIM_MB)),
        ("resident, dlschedd", _mb(sides), measure.aim(sides["resident_mb"], AIM_MB)),
    ]
    off, on = sides["off"], sides["on"]
    for name in sorted({*off["per_minute"], *on["per_minute"]}):
        text = " | ".join(
            f"{side['per_minute'].get(name, 0)}/min, {side['mean_ms'].get(name, 0)} ms"
            for side in (off, on)
        )
        rows.append((f"off | on: {name}", text, ""))
    rows += [
        ("off | on: share of slurmctld's time", f"{off['busy_frac']} | {on['busy_frac']}", ""),
        ("off | on: squeue -j", f"{off['squeue_j']} | {on['squeue_j']}", ""),
    ]
    return rows


def _mb(found: dict[str, object]) -> str:
    return f"{found['resident_mb']} MB, peak {found['resident_peak_mb']} MB"


def _rows_of_memory(found: dict[str, object], jobs: int) -> list[tuple[str, str, str]]:
    resident = found["resident_mb_after_polls"]
    assert isinstance(resident, dict)  # noqa: S101 - narrows the type
    growth = float(str(found["growth_frac"]))
    marks = itertools.islice(resident.items(), 20)
    return [
        (f"memory at {jobs} jobs", ", ".join(f"{n}: {mb} MB" for n, mb in marks), ""),
        (f"growth after {FLAT_FROM} polls", f"{growth:.1%}", measure.aim(growth, FLAT_FRAC)),
    ]


if __name__ == "__main__":
    main()
