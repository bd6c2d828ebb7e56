"""Inputs of policies about each job, beside what Slurm and the ledger say.

The daemon (`daemon.enrich`) estimates them, a trace knows them for the ideal cluster and the
simulated Slurm (`simulation.job_knowledge`), and forward runs go on from a snapshot's. An input is
a field of `Snapshot` with the value of a new job, and its two sources; what a source leaves out is
not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.snapshot import NEW_JOB, Snapshot

COLUMNS: Final[Mapping[str, float]] = {
    field.name: field.metadata[NEW_JOB] for field in fields(Snapshot) if NEW_JOB in field.metadata
}
"""By field of `Snapshot`, its value of a new job of which nothing is known."""

Inputs = dict[str, Any]
"""Values of fields of `Snapshot`: of `COLUMNS`, and of those that are no column."""


def columns_at(snap: Snapshot, rows: npt.NDArray[Any]) -> Inputs:
    """The columns of the jobs at *rows*; None stays None."""
    known = {name: getattr(snap, name) for name in COLUMNS}
    return {name: None if one is None else one[rows] for name, one in known.items()}


def columns_and(snap: Snapshot, k: int, **given: npt.NDArray[Any] | None) -> Inputs:
    """The columns with *k* more jobs at the end; None stays None.

    Args:
        given: ``(k,)`` values of the further jobs in columns that are not those of `COLUMNS`.
    """
    longer: Inputs = {}
    for name, value in COLUMNS.items():
        column, more = getattr(snap, name), given.get(name)
        if column is None and more is not None:
            column = np.full(len(snap.jobs), value)
        if column is not None:
            filled = np.full((k, *column.shape[1:]), value, dtype=column.dtype)
            column = np.concatenate([column, filled if more is None else more])
        longer[name] = column
    return longer
