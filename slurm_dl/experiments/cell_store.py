"""Simulations kept under names made of all that determines them, and the manifest that says it.

A name has a digest of the jobs, the cluster, the policy, the costs and every other input of a
simulation, by content and not by path. So any command may keep its simulations in any folder, and
what one of them has computed no other computes again.

Every output of a simulation carries the manifest, the same in all of them: JSON under the key
``manifest``, a CSV in a file of its own beside it (``NAME.csv-metadata.json``, after W3C's "Model
for tabular data and metadata on the web", 2015), a picture in its metadata, a page in its data.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import hashlib
import json
import platform
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

import slurm_dl
from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.experiments.comparison import FIGURES
from slurm_dl.experiments.grid import Cell, Experiment, Figures
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies import policy_file
from slurm_dl.recording.snapshot_file import to_plain
from slurm_dl.report import export
from slurm_dl.report.export import write_whole
from slurm_dl.simulation.ideal import presets
from slurm_dl.text import safe
from slurm_dl.traces.file_lines import file_sha256
from slurm_dl.traces.summary import left_out_json

_LONGEST_NAME: Final = 100
_MARK: Final = "versions.json"


_Input = tuple[str, str | None]  # A kind of input, and its name

_COUNTS: Final = ("too_large", "jobs", "finished", "completed", "decisions", "events")
_KINDS: Final[dict[str, Any]] = {
    "preset": str, "parameters": dict[str, Any], "costs": str, "notes": list[str],
    "placement": dict[str, float | dict[str, int] | None] | None, "blocks": float, "wall_s": float,
    **dict.fromkeys(_COUNTS, int), **dict.fromkeys((*FIGURES, "max_jct_s"), float | None),
}  # fmt: skip
_Kept: Final = create_model("_Kept", __config__=ConfigDict(strict=True), **_KINDS)
"""Figures that reports take from a file."""


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """The cells of *experiment* that are done, in the folder *path*.

    ::

        versions.json      the versions that the figures are of
        cells/NAME.json    the figures of one simulation, there whole or not at all
        cells/NAME.csv.gz  its jobs, as `export.jobs_csv` has them
    """

    path: Path
    experiment: Experiment
    kept: ClassVar[type[BaseModel]] = _Kept
    _names: dict[Cell, str] = field(default_factory=dict, repr=False)
    _digests: dict[_Input, str] = field(default_factory=dict, repr=False)

    def begin(self) -> Self:
        """Make the folder, or check that new figures may stand beside those in it.

        Raises:
            ConfigError: It holds something else or figures of other versions, or cannot be made.
        """
        mark, here = self.path / _MARK, versions()
        try:
            there = json.loads(mark.read_text("utf-8")) if mark.exists() else None
            cells = self.path / "cells"
            if not cells.is_dir() and self.path.is_dir() and any(self.path.iterdir()):
                msg = f"--dir {self.path}: is not empty and holds no simulations; name a new folder"
                raise ConfigError(msg)
            cells.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as err:
            msg = f"--dir {self.path}: {err}"
            raise ConfigError(msg) from err
        if there is None:
            write_whole(mark, json.dumps(here).encode())
        elif there != here:
            msg = f"--dir {self.path}: is of {_told(there)}; here are {_told(here)}: name a new one"
            raise ConfigError(msg)
        return self

    def name(self, cell: Cell) -> str:
        """The name of the files of *cell*, without its ending; it begins with words for people.

        Raises:
            ConfigError: A file that the simulation reads cannot be read.
        """
        name = self._names.get(cell)
        if name is None:
            label = dataclasses.replace(cell.policy, name="").short_label
            words = f"{label}, load {cell.load:g}, resample {cell.resample}"
            words = re.sub(r"[^A-Za-z0-9.,=-]+", "_", words)[:_LONGEST_NAME]
            self._names[cell] = name = f"{words}-{self._digest(cell)[:16]}"
        return name

    def _digest(self, cell: Cell) -> str:
        ground, policy = self.experiment.ground_here, cell.policy
        plain = dataclasses.replace(
            policy, name="", policy=policy_file.short(policy.policy), preset=policy.preset or "none"
        )
        own = dataclasses.replace(cell, workload="", costs=None, policy=plain)
        known = dataclasses.replace(ground.foresight, rates=None)
        whole = dataclasses.replace(
            self.experiment, workloads={}, files={}, notes_nodes=False,
            ground=dataclasses.replace(ground, profiles=None, foresight=known),
        )  # fmt: skip
        costs = self.experiment.costs_of(cell)
        if costs is None and not presets.find(policy.preset or "none").is_of_its_own:
            costs = "none"
        parts = (
            self._once(("jobs", cell.workload), self._workload_digest),
            self._once(("costs", costs), _costs_digest),
            self._once(("policy", self.experiment.policy_of(cell)), _policy_digest),
            self._once(("profiles", ground.profiles), _file_digest),
            self._once(("rates", ground.foresight.rates), _file_digest),
            self._once(("experiment", ""), lambda _: _digest_of(whole, type(whole))),
            _digest_of(own, type(own)),
        )
        return _hash(" ".join(parts).encode())

    def _once(self, key: _Input, digest: Callable[[Any], str]) -> str:
        found = self._digests.get(key)
        if found is None:
            self._digests[key] = found = digest(key[1])
        return found

    def _workload_digest(self, name: str) -> str:
        workload = self.experiment.workloads[name]
        return f"{_jobs_digest(workload.jobs)} {workload.cluster}"

    def missing(self, cells: Collection[Cell]) -> tuple[Cell, ...]:
        """Those of *cells* without figures."""
        there = {entry.name for entry in (self.path / "cells").iterdir()}
        return tuple(cell for cell in cells if f"{self.name(cell)}.json" not in there)

    def get(self, cell: Cell) -> Figures | None:
        """The figures of *cell*; None if they are not there.

        Raises:
            ConfigError: They cannot be read.
        """
        path = self.path / "cells" / f"{self.name(cell)}.json"
        try:
            content = path.read_bytes()
            self.kept.model_validate_json(content)
        except FileNotFoundError:
            return None
        except OSError as err:
            why = str(err.strerror)
        except ValidationError as err:
            first = err.errors(include_url=False)[0]
            why = ": ".join((*map(str, first["loc"]), first["msg"]))
        else:
            found: Figures = json.loads(content)
            return found
        msg = f"{path}: is no result ({safe(why, 200)}); delete it, and it is computed again"
        raise ConfigError(msg)

    def put(self, cell: Cell, figures: Figures, records: Records) -> None:
        """Keep the figures and the jobs of *cell*.

        Raises:
            ConfigError: They cannot be written, or a file that was read is another one by now.
        """
        name = self.name(cell)
        jobs = {}
        if self.experiment.workloads[cell.workload].trace is not None:  # of no file
            jobs = {key: digest for key, digest in self._digests.items() if key[0] == "jobs"}
        if type(self)(self.path, self.experiment, _digests=jobs).name(cell) != name:
            msg = f"{cell}: a file that it reads was changed meanwhile; its figures are not kept"
            raise ConfigError(msg)
        cells = self.path / "cells"
        table = gzip.compress(export.jobs_csv(records).encode(), 1, mtime=0)
        write_whole(cells / f"{name}.csv.gz", table)
        # Last, because a cell with figures is done.
        write_whole(cells / f"{name}.json", f"{json.dumps(figures)}\n".encode())


def _jobs_digest(trace: Trace) -> str:
    """A digest of all that a simulation takes from the jobs."""
    columns = (
        trace.submit_s, trace.duration_s, trace.gpus, trace.user, trace.model, trace.ending,
    )  # fmt: skip
    texts = (trace.job_id, trace.users, trace.models, trace.account_names)
    whole = hashlib.sha256(repr(texts).encode())
    if trace.batch is not None:
        whole.update(trace.batch.tobytes())
    if trace.measured:
        whole.update(file_sha256(Path(trace.measured), "*/*.csv").encode())
    for column in columns:
        whole.update(column.tobytes())
    return whole.hexdigest()


def _costs_digest(word: str | None) -> str:
    if (path := cluster_presets.file_of(word)) is None:
        return f"costs {None if word is None else cluster_presets.plain_word(word)}"
    # Figures have its name.
    return f"{Path(path).name} {_file_digest(path)}"


def _policy_digest(name: str) -> str:
    path = policy_file.path_of(name)
    return name if path is None else f"{policy_file.parts(name)[1]} {_file_digest(path)}"


def _file_digest(path: str | None) -> str:
    return "none" if path is None else file_sha256(Path(path), "*.yaml")


def _digest_of(value: object, kind: object) -> str:
    # The order of parameters and of speeds by GPU type changes no figure.
    return _hash(json.dumps(to_plain(value, kind), sort_keys=True).encode())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _told(versions: object) -> str:
    pairs = versions.items() if isinstance(versions, dict) else [("", versions)]
    return ", ".join(f"{name} {safe(str(version), 40)}" for name, version in pairs)


if TYPE_CHECKING:
    from slurm_dl.experiments.grid import Cell, Experiment, Workload

Manifest = Mapping[str, Any]  # As `manifest_of` makes it, ready for `json.dumps`


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
        "pairs": None if foresight.pairs is None else dataclasses.asdict(foresight.pairs),
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
