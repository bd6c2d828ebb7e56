"""Quality of scheduling: figures of fixed workloads, against their ranges and other commits.

    python tools/benchmarks/quality.py [ROW ...] [--base COMMIT] [--resamples N] [-j N] [--write]

A figure is a mean over resamples of a trace by blocks of days: one trace moves by a fifth with any
change of ties. Two commits are compared on the same resamples. Every simulation is a process of
its own, `dlsim run` of the commit. The status is 1 if a figure is outside its range.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from demo.workload import mixed
from slurm_dl.experiments.bootstrap_interval import resampled, t_quantile
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.formats.slurm_dl_csv import write_trace

ROOT: Final = Path(__file__).resolve().parents[2]
RANGES: Final = ROOT / "tests/quality/ranges.yaml"
PAGE: Final = ROOT / "docs/evaluate/quality.md"
TREND: Final = ROOT / "docs/data/quality.csv"
LOOP: Final = "import numpy\na = numpy.arange(3e5)\nfor _ in range(700): a = numpy.sqrt(a * 1.5)"
"""The loop that the speed of the simulator is a ratio to."""
DLSIM: Final = "from slurm_dl.cli.dlsim.command import main; main()"

Figures = dict[str, float]


# Workloads


def made_demo(seed: int, path: Path) -> None:
    """The workload of `make demo`."""
    jobs = [(j.name, j.arrive_s, j.steps * j.step_s, j.gpus) for j in mixed(seed).jobs]
    _write_jobs(path, jobs)


def made_starve(seed: int, path: Path) -> None:
    """One job on all 16 GPUs among jobs of twenty minutes on one: 80 % load, 36 hours."""
    rng = np.random.default_rng(seed)
    at_s = rng.exponential(93.0, 1400).cumsum()
    lasts_s = rng.normal(1200.0, 150.0, 1400).clip(600.0, 1800.0)
    jobs = [(f"s{i}", at_s[i], lasts_s[i], 1) for i in range(1400)]
    _write_jobs(path, [*jobs, ("big", 3600.0, 7200.0, 16)])


def _write_jobs(path: Path, jobs: Sequence[tuple[str, float, float, int]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(("job_id", "submit_s", "duration_s", "gpus", "user", "model", "ending"))
        for name, at_s, lasts_s, gpus in sorted(jobs, key=lambda job: job[1]):
            out.writerow((name, f"{at_s:.1f}", f"{lasts_s:.1f}", gpus, "u", "", "COMPLETED"))


MADE: Final = {"demo": made_demo, "starve": made_starve}


# Simulations


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a workload, and how it is run.

    Attributes:
        run: Arguments of `dlsim run` behind the trace.
        trace: The trace, relative to the checkout; empty if it is made.
        block_days: Days drawn together; 0: the trace itself.
        made: Name of the function that makes it, see `MADE`; empty if it is a trace.
        speed: Its figure is the speed of the simulator alone.
    """

    name: str
    run: str
    trace: str = ""
    made: str = ""
    block_days: int = 0
    speed: bool = False

    @property
    def is_resampled(self) -> bool:
        """It has a value for each resample."""
        return bool(self.made or self.block_days)

    def write(self, number: int, path: Path) -> None:
        """Write resample *number*, 1 or more."""
        if self.made:
            MADE[self.made](number, path)
        else:
            trace = read_trace(ROOT / self.trace)
            if self.block_days:
                # Without wraps: so the ranges were measured.
                trace = resampled(trace, number, self.block_days, wraps=False)
            write_trace(trace, path)


def dlsim(tree: Path, trace: Path, arguments: str) -> tuple[dict[str, Any], float]:
    """Result of `dlsim run` of the checkout *tree* on *trace*, and the CPU seconds it took."""
    with tempfile.TemporaryDirectory() as there:
        out = Path(there) / "out.json"
        argv = [sys.executable, "-c", DLSIM, "run", str(trace), "--quiet", "--json", str(out)]
        cpu_s = _cpu_s([*argv, *shlex.split(arguments)], tree)
        return json.loads(out.read_text("utf-8")), cpu_s


def _cpu_s(argv: Sequence[str], tree: Path) -> float:
    env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    # Of this child alone: others run beside it.
    code = (
        "import resource, subprocess, sys; s = subprocess.run(sys.argv[1:]).returncode;"
        "u = resource.getrusage(resource.RUSAGE_CHILDREN); print(s, u.ru_utime + u.ru_stime)"
    )
    argv = [sys.executable, "-c", code, *argv]
    done = subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, check=True)
    status, cpu_s = done.stdout.split()[-2:]
    if status != "0":
        sys.exit(f"quality: {shlex.join(argv[3:])}: status {status}\n{done.stderr}")
    return float(cpu_s)


