"""The workload: which jobs arrive when. A function of the seed, the same for both arms.

It is a day of a small GPU group in fast motion: a few long trainings that fill the cluster, some
middling ones, and sweeps of short one-GPU experiments that somebody starts in between. Only the
arrival times and the lengths are drawn; nobody tells the scheduler how long a job will take.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

NODES = 4
GPUS_PER_NODE = 4
GPUS = NODES * GPUS_PER_NODE

STEP_S = 0.2
"""Length of one training step, seconds."""


class Kind(StrEnum):
    """What sort of work a job is."""

    LONG = "long"
    MID = "mid"
    SHORT = "short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One job.

    Attributes:
        name: Its job name, five characters at most.
        arrive_s: When it is submitted, seconds after the first one.
        steps: Training steps in all.
        step_s: Length of a step, seconds.
        seed: Of the training itself.
        limit_min: Time limit that the user gives, minutes; Slurm counts in whole minutes.
    """

    name: str
    kind: Kind
    gpus: int
    arrive_s: float
    steps: int
    step_s: float
    seed: int
    limit_min: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that both arms are given.

    Attributes:
        jobs: By arrival.
        threshold_gpu_s: Service at which a job sinks into the second queue, GPU-seconds.
        quantum_s: A run is left alone for this long, and a job this long after a preemption.
        patience_s: An arm that takes longer has failed, seconds.
    """

    jobs: tuple[Training, ...]
    threshold_gpu_s: float
    quantum_s: float
    patience_s: float


def mixed(seed: int, speed: float = 1.0) -> Workload:
    """Three long trainings, four middling ones, 28 short experiments: 85 s of work for 16 GPUs.

    Args:
        speed: 2 halves all lengths and gaps; what a preemption takes stays as it is.
    """
    rng = random.Random(seed)  # noqa: S311 - a workload, not a secret

    def jobs() -> Iterator[Training]:
        def job(name: str, kind: Kind, gpus: int, arrive_s: float, length_s: float) -> Training:
            return Training(
                name=name,
                kind=kind,
                gpus=gpus,
                arrive_s=arrive_s / speed,
                steps=max(1, round(length_s / STEP_S)),
                step_s=STEP_S / speed,
                seed=rng.randrange(10_000),
                limit_min=2 if kind is Kind.SHORT else 10,
            )

        yield job("llm16", Kind.LONG, 16, 0, 32)
        yield job("vit8", Kind.LONG, 8, 14 + rng.uniform(0, 1), 30)
        yield job("gan8", Kind.LONG, 8, 16 + rng.uniform(0, 1), 24)
        for number, (gpus, at_s) in enumerate(((4, 18.0), (2, 20.0), (2, 22.0), (4, 26.0)), 1):
            yield job(f"mid{gpus}{'abcd'[number - 1]}", Kind.MID, gpus, at_s, rng.uniform(7, 10))
        number = 0
        for at_s, count in ((8.0, 12), (26.0, 4), (48.0, 12)):
            for _ in range(count):
                number += 1
                at_s += rng.expovariate(1 / 0.4)  # noqa: PLW2901 - the next arrival
                yield job(f"e{number:02}", Kind.SHORT, 1, at_s, rng.uniform(2.5, 5.5))

    return Workload(
        jobs=tuple(sorted(jobs(), key=lambda j: j.arrive_s)),
        threshold_gpu_s=40.0 / speed,
        quantum_s=5.0 / speed,
        patience_s=180.0,
    )


def quick(seed: int) -> Workload:
    """One long training and a sweep of six: long enough for a preemption, no more."""
    rng = random.Random(seed)  # noqa: S311 - a workload, not a secret

    def job(name: str, kind: Kind, gpus: int, arrive_s: float, steps: int) -> Training:
        return Training(
            name=name,
            kind=kind,
            gpus=gpus,
            arrive_s=arrive_s,
            steps=steps,
            step_s=STEP_S,
            seed=rng.randrange(10_000),
            limit_min=2 if kind is Kind.SHORT else 10,
        )

    sweep = (
        job(f"e{n:02}", Kind.SHORT, 1, 5 + 0.3 * n + rng.uniform(0, 0.2), 10) for n in range(1, 7)
    )
    return Workload(
        jobs=(job("llm16", Kind.LONG, 16, 0, 120), *sweep),
        threshold_gpu_s=40.0,
        quantum_s=4.0,
        patience_s=120.0,
    )
