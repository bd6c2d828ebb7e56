"""Steps of a training as it reports them: how long they take in one size, and which batches fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

MOST_PASSES: Final = 1024  # Passes of a step
MOST_STEPS: Final = 32  # Configurations that are kept of one job
_LARGEST: Final = 10**9  # GPUs, samples and seconds
_STEP_S: Final = (1e-6, 1e6)
_MOST_NOISE: Final = 1e12


@dataclass(frozen=True, slots=True)
class StepTime:
    """Duration of a step in one configuration.

    Raises:
        ValueError: A number is out of range.
    """

    nodes: int  # At least 1, at most *gpus*
    gpus: int
    local_batch: float  # Samples of a GPU in one pass, above 0
    more: int  # Passes beyond the first, from 0
    step_s: float  # Above 0
    pass_s: float | None = None  # A pass without synchronisation, above 0; None if not known
    gpu_type: str = ""  # Empty if it has no name

    def __post_init__(self) -> None:
        times = self.local_batch, self.step_s, self.step_s if self.pass_s is None else self.pass_s
        if not (1 <= self.nodes <= self.gpus <= _LARGEST and 0 <= self.more < MOST_PASSES):
            msg = f"no such step: {self.gpus} GPUs, {self.nodes} nodes, {self.more} more passes"
            raise ValueError(msg)
        if not all(1 / _LARGEST <= value <= _LARGEST for value in times):
            msg = f"batch and seconds of a step must be above 0, and at most 1e9 (got {times})"
            raise ValueError(msg)

    @property
    def configuration(self) -> tuple[object, ...]:
        """GPUs and batch; a newer time of the same one replaces an older."""
        return self.gpu_type, self.nodes, self.gpus, self.local_batch, self.more


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Batches that a training takes, samples; 1 <= least <= most in both pairs.

    Raises:
        ValueError: They are not in that order.
    """

    first: int  # M0: the global batch that the user chose, and the least
    most: int  # The largest global batch
    least_local: int  # Of a GPU in one pass
    most_local: int

    def __post_init__(self) -> None:
        if not (1 <= self.first <= self.most and 1 <= self.least_local <= self.most_local):
            msg = f"batches must be 1 or more, and each least one at most the largest: {self}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class StepReport:
    """The last steps of a run, in its job's words."""

    run: int  # Restart count of the run
    gpus: int
    local_batch: int
    passes: int  # 1 or more
    step_s: float
    noise: float  # Noise scale of the gradient, samples; 0 or more
    limits: BatchLimits

    @classmethod
    def of(cls, words: object) -> Self:
        """The report that a comment holds: all numbers in order, those of *limits* at the end.

        Raises:
            ValueError: It is no list of such numbers.
        """
        if not isinstance(words, list) or len(words) != 10:  # noqa: PLR2004 - as many as above
            msg = f"a report of steps has 10 numbers (got {words!r})"
            raise ValueError(msg)
        run, gpus, local, passes, step_s, noise, *limits = words
        counts = (run, gpus, local, passes, *limits)
        if any(type(n) is not int or not 0 <= n <= _LARGEST for n in counts):
            msg = f"counts of a report of steps must be from 0 to {_LARGEST:,} (got {words})"
            raise ValueError(msg)
        if any(type(x) not in (int, float) for x in (step_s, noise)):
            msg = f"seconds and noise of a step must be numbers (got {step_s!r}, {noise!r})"
            raise ValueError(msg)
        least_s, most_s = _STEP_S
        there = gpus >= 1 and local >= 1 and 1 <= passes <= MOST_PASSES
        if not (there and least_s <= step_s <= most_s and 0 <= noise <= _MOST_NOISE):
            msg = f"no such steps: {words}"
            raise ValueError(msg)
        return cls(run, gpus, local, passes, float(step_s), float(noise), BatchLimits(*limits))
