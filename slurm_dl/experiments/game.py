"""The campaign of ``dlsim game``: what a player gains by each strategy, and what others lose.

A cell is one simulation on the simulated Slurm under dlschedd: a policy, a strategy, a seed and a
load. The player's gain is 1 - JCT / JCT of the same jobs submitted honestly, both means over the
player's jobs; the loss of the others is JCT / that with all honest - 1. The clock of a job begins
when its user wants it, however it is submitted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, create_model

from slurm_dl.config.engine_settings import settings_of
from slurm_dl.config.loading import load
from slurm_dl.engine.settings import Breakers, Preemption, Settings
from slurm_dl.experiments import game_workload
from slurm_dl.experiments.cell_store import Store
from slurm_dl.experiments.game_strategies import HONEST, STRATEGIES
from slurm_dl.experiments.game_workload import PLAYER, Crowd, Played, WantedJobs
from slurm_dl.experiments.grid import Cell, Experiment, Figures, Simulated
from slurm_dl.experiments.simulation_run import PolicySpec, Result
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.job_knowledge import TraceKnowledge
from slurm_dl.simulation.slurm.overheads import SlurmCosts
from slurm_dl.simulation.slurm.scenario import Scenario, simulate_plain, simulate_slurm
from slurm_dl.simulation.slurm.scheduling_passes import Phases

PARTITION: Final = "gpu"

UNSAVED_SHARE: Final = 0.5
"""As a daemon has it by default; in other simulations saves are known to succeed."""

FIGURES: Final = ("player_jct_s", "others_jct_s", "can_jct_s", "cannot_jct_s")
_KINDS: Final[dict[str, Any]] = {
    **dict.fromkeys(FIGURES, float | None),
    **dict.fromkeys(("unfinished", "preemptions"), int),
    "wall_s": float,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GameCell(Cell):
    """One simulation; its seed is `resample`."""

    strategy: str = HONEST

    def __str__(self) -> str:
        return (
            f"{self.policy.short_label}, {self.strategy}, load {self.load:g}, seed {self.resample}"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Game(Experiment):
    """Shared by all cells."""

    crowd: Crowd = Crowd()  # noqa: RUF009 - frozen
    config: str | None = None  # A daemon's, for the limits of the engine

    @property
    def settings(self) -> Settings:
        """The limits of the engine; circuit breakers are off."""
        if self.config is None:
            limits = Preemption(unsaved_share=UNSAVED_SHARE)
            return Settings(partitions=frozenset({PARTITION}), preemption=limits)
        found = settings_of(load(self.config))
        return dataclasses.replace(found, partitions=frozenset({PARTITION}), breakers=Breakers())

    def wanted(self, cell: Cell) -> WantedJobs:
        """The jobs of *cell* as they would be submitted honestly."""
        workload = self.workloads[cell.workload]
        shape = parse_shape(workload.cluster)
        return game_workload.honest(
            workload.jobs, self.crowd, gpus=shape.gpus, node_gpus=self._node_gpus,
            load=cell.load, seed=cell.resample,
        )  # fmt: skip

    @property
    def _node_gpus(self) -> int:
        (workload,) = self.workloads.values()
        return int(parse_shape(workload.cluster).nodes().gpus.max())

    def check(self, cells: Sequence[Cell]) -> None:
        """Raise `ConfigError` if no workload can be drawn, or the configuration is wrong."""
        _ = self.settings
        for cell in {(cell.load, cell.resample): cell for cell in cells}.values():
            self.wanted(cell)

    def played(self, cell: GameCell, wanted: WantedJobs) -> Played:
        """*wanted* with the player's jobs as the strategy has them."""
        others = [job for job in wanted.jobs if job.user != PLAYER]
        own = STRATEGIES[cell.strategy].play(wanted, self._node_gpus)
        return game_workload.rows_of([*others, *own], wanted)

    def simulate(self, cell: Cell, progress: Callable[[float], None] = lambda _: None) -> Simulated:
        """Run one simulation; see `Experiment`."""
        assert isinstance(cell, GameCell)  # noqa: S101 - of this experiment
        wanted = self.wanted(cell)
        played = self.played(cell, wanted)
        chosen, cluster = self.ready(cell, played.trace)
        assert isinstance(cluster.costs, SlurmCosts)  # noqa: S101 - `cells` asks for it
        shape, seed, n = (
            parse_shape(self.workloads[cell.workload].cluster),
            cell.resample,
            len(played.trace),
        )
        first_s = min(job.due_s for job in wanted.jobs) + cluster.costs.submit_s
        began_s = time.perf_counter()
        scenario = Scenario(
            trace=played.trace, shape=shape, costs=cluster.costs, seed=seed,
            limit_s=played.limit_s, scripts=played.scripts,
            # The same clocks whatever the strategy.
            phases=Phases.drawn(first_s, cluster.costs, np.random.default_rng(seed)),
            known=TraceKnowledge(texts=True, before=played.before),
        )  # fmt: skip

        def on_step(left: int) -> None:
            progress(max(0.0, 1 - left / n))

        if chosen.made is None:
            outcome = simulate_plain(scenario, on_step=on_step)
        else:
            outcome = simulate_slurm(
                scenario, policy=chosen.made, settings=self.settings, on_step=on_step
            )
        wall_s = time.perf_counter() - began_s
        result = Result(chosen, cluster.name, cluster.place, outcome, seed, wall_s)
        return Simulated(cell=cell, jobs=played.trace, shape=shape, result=result)

    def figures(self, simulated: Simulated) -> Figures:
        """Mean JCTs of the player, of the others, and of those of them that opt in or cannot."""
        cell, records = simulated.cell, simulated.result.outcome.records
        assert isinstance(cell, GameCell)  # noqa: S101 - of this experiment
        wanted = self.wanted(cell)
        work = np.array([int(job_id.partition(".")[0]) for job_id in records.job_id])
        jct_s: dict[str, list[float]] = {name: [] for name in FIGURES}
        unfinished = 0
        for job in wanted.jobs:
            rows = work == job.work
            ends_s = records.end_s[rows]
            began_s = job.due_s if job.due_s < math.inf else float(records.submit_s[rows].min())
            if np.isnan(ends_s).all():
                unfinished += 1
                continue
            took_s = float(np.nanmax(ends_s)) - began_s
            unfinished += not records.success[rows].any()
            jct_s["player_jct_s" if job.user == PLAYER else "others_jct_s"].append(took_s)
            if job.user != PLAYER:
                can = job.script.claim is not None
                jct_s["can_jct_s" if can else "cannot_jct_s"].append(took_s)
        means = {name: float(np.mean(took)) if took else None for name, took in jct_s.items()}
        return {
            **means, "unfinished": unfinished,
            "preemptions": int(records.preemptions.sum()), "wall_s": simulated.result.wall_s,
        }  # fmt: skip


