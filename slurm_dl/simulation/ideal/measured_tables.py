"""Files of measured models, a folder for each application; hostile as any file somebody names.

They are those of Pollux' artifact (OSDI 2021; petuum/adaptdl@c793c70 ``simulator/traces``):

- ``placements.csv``: step and synchronisation time by placement, a digit for the GPUs on each node,
  and samples of a GPU in one pass;
- ``scalability.csv``: the same by number of nodes and of GPUs, for larger jobs;
- ``validation-BATCH.csv``: a line for each epoch that was trained with this batch: progress and
  iterations at its end, and the variance of the gradient.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.text import safe

PLACEMENT: Final = ("placement", "local_bsz", "step_time", "sync_time")
SCALE: Final = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
EPOCH: Final = ("progress", "iteration", "grad_sqr", "grad_var")
MAY_BE_0: Final = frozenset({"sync_time", "grad_sqr", "grad_var"})

_MOST_BYTES: Final = 1 << 24


def applications(folder: Path) -> list[str]:
    """The names of the applications in *folder*; empty if it is none."""
    return sorted(path.parent.name for path in folder.glob("*/placements.csv"))


def validations(folder: Path) -> list[tuple[int, Path]]:
    """The batches that were measured, smallest first, and the file of each."""
    found = []
    for path in folder.glob("validation-*.csv"):
        batch = path.stem.partition("-")[2]
        if not (batch.isascii() and batch.isdigit() and 0 < int(batch[:12]) == int(batch)):
            msg = f"{path}: the name must be validation-BATCH.csv"
            raise ConfigError(msg)
        found.append((int(batch), path))
    if not found:
        msg = f"{folder}: no validation-BATCH.csv in it"
        raise ConfigError(msg)
    return sorted(found)


def table(path: Path, columns: Sequence[str]) -> F64:
    """``(lines, columns)`` numbers of a table under a header; those of `MAY_BE_0` alone may be 0.

    Raises:
        ConfigError: It cannot be read, lacks a column, or has something else in it.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = csv.reader(stream.read(_MOST_BYTES).splitlines(), strict=True)
            header = next(lines, [])
            lacking = [name for name in columns if name not in header]
            if lacking:
                msg = f"{path}:1: no column {', '.join(lacking)}"
                raise ConfigError(msg)
            at = {header.index(name): name in MAY_BE_0 for name in columns}
            found = [_numbers(path, lines.line_num, line, at) for line in lines if line]
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        reason = err.strerror if isinstance(err, OSError) else err
        msg = f"{path}: cannot be read: {reason}"
        raise ConfigError(msg) from err
    if not found:
        msg = f"{path}: no line below the header"
        raise ConfigError(msg)
    return np.array(found)


def means(placements: F64) -> F64:
    """``(k, 5)`` columns of `SCALE`: placements of as many nodes, GPUs and samples as one."""
    digits = [str(int(place)) for place in placements[:, 0].tolist()]
    where = np.array([[len(d), sum(map(int, d))] for d in digits], dtype=np.float64)
    whole = np.column_stack([where, placements[:, 1:]])
    keys, group = np.unique(whole[:, :3], axis=0, return_inverse=True)
    averages = [whole[group.ravel() == i, 3:].mean(axis=0) for i in range(len(keys))]
    return np.column_stack([keys, averages])


def _numbers(path: Path, number: int, line: Sequence[str], at: Mapping[int, bool]) -> list[float]:
    try:
        values = [float(line[i]) for i in at]
    except (IndexError, ValueError):
        values = [math.nan] * len(at)
    least = [value > 0 or zero for value, zero in zip(values, at.values(), strict=True)]
    if not all(least) or not all(0 <= value < math.inf for value in values):
        msg = f"{path}:{number}: {safe(','.join(line), 60)}: must be {len(at)} numbers above 0"
        raise ConfigError(msg)
    return values
