"""The comparison at the end: numbers of both arms, the verdict, and how they are written."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from demo.evidence import Evidence, record_of
from demo.site import CRED_EXPIRE_S
from demo.workload import GPUS, Kind
from slurm_dl.model.completed_jobs import Records
from slurm_dl.report.summary_metrics import summarise

FOOTNOTE = (
    "JCT: from submission to the end. p95: nearest rank. Utilisation: GPU-seconds of all runs /"
    f" ({GPUS} GPUs x makespan). Lost: for each preemption its GPUs x (from the signal to the end"
    " of the run + work done again + from the next start until the checkpoint is loaded); GPUs"
    " that idle meanwhile show in the utilisation. Preempting takes as many seconds here as on a"
    " real cluster, while jobs last seconds instead of hours: its price is overstated."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is told of some jobs of an arm: these of a summary; a figure over no job is NaN."""

    jobs: int
    completed: int
    mean_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    makespan_s: float
    utilisation_frac: float
    service_gpu_s: float
    lost_gpu_s: float
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """One arm."""

    all_jobs: Figures
    short_jobs: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    title: str
    plain: str
    ours: str


def numbers_of(evidence: Sequence[Evidence]) -> Numbers:
    """The numbers of an arm, from its jobs' records."""
    short = [job for job in evidence if job.training.kind is Kind.SHORT]
    return Numbers(
        all_jobs=_figures_of(evidence),
        short_jobs=_figures_of(short),
    )


def _figures_of(evidence: Sequence[Evidence]) -> Figures:
    summary = summarise(Records.of([record_of(job) for job in evidence]), gpus=GPUS)
    return Figures(
        jobs=summary.jobs,
        completed=summary.completed,
        mean_jct_s=summary.jct_s.mean,
        median_jct_s=summary.jct_s.median,
        p95_jct_s=summary.jct_s.p95,
        makespan_s=summary.makespan_s,
        utilisation_frac=summary.utilisation_frac,
        service_gpu_s=summary.service_gpu_s,
        lost_gpu_s=summary.lost_gpu_s,
        preemptions=summary.preemptions,
    )


def lines_of(plain: Numbers, ours: Numbers) -> list[Line]:
    """The table, line by line."""

    def line(title: str, words: Callable[[Numbers], str]) -> Line:
        return Line(title=title, plain=words(plain), ours=words(ours))

    return [
        line("jobs finished", lambda n: f"{n.all_jobs.completed} of {n.all_jobs.jobs}"),
        line("mean JCT", lambda n: seconds(n.all_jobs.mean_jct_s)),
        line("median JCT", lambda n: seconds(n.all_jobs.median_jct_s)),
        line("p95 JCT", lambda n: seconds(n.all_jobs.p95_jct_s)),
        line("mean JCT of short jobs", lambda n: seconds(n.short_jobs.mean_jct_s)),
        line("makespan", lambda n: seconds(n.all_jobs.makespan_s)),
        line("GPU utilisation", lambda n: f"{n.all_jobs.utilisation_frac:.0%}"),
        line("preemptions", lambda n: str(n.all_jobs.preemptions)),
        line("GPU-seconds lost to preemption", _lost),
    ]


def _lost(numbers: Numbers) -> str:
    lost, service = numbers.all_jobs.lost_gpu_s, numbers.all_jobs.service_gpu_s
    share = f" ({lost / service:.0%})" if lost > 0 and service > 0 else ""
    return f"{lost:.0f}{share}"


def verdict(plain: Numbers, ours: Numbers) -> str:
    """The comparison in one sentence."""
    short = _change(plain.short_jobs.mean_jct_s, ours.short_jobs.mean_jct_s)
    mean = _change(plain.all_jobs.mean_jct_s, ours.all_jobs.mean_jct_s)
    tail = _change(plain.all_jobs.p95_jct_s, ours.all_jobs.p95_jct_s)
    return (
        f"With slurm_dl short jobs were done {short}, all jobs {mean} on average,"
        f" the slowest (p95) {tail}."
    )


def _change(before_s: float, after_s: float) -> str:
    if not (before_s > 0 and after_s > 0):
        return "in times that cannot be compared"
    if after_s <= before_s:
        return f"{before_s / after_s:.1f} times as fast"
    return f"{after_s / before_s:.1f} times as slowly"


def seconds(value_s: float) -> str:
    """A time for people."""
    return "-" if math.isnan(value_s) else f"{value_s:.1f} s"


def show(console: Console, plain: Numbers, ours: Numbers) -> None:
    """Print the table, the verdict and what the words mean."""
    table = Table(title="The same workload twice", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("plain Slurm", justify="right")
    table.add_column("slurm_dl", justify="right")
    for line in lines_of(plain, ours):
        table.add_row(line.title, line.plain, line.ours)
    parts = (Text(verdict(plain, ours), style="bold"), Text(FOOTNOTE, style="dim"))
    console.print()
    console.print(Group(table, Padding(parts[0], (1, 0)), parts[1]))


def as_json(
    plain: Numbers | None, ours: Numbers | None, *, seed: int, speed: float, problems: list[str]
) -> str:
    """The whole result; an arm that was not played is null."""
    both = plain is not None and ours is not None
    result = {
        "seed": seed,
        "speed": speed,
        "gpus": GPUS,
        "cred_expire_s": CRED_EXPIRE_S,
        "plain_slurm": _arm(plain),
        "slurm_dl": _arm(ours),
        "verdict": verdict(plain, ours) if plain is not None and ours is not None else None,
        "complete": both and not problems,
        "problems": problems,
    }
    return json.dumps(result, indent=2, allow_nan=False) + "\n"


def _arm(numbers: Numbers | None) -> dict[str, object] | None:
    if numbers is None:
        return None
    return {
        **_finite(dataclasses.asdict(numbers.all_jobs)),
        # The rest of a summary concerns the cluster as a whole.
        "short_jobs": {
            name: value
            for name, value in _finite(dataclasses.asdict(numbers.short_jobs)).items()
            if name in {"jobs", "completed"} or name.endswith("_jct_s")
        },
    }


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
