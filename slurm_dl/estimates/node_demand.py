"""Nodes that will be in use at most within the next hours, learned from those of the last weeks.

Regressed is the rise from the nodes in use now to the most within the horizon, on the numbers some
time ago, their means over the last hours and day, those of the same time a day and a week before,
all as differences from the number now, and on that, the hour and the weekday. A difference also
holds where a cluster has grown. The trees are those of `boosted_trees`.

Source: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters", SC 2021, section 4.3 (Cluster Energy Saving), and its code, S-Lab HeliosArtifact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from slurm_dl.estimates.boosted_trees import quietly
from slurm_dl.model.jobs import F64, I64, Bool

STEP_S = 600.0  # Of the series, seconds
_DAY = int(86_400 / STEP_S)
_WEEK = 7 * _DAY
LEAST_STEPS = 2 * _WEEK  # From a shorter history nothing is forecast
_TESTED = 0.2  # The last part of the history is held out
_ENOUGH = 0.99  # The buffer would have been enough in this share of the time held out
_GOLDEN = 0.618034
_AGO = (1, 3, 6, 18)  # Steps
_WINDOWS = (3, 6, 18, _DAY)  # Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDemand:
    """A forecast, and its error on the time held out.

    Attributes:
        most: Nodes in use at most within the horizon, without the buffer.
        buffer: Nodes more, with which the forecast was enough in 99 % of the time held out.
        error: Mean absolute error of the forecast, nodes.
        last_value_error: That of the last value.
        risen_value_error: That of the last value and the mean rise within the horizon.
    """

    most: float
    buffer: int
    error: float
    last_value_error: float
    risen_value_error: float

    @property
    def is_of_use(self) -> bool:
        """The forecast was better than both."""
        return self.error < min(self.last_value_error, self.risen_value_error)


def nodes_in_use(runs: Iterable[tuple[str, float, float]], begin_s: float, end_s: float) -> F64:
    """``(t,)`` nodes with a job in each step of the time; the last step ends at *end_s*.

    Args:
        runs: Node, start and end of each run on it, epoch seconds.
        begin_s: The steps begin at this time or up to a step later, epoch seconds.
        end_s: Above it.
    """
    steps = int((end_s - begin_s) // STEP_S)
    first_s = end_s - steps * STEP_S
    change: dict[str, F64] = {}
    for node, start_s, stop_s in runs:
        first = max(0, math.floor((start_s - first_s) / STEP_S))
        last = min(steps, math.ceil((stop_s - first_s) / STEP_S))
        if first < last:
            of = change.setdefault(node, np.zeros(steps + 1))
            of[first] += 1
            of[last] -= 1
    total = np.zeros(steps)
    for of in change.values():
        total += of.cumsum()[:-1] > 0
    return total


def node_demand(in_use: F64, end_s: float, horizon_s: float) -> NodeDemand | None:
    """The forecast from *in_use* of the time from *end_s* on; None if it is too short.

    scikit-learn must be installed.

    Args:
        in_use: ``(t,)`` nodes in use, by step; the last step ends at *end_s*, epoch seconds.
        horizon_s: Looked ahead, seconds; at least one step, at most a day.
    """
    ahead = max(1, round(horizon_s / STEP_S))
    if len(in_use) < LEAST_STEPS or not ahead <= _DAY:
        return None
    seen = _features(in_use, end_s, ahead)
    most = sliding_window_view(in_use[1:], ahead).max(axis=1)  # Of the steps after each
    known = np.arange(len(most)) >= _DAY
    cut = int(len(in_use) * (1 - _TESTED))
    # What the last rows before the cut would learn lies behind it.
    before = known & (np.arange(len(most)) < cut - ahead)
    tested = np.arange(len(most)) >= cut
    true, last = most[tested], in_use[: len(most)][tested]
    risen = most - in_use[: len(most)]
    said = last + _learned(seen, risen, before, tested.nonzero()[0])
    return NodeDemand(
        most=float(in_use[-1] + _learned(seen, risen, known, np.array([len(seen) - 1]))[0]),
        buffer=max(0, math.ceil(np.quantile(true - said, _ENOUGH))),
        error=float(np.abs(true - said).mean()),
        last_value_error=float(np.abs(true - last).mean()),
        risen_value_error=float(np.abs(true - last - risen[before].mean()).mean()),
    )


def _learned(seen: F64, risen: F64, rows: Bool, asked: I64) -> F64:
    from sklearn.ensemble import (  # noqa: PLC0415 - optional, slow to import
        HistGradientBoostingRegressor,
    )

    # Small steps and large leaves: neighbouring rows tell the same.
    trees = HistGradientBoostingRegressor(
        loss="absolute_error", learning_rate=0.03, max_iter=150, max_leaf_nodes=8,
        min_samples_leaf=_DAY // 2, early_stopping=False, random_state=0,
    )  # fmt: skip
    # Less than half a node: where most rises are equal, a median of theirs would learn nothing.
    dither = np.arange(len(risen)) * _GOLDEN % 1 - 0.5
    quietly(lambda: trees.fit(seen[: len(risen)][rows], (risen + dither)[rows]))
    said: F64 = quietly(lambda: trees.predict(seen[asked]))
    return np.round(said)


def _features(in_use: F64, end_s: float, ahead: int) -> F64:
    """``(t, f)`` what is known at the end of each step; NaN for what lies before the first."""
    t = len(in_use)
    at_s = end_s - STEP_S * np.arange(t - 1, -1, -1)
    clock = [at_s % 86_400 // 3600, at_s // 86_400 % 7, in_use]
    columns = [_ago(in_use, steps) for steps in _AGO]
    total = np.concatenate([[0.0], in_use.cumsum()])
    for window in _WINDOWS:
        mean = np.full(t, np.nan)
        mean[window - 1 :] = (total[window:] - total[:-window]) / window
        columns.append(mean)
    # The largest within the horizon, a day and a week before: the steps that end there.
    latest = np.full(t, np.nan)
    latest[ahead - 1 :] = sliding_window_view(in_use, ahead).max(axis=1)
    columns += [_ago(latest, period - ahead) for period in (_DAY, _WEEK)]
    return np.column_stack([*clock, *(column - in_use for column in columns)])


def _ago(values: F64, steps: int) -> F64:
    shifted = np.full(len(values), np.nan)
    shifted[steps:] = values[: len(values) - steps]
    return shifted
