"""Nodes as parallel read-only columns, and who holds how many GPUs where."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, I16, I32, I64, Bool


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Every node Slurm reports, as columns of length m.

    Attributes:
        name: Node names.
        up: ``(m,)`` bool, jobs may start there (not down, drained, failing, reserved for boot).
        gpus: ``(m,)`` float64, GPUs of the node.
        gpu_type: ``(m,)`` int16, index into `Observed.gpu_types`; -1 if it has none.
        cpus: ``(m,)`` int32, CPUs of the node.
        mem_mb: ``(m,)`` int64, memory of the node, MB.
        leaf: ``(m,)`` int16, leaf switch or block; all 0 where no topology is configured.
    """

    name: tuple[str, ...]
    up: Bool
    gpus: F64
    gpu_type: I16
    cpus: I32
    mem_mb: I64
    leaf: I16

    def __post_init__(self) -> None:
        lengths = {f.name: len(getattr(self, f.name)) for f in dataclasses.fields(self)}
        if len(set(lengths.values())) > 1:
            msg = f"node columns differ in length: {lengths}"
            raise ValueError(msg)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """Who holds what where: one row for each (job, node) pair of the jobs that hold nodes.

    Attributes:
        job: ``(k,)`` int32, row in `Jobs`, ascending.
        node: ``(k,)`` int32, row in `Nodes`.
        gpus: ``(k,)`` float64, GPUs of the job on the node.
        cpus: ``(k,)`` int32, CPUs of the job on the node.
        mem_mb: ``(k,)`` int64, memory of the job on the node, MB.
    """

    job: I32
    node: I32
    gpus: F64
    cpus: I32
    mem_mb: I64

    def __post_init__(self) -> None:
        lengths = {f.name: len(getattr(self, f.name)) for f in dataclasses.fields(self)}
        if len(set(lengths.values())) > 1:
            msg = f"allocation columns differ in length: {lengths}"
            raise ValueError(msg)
        for name in lengths:
            getattr(self, name).setflags(write=False)

    def __len__(self) -> int:
        return len(self.job)

    def nodes_of(self, job_row: int) -> npt.NDArray[np.int32]:
        """Rows in `Nodes` that the job at *job_row* holds."""
        lo, hi = np.searchsorted(self.job, [job_row, job_row + 1])
        return self.node[lo:hi]
