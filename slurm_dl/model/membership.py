"""Which values of one column are among those of another: `numpy.isin` for the hot paths.

For the few hundred ids of a look `numpy.isin` spends several times longer on choosing a method
than this takes altogether.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import Bool

_MANY = 4096
"""From here on NumPy's choice pays."""


def is_in(values: npt.NDArray[Any], among: npt.NDArray[Any] | Collection[Any]) -> Bool:
    """``(len(values),)`` bool: the value is one of *among*, in whatever order those are.

    Args:
        among: An array, or a sequence of numbers or of strings.
    """
    if not len(among):
        return np.zeros(len(values), dtype=np.bool_)
    if len(values) + len(among) > _MANY:
        return np.isin(values, np.asarray(among))
    ordered = np.array(among)
    ordered.sort()
    at = ordered.searchsorted(values)
    at[at == len(ordered)] = 0
    found: Bool = ordered[at] == values
    return found