class GameStore(Store):
    """The cells of a `Game` that are done; see `Store`."""

    kept: ClassVar[type[BaseModel]] = create_model(
        "_KeptGame", __config__=ConfigDict(strict=True), **_KINDS
    )

    def _digest(self, cell: Cell) -> str:
        assert isinstance(self.experiment, Game)  # noqa: S101 - of this store
        config = self.experiment.config
        content = b"" if config is None else Path(config).read_bytes()
        return hashlib.sha256(super()._digest(cell).encode() + content).hexdigest()


def cells(
    policies: Sequence[PolicySpec], strategies: Sequence[str], loads: Sequence[float], seeds: int
) -> tuple[GameCell, ...]:
    """All simulations, with the honest ones that strategies are held against; by seed first."""
    names = dict.fromkeys(
        name for strategy in strategies for name in (STRATEGIES[strategy].against, strategy)
    )
    return tuple(
        GameCell(policy=policy, costs="slurm", load=load, resample=seed, strategy=name)
        for seed in range(1, seeds + 1)
        for load in loads
        for policy in policies
        for name in dict.fromkeys((HONEST, *names))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over the seeds, as a share; NaN if there is none."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of *values*."""
        if not values:
            return cls(mean=math.nan, low=math.nan, high=math.nan)
        return cls(mean=float(np.mean(values)), low=min(values), high=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class GameRow:
    """One strategy under one policy at one load."""

    policy: str
    load: float
    strategy: str
    seeds: int  # In whose simulations, honest and not, all jobs got to their end
    gain: Spread  # Of the player
    loss: Spread  # Of the others
    cannot: Spread  # Loss of those honest users that cannot opt in
    unfinished: int  # Jobs that did not get to their end, in the simulations that are left out
    jct_s: Mapping[str, Spread]  # Means by name in `FIGURES`; of seeds that have it


def rows(found: Mapping[GameCell, Figures]) -> Iterator[GameRow]:
    """A row for each policy, load and strategy, in the order of *found*."""
    at = {(c.policy.short_label, c.load, c.strategy, c.resample): f for c, f in found.items()}
    for policy, times, name in dict.fromkeys(key[:3] for key in at):
        base = STRATEGIES[name].against
        seeds = [
            k[3] for k in at if k[:3] == (policy, times, name) and (policy, times, base, k[3]) in at
        ]
        every = [(at[policy, times, name, s], at[policy, times, base, s]) for s in seeds]
        # Means without some of the jobs say nothing.
        pairs = [(a, b) for a, b in every if not (a["unfinished"] or b["unfinished"])]
        loss = {
            figure: [a[figure] / b[figure] - 1 for a, b in pairs if a[figure] and b[figure]]
            for figure in FIGURES
        }
        yield GameRow(
            policy=policy, load=times, strategy=name, seeds=len(pairs),
            gain=Spread.of([-x for x in loss["player_jct_s"]]),
            loss=Spread.of(loss["others_jct_s"]), cannot=Spread.of(loss["cannot_jct_s"]),
            unfinished=sum(a["unfinished"] + b["unfinished"] for a, b in every),
            jct_s={
                figure: Spread.of([a[figure] for a, _ in pairs if a[figure] is not None])
                for figure in FIGURES
            },
        )  # fmt: skip
