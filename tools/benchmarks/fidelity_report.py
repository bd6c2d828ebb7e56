"""Real runs of the fidelity experiment against simulated ones: a table, JSON, a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import fidelity_real as real
import fidelity_site as fs
import measure
import numpy as np
from fidelity_workload import RESTORE_S, SAVE_S, THRESHOLDS_GPU_S, Workload, workload
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.jobs import F64
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.report import style
from slurm_dl.report.style import save
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.slurm.job_columns import JobBehaviour
from slurm_dl.simulation.slurm.overheads import SANDBOX
from slurm_dl.simulation.slurm.scenario import Scenario, simulate_plain, simulate_slurm
from slurm_dl.simulation.slurm.scheduling_passes import Phases

DRAWS: Final = 20
"""Simulations of each real run: nobody knows where in its second the daemon looked."""

COSTS: Final = dataclasses.replace(SANDBOX, save_s=SAVE_S, restore_s=RESTORE_S)
"""As measured; only what the jobs take to save and to restore is the workload's own."""

_SETTINGS: Final = Settings(
    partitions=frozenset({fs.PARTITION}),
    preemption=Preemption(**real.DAEMON["preemption"]),  # type: ignore[arg-type]
)
_TITLES: Final = {"plain": "Slurm alone", "discrete_las": "with dlschedd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One workload played for real."""

    seed: int
    arm: str
    real: real.Played


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compared:
    """A real run and its simulations.

    Attributes:
        jct_s: ``(n,)`` of the real run.
        known_s: ``(draws, n)`` JCT simulated with slurmctld's clocks as they stood.
        drawn_s: ``(draws, n)`` with clocks that stand anywhere.
        preemptions: ``(draws,)`` in the simulations with known clocks.
    """

    run: Run
    jct_s: F64
    known_s: F64
    drawn_s: F64
    preemptions: F64

    @property
    def bias(self) -> float:
        """By how much the simulated mean JCT is above the real one, as a fraction."""
        return float(self.known_s.mean() / self.jct_s.mean()) - 1.0

    @property
    def errors(self) -> F64:
        """``(draws * n,)`` by how much each job's JCT is above the real one, as a fraction."""
        return (self.known_s / self.jct_s - 1.0).ravel()


def compare(run: Run, jobs: int, draws: int = DRAWS) -> Compared:
    """Simulate what was played in *run*."""
    work = workload(run.seed, jobs)
    tick_s, full_s, backfill_s = run.real.phases_s
    clocks = Phases(tick_s=tick_s, full_s=full_s, backfill_s=backfill_s)
    known = [_simulated(run, work, seed, clocks) for seed in range(draws)]
    drawn = [_simulated(run, work, seed, None) for seed in range(draws)]
    return Compared(
        run=run,
        jct_s=np.array(run.real.jct_s),
        known_s=np.array([records.jct_s for records in known]),
        drawn_s=np.array([records.jct_s for records in drawn]),
        preemptions=np.array([float(records.preemptions.sum()) for records in known]),
    )


def _simulated(run: Run, work: Workload, seed: int, clocks: Phases | None) -> Records:
    scenario = Scenario(
        trace=work.trace,
        shape=parse_shape(f"{fs.NODES}x{fs.GPUS_PER_NODE}"),
        costs=COSTS,
        habits=JobBehaviour(grace_s=fs.GRACE_S),
        limit_s=work.limit_s,
        phases=clocks,
        seed=seed,
        epoch_s=run.real.began_s,
    )
    if run.arm == "plain":
        return simulate_plain(scenario).records
    policy = DiscreteLas(thresholds_gpu_s=THRESHOLDS_GPU_S)
    return simulate_slurm(scenario, policy=policy, settings=_SETTINGS).records


def report(runs: Sequence[Run], *, jobs: int, plots: Path | None) -> None:
    """Simulate all *runs*, print and write what came out, and draw it below *plots*."""
    found = []
    for run in runs:
        measure.say(f"seed {run.seed}, {run.arm}, simulated")
        found.append(compare(run, jobs))
    rows = [[_TITLES[one.run.arm], str(one.run.seed), *_cells(one)] for one in found]
    rows += [
        [_TITLES[arm], "all", *_summary([c for c in found if c.run.arm == arm])]
        for arm in dict.fromkeys(run.arm for run in runs)
    ]
    measure.report(
        "fidelity",
        {
            "jobs": jobs,
            "draws": DRAWS,
            "costs": COSTS.as_dict(),
            "runs": [_as_json(one) for one in found],
        },
        [
            [
                "arm",
                "seed",
                "real JCT s",
                "simulated s",
                "off",
                "clocks unknown s",
                "job error median",
                "p90",
                "preempted",
                "simulated",
                "load",
            ],
            *rows,
        ],
    )
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        by_arm = {
            _TITLES[arm]: np.concatenate([c.errors for c in found if c.run.arm == arm])
            for arm in dict.fromkeys(run.arm for run in runs)
        }
        figures = {"error": _errors(by_arm), "jobs": _each_job(found)}
        for name, figure in figures.items():
            for ending in ("png", "svg"):
                save(figure, plots / f"fidelity-{name}.{ending}")


def _cells(one: Compared) -> list[str]:
    means_s = one.drawn_s.mean(axis=1)
    return [
        f"{one.jct_s.mean():.1f}",
        f"{one.known_s.mean():.1f}",
        f"{one.bias:+.1%}",
        f"{means_s.mean():.1f} ± {means_s.std():.1f}",
        f"{np.median(np.abs(one.errors)):.1%}",
        f"{np.quantile(np.abs(one.errors), 0.9):.0%}",
        str(sum(one.run.real.restarts)),
        f"{one.preemptions.mean():.1f}",
        "/".join(f"{load:.1f}" for load in one.run.real.loads),
    ]


def _summary(found: Sequence[Compared]) -> list[str]:
    real_s = np.mean([one.jct_s.mean() for one in found])
    known_s = np.mean([one.known_s.mean() for one in found])
    drawn_s = np.mean([one.drawn_s.mean() for one in found])
    errors = np.abs(np.concatenate([one.errors for one in found]))
    return [
        f"{real_s:.1f}",
        f"{known_s:.1f}",
        f"{known_s / real_s - 1.0:+.1%}",
        f"{drawn_s:.1f}",
        f"{np.median(errors):.1%}",
        f"{np.quantile(errors, 0.9):.0%}",
        str(sum(sum(one.run.real.restarts) for one in found)),
        f"{sum(one.preemptions.mean() for one in found):.1f}",
        "",
    ]


def _as_json(one: Compared) -> dict[str, object]:
    means_s = one.drawn_s.mean(axis=1)
    return {
        "arm": one.run.arm,
        "seed": one.run.seed,
        "real_mean_jct_s": float(one.jct_s.mean()),
        "simulated_mean_jct_s": float(one.known_s.mean()),
        "bias_frac": one.bias,
        "clocks_unknown_mean_jct_s": float(means_s.mean()),
        "clocks_unknown_std_s": float(means_s.std()),
        "job_error_median_frac": float(np.median(np.abs(one.errors))),
        "job_error_p90_frac": float(np.quantile(np.abs(one.errors), 0.9)),
        "real_preemptions": sum(one.run.real.restarts),
        "simulated_preemptions": float(one.preemptions.mean()),
        "load_average": one.run.real.loads,
        "submitted_late_s": one.run.real.late_s,
        "real_jct_s": one.run.real.jct_s,
        "simulated_jct_s": np.round(one.known_s.mean(axis=0), 3).tolist(),
    }


def _errors(by_arm: Mapping[str, F64]) -> Figure:
    """Share of the jobs whose completion time was simulated to within so much of the real one."""
    with style.styled():
        figure = style.canvas()
        axes = figure.add_subplot()
        for index, (arm, errors) in enumerate(by_arm.items()):
            label = f"{arm}, {np.median(np.abs(errors)):.1%}"
            axes.ecdf(errors, label=label, color=style.colour(index))
        axes.axvline(0, color=style.GREY, linewidth=0.8, zorder=1)
        axes.set(title="Prediction of the JCT", ylabel="share of jobs")
        axes.set_xlabel("(predicted - real) / real")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(title="median size of the error")
        return figure


def _each_job(found: Sequence[Compared]) -> Figure:
    """Each job's completion time, real and simulated (the median of its simulations)."""
    shown_s = (10.0, 1.1 * max(float(one.jct_s.max()) for one in found))
    with style.styled():
        figure = style.canvas(width=7.2, height=3.8)
        arms = [arm for arm in _TITLES if any(one.run.arm == arm for one in found)]
        for index, arm in enumerate(arms):
            axes = figure.add_subplot(1, len(arms), index + 1)
            mine = [one for one in found if one.run.arm == arm]
            axes.plot(shown_s, shown_s, color=style.GREY, linewidth=0.8, zorder=1)
            axes.scatter(
                np.concatenate([one.jct_s for one in mine]),
                np.concatenate([np.median(one.known_s, axis=0) for one in mine]),
                s=14,
                color=style.colour(index),
                alpha=0.6,
                linewidths=0,
            )
            axes.set(xscale="log", yscale="log", xlim=shown_s, ylim=shown_s, aspect="equal")
            ticks = [t for t in (10, 20, 50, 100, 200, 500) if t <= shown_s[1]]
            axes.set_xticks(ticks, labels=[str(t) for t in ticks])
            axes.set_yticks(ticks, labels=[str(t) for t in ticks])
            axes.minorticks_off()
            axes.grid(visible=True)
            axes.set_title(_TITLES[arm])
            axes.set_xlabel("JCT on a real Slurm, s")
            axes.set_ylabel("JCT simulated, s")
        return figure
