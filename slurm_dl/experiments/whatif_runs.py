"""The simulations of a what-if: here, one after the other, or in processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_dl.experiments import whatif_history
from slurm_dl.experiments.placement_choice import PLAIN, PlacementSetup
from slurm_dl.experiments.process_pool import WorkError, WorkFault, process_pool
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.experiments.whatif_history import DailyHistory, Fate
from slurm_dl.report.console import Bar
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.text import safe

_SHOWN = 40
Labelled = tuple[str, PolicySpec]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """What all simulations of a history have in common.

    Attributes:
        costs: What ``--costs`` said; None: what the preset has.
        seed: Of what a cost model draws.
        ground: What goes with the schemes that place the jobs.
    """

    history: DailyHistory
    shape: ClusterShape
    costs: str | None
    seed: int
    ground: PlacementSetup = PLAIN

    def fate(self, wish: PolicySpec, progress: Callable[[int], None] = lambda _: None) -> Fate:
        """Simulate; see `whatif_history.fate`."""
        return whatif_history.fate(
            wish,
            self.history,
            self.shape,
            costs=self.costs,
            ground=self.ground,
            seed=self.seed,
            progress=progress,
        )

    def __call__(self, piece: Labelled, /) -> Fate:
        """The same in a process of its own."""
        return self.fate(piece[1])


def fates(
    bench: Bench, wishes: Sequence[Labelled], *, processes: int, report: Bar
) -> list[tuple[str, Fate]]:
    """What becomes of the jobs under each of *wishes*, in their order.

    Args:
        wishes: By label.
        processes: Simulations at a time; 1: all in this process.
        report: Told how many jobs of all simulations are done, and what begins.

    Raises:
        ConfigError: A policy cannot run there; told before anything runs.
        WorkError: A simulation failed, or a process was killed.
    """
    jobs = len(bench.history.trace)
    for _, wish in wishes:
        whatif_history.check(wish, bench.history, costs=bench.costs, ground=bench.ground)

    found: dict[int, Fate] = {}

    def begin(piece: Labelled) -> None:
        report.tell(safe(piece[0], _SHOWN))

    def work(piece: Labelled) -> Fate:
        return bench.fate(piece[1], lambda done: report(len(found) * jobs + done))

    at_a_time = min(processes, len(wishes))
    with process_pool(work if at_a_time == 1 else bench, at_a_time) as run:
        for number, said in run(wishes, begin=begin):
            if isinstance(said, WorkFault):
                msg = f"{wishes[number][0]}: {said.text}"
                raise WorkError(msg)
            found[number] = said
            report(len(found) * jobs)
    return [(label, found[number]) for number, (label, _) in enumerate(wishes)]