def srsf_jct_s(row: Row, trace: Path) -> float:
    """The mean JCT of SRSF, which is told the run times, on an ideal cluster."""
    cluster = re.search(r"--cluster \S+", row.run)
    if cluster is None:
        sys.exit(f"quality: {row.name}: no --cluster in {row.run}")
    told, _ = dlsim(ROOT, trace, f"{cluster.group()} --costs none --policy srsf")
    return float(told["avg_jct_s"])


def figures_of(row: Row, tree: Path, trace: Path, best_jct_s: Future[float]) -> Figures:
    """The figures of one resample."""
    told, cpu_s = dlsim(tree, trace, row.run)
    if row.speed:
        return {"cpu_ratio": cpu_s / _cpu_s([sys.executable, "-c", LOOP], tree)}
    return {
        "jct_over_srsf": told["avg_jct_s"] / best_jct_s.result(),
        "p99_jct_h": told["p99_jct_s"] / 3600,
        "max_jct_h": told["max_jct_s"] / 3600,
        "max_wait_h": told["max_wait_s"] / 3600,
        "preemptions": told["preemptions"],
        "lost_gpu_h": told["gpu_s_lost"] / 3600,
    }


def measured(
    rows: Sequence[Row], trees: Sequence[Path], resamples: int, workers: int
) -> Iterator[tuple[Row, list[list[Figures]]]]:
    """Of each row the figures of each tree by resample."""
    with tempfile.TemporaryDirectory() as there, ThreadPoolExecutor(workers) as pool:
        begun = []
        for row in rows:
            traces, best = [], []
            for number in range(1, 1 + (resamples if row.is_resampled else 1)):
                path = Path(there) / f"{row.name.replace(' ', '-')}-{number}.csv"
                row.write(number, path)
                traces.append(path)
                best.append(pool.submit(srsf_jct_s, row, path))
            inputs = list(zip(traces, best, strict=True))
            begun.append(
                [[pool.submit(figures_of, row, tree, *at) for at in inputs] for tree in trees]
            )
        try:
            for row, of_trees in zip(rows, begun, strict=True):
                yield row, [[f.result() for f in of_tree] for of_tree in of_trees]
        finally:
            pool.shutdown(cancel_futures=True)


# What is printed


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of a row.

    Attributes:
        value: The mean over the resamples.
        spread: Its standard error; 0 for one value. Resamples are of one history, so their
            standard deviation is the error, however many there are.
        base: The mean of the other commit; NaN if none was asked for.
        difference: It less the base, paired.
        half: Half of the 95 % interval of the difference; NaN for one value.
    """

    row: str
    figure: str
    value: float
    spread: float
    base: float = math.nan
    difference: float = math.nan
    half: float = math.nan

    @classmethod
    def of(cls, row: Row, figure: str, of_trees: Sequence[Sequence[Figures]]) -> Line:
        """The line of what was measured: this commit first, then the other."""
        own, *other = [[f[figure] for f in figures] for figures in of_trees]
        many = 1 if row.block_days else len(own)
        line = cls(row.name, figure, statistics.fmean(own), _error(own, many))
        if not other:
            return line
        apart = [a - b for a, b in zip(own, other[0], strict=True)]
        half = t_quantile(len(apart) - 1) * _error(apart, many) if len(apart) > 1 else math.nan
        base, apart_by = statistics.fmean(other[0]), statistics.fmean(apart)
        return replace(line, base=base, difference=apart_by, half=half)

    def verdict(self, known: Mapping[str, Any], tolerance: float) -> str:
        """ok, new (it has no range), or by how much it is outside."""
        if self.figure not in known:
            return "new"
        value = float(known[self.figure][0])
        moved = (self.value - value) / value if value else self.value
        by = f"{moved:+.1%}" if value else f"{moved:+.3g}"
        return "ok" if abs(moved) <= tolerance else f"OUTSIDE: {by}"


def _error(values: Sequence[float], many: int) -> float:
    return statistics.stdev(values) / math.sqrt(many) if len(values) > 1 else 0.0


def table(lines: Sequence[Line], verdicts: Sequence[str]) -> str:
    """Markdown; with the other commit where there is one."""
    compared = any(not math.isnan(line.base) for line in lines)
    head = [
        "row",
        "figure",
        "value",
        "spread",
        *(["base", "difference"] if compared else []),
        "range",
    ]
    text = [head, ["---"] * len(head)]
    for line, verdict in zip(lines, verdicts, strict=True):
        half = "" if math.isnan(line.half) else f" ±{line.half:.3g}"
        other = [f"{line.base:.4g}", f"{line.difference:+.3g}{half}"] if compared else []
        cells = [line.row, line.figure, f"{line.value:.4g}", f"{line.spread:.2g}", *other, verdict]
        text.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in text)


def write_ranges(
    rows: Mapping[str, Any], known: Mapping[str, Any], lines: Sequence[Line]
) -> dict[str, dict[str, list[float]]]:
    """Write the values of *lines* into the file of the ranges; the values of all rows."""
    values = {row: dict(of_row) for row, of_row in known.items()}
    for x in lines:
        values[x.row][x.figure] = [float(f"{x.value:.4g}"), float(f"{x.spread:.2g}")]
    rows = {n: {**row, "values": values[n]} for n, row in rows.items()}
    head, _, _ = RANGES.read_text("utf-8").partition("rows:\n")
    text = yaml.safe_dump({"rows": rows}, sort_keys=False, width=110, default_flow_style=None)
    RANGES.write_text(head + text, "utf-8")
    return values


def trend(lines: Sequence[Line]) -> str:
    """Write the values of this commit to the trend, and show the last of them; Markdown."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    kept = []
    if TREND.exists():
        with TREND.open(encoding="utf-8", newline="") as stream:
            kept = [row for row in csv.reader(stream) if row[0] not in ("commit", commit)]
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    kept += [[commit, today, x.row, x.figure, f"{x.value:.5g}"] for x in lines]
    with TREND.open("w", encoding="utf-8", newline="") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(("commit", "date", "row", "figure", "value"))
        out.writerows(kept)
    shown = [r for r in kept if r[3] == "jct_over_srsf"]
    commits = list(dict.fromkeys((r[0], r[1]) for r in shown))[-8:]
    names = list(dict.fromkeys(r[2] for r in shown))
    value = {(r[0], r[2]): f"{float(r[4]):.3f}" for r in shown}
    text = [["commit", "date", *names], ["---"] * (2 + len(names))]
    text += [[c, d, *(value.get((c, n), "") for n in names)] for c, d in commits]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in text)


