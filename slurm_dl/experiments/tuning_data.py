"""What thresholds are searched and judged on: a history in two halves.

Both halves are simulated by themselves, so nothing of the later days can be seen by the search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.experiments import placement_choice, whatif_history
from slurm_dl.experiments.placement_choice import Named
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.experiments.threshold_search import Candidate
from slurm_dl.experiments.whatif_history import DAY_S, DailyHistory, Fate
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.cluster_shape import ClusterShape

FEWEST_DAYS = 4
"""A history of fewer has no halves."""


@dataclass(frozen=True, slots=True)
class Edges:
    """How the days of each half are counted; see `whatif_history.cut`."""

    warm_up: int | None
    cool_down: int | None
    block_days: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TuningData:
    """What is simulated.

    Attributes:
        trace: The jobs of the first half of the days.
        chosen_on: The same in days.
        held_out: The second half.
        by: The figure, a word of `KINDS`.
        costs: What ``--costs`` said.
        seed: Of all that is drawn.
        edges: How the days of the halves are counted.
        scheme: Places the jobs; None: GPUs are only counted.
        around: What goes with the scheme.
    """

    trace: Trace
    chosen_on: DailyHistory
    held_out: DailyHistory
    shape: ClusterShape
    by: str
    costs: str | None
    seed: int
    edges: Edges
    scheme: Named | None = None
    around: placement_choice.PlacementSetup = placement_choice.PLAIN

    def last_days(self, days: int | None) -> DailyHistory:
        """The last so many of the days that are chosen on; None: all of them."""
        if days is None:
            return self.chosen_on
        end_s = (np.floor(self.trace.submit_s[-1] / DAY_S) + 1) * DAY_S
        late = whatif_history.only(self.trace, self.trace.submit_s >= end_s - days * DAY_S)
        # Too short a stretch to leave days out as they were said for the whole.
        return whatif_history.cut(late, self.shape)

    def check(self, candidate: Candidate, dimensions: int) -> None:
        """Raise what is wrong before anything runs.

        Raises:
            ConfigError: The policy cannot run there.
        """
        wish = self._wish(candidate, dimensions)
        whatif_history.check(wish, self.chosen_on, costs=self.costs, ground=self.around)

    def fate(self, candidate: Candidate, history: DailyHistory, dimensions: int) -> Fate:
        """What becomes of the jobs of *history* under *candidate*."""
        wish = self._wish(candidate, dimensions)
        return whatif_history.fate(
            wish, history, self.shape, costs=self.costs, ground=self.around, seed=self.seed
        )

    def _wish(self, candidate: Candidate, dimensions: int) -> PolicySpec:
        return PolicySpec(
            policy="discrete_las",
            parameters={
                "thresholds_gpu_s": list(candidate.thresholds_gpu_s),
                "promote_knob": candidate.promote_knob,
                "dimensions": dimensions,
            },
            place=self.scheme,
            min_quantum_s=candidate.min_quantum_s,
        )


def halves(
    trace: Trace,
    shape: ClusterShape,
    *,
    by: str,
    costs: str | None,
    seed: int,
    edges: Edges,
    scheme: Named | None = None,
    around: placement_choice.PlacementSetup = placement_choice.PLAIN,
) -> TuningData:
    """A history in its two halves; see `TuningData`.

    Raises:
        ConfigError: It has too few days.
    """
    number = np.floor(trace.submit_s / DAY_S)
    days = int(number[-1] - number[0]) + 1
    if days < FEWEST_DAYS:
        msg = (
            f"{trace.name}: {days} days; it takes {FEWEST_DAYS} to choose on some and judge others"
        )
        raise ConfigError(msg)
    early = number < number[0] + days // 2
    first = whatif_history.only(trace, early)
    cuts = [
        whatif_history.cut(
            half,
            shape,
            warm_up=edges.warm_up,
            cool_down=edges.cool_down,
            block_days=edges.block_days,
        )
        for half in (first, whatif_history.only(trace, ~early))
    ]
    return TuningData(
        trace=cuts[0].trace,
        chosen_on=cuts[0],
        held_out=cuts[1],
        shape=shape,
        by=by,
        costs=costs,
        seed=seed,
        edges=edges,
        scheme=scheme,
        around=around,
    )
