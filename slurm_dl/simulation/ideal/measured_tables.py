"""Files of measured models, see `measured_models`: hostile as any file somebody names."""

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