def page(told: str, history: str, resamples: int) -> str:
    """The page of the documentation."""
    return f"""# Quality of scheduling

`make quality` writes this page. It simulates fixed workloads with the costs of a real Slurm, and a
commit whose figures leave their ranges (`tests/quality/ranges.yaml`) fails `make test-all`.
`make quality BASE=COMMIT` compares two commits on the same resamples.

- A figure is the mean over {resamples} resamples by blocks of three days, which keep how
  neighbouring days depend on each other. *spread* is how far another history would move it: the
  standard deviation of the resamples, or the standard error of workloads that are made. The
  resamples of itp10 have 1.27 times the load of the trace.
- `starve` is one job on all 16 GPUs among twenty-minute jobs on one GPU; `demo` is the workload of
  `make demo`.
- `jct_over_srsf`: the mean JCT over that of SRSF on an ideal cluster, which is told the run times.
  `max_wait_h`: the longest wait for the first start. `lost_gpu_h`: GPU-hours that preemption lost.
  `cpu_ratio`: CPU time of a simulation over that of a fixed loop.

{told}

## Mean JCT over SRSF, by commit

{history}
"""


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """*commit*, checked out in a temporary directory."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="sdl-quality-") as parent:
        tree = Path(parent) / "base"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def main() -> int:
    """Measure, print, and say whether all is inside its range."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: all of them")
    parser.add_argument("--base", metavar="COMMIT", help="compare with this commit")
    parser.add_argument("--resamples", type=int, metavar="N", help="default: as the ranges say")
    parser.add_argument("-j", dest="workers", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--write", action="store_true", help="write the ranges and the page anew")
    asked = parser.parse_args()
    ranges = yaml.safe_load(RANGES.read_text("utf-8"))
    known = {name: row.pop("values", {}) for name, row in ranges["rows"].items()}
    rows = [Row(name=name, **row) for name, row in ranges["rows"].items()]
    if unknown := set(asked.rows) - {row.name for row in rows}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if asked.write and (asked.rows or asked.resamples):
        parser.error("--write takes all rows and the resamples of the ranges")
    rows = [row for row in rows if not asked.rows or row.name in asked.rows]
    resamples = asked.resamples or ranges["resamples"]
    lines: list[Line] = []
    with checkout(asked.base) if asked.base else nullcontext() as base:
        trees = [ROOT, *([base] if base else [])]
        for row, of_trees in measured(rows, trees, resamples, asked.workers):
            lines += (Line.of(row, figure, of_trees) for figure in of_trees[0][0])
            print(f"quality: {row.name}", file=sys.stderr, flush=True)
    if asked.write:
        known = write_ranges(ranges["rows"], known, lines)
    verdicts = [x.verdict(known[x.row], ranges["tolerance"][x.figure]) for x in lines]
    told = table(lines, verdicts)
    print(told)
    if asked.write:
        own = [replace(x, base=math.nan, half=math.nan) for x in lines]
        told = table(own, verdicts)
        PAGE.write_text(page(told, trend(lines), resamples), "utf-8")
    return int(any(verdict.startswith("OUTSIDE") for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
