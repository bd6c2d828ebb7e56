"""The manifest of an experiment: everything that defines its figures, beside the figures.

Every output of a simulation carries one, the same in all of them: JSON under the key ``manifest``,
a CSV in a file of its own beside it (``NAME.csv-metadata.json``, after W3C's "Model for tabular
data and metadata on the web", 2015), a picture in its metadata, a page in its data.
"""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import slurm_dl
from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.policies import policy_file
from slurm_dl.report import export
from slurm_dl.traces.file_lines import file_sha256
from slurm_dl.traces.summary import left_out_json

if TYPE_CHECKING:
    from slurm_dl.experiments.grid import Cell, Experiment, Workload

Manifest = Mapping[str, Any]
"""As `manifest_of` makes it, ready for `json.dumps`."""


def versions() -> dict[str, str]:
    """The versions on which figures depend."""
    modules = {module.__name__: str(module.__version__) for module in (slurm_dl, np)}
    return {**modules, "python": platform.python_version()}


def manifest_of(experiment: Experiment, cells: Sequence[Cell], command: str) -> Manifest:
    """The manifest of *cells*, which can run; its keys are those of `docs/evaluate/simulator.md`.

    Args:
        command: The command line, or the call.

    Raises:
        ConfigError: A cell cannot run.
    """
    ground = experiment.ground_here
    foresight = ground.foresight
    unlike = {(cell.policy.short_label, cell.costs): cell for cell in reversed(cells)}
    ready = [(cell, *experiment.ready(cell)) for cell in reversed(unlike.values())]
    return {
        "versions": versions(),
        "command": command,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "workloads": [_workload(one) for one in experiment.workloads.values()],
        "policies": [
            {
                "label": cell.policy.label,
                "policy": cell.policy.policy,
                "file": _file(policy_file.path_of(experiment.policy_of(cell))),
                "preset": chosen.preset,
                "parameters": export.plain(simulation_run.parameters(chosen.made)),
                "min_quantum_s": cell.policy.min_quantum_s,
                "place": "" if cell.policy.place is None else str(cell.policy.place),
                "costs": cluster.name,
                "costs_file": _file(cluster_presets.file_of(experiment.costs_of(cell))),
                "notes": list(chosen.notes),
            }
            for cell, chosen, cluster in ready
        ],
        "loads": list(dict.fromkeys(cell.load for cell in cells)),
        "resamples": max((cell.resample for cell in cells), default=0),
        "block_days": experiment.block_days,
        "seed": experiment.seed,
        "rules": list(map(str, ground.rules)),
        "profiles": _file(ground.profiles),
        "widths": ground.widths,
        "contention": export.plain(ground.contention),
        "gpu_speed": dict(foresight.gpu_speed),
        "rates": _file(foresight.rates),
        "estimate_error": foresight.error,
        "due": {"share": foresight.due_share, "after": foresight.due_after},
        "elastic": foresight.elastic,
        "expand": foresight.expand,
        "steadiness": foresight.steadiness,
        "node_failures": experiment.failures,
    }


def _file(path: str | None, pattern: str = "*.yaml") -> dict[str, str] | None:
    if path is None:
        return None
    return {"file": Path(path).name, "sha256": file_sha256(Path(path), pattern)}


def _workload(workload: Workload) -> dict[str, object]:
    trace = workload.jobs
    return {
        "trace": trace.name,
        "format": trace.format,
        "sha256": trace.sha256 or None,
        "models": _file(trace.measured or None, "*/*.csv"),
        "jobs": len(trace),
        "left_out": left_out_json(trace),
        "tags": workload.tags,
        "cluster": workload.cluster,
    }
