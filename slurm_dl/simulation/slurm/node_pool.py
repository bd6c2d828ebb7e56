"""The nodes of a simulated Slurm and who holds them, and the queue of those who wait."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from slurm_dl.model.completed_jobs import RunNodes
from slurm_dl.model.jobs import I64, Bool
from slurm_dl.simulation.outcome import NodeJournal
from slurm_dl.simulation.slurm.job_columns import JobColumns
from slurm_dl.simulation.slurm.scheduler import NodeRows, Running, WaitingJob


class NodePool:
    """GPUs of each node.

    Args:
        journal: Is told which nodes each run held; None: nobody wants to know.

    Attributes:
        free: ``(m,)`` GPUs nobody holds.
        up: ``(m,)`` bool, jobs may start there as far as Slurm knows.
        dead: ``(m,)`` bool, nothing runs there whatever Slurm knows.
        holds: Of the jobs that hold GPUs, the nodes.
    """

    def __init__(self, gpus: I64, journal: NodeJournal | None = None) -> None:
        self._journal = journal
        self.free = gpus.copy()
        self.up: Bool = np.ones(len(gpus), dtype=np.bool_)
        self.dead: Bool = np.zeros(len(gpus), dtype=np.bool_)
        self.holds: dict[int, NodeRows] = {}

    def take(self, row: int, nodes: NodeRows, share: int) -> None:
        """Give a job *share* GPUs of each of *nodes*."""
        self.free[nodes] -= share
        self.holds[row] = nodes

    def give_back(self, row: int, share: int) -> None:
        """Free what a job holds."""
        nodes = self.holds.pop(row)
        self.free[nodes] += share
        if self._journal is not None:
            self._journal.close(nodes.tolist(), [share] * len(nodes))

    def run_nodes(self) -> RunNodes | None:
        """Which nodes those held who gave them back, in that order; None if nobody noted it."""
        return None if self._journal is None else self._journal.run_nodes()

    def on(self, node: int) -> list[int]:
        """Jobs that hold something of *node*."""
        return [row for row, nodes in self.holds.items() if node in nodes]

    def set_up(self, node: int, *, up: bool) -> None:
        """What Slurm thinks of *node*; a new column, as the old one may have been shown."""
        self.up = self.up.copy()
        self.up[node] = up

    def running(self, jobs: JobColumns, whole: Callable[[float], float]) -> Running:
        """Who holds GPUs, by the end of their limits.

        Args:
            whole: The whole second that has begun at an instant: Slurm knows no others.
        """
        rows = np.array([*self.holds], dtype=np.int64)
        begun_s = [whole(start_s) for start_s in jobs.start_s[rows].tolist()]
        end_s = np.array(begun_s, dtype=np.float64) + jobs.limit_s[rows]
        order = np.argsort(end_s, kind="stable")
        nodes = [self.holds[row] for row in rows[order].tolist()]
        gpus = np.repeat(jobs.share[rows[order]].astype(np.int64), [len(on) for on in nodes])
        return Running.of(end_s[order], nodes, gpus)


class SimulatedQueue:
    """Jobs that may start, in Slurm's order: by SiteFactor, then by job id.

    Attributes:
        reservation: Of the jobs that belong to one, its name.
        excluded: ``(m,)`` bool, of the jobs that exclude nodes, these.
    """

    def __init__(self, jobs: JobColumns) -> None:
        self.reservation: dict[int, str] = {}
        self.excluded: dict[int, Bool] = {}
        self._jobs = jobs
        asked = (jobs.n_nodes.tolist(), jobs.share.tolist(), jobs.limit_s.tolist())
        self._plain = [
            WaitingJob(job=row, n_nodes=n_nodes, share=share, limit_s=limit_s)
            for row, (n_nodes, share, limit_s) in enumerate(zip(*asked, strict=True))
        ]
        self._places: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[WaitingJob]:
        for _, row in self._places:
            job = self._plain[row]
            if row in self.reservation or row in self.excluded:
                job = dataclasses.replace(
                    job,
                    reservation=self.reservation.get(row, ""),
                    excluded=self.excluded.get(row),
                )
            yield job

    def add(self, row: int) -> None:
        """Let a job wait."""
        bisect.insort(self._places, self._place(row))

    def has(self, row: int) -> bool:
        """Whether a job waits."""
        place = self._place(row)
        at = bisect.bisect_left(self._places, place)
        return at < len(self._places) and self._places[at] == place

    def remove(self, row: int) -> bool:
        """Take a job out; whether it was there."""
        place = self._place(row)
        there = self.has(row)
        if there:
            del self._places[bisect.bisect_left(self._places, place)]
        return there

    def rank(self, row: int, site_factor: int) -> None:
        """Change a job's SiteFactor, and its place if it waits."""
        waits = self.remove(row)
        self._jobs.site_factor[row] = site_factor
        if waits:
            self.add(row)

    def reshape(self, row: int) -> None:
        """Take over the size that a job asks for now."""
        n_nodes, share = int(self._jobs.n_nodes[row]), int(self._jobs.share[row])
        self._plain[row] = dataclasses.replace(self._plain[row], n_nodes=n_nodes, share=share)

    def release(self, reservation: str) -> None:
        """Let the jobs of a reservation that is gone be like any other."""
        self.reservation = {r: n for r, n in self.reservation.items() if n != reservation}

    def _place(self, row: int) -> tuple[int, int]:
        return -int(self._jobs.site_factor[row]), row
