"""What all benchmarks share: timing, memory, the facts of the machine, a table and a JSON file."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import slurm_dl

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """One thing measured several times, seconds."""

    median: float
    least: float
    most: float
    rounds: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Seconds:
        """The three figures of *samples*, of which there is at least one."""
        return cls(
            median=statistics.median(samples),
            least=min(samples),
            most=max(samples),
            rounds=len(samples),
        )

    def __str__(self) -> str:
        return f"{_duration(self.median)} ({_duration(self.least)} .. {_duration(self.most)})"


def timed(work: Callable[[], object]) -> float:
    """How long *work* takes, seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def repeated(work: Callable[[], object], rounds: int) -> Seconds:
    """*work* measured *rounds* times, after one round that does not count."""
    work()
    return Seconds.of([timed(work) for _ in range(rounds)])


def pin_to_one_core() -> int:
    """Keep this process and its children on one core; which one.

    The last one: interrupts and other work tend to be on the first.
    """
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def memory_mb(pid: int | str = "self") -> tuple[float, float]:
    """Resident memory of a process now and at its highest, MB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    now, peak = (re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE) for name in _MEMORY)
    if now is None or peak is None:
        msg = f"/proc/{pid}/status does not tell resident memory"
        raise RuntimeError(msg)
    return int(now[1]) / 1024, int(peak[1]) / 1024


_MEMORY = ("VmRSS", "VmHWM")


def machine() -> dict[str, object]:
    """What the figures depend on besides the code."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    total = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"))
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "slurm_dl": slurm_dl.__version__,
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "memory_gb": round(int(total[1]) / 1024**2, 1) if total else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "slurm": _slurm_version(),
    }


def report(name: str, values: Mapping[str, object], rows: Sequence[Sequence[str]]) -> None:
    """Print *rows* as a table, the first as its head, and write *values* as JSON.

    Args:
        name: Of the benchmark; the file is ``results/<name>.json``.
    """
    facts = machine()
    print(f"\n{name}: {facts['cpu']}, {facts['cores']} cores, load {facts['load_average']}")
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(padded).rstrip())
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    text = json.dumps({"machine": facts, **values}, indent=1, default=_as_json)
    path.write_text(f"{text}\n", encoding="utf-8")
    print(f"written to {path}", flush=True)


def say(text: str) -> None:
    """Tell the person who waits what is going on."""
    print(f"  {text}", file=sys.stderr, flush=True)


def aim(value: float, limit: float) -> str:
    """Whether *value* is below *limit*, in a word for the table."""
    return "met" if value < limit else "MISSED"


def _as_json(value: object) -> object:
    if isinstance(value, Seconds):
        return {f"{key}_s" if key != "rounds" else key: v for key, v in asdict(value).items()}
    msg = f"{type(value).__name__} has no form in JSON"
    raise TypeError(msg)


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _slurm_version() -> str | None:
    # slurmctld tells it without a slurm.conf, Slurm's client commands do not.
    slurmctld = shutil.which("slurmctld", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if slurmctld is None:
        return None
    found = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
