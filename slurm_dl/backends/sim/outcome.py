"""What a simulation hands back."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.record import Records


class SimulationError(SlurmDlError):
    """The simulation cannot go on; says at which instant and why."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """One simulation, whole.

    Attributes:
        records: What became of each job, in the order of the trace.
        decisions: How often the engine decided.
        events: Instants at which something happened.
        now_s: The simulated time at the end, seconds.
    """

    records: Records
    decisions: int
    events: int
    now_s: float
