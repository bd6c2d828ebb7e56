"""Who comes: jobs of many kinds, short, a function of the seed.

A fifth are large or long and sink into the second queue; the others come in between and make the
daemon take GPUs back. About a third can run in several sizes. Sizes, lengths, what a job does when
asked to stop, and when its user changes his mind are all drawn.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

NODE_GPUS: Final = 8
_ENDLESS_S: Final = 3600.0

Expects = Literal["completed", "failed", "cancelled", "any"]


class Kind(StrEnum):
    """What sort of job it is."""

    TRAINING = "training"
    DLRUN = "dlrun"
    SILENT = "silent"
    DEAF = "deaf"
    FINISHER = "finisher"
    QUITTER = "quitter"
    UNGUARDED = "unguarded"
    FAILING = "failing"
    SELF = "self"
    RESTLESS = "restless"
    NO_REQUEUE = "no_requeue"
    PLAIN = "plain"
    ARRAY = "array"
    DEPENDENT = "dependent"
    HET = "het"
    ENDLESS = "endless"
    WIDE = "wide"


_MODES: Final = {
    Kind.DLRUN: "dlrun",
    Kind.SILENT: "silent",
    Kind.DEAF: "deaf",
    Kind.FINISHER: "finish",
    Kind.QUITTER: "fail",
    Kind.UNGUARDED: "die",
    Kind.SELF: "self",
    Kind.RESTLESS: "restless",
}
"""How tools/chaos/job.py behaves where that is not plain acknowledging."""

_WEIGHTS: Final = {
    Kind.TRAINING: 26,
    Kind.DLRUN: 8,
    Kind.SILENT: 6,
    Kind.DEAF: 5,
    Kind.FINISHER: 6,
    Kind.QUITTER: 3,
    Kind.UNGUARDED: 3,
    Kind.FAILING: 5,
    Kind.SELF: 6,
    Kind.RESTLESS: 3,
    Kind.NO_REQUEUE: 6,
    Kind.PLAIN: 8,
    Kind.ARRAY: 8,
    Kind.DEPENDENT: 5,
    Kind.HET: 3,
    Kind.ENDLESS: 4,
    Kind.WIDE: 2,
}
_ONE_SIZE: Final = frozenset({Kind.PLAIN, Kind.HET, Kind.ARRAY, Kind.NO_REQUEUE})
_ELASTIC_PROB: Final = 0.45
"""Of those that may be elastic, which are three quarters."""
_LEAST_NODES: Final = 3
_NO_CONTRACT: Final = frozenset({Kind.PLAIN, Kind.HET})
_EXPECTS: Final[dict[Kind, Expects]] = {
    Kind.FAILING: "failed",
    Kind.ENDLESS: "cancelled",
}
_LARGE_PROB: Final = 0.2
_CANCELLED_PROB: Final = 0.08
_USER_REQUEUE_PROB: Final = 0.05


@dataclass(frozen=True, slots=True)
class Terms:
    """What a job declares: the preemption contract, as in its comment.

    Attributes:
        grace_s: Seconds between signal and requeue.
        by: Who requeues it.
    """

    signal: str
    target: str
    grace_s: float
    by: str

    @property
    def claim(self) -> dict[str, object]:
        """Our object in the comment, so far."""
        return {
            "v": 1,
            "sig": self.signal,
            "to": self.target,
            "grace_s": self.grace_s,
            "by": self.by,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One submission.

    Attributes:
        name: Its job name, unlike any other's.
        gpus: Of one record: of the job, of a task, of a component.
        nodes: Nodes it spreads them over, evenly.
        work_s: Seconds it works in all.
        save_s: Seconds a checkpoint takes it.
        status: Exit status when its work is done.
        terms: None if it declares nothing.
        tasks: Tasks of an array; 0 for none.
        components: Components of a het job; 0 for none.
        cancel_after_s: Its user cancels it so long after the submission; None: never.
        requeue_after_s: Its user requeues it so long after; None: never.
        sizes: Nodes x GPUs on each in which it may run, ``1x2``; the one that it asks for first.
    """

    name: str
    kind: Kind
    gpus: int
    nodes: int
    work_s: float
    save_s: float
    status: int
    terms: Terms | None
    tasks: int
    components: int
    cancel_after_s: float | None
    requeue_after_s: float | None
    sizes: tuple[str, ...]

    @property
    def comment(self) -> str | None:
        """The comment that carries contract and sizes, as dlsubmit writes it; None: none."""
        if self.terms is None:
            return None
        claim = self.terms.claim
        if len(self.sizes) > 1:
            claim |= {"sizes": ",".join(self.sizes), "asked": self.sizes[0], "batch": "fixed"}
        return json.dumps({"slurm_dl": claim}, separators=(",", ":"))

    @property
    def records(self) -> int:
        """Jobs that Slurm makes of it."""
        return max(1, self.tasks, self.components)

    @property
    def mode(self) -> str:
        """What it does when asked to stop, in tools/chaos/job.py's words."""
        return _MODES.get(self.kind, "ack")

    @property
    def requeueable(self) -> bool:
        """Whether Slurm may requeue it at all."""
        return self.kind not in {Kind.NO_REQUEUE, Kind.HET}

    @property
    def expects(self) -> Expects:
        """How it ends if nobody does it wrong."""
        known = _EXPECTS.get(self.kind, "completed")
        return "any" if self.cancel_after_s is not None and known != "cancelled" else known


