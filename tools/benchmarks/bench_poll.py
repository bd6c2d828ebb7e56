"""One poll against a real slurmctld: 2,500 nodes of 4 GPUs and 20,000 queued jobs, no slurmd.

Everything but slurmctld is kept on one core: this process with the squeue it calls, and then a
real ``dlschedd --shadow``. Needs root and Debian's Slurm packages, as the sandbox does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import measure
from queues import large_site, shell

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Settings
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.plan import ClusterAction
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.sandbox import Sandbox
from slurm_dl.sandbox.process_control import eventually
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.tool_runner import Slurm

AIM_PARSE_S = 1.0
AIM_PLAN_S = 0.15
AIM_MB = 400.0
PARTITION = "gpu"
POLICY = DiscreteLas()
SETTINGS = Settings(partitions=frozenset({PARTITION}))
MAX_GRACE_S = 600.0

_SUBMIT = 'for ((i = $1; i < $2; i++)); do one "$i" --quiet || exit 1; done'

_DAEMON = """\
cluster: {{slurm_conf: {slurm_conf}}}
manage: {{partitions: [{partition}]}}
daemon: {{poll_s: {poll_s}, fast_poll_s: {poll_s}, shadow: true}}
paths:
  state_dir: {directory}/state
  run_dir: {directory}/run
  audit_log: {directory}/state/audit.jsonl
"""


class _TimedSlurm(Slurm):
    """Slurm's commands, with what the last one took and printed."""

    took_s = 0.0
    bytes_read = 0

    def run(self, tool: str, *args: str, within_s: float = math.inf) -> str:
        """See `Slurm.run`."""
        began = time.perf_counter()
        text = super().run(tool, *args, within_s=within_s)
        self.took_s = time.perf_counter() - began
        self.bytes_read = len(text.encode())
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """One cycle without its writes, part by part, seconds."""

    squeue: float
    parse: float
    book: float
    plan: float
    bytes_read: int
    writes: int

    @property
    def cycle(self) -> float:
        """All of it."""
        return self.squeue + self.parse + self.book + self.plan


class Subject:
    """The parts of a daemon, driven by hand."""

    def __init__(self, box: Sandbox, ledger_file: Path) -> None:
        self.slurm = _TimedSlurm(slurm_conf=Path(box.env["SLURM_CONF"]), timeout_s=120.0)
        self.cluster = SlurmCluster(self.slurm, max_grace_s=MAX_GRACE_S)
        self.ledger = Ledger(SqliteStore(ledger_file))
        self.cluster.refresh_nodes()

    def poll(self) -> tuple[Poll, tuple[ClusterAction, ...]]:
        """Look and decide; nothing is written. Also the writes the plan asks for."""
        began = time.perf_counter()
        seen = self.cluster.observe()
        observed = time.perf_counter()
        self.ledger.book(seen)
        snap = self.ledger.snapshot(seen, SETTINGS.partitions)
        booked = time.perf_counter()
        plan = decide(snap, POLICY, SETTINGS)
        decided = time.perf_counter()
        writes = tuple(a for a in plan.actions if isinstance(a, ClusterAction))
        poll = Poll(
            squeue=self.slurm.took_s,
            parse=observed - began - self.slurm.took_s,
            book=booked - observed,
            plan=decided - booked,
            bytes_read=self.slurm.bytes_read,
            writes=len(writes),
        )
        return poll, writes

    def write(self, actions: tuple[ClusterAction, ...]) -> float:
        """Do *actions* as the daemon does, the ledger included; seconds."""
        began = time.perf_counter()
        for action in actions:
            self.ledger.begin(action)
            self.cluster.apply(action)
            self.ledger.settle(action, time.time())
        return time.perf_counter() - began


