"""What policies are told of a trace's jobs: speeds by GPU type, how long they run, what is due.

A trace says how long each job ran. That is taken to be on the fastest GPUs of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_dl.estimates.training_speed import SitePriors, speed_of
from slurm_dl.experiments.option_words import numbers, pairs
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.profile import Profile, Shape
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.job_knowledge import TraceKnowledge

_LARGEST_SIGMA: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """What is known beforehand, as somebody asked for it.

    Attributes:
        gpu_speed: Relative speed by GPU type, above 0; 1 for those that are not named.
        error: Standard deviation of the logarithm of foreseen / true run time; 0: known exactly.
        due_share: Share of the jobs that are due, 0 to 1.
        due_after: These are due so many times their run time after their submission, 1 or more.
    """

    gpu_speed: Mapping[str, float] = field(default_factory=dict)
    error: float = 0.0
    due_share: float = 0.0
    due_after: float = 2.0

    def of(
        self, trace: Trace, shape: ClusterShape, profiles: Mapping[str, Profile], seed: int
    ) -> TraceKnowledge:
        """What is known of the jobs of *trace*; what is drawn depends on *seed* alone."""
        random = np.random.default_rng([seed, 2])
        n = len(trace)
        foreseen_s = due_s = None
        if self.error:
            foreseen_s = trace.duration_s * np.exp(random.normal(0.0, self.error, n))
        if self.due_share:
            due = random.random(n) < self.due_share
            due_s = np.where(due, trace.submit_s + self.due_after * trace.duration_s, np.inf)
        return TraceKnowledge(
            rates=self._rates(trace, shape, profiles), due_s=due_s, foreseen_s=foreseen_s
        )

    def _rates(
        self, trace: Trace, shape: ClusterShape, profiles: Mapping[str, Profile]
    ) -> F64 | None:
        """``(n, t)`` speed of each job on each type, 1 on its fastest; None if all are alike."""
        kinds = shape.gpu_types
        unknown = set(self.gpu_speed) - set(kinds)
        if unknown:
            msg = (
                f"--gpu-speed: no GPUs of type {', '.join(sorted(unknown))} in cluster {shape} "
                f"(there are {', '.join(kinds)})"
            )
            raise ConfigError(msg)
        if len(kinds) == 1 or not self.gpu_speed:
            return None
        site = SitePriors(gpu_speed=dict(self.gpu_speed))
        rows = np.ones((len(trace), len(kinds)))
        for model, gpus in {*zip(trace.model.tolist(), trace.gpus.tolist(), strict=True)}:
            profile = profiles.get(trace.models[model]) if model >= 0 else None
            one = Shape(1, max(1, int(gpus)))
            told = [speed_of(profile, one, k, site, gpus=gpus).samples_per_s for k in kinds]
            rows[(trace.model == model) & (trace.gpus == gpus)] = np.array(told) / max(told)
        return None if bool((rows == 1.0).all()) else rows


def parse_foresight(gpu_speed: str | None, error: float, due: str | None) -> Oracle:
    """What is known beforehand, from the words of its options.

    Raises:
        ConfigError: One of them is no such thing.
    """
    if not 0 <= error <= _LARGEST_SIGMA:
        msg = f"--estimate-error {error:g}: must be 0 to {_LARGEST_SIGMA:g}"
        raise ConfigError(msg)
    words = gpu_speed.split(",") if gpu_speed else ()
    form = "TYPE=SPEED, each type once, as v100=4,k80=1"
    speeds = pairs("--gpu-speed", words, form, _speed)
    form = "SHARE:MULTIPLE, as 0.3:1.5: three jobs in ten, due one and a half run times later"
    share, after = _due(0.0) if due is None else numbers("--due", due, form, _due, at=":")
    return Oracle(gpu_speed=speeds, error=error, due_share=share, due_after=after)


def _speed(text: str) -> float:
    speed = float(text)
    if not 0 < speed < np.inf:
        raise ValueError
    return speed


def _due(share: float, after: float = 2.0) -> tuple[float, float]:
    if not 0 <= share <= 1 <= after:
        raise ValueError
    return share, after
