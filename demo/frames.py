"""What can be seen of an arm at one instant, as data: what the screen draws and progress tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from demo.workload import GPUS_PER_NODE, NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job.

    Attributes:
        state: Slurm's compact state.
        tier: Its queue, 0 is served first; None where nobody keeps queues.
        attained_gpu_s: Service over all its runs; None where nobody keeps it.
        nodes: Nodes it holds, single names.
        progress: Share of its steps that are done, 0 to 1.
    """

    job_id: int
    name: str
    state: str
    gpus: int
    tier: int | None
    attained_gpu_s: float | None
    restarts: int
    nodes: tuple[str, ...]
    progress: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something worth telling.

    Attributes:
        at_s: Seconds since the arm began.
        kind: ``preempt``, ``resume`` or ``end``.
    """

    at_s: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One instant of an arm.

    Attributes:
        arm: Which.
        at_s: Seconds since it began.
        jobs: How many the workload has.
        rows: Jobs submitted so far, by arrival.
        slots: For each node and each GPU the name of the job that holds it, or an empty string.
        events: So far, oldest first.
    """

    arm: str
    at_s: float
    jobs: int
    rows: tuple[Row, ...]
    slots: Mapping[str, tuple[str, ...]]
    events: tuple[Event, ...]

    def count(self, *states: str) -> int:
        """Jobs in any of *states*."""
        return sum(row.state in states for row in self.rows)

    @property
    def busy(self) -> int:
        """GPUs that are held."""
        return sum(bool(name) for held in self.slots.values() for name in held)


class Strip:
    """Which job holds which GPU, as a picture that does not jump: a job keeps its places."""

    def __init__(self) -> None:
        self._slots = {f"n{i}": [""] * GPUS_PER_NODE for i in range(1, NODES + 1)}

    def update(self, rows: tuple[Row, ...]) -> dict[str, tuple[str, ...]]:
        """The picture for *rows*."""
        share = {(row.name, node): row.gpus // len(row.nodes) for row in rows for node in row.nodes}
        for node, slots in self._slots.items():
            slots[:] = [name if (name, node) in share else "" for name in slots]
            for (name, where), gpus in share.items():
                if where == node:
                    _seat(slots, name, gpus - slots.count(name))
        return {node: tuple(slots) for node, slots in self._slots.items()}


def _seat(slots: list[str], name: str, count: int) -> None:
    for place, holder in enumerate(slots):
        if count > 0 and not holder:
            slots[place] = name
            count -= 1