def crowd(seed: int, records: int) -> Iterator[Job]:
    """Jobs of every kind until Slurm has made *records* of them; the first are one of each."""
    rng = random.Random(seed)  # noqa: S311 - a workload, not a secret
    first = list(Kind)
    rng.shuffle(first)
    made = number = 0
    while made < records:
        kind = first.pop() if first else rng.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
        job = _draw(rng, kind, f"c{number:05}")
        number += 1
        made += job.records
        yield job


def _draw(rng: random.Random, kind: Kind, name: str) -> Job:
    large = rng.random() < _LARGE_PROB
    gpus = rng.choice((4, 4, 6, 8)) if large else rng.choice((1, 1, 1, 2, 2, 4))
    work_s = rng.uniform(15, 40) if large else rng.uniform(2, 10)
    nodes = 1
    if kind is Kind.WIDE:
        nodes, gpus, work_s = 2, rng.choice((8, 16)), rng.uniform(10, 25)
    if kind is Kind.HET:
        gpus, work_s = rng.choice((1, 2)), rng.uniform(2, 12)
    if kind is Kind.ARRAY:
        # Long enough to be victims while other tasks of theirs are pending.
        gpus, work_s = rng.choice((1, 2, 4)), rng.uniform(8, 25)
    if kind is Kind.RESTLESS:
        work_s = max(work_s, 4.0)
    cancel_after_s = rng.uniform(0.2, 40) if rng.random() < _CANCELLED_PROB else None
    if kind is Kind.ENDLESS:
        work_s, cancel_after_s = _ENDLESS_S, rng.uniform(0.5, 45)
    may_requeue = kind not in {Kind.NO_REQUEUE, Kind.HET, Kind.ARRAY}
    requeues = may_requeue and rng.random() < _USER_REQUEUE_PROB
    return Job(
        name=name,
        kind=kind,
        gpus=gpus,
        nodes=nodes,
        work_s=round(work_s, 2),
        save_s=round(rng.choice((0.0, 0.2, 1.0, 2.5)), 2),
        status=rng.choice((1, 3, 77)) if kind is Kind.FAILING else 0,
        terms=None if kind in _NO_CONTRACT else _terms(rng, kind),
        tasks=rng.randint(3, 6) if kind is Kind.ARRAY else 0,
        components=2 if kind is Kind.HET else 0,
        cancel_after_s=cancel_after_s,
        requeue_after_s=rng.uniform(1, 40) if requeues else None,
        sizes=_sizes(nodes, gpus // nodes, one=kind in _ONE_SIZE or rng.random() > _ELASTIC_PROB),
    )


def _sizes(nodes: int, gpus: int, *, one: bool) -> tuple[str, ...]:
    """The size it asks for and, unless it has *one* size, half and double of it if nodes hold it.

    Args:
        gpus: On each node.
    """
    half = (nodes, gpus // 2) if gpus % 2 == 0 else (0, 0)
    double = (nodes, 2 * gpus) if 2 * gpus <= NODE_GPUS else (2 * nodes, gpus)
    more = () if one else (half, double)
    return tuple(f"{n}x{g}" for n, g in ((nodes, gpus), *more) if 0 < n <= _LEAST_NODES)


def _terms(rng: random.Random, kind: Kind) -> Terms:
    return Terms(
        # dlrun is told which one it is by its environment.
        signal=rng.choice(("USR1", "USR1", "USR2")),
        target="batch" if kind is Kind.DLRUN else rng.choice(("batch", "batch", "batch", "full")),
        grace_s=float(rng.choice((6, 8, 12, 15))),
        by="job" if kind is Kind.SELF else "daemon",
    )
