"""Scripts of single jobs of a simulated Slurm, whose users do as they like.

`JobBehaviour` draws what the jobs of honest users are like. Here each job has a script of its own:
what it claims and when, how it answers a signal, when it leaves by itself and which job goes on
with its work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.simulation.slurm.job_behaviour import OnSignal

OPTED_IN: Final = Claim(contract=Contract())

NOBODY: Final = -1
"""The row of no job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScript:
    """One job; times in seconds."""

    claim: Claim | None = OPTED_IN  # What its metadata say; None: nothing
    claims_while_it_runs: bool = True  # False: it takes the claim out once it runs
    on_signal: OnSignal = OnSignal.SAVE
    checkpoint_every_s: float = 3600.0  # Of work; 0: it saves only when it is asked to or leaves
    reports: Literal["true", "never", "now"] = "true"  # Of its last checkpoint, while it runs
    progress: float | None = None  # Share of its work it says it has done; None: the truth
    requeue_refused: bool = False  # It sets Requeue=0 once it runs
    fails: bool = False  # At its end
    begin_s: float = -math.inf  # Not eligible before, in the trace's time
    leaves_after_s: float = math.inf  # Of a run; then it saves, and leaves by itself
    heir: int = NOBODY  # Row of the job that goes on with its work; without one it requeues itself
    heir_after: Literal["leaving", "preemption"] = "leaving"  # What makes it end for its heir
    gap_s: float = 1.0  # From its end to the submission of its heir
    after: int = NOBODY  # Row of the job after whose end it is submitted, heirs of that included
    think_s: float = 0.0  # From that end to its submission
    held: tuple[int, int] | None = None  # Nodes, and GPUs on each of them that nobody else gets
    gpus: float | None = None  # What Slurm tells of it; None: all that it holds
    cpus: int | None = None  # Likewise; None: one on each node


@dataclass(frozen=True, slots=True, eq=False)
class Scripts:
    """The scripts of all jobs of a trace, row by row."""

    rows: tuple[JobScript, ...]

    def column(self, name: str) -> list[Any]:
        """One field of all jobs."""
        return [getattr(script, name) for script in self.rows]

    @property
    def progress(self) -> F64 | None:
        """``(n,)`` what each claims, NaN where it tells the truth; None: all do."""
        claimed = np.array(self.column("progress"), dtype=np.float64)
        return None if np.isnan(claimed).all() else claimed

    @property
    def due(self) -> Bool:
        """``(n,)`` bool, jobs that come by themselves, at their time in the trace."""
        heirs = np.isin(np.arange(len(self.rows)), self.column("heir"))
        by_itself: Bool = ~heirs & (np.array(self.column("after")) == NOBODY)
        return by_itself
