"""The decision alone: `decide` on generated snapshots of 10,000 GPUs and 100,000 queued jobs.

No Slurm is needed. Each case is measured in a process of its own, on one core.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import multiprocessing
import pstats
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import generate
import measure

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.plan import OpenHandover
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.discrete_las import DiscreteLas

AIM_S = 0.15
AIM_MB = 400.0
POLICY = DiscreteLas()
SETTINGS = Settings(
    partitions=frozenset(generate.PARTITIONS), preemption=Preemption(beneficiaries="all")
)
"""Every waiting job may displace others, so that the search has the most to do."""
LOOSE = Settings(
    partitions=SETTINGS.partitions,
    preemption=Preemption(beneficiaries="all", max_handovers=100, max_victims=1000),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One situation to decide.

    Attributes:
        what: It, in words.
        settings: The site's limits.
        make: The snapshot of a cluster of this shape.
    """

    what: str
    settings: Settings
    make: Callable[[generate.Shape], Snapshot]


def _steady(shape: generate.Shape) -> Snapshot:
    snap = generate.written(generate.snapshot(shape), POLICY, SETTINGS)
    opened = decide(snap, POLICY, SETTINGS).actions
    return generate.waited_for(
        snap, tuple(a.handover for a in opened if isinstance(a, OpenHandover))
    )


def _written(shape: generate.Shape, **more: tuple[float, float] | int) -> Snapshot:
    return generate.written(generate.snapshot(shape, **more), POLICY, SETTINGS)  # type: ignore[arg-type]


CASES = {
    "steady": Case(
        "nothing has changed; 4 hand-overs wait for their victims' checkpoints", SETTINGS, _steady
    ),
    "protected": Case(
        "nothing has changed; every running job is inside its minimum quantum",
        SETTINGS,
        partial(_written, ran_s=(10.0, 800.0)),
    ),
    "new": Case("every job is new: all first places are written", SETTINGS, generate.snapshot),
    "preempt": Case("4 hand-overs are found", SETTINGS, _written),
    "preempt100": Case("100 hand-overs are allowed and looked for", LOOSE, _written),
    "in_vain": Case(
        "all of the window are gangs for which no set of victims would do",
        SETTINGS,
        partial(_written, gang=8192),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one case took.

    Attributes:
        allocated_mb: Most memory that one call of `decide` held at once.
        resident_mb: Most memory the process has had, snapshot and interpreter included.
        actions: Actions in the plan, by kind.
        profile: Where the time goes; empty unless asked for.
    """

    jobs: int
    running: int
    plan: measure.Seconds
    allocated_mb: float
    resident_mb: float
    actions: dict[str, int]
    profile: str = ""


def _measure(name: str, shape: generate.Shape, rounds: int, *, profile: bool) -> Measured:
    measure.pin_to_one_core()
    case = CASES[name]
    snap = case.make(shape)

    def plan() -> None:
        decide(snap, POLICY, case.settings)

    took = measure.repeated(plan, rounds)
    _, resident_mb = measure.memory_mb()
    tracemalloc.start()
    plan()
    _, allocated = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    actions = Counter(type(a).__name__ for a in decide(snap, POLICY, case.settings).actions)
    return Measured(
        jobs=len(snap.jobs),
        running=len(snap.jobs) - shape.pending,
        plan=took,
        allocated_mb=allocated / 1024**2,
        resident_mb=resident_mb,
        actions=dict(sorted(actions.items())),
        profile=_profile(plan) if profile else "",
    )


def _profile(work: Callable[[], None]) -> str:
    profiler = cProfile.Profile()
    profiler.runcall(work)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats(25)
    return text.getvalue()


def main() -> None:
    """Measure the cases, print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="queued jobs")
    parser.add_argument("--nodes", type=int, default=2_500, help="nodes of 4 GPUs each")
    parser.add_argument("--rounds", type=int, default=9, help="times each case is measured")
    parser.add_argument("--case", choices=CASES, action="append", help="this case alone")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    shape = generate.Shape(nodes=args.nodes, pending=args.jobs)
    rows = [("case", f"plan (aim {AIM_S} s)", "", "allocated", "resident", "actions", "what")]
    results = {}
    spawn = multiprocessing.get_context("spawn")
    for name in args.case or CASES:
        measure.say(f"plan: {name}")
        with spawn.Pool(1) as pool:
            found = pool.apply(_measure, (name, shape, args.rounds), {"profile": args.profile})
        if found.profile:
            print(found.profile)
        rows.append(
            (
                name,
                str(found.plan),
                measure.aim(found.plan.median, AIM_S),
                f"{found.allocated_mb:.0f} MB",
                f"{found.resident_mb:.0f} MB",
                " ".join(f"{kind}:{n}" for kind, n in found.actions.items()) or "none",
                CASES[name].what,
            )
        )
        results[name] = {
            "what": CASES[name].what,
            "jobs": found.jobs,
            "running": found.running,
            "plan": found.plan,
            "allocated_mb": round(found.allocated_mb, 1),
            "resident_mb": round(found.resident_mb, 1),
            "actions": found.actions,
        }
    aims = {"plan_s": AIM_S, "resident_mb": AIM_MB}
    measure.report(
        "bench_plan",
        {"gpus": args.nodes * 4, "queued": args.jobs, "aims": aims, "cases": results},
        rows,
    )


if __name__ == "__main__":
    main()
