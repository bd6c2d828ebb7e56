"""Which nodes each run of a simulation held, for those who draw it.

A simulation is handed a journal by who wants one; without one nothing is noted.
"""

from __future__ import annotations

import array
from collections.abc import Sequence

import numpy as np

from slurm_dl.model.job_record import RunNodes


class NodeJournal:
    """Runs and their nodes, in the order in which the runs end: that of `Runs`."""

    def __init__(self) -> None:
        self._runs = 0
        self._run = array.array("i")
        self._node = array.array("i")
        self._gpus = array.array("d")

    def close(self, nodes: Sequence[int], gpus: Sequence[float]) -> None:
        """The next run ends, and held so many GPUs of each of *nodes*."""
        self._run.extend([self._runs] * len(nodes))
        self._node.extend(nodes)
        self._gpus.extend(gpus)
        self._runs += 1

    def run_nodes(self) -> RunNodes:
        """All that was noted so far."""
        return RunNodes(
            run=np.array(self._run, dtype=np.int32),
            node=np.array(self._node, dtype=np.int32),
            gpus=np.array(self._gpus, dtype=np.float64),
        )