def _submit(box: Sandbox, jobs: int) -> float:
    """Fill the queue; jobs per second."""
    shells = 2
    began = time.perf_counter()
    edges = [jobs * i // shells for i in range(shells + 1)]
    running = [shell(box, _SUBMIT, first, end) for first, end in itertools.pairwise(edges)]
    failed = [one for one in running if one.wait() != 0]
    if failed:
        msg = f"sbatch failed in {len(failed)} of {shells} shells; its message is above"
        raise RuntimeError(msg)
    return jobs / (time.perf_counter() - began)


def _rpcs(box: Sandbox) -> Counter[str]:
    """RPCs slurmctld has served since the last reset, by type, those of sdiag itself left out."""
    text = box.run(["sdiag", "--sort-by-id"]).stdout
    _, _, table = text.partition("statistics by message type")
    served = table.partition("statistics by user")[0]
    found = re.findall(r"^\s+(REQUEST_\S+)\s.*?count:(\d+)", served, re.MULTILINE)
    return Counter({name: int(n) for name, n in found if name != "REQUEST_STATS_INFO"})


def _column(polls: list[Poll], name: str) -> measure.Seconds:
    return measure.Seconds.of([getattr(poll, name) for poll in polls])


def _by_hand(box: Sandbox, directory: Path, cycles: int) -> dict[str, object]:
    """Drive the parts of a daemon in this process."""
    measure.say("first look")
    subject = Subject(box, directory / "ledger.sqlite")
    first, writes = subject.poll()
    measure.say(f"writing {len(writes)} SiteFactors")
    wrote_s = subject.write(writes)
    measure.say(f"{cycles} polls")
    box.run(["sdiag", "--reset"])
    polls: list[Poll] = []
    resident: dict[int, float] = {}
    marks = {1, 2, cycles // 4, cycles // 2, 3 * cycles // 4, cycles}
    for number in range(1, cycles + 1):
        polls.append(subject.poll()[0])
        if number in marks:
            resident[number] = round(measure.memory_mb()[0], 1)
    rpcs = _rpcs(box)
    subject.ledger.close()
    return {
        "first": {part: getattr(first, part) for part in (*PARTS, "writes")},
        "writes": {"count": len(writes), "seconds": wrote_s},
        "cycles": cycles,
        "steady": {part: _column(polls, part) for part in PARTS},
        "bytes": polls[-1].bytes_read,
        "writes_when_idle": max(poll.writes for poll in polls),
        "rpcs_per_poll": {name: n / cycles for name, n in sorted(rpcs.items())},
        "resident_mb_after_cycle": resident,
        "resident_peak_mb": round(measure.memory_mb()[1], 1),
    }


PARTS = ("squeue", "parse", "book", "plan", "cycle")


def _daemon(box: Sandbox, directory: Path, cycles: int) -> dict[str, object]:
    """Run a whole dlschedd beside it and watch it from outside."""
    directory.mkdir()
    config = directory / "dl.yaml"
    poll_s = 1.0
    config.write_text(
        _DAEMON.format(
            slurm_conf=box.env["SLURM_CONF"],
            partition=PARTITION,
            poll_s=poll_s,
            directory=directory,
        ),
        encoding="utf-8",
    )
    config.chmod(0o640)
    (directory / "state").mkdir()
    tools = Path(sys.executable).parent
    measure.say(f"dlschedd --shadow for {cycles} cycles")
    log = directory / "dlschedd.log"
    with log.open("wb") as out:
        daemon = subprocess.Popen(
            [tools / "dlschedd", "--shadow", "--config", config],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    resident: dict[int, float] = {}
    spent: dict[str, list[float]] = {}
    box.run(["sdiag", "--reset"])
    try:

        def is_done() -> bool:
            if daemon.poll() is not None:
                msg = f"dlschedd ended: {log.read_text(encoding='utf-8')[-500:]}"
                raise RuntimeError(msg)
            asked = subprocess.run(
                [tools / "dlctl", "status", "--json", "--socket", directory / "run/dlschedd.sock"],
                capture_output=True,
                check=False,
            )
            if asked.returncode != 0:
                return False
            status = json.loads(asked.stdout)
            number = int(status["cycles"])
            if number and number not in resident:
                resident[number] = round(measure.memory_mb(daemon.pid)[0], 1)
                for part, ms in status["durations_ms"].items():
                    spent.setdefault(part, []).append(ms / 1e3)
            return number >= cycles

        eventually(is_done, 60.0 + 10.0 * cycles, 0.5, what=f"{cycles} cycles")
        rpcs = _rpcs(box)
        seen = max(resident)
        peak_mb = round(measure.memory_mb(daemon.pid)[1], 1)
    finally:
        daemon.terminate()
        daemon.wait(30)
    return {
        "cycles": seen,
        "seconds": {part: measure.Seconds.of(samples) for part, samples in spent.items()},
        "rpcs_per_poll": {name: n / seen for name, n in sorted(rpcs.items())},
        "resident_mb_after_cycle": resident,
        "resident_peak_mb": peak_mb,
    }


def main() -> None:
    """Measure, print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="queued jobs")
    parser.add_argument("--nodes", type=int, default=2_500, help="nodes of 4 GPUs each")
    parser.add_argument("--cycles", type=int, default=50, help="polls of this process")
    parser.add_argument("--daemon-cycles", type=int, default=15, help="polls of dlschedd")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="sdl-", dir="/tmp") as own,
        large_site(args.nodes, f"MaxJobCount={args.jobs + 10_000}") as box,
    ):
        measure.say(f"submitting {args.jobs} jobs")
        rate = _submit(box, args.jobs)
        core = measure.pin_to_one_core()
        by_hand = _by_hand(box, Path(own), args.cycles)
        daemon = _daemon(box, Path(own) / "d", args.daemon_cycles)
    values = {
        "gpus": args.nodes * 4,
        "queued": args.jobs,
        "pinned_to_core": core,
        "submitted_per_s": round(rate, 1),
        "aims": {"parse_s": AIM_PARSE_S, "plan_s": AIM_PLAN_S, "resident_mb": AIM_MB},
        "by_hand": by_hand,
        "dlschedd": daemon,
    }
    measure.report("bench_poll", values, _rows(values, by_hand, daemon))


def _rows(
    values: dict[str, object], by_hand: dict[str, object], daemon: dict[str, object]
) -> list[tuple[str, str, str]]:
    steady, writes = by_hand["steady"], by_hand["writes"]
    assert isinstance(steady, dict)  # noqa: S101 - narrows the type
    assert isinstance(writes, dict)  # noqa: S101
    own_mb, daemon_mb = by_hand["resident_peak_mb"], daemon["resident_peak_mb"]
    assert isinstance(own_mb, float)  # noqa: S101
    assert isinstance(daemon_mb, float)  # noqa: S101
    megabytes = float(str(by_hand["bytes"])) / 1024**2
    rpcs, daemon_rpcs = by_hand["rpcs_per_poll"], daemon["rpcs_per_poll"]
    assert isinstance(rpcs, dict)  # noqa: S101
    assert isinstance(daemon_rpcs, dict)  # noqa: S101
    per_write = writes["seconds"] / writes["count"] if writes["count"] else 0.0
    rows = [
        ("what", "median (min .. max)", "aim"),
        ("submission", f"{values['submitted_per_s']} jobs/s", ""),
        (f"squeue, {megabytes:.1f} MB", str(steady["squeue"]), ""),
        ("parse", str(steady["parse"]), _aim(steady["parse"], AIM_PARSE_S)),
        ("book", str(steady["book"]), ""),
        ("plan and diff", str(steady["plan"]), _aim(steady["plan"], AIM_PLAN_S)),
        ("whole cycle", str(steady["cycle"]), ""),
        ("writes of the first cycle", f"{writes['count']}, {per_write * 1e3:.1f} ms each", ""),
        ("writes when nothing moves", str(by_hand["writes_when_idle"]), "0"),
        ("RPCs a poll", f"{sum(rpcs.values()):.2f}", "at most 3"),
        ("resident, by hand", _growth(by_hand), measure.aim(own_mb, AIM_MB)),
        ("resident, dlschedd", _growth(daemon), measure.aim(daemon_mb, AIM_MB)),
        ("RPCs a poll, dlschedd", f"{sum(daemon_rpcs.values()):.2f}", "start included"),
    ]
    spent = daemon["seconds"]
    assert isinstance(spent, dict)  # noqa: S101
    rows += [(f"dlschedd: {part}", str(took), "") for part, took in spent.items()]
    return rows


def _aim(took: measure.Seconds, limit_s: float) -> str:
    return f"{measure.aim(took.median, limit_s)} ({limit_s} s)"


def _growth(found: dict[str, object]) -> str:
    marks = found["resident_mb_after_cycle"]
    assert isinstance(marks, dict)  # noqa: S101 - narrows the type
    first, *_, last = sorted(marks) if len(marks) > 1 else [*marks, *marks]
    return (
        f"{marks[first]:.0f} MB after cycle {first}, {marks[last]:.0f} MB after {last}, "
        f"peak {found['resident_peak_mb']:.0f} MB"
    )


if __name__ == "__main__":
    main()
