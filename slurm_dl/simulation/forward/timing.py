"""What takes how long in a forward run, and how coarse it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_dl.simulation.slurm.scheduler import Backfill


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardTiming:
    """What takes how long in a forward run; all zero is the papers' ideal cluster.

    Attributes:
        handover_s: From the decision until the GPUs are with their new owners, and until the next
            decision after it, as so many hand-overs as may be under way at once are then over.
        growth: The further ahead, the coarser: two steps are apart by at least this share of the
            time since the snapshot. A decision then begins the hand-overs of all that time.
        backfill: How Slurm plans ahead.
    """

    poll_s: float = 30.0  # Between two decisions
    handover_s: float = 35.0
    hold_s: float = 121.0  # A job that gave way may not start for this long after that
    restore_s: float = 30.0  # A run of a job that ran before makes no progress for this long
    growth: float = 0.02
    bf_interval_s: float = 30.0  # Between two backfill passes
    backfill: Backfill = field(
        default_factory=lambda: Backfill(
            resolution_s=60.0, precision_s=30.0, window_s=86400.0, max_jobs=50
        )
    )
