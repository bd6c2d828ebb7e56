"""Measured speeds of pairs of a trace's jobs, from a table beside that of their speeds alone."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64
from slurm_dl.model.pair_rates import PairRates
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.cluster_shape import ANY_TYPE
from slurm_dl.simulation.job_knowledge import name_of

_FIGURES: Final = 3  # Of a second job: its number, and both speeds

JobKind = tuple[str, int]
"""Model and number of GPUs."""


def pair_rates(trace: Trace, table: Path, types: Sequence[str]) -> PairRates:
    """Speeds of the jobs of *trace* beside each other on the GPUs of *types*.

    Jobs that the table does not have share with nobody, and on types that it does not have nobody
    does. A cluster without names of types has GPUs of the first type of the table.

    Args:
        table: A file as ``slurm_dl/traces/formats/gavel_pairs.json``, which says of what it is.
    """
    kinds, by_type = _read(table)
    number = {kind: at for at, kind in enumerate(kinds)}
    jobs = ((name_of(trace, row), round(gpus)) for row, gpus in enumerate(trace.gpus.tolist()))
    kind = np.array([number.get(job, -1) for job in jobs], dtype=np.int32)
    rate = np.zeros((len(kinds), len(kinds), len(types)))
    names = [next(iter(by_type))] if tuple(types) == (ANY_TYPE,) else types
    for j, name in enumerate(names):
        if name in by_type:
            rate[:, :, j] = by_type[name]
    return PairRates(kind=kind, rate=rate)


@functools.lru_cache(maxsize=2)
def _read(path: Path) -> tuple[tuple[JobKind, ...], Mapping[str, F64]]:
    """The kinds of jobs, and ``(c, c)`` speeds of the first beside the second by GPU type."""
    told = json.loads(path.read_text(encoding="utf-8"))
    kinds = tuple((str(name), int(gpus)) for name, gpus in told["jobs"])
    by_type: dict[str, F64] = {}
    for name, first, *rest in told["pairs"]:
        rate = by_type.setdefault(name, np.zeros((len(kinds), len(kinds))))
        each = np.array(rest).reshape(-1, _FIGURES)
        others = each[:, 0].astype(np.int64)
        rate[first, others], rate[others, first] = each[:, 1], each[:, 2]
    return kinds, by_type
