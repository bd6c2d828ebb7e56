"""Nodes as parallel read-only columns, and who holds how many GPUs where."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I16, I32, I64, Bool


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Every node Slurm reports, as columns of length m.

    Attributes:
        gpu_type: ``(m,)`` int16, index into `Observed.gpu_types`; -1 if it has none. Of a node with
            GPUs of several types the one of which it has most.
        by_type: ``(t, m)`` float64, GPUs of each of the `Observed.gpu_types` on each node; None
            where no node has GPUs of several types.
    """

    name: tuple[str, ...]  # Node names
    up: Bool  # ``(m,)`` bool, jobs may start there (not down, drained, failing, reserved for boot)
    gpus: F64  # ``(m,)`` float64, GPUs of the node
    gpu_type: I16
    cpus: I32  # ``(m,)`` int32, CPUs of the node
    mem_mb: I64  # ``(m,)`` int64, memory of the node, MB
    leaf: I16  # ``(m,)`` int16, leaf switch or block; all 0 where no topology is configured
    by_type: F64 | None = None

    def __post_init__(self) -> None:
        _seal(self, "node")

    def __len__(self) -> int:
        return len(self.name)

    @property
    def is_mixed(self) -> Bool:
        """``(m,)`` bool, nodes with GPUs of several types."""
        if self.by_type is None:
            return np.zeros(len(self), dtype=np.bool_)
        mixed: Bool = np.count_nonzero(self.by_type, axis=0) > 1
        return mixed

    def with_type(self, kind: int, *, only: bool = False) -> Bool:
        """``(m,)`` bool, nodes with GPUs of the type *kind*.

        Args:
            only: And of no other.
        """
        right: Bool = self.gpu_type == kind
        if only:
            return right & ~self.is_mixed
        return right if self.by_type is None else right | (self.by_type[kind] > 0)

    def of_type(self, kind: int) -> F64:
        """``(m,)`` GPUs of each node that a job can get there that asks for *kind*; -1: any."""
        if self.by_type is None or kind < 0:
            return self.gpus
        gpus: F64 = self.by_type[kind]
        return gpus

    def totals(self, where: Bool, kinds: int) -> F64:
        """``(kinds + 1,)`` GPUs of no type, and of each type, on the nodes *where*."""
        if self.by_type is None:
            weights = self.gpus[where]
            found = np.bincount(self.gpu_type[where] + 1, weights, kinds + 1)
            return found.astype(np.float64)
        typed = self.by_type[:, where].sum(axis=1)
        return np.concatenate([[self.gpus[where].sum() - typed.sum()], typed])


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """Who holds what where: one row for each (job, node) pair of the jobs that hold nodes.

    Attributes:
        by_type: ``(t, k)`` float64, GPUs of each type of the job on the node; None where no node
            has GPUs of several types.
    """

    job: I32  # ``(k,)`` int32, row in `Jobs`, ascending
    node: I32  # ``(k,)`` int32, row in `Nodes`
    gpus: F64  # ``(k,)`` float64, GPUs of the job on the node
    cpus: I32  # ``(k,)`` int32, CPUs of the job on the node
    mem_mb: I64  # ``(k,)`` int64, memory of the job on the node, MB
    by_type: F64 | None = None

    def __post_init__(self) -> None:
        _seal(self, "allocation")

    def __len__(self) -> int:
        return len(self.job)

    def nodes_of(self, job_row: int) -> npt.NDArray[np.int32]:
        """Rows in `Nodes` that the job at *job_row* holds."""
        lo, hi = np.searchsorted(self.job, [job_row, job_row + 1])
        return self.node[lo:hi]

    def gpus_by_type(self, nodes: Nodes, kinds: int) -> F64:
        """``(kinds, k)`` GPUs of each type of the job on the node, whether or not it has several.

        Where it has, and is not told which the job holds: in the node's proportions.

        Args:
            kinds: How many types there are; where none has a name all GPUs are of one.
        """
        if self.by_type is not None:
            return self.by_type
        if nodes.by_type is not None:
            there = nodes.by_type[:, self.node]
            shares: F64 = there / np.maximum(there.sum(axis=0), 1.0) * self.gpus
            return shares
        found = np.zeros((max(1, kinds), len(self)))
        kind = nodes.gpu_type[self.node] if kinds else np.zeros(len(self), dtype=np.int16)
        typed = kind >= 0
        found[kind[typed], typed.nonzero()[0]] = self.gpus[typed]
        return found


def _seal(columns: Nodes | Allocations, of: str) -> None:
    """Make all columns read-only.

    Raises:
        ValueError: They differ in length.
    """
    values = {f.name: getattr(columns, f.name) for f in dataclasses.fields(columns)}
    lengths = {name: len(v) for name, v in values.items() if name != "by_type"}
    by_type = values["by_type"]
    if by_type is not None:
        lengths["by_type"] = by_type.shape[-1]
    if len(set(lengths.values())) > 1:
        msg = f"{of} columns differ in length: {lengths}"
        raise ValueError(msg)
    for value in values.values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OtherGres:
    """What jobs ask of GRES that are no GPUs.

    Attributes:
        asked: ``(g,)`` units that a pending or running job takes of each of its nodes, by job id.
    """

    names: tuple[str, ...]  # ``nvme``, or ``nvme:fast`` for one type; those that some job asks for
    total: F64  # ``(g, m)`` units of each on each node
    asked: Mapping[JobId, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.total.setflags(write=False)


SLACK = 1e-6  # Three thirds of a GPU are one, whatever the rounding of their sum


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """One device that is handed out in shares at the moment, to jobs that may be several.

    Slurm hands a device out whole or in shares (``gres/shard``), never both at a time. The queue
    says how much of GPUs a job holds, not on which device; that is read apart from it.

    Attributes:
        first: All devices before it on the node are known to be taken: of those with room Slurm
            takes this one (22.05.8; see docs/use/sharing.md).
    """

    node: int  # Row in `Nodes`
    index: int  # Slurm's index of the device on its node
    jobs: tuple[JobId, ...]  # The jobs with shares of it, ascending; at least one
    shares: tuple[float, ...]  # What part of the device each of them has, above 0
    first: bool = False

    def __post_init__(self) -> None:
        if not self.jobs or len(self.jobs) != len(self.shares):
            msg = f"a shared GPU has one or more jobs with one share each (got {self})"
            raise ValueError(msg)

    @property
    def free(self) -> float:
        """The part of it that nobody holds."""
        return max(0.0, 1.0 - sum(self.shares))
