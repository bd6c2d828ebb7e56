"""When nodes break, when Slurm notices, and when they are back."""

from __future__ import annotations

import numpy as np

from slurm_dl.backends.sim.slurm.events import Agenda, Kind
from slurm_dl.backends.sim.slurm.habits import NodeFailures


class Breakage:
    """Puts the deaths and returns of nodes on the agenda.

    Args:
        failures: How often they break; None: never.
        lost_after_s: Slurm takes a silent node for lost after this, seconds.
        rng: Draws the times.
    """

    def __init__(
        self,
        failures: NodeFailures | None,
        agenda: Agenda,
        *,
        lost_after_s: float,
        rng: np.random.Generator,
    ) -> None:
        self._failures, self._agenda = failures, agenda
        self._lost_after_s, self._rng = lost_after_s, rng

    def begins(self, node: int, now_s: float) -> None:
        """*node* is whole from now on."""
        if self._failures is not None:
            dies_s = now_s + float(self._rng.exponential(self._failures.mtbf_s))
            self._agenda.add(dies_s, Kind.NODE_DIES, subject=node)

    def died(self, node: int, now_s: float) -> None:
        """*node* has died; it is back no earlier than Slurm knows of it."""
        if self._failures is not None:
            mend_s = now_s + float(self._rng.exponential(self._failures.mttr_s))
            lost_s = now_s + self._lost_after_s
            self._agenda.add(lost_s, Kind.NODE_LOST, subject=node)
            self._agenda.add(max(mend_s, lost_s), Kind.NODE_BACK, subject=node)
