"""The simulator: whole traces, and whether an event costs more the longer a trace is.

No Slurm is needed. Each case is measured in a process of its own, on one core; reading the trace is
not counted.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import multiprocessing
import pstats
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import measure
from matplotlib.figure import Figure

from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.model.trace import Trace
from slurm_dl.report import style
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.outcome import Outcome
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.workload_fit import read_fit
from slurm_dl.traces.workload_generator import generate

ROOT = Path(__file__).parents[2]
AIM_ITP06_S = 0.5
AIM_PHILLY_S = 60.0
AIM_PHILLY_MB = 500.0
TIRESIAS_ITP06_S = 2.5
"""What SymbioticLab/Tiresias@959f9b0 takes for itp06 on 12 x 8, on 2 cores."""

SCALING = (5_000, 20_000, 80_000)
SCALING_CLUSTER = "32x8"
SCALING_LOAD = 0.8


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation.

    Attributes:
        what: It, in words.
        preset: Whose reading of 2D-LAS; none: the policy's own.
        trace: The trace, read or made.
    """

    what: str
    cluster: str
    preset: str
    trace: Callable[[], Trace]


def _generated(jobs: int) -> Trace:
    fit = read_fit(ROOT / "traces/fits/philly.json")
    gpus = parse_shape(SCALING_CLUSTER).gpus
    return generate(fit, jobs=jobs, load=SCALING_LOAD, gpus=gpus, seed=1)


def _itp06() -> Trace:
    return read_trace(ROOT / "traces/tiresias-derived/itp06.csv")


def _philly() -> Trace:
    return read_trace(ROOT / "traces/philly/philly.csv.gz")


CASES = {
    "itp06": Case("2,396 jobs of Microsoft ITP, as Tiresias' simulator", "12x8",
                  "tiresias-corrected", _itp06),
    "itp06-own": Case("the same under the daemon's own 2D-LAS", "12x8", "none", _itp06),
    "philly": Case("82,247 jobs of Philly on its 2,490 GPUs: nobody ever waits", "321x2,231x8",
                   "tiresias-corrected", _philly),
    "philly-448": Case("the same on 448 GPUs: a queue of hundreds", "56x8",
                       "tiresias-corrected", _philly),
    **{
        f"scaling-{n}": Case(f"{n:,} jobs like Philly's at a load of {SCALING_LOAD:g}",
                             SCALING_CLUSTER, "tiresias-corrected", partial(_generated, n))
        for n in SCALING
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """What one case took."""

    jobs: int
    finished: int
    events: int
    decisions: int
    took: measure.Seconds
    us_per_event: float
    resident_mb: float
    profile: str = ""


def _measure(name: str, rounds: int, *, profile: bool) -> Measured:
    measure.pin_to_one_core()
    case = CASES[name]
    trace = case.trace()
    chosen = simulation_run.choose(
        simulation_run.PolicySpec(policy="discrete_las", preset=case.preset), trace
    )
    cluster = cluster_presets.find("none", chosen.preset, trace)
    shape = parse_shape(case.cluster)
    outcomes: list[Outcome] = []

    def simulate() -> None:
        outcomes[:] = [simulation_run.run(chosen, trace, cluster, shape).outcome]

    samples = [measure.timed(simulate) for _ in range(rounds)]
    outcome = outcomes[0]
    took = measure.Seconds.of(samples)
    _, resident_mb = measure.memory_mb()
    return Measured(
        jobs=len(trace),
        finished=int(outcome.records.finished.sum()),
        events=outcome.events,
        decisions=outcome.decisions,
        took=took,
        us_per_event=took.median / outcome.events * 1e6,
        resident_mb=resident_mb,
        profile=_profile(simulate) if profile else "",
    )


def _profile(work: Callable[[], None]) -> str:
    profiler = cProfile.Profile()
    profiler.runcall(work)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(25)
    return text.getvalue()


def _aims(name: str, found: Measured) -> str:
    match name:
        case "itp06":
            return f"{AIM_ITP06_S:g} s: {measure.aim(found.took.least, AIM_ITP06_S)}"
        case "philly" | "philly-448":
            fast = measure.aim(found.took.least, AIM_PHILLY_S)
            small = measure.aim(found.resident_mb, AIM_PHILLY_MB)
            return f"{AIM_PHILLY_S:g} s: {fast}, {AIM_PHILLY_MB:g} MB: {small}"
        case _:
            return ""


def _scaling(per_event: Sequence[tuple[float, float]]) -> Figure:
    """Computing time of one event against the size of the trace.

    Args:
        per_event: Pairs of jobs in the trace and seconds for each event.
    """
    with style.styled():
        figure = style.canvas()
        axes = figure.add_subplot()
        axes.loglog(*zip(*sorted(per_event), strict=True), marker="o", color=style.colour(0))
        axes.set(title=f"Cost of one simulated event, 2D-LAS on {SCALING_CLUSTER}")
        axes.set(xlabel="jobs in the trace", ylabel="computing time per event, s")
        axes.grid(visible=True)
        return figure


def main() -> None:
    """Measure the cases, print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="times each case is measured")
    parser.add_argument("--case", choices=CASES, action="append", help="this case alone")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--plot", type=Path, help="write the picture of the scaling here")
    args = parser.parse_args()
    rows = [("case", "simulation", "per event", "events", "finished", "resident", "aim", "what")]
    results: dict[str, dict[str, object]] = {}
    per_event: list[tuple[float, float]] = []
    spawn = multiprocessing.get_context("spawn")
    for name in args.case or CASES:
        measure.say(f"sim: {name}")
        with spawn.Pool(1) as pool:
            found = pool.apply(_measure, (name, args.rounds), {"profile": args.profile})
        if found.profile:
            print(found.profile)
        rows.append(
            (
                name,
                str(found.took),
                f"{found.us_per_event:.0f} us",
                f"{found.events:,}",
                f"{found.finished:,} of {found.jobs:,}",
                f"{found.resident_mb:.0f} MB",
                _aims(name, found),
                CASES[name].what,
            )
        )
        results[name] = {
            "what": CASES[name].what,
            "cluster": CASES[name].cluster,
            "preset": CASES[name].preset,
            **{key: value for key, value in asdict(found).items() if key != "profile"},
        }
        if name.startswith("scaling-"):
            per_event.append((found.jobs, found.us_per_event / 1e6))
    if args.plot and per_event:
        style.save(_scaling(per_event), args.plot)
        measure.say(f"written to {args.plot}")
    aims = {
        "itp06_s": AIM_ITP06_S,
        "philly_s": AIM_PHILLY_S,
        "philly_mb": AIM_PHILLY_MB,
        "tiresias_itp06_s": TIRESIAS_ITP06_S,
    }
    measure.report("bench_sim", {"aims": aims, "cases": results}, rows)


if __name__ == "__main__":
    main()
