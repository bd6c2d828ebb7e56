"""Speeds of two jobs on the same GPUs for simulations, by kinds of jobs.

A job whose model in the trace has the name of a kind is of that kind; the kinds of the others are
drawn. Two tables come with slurm_dl, of three trainings on an NVIDIA H200: heavy (GPU busy 82 %
alone), medium (37 %) and light (32 %). They count for each size: pairs of jobs on several GPUs are
taken to be as fast as on one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.pair_rates import PairRates
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.slurm.overheads import read_table
from slurm_dl.text import shown

_MEASURED: Final = ("slices", "mps")
_SHARES: Final = re.compile(r"(.+):([0-9.]+(?:/[0-9.]+)*)", re.DOTALL)
_MEASURED_SHARES: Final = (40.0, 30.0, 30.0)


@dataclass(frozen=True, slots=True)
class PairTable:
    """Speeds of k kinds of jobs beside each other."""

    name: str  # As it was asked for
    kinds: tuple[str, ...]  # Names of the kinds
    rate: tuple[tuple[float, ...], ...]  # Relative speed of each kind (row) beside each (column)
    shares: tuple[float, ...]  # Jobs of each kind, where they are drawn, in any unit

    def of(self, trace: Trace, seed: int) -> PairRates:
        """Speeds of the jobs of *trace*; what is drawn depends on *seed* alone."""
        known = {kind: number for number, kind in enumerate(self.kinds)}
        part = np.array(self.shares) / math.fsum(self.shares)
        drawn = np.random.default_rng([seed, 4]).choice(len(part), size=len(trace), p=part)
        named = np.array([known.get(name, -1) for name in (*trace.models, "")])[trace.model]
        kind = np.where(named >= 0, named, drawn)
        return PairRates(kind=kind.astype(np.int32), rate=np.array(self.rate)[:, :, None])


def parse_pairs(word: str | None) -> PairTable | None:
    """The table that *word*, ``slices``, ``mps`` or ``FILE``, asks for, and ``:SHARES`` after it.

    Raises:
        ConfigError: It is no such thing, or the file has no such table.
    """
    if word is None:
        return None
    found = _SHARES.fullmatch(word)
    name, told = (found[1], found[2].split("/")) if found else (word, [])
    ours = Path(str(files("slurm_dl.traces.formats"))) / f"h200_pairs_{name}.json"
    table = read_pairs(ours if name in _MEASURED else Path(name))
    default = _MEASURED_SHARES if name in _MEASURED else (1.0,) * len(table)
    try:
        shares = tuple(map(float, told)) or default
    except ValueError:
        shares = ()
    if len(shares) != len(table) or not 0 < math.fsum(shares) < math.inf:
        form = "/".join(table)
        msg = f"--pairs {shown(word)}: the shares must be {form}, a number for each, as in 40/30/30"
        raise ConfigError(msg)
    rate = tuple(tuple(table[one][other] for other in table) for one in table)
    return PairTable(word, tuple(table), rate, shares)


def read_pairs(path: Path) -> Mapping[str, Mapping[str, float]]:
    """Relative speeds from YAML or JSON: ``KIND: {OTHER: SPEED}``, one of each beside each.

    All of it may stand under ``pairs``, beside the origin of the figures.

    Raises:
        ConfigError: The file cannot be read, or something in it is no such thing.
    """
    form = "must be KIND: {OTHER: SPEED}, a speed of 0 to 2 for each kind beside each"
    try:
        table = read_table(path)
    except ConfigError as err:
        msg = f"--pairs: slices, mps or a file, which {form} ({err})"
        raise ConfigError(msg) from err
    table = table.get("pairs", table)
    for kind, told in table.items():
        speeds = list(told.values()) if isinstance(told, dict) else []
        right = all(type(speed) in (int, float) and 0 <= speed <= 2 for speed in speeds)  # noqa: PLR2004
        if not (right and isinstance(told, dict) and told.keys() == table.keys()):
            msg = f"--pairs {path}: {shown(kind)}: {form}"
            raise ConfigError(msg)
    return {str(kind): {str(o): float(s) for o, s in told.items()} for kind, told in table.items()}
