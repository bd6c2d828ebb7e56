"""When each job would end if everything could be divided, and DRF divided it.

In this fair world a job gets, from its first submission on, the part of its speed that its tenant's
dominant share allows (`dominant_shares`), whatever it gets in the real one; all jobs of a tenant
get the same part. The world is gone through from step to step, from the oldest job that is still
there to now, with those that are over in reality, and on to the end with nobody new.

Steps end at arrivals and at the ends of jobs. Where these are so many that it would take too long
they are taken together, at the cost of a little exactness: see `PAST_STEPS` and `AHEAD`.

Source: Grandl et al., "Altruistic Scheduling in Multi-Resource Clusters" (Carbyne), OSDI 2016: the
finish under the fair allocation, which no altruistic job may exceed. The world of virtual time is
that of Demers, Keshav and Shenker, "Analysis and simulation of a fair queueing algorithm",
SIGCOMM 1989.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, Bool
from slurm_dl.policies.arithmetic.dominant_shares import fluid_progress, sum_by

PAST_STEPS: Final = 200
"""No step of the past is shorter than this part of it."""

AHEAD: Final = 0.02
"""No step of the future is shorter than this part of the way there."""

_MOST_STEPS: Final = 600
_DONE_S: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FairWorld:
    """How far each job is in the fair world.

    Attributes:
        served_s: ``(n,)`` seconds at full speed that each has had there.
        part: ``(n,)`` its part of its speed there now; 0 for those that are done.
        finish_s: ``(n,)`` when it ends there, epoch seconds; inf where its total is unknown.
    """

    served_s: F64
    part: F64
    finish_s: F64


def fair_world(
    ask: F64,
    tenant: npt.NDArray[np.int64],
    submit_s: F64,
    total_s: F64,
    *,
    weight: F64,
    now_s: float,
    grain_s: float,
) -> FairWorld:
    """Go through the fair world from the first submission to the end.

    Args:
        ask: ``(n, r)`` what each job asks for, as parts of what there is.
        tenant: ``(n,)`` whose each is, an index into *weight*.
        submit_s: ``(n,)`` when each came, epoch seconds.
        total_s: ``(n,)`` seconds at full speed that each takes; inf if unknown.
        weight: ``(k,)`` weights of the tenants, above 0.
        now_s: The present, epoch seconds; jobs that come later are as if submitted now.
        grain_s: No step of the future needs to be shorter, seconds, above 0.
    """
    n = len(ask)
    came_s = np.minimum(submit_s, now_s)
    at_s = float(came_s.min(initial=now_s))
    least_s = (now_s - at_s) / PAST_STEPS
    queue = np.argsort(came_s, kind="stable")
    arrivals = came_s[queue]
    served_s, part, finish_s = np.zeros(n), np.zeros(n), np.full(n, np.inf)
    snap_served, snap_part = served_s, part
    here, joined = np.zeros(0, dtype=np.int64), 0
    past = True
    for _ in range(_MOST_STEPS):
        if past and at_s >= now_s:
            past = False
        until = int(arrivals.searchsorted(at_s, side="right"))
        here = np.concatenate([here, queue[joined:until]])
        joined = until
        got = fluid_progress(sum_by(ask[here], tenant[here], len(weight)), weight)
        speed = got[tenant[here]]
        if not past and snap_part is part:
            part[here] = speed
            snap_served, snap_part = served_s.copy(), part.copy()
        left_s = total_s[here] - served_s[here]
        moves = speed > 0
        ends_s = np.divide(left_s, speed, out=np.full(len(here), np.inf), where=moves)
        step_s = float(ends_s.min(initial=np.inf))
        if past:
            coming_s = float(arrivals[joined]) if joined < n else now_s
            step_s = min(max(min(step_s, coming_s - at_s), least_s), now_s - at_s)
        else:
            if step_s == np.inf:
                break
            step_s = max(step_s, grain_s, AHEAD * (at_s - now_s))
        over: Bool = ends_s <= step_s + _DONE_S
        finish_s[here[over]] = at_s + ends_s[over]
        served_s[here] += speed * step_s
        at_s += step_s
        here = here[~over]
    # Whoever is still there when steps run out goes on at its present speed.
    rest = here[np.isfinite(total_s[here])]
    if len(rest):
        got = fluid_progress(sum_by(ask[here], tenant[here], len(weight)), weight)
        speed = got[tenant[rest]]
        left_s = np.maximum(total_s[rest] - served_s[rest], 0.0)
        finish_s[rest] = at_s + np.divide(
            left_s, speed, out=np.full(len(rest), np.inf), where=speed > 0
        )
    return FairWorld(served_s=np.minimum(snap_served, total_s), part=snap_part, finish_s=finish_s)
