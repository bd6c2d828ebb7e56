"""Small workloads for tests of the simulator: by hand, and drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from slurm_dl.model.trace import Trace
from slurm_dl.policies.base import Policy
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.outcome import Outcome


def make_trace(
    submit_s: Sequence[float] | npt.NDArray[Any],
    duration_s: Sequence[float] | npt.NDArray[Any],
    gpus: Sequence[float] | npt.NDArray[Any] | None = None,
    **more: Any,  # noqa: ANN401
) -> Trace:
    """A trace of these columns, a GPU a job if nothing is said; the rest has sensible values."""
    n = len(submit_s)
    values: dict[str, Any] = {
        "name": "small",
        "format": "generated",
        "job_id": tuple(str(i) for i in range(n)),
        "user": np.zeros(n, dtype=np.int32),
        "model": np.full(n, -1, dtype=np.int32),
        "ending": np.zeros(n, dtype=np.int8),
        **more,
    }
    return Trace(
        submit_s=np.array(submit_s, dtype=np.float64),
        duration_s=np.array(duration_s, dtype=np.float64),
        gpus=np.ones(n) if gpus is None else np.array(gpus, dtype=np.float64),
        **values,
    )


def outcome_of(trace: Trace, shape: str, policy: Policy, **more: Any) -> Outcome:  # noqa: ANN401
    """The ideal cluster called *shape* after *trace* under *policy*."""
    return simulate(trace, parse_shape(shape), policy, **more)


@st.composite
def traces(
    draw: st.DrawFn,
    *,
    gpus: Sequence[float] = (1, 2, 4, 8),
    steps: int = 1,
    most: int = 12,
) -> Trace:
    """Up to *most* jobs, often several at one instant; times are multiples of 1/*steps* seconds.

    Small numbers on purpose: completions, arrivals and thresholds then often fall together.
    """
    n = draw(st.integers(0, most))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 5, 8, 30]), min_size=n, max_size=n))
    long = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    wide = draw(st.lists(st.sampled_from(list(gpus)), min_size=n, max_size=n))
    zero_s = draw(st.sampled_from([0.0, 100.0, 1e9]))
    return make_trace(zero_s + np.cumsum(np.array(gaps)) / steps, np.array(long) / steps, wide)
