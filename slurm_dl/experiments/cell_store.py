"""Figures and jobs of simulations in a folder, under names made of all that determines them.

A name has a digest of the jobs, the cluster, the policy, the costs and every other input of a
simulation, by content and not by path. So any command may keep its simulations in any folder, and
what one of them has computed no other computes again.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slurm_dl.experiments import cluster_presets, manifest
from slurm_dl.experiments.grid import Cell, Experiment, Figures
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.job_record import Records
from slurm_dl.model.trace import Trace
from slurm_dl.policies import policy_file
from slurm_dl.recording.typed_json import to_bytes
from slurm_dl.report import export
from slurm_dl.report.export import write_whole
from slurm_dl.simulation.ideal import presets
from slurm_dl.text import safe, shown

_LONGEST_NAME: Final = 100
_MARK: Final = "versions.json"


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
    _names: dict[Hashable, str] = field(default_factory=dict, repr=False)

    def begin(self) -> None:
        """Make the folder, or check that new figures may stand beside those in it.

        Raises:
            ConfigError: It holds something else or figures of other versions, or cannot be made.
        """
        mark, here = self.path / _MARK, manifest.versions()
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
        ground, policy = self.experiment.ground, cell.policy
        known = ground.foresight
        plain = dataclasses.replace(
            policy, name="", policy=policy_file.short(policy.policy),
            preset=policy.preset or "none", parameters=dict(sorted(policy.parameters.items())),
        )  # fmt: skip
        own = dataclasses.replace(cell, workload="", costs=None, policy=plain)
        whole = dataclasses.replace(
            self.experiment, workloads={}, costs={}, policies={}, notes_nodes=False,
            ground=dataclasses.replace(
                ground, profiles=None,
                foresight=dataclasses.replace(
                    known, rates=None, gpu_speed=dict(sorted(known.gpu_speed.items()))
                ),
            ),
        )  # fmt: skip
        costs = self.experiment.costs_of(cell)
        if costs is None and not presets.find(policy.preset or "none").is_of_its_own:
            costs = "none"
        parts = (
            self._once(("jobs", cell.workload), self._workload_digest),
            self._once(("costs", costs), _costs_digest),
            self._once(("policy", self.experiment.policy_of(cell)), _policy_digest),
            self._once(("profiles", ground.profiles), lambda _: _files(ground.profiles, "*.yaml")),
            self._once(("rates", known.rates), _files),
            self._once(("experiment", ""), lambda _: _hash(to_bytes(whole, Experiment))),
            _hash(to_bytes(own, Cell)),
        )
        return _hash(" ".join(parts).encode())

    def _once(self, key: tuple[str, str | None], digest: Callable[[Any], str]) -> str:
        found = self._names.get(key)
        if found is None:
            self._names[key] = found = digest(key[1])
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
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as err:
            found = str(err)
        if isinstance(found, dict) and {"blocks", "jobs", "wall_s"} <= found.keys():
            return found
        msg = f"{path}: is no result ({shown(found)}); delete it, and it is computed again"
        raise ConfigError(msg)

    def put(self, cell: Cell, figures: Figures, records: Records) -> None:
        """Keep the figures and the jobs of *cell*.

        Raises:
            ConfigError: They cannot be written, or a file that was read is another one by now.
        """
        if Store(self.path, self.experiment).name(cell) != self.name(cell):
            msg = f"{cell}: a file that it reads was changed meanwhile; its figures are not kept"
            raise ConfigError(msg)
        path = self.path / "cells" / self.name(cell)
        jobs = gzip.compress(export.jobs_csv(records).encode(), 1, mtime=0)
        write_whole(path.with_name(f"{path.name}.csv.gz"), jobs)
        # Last, because a cell with figures is done.
        write_whole(path.with_name(f"{path.name}.json"), f"{json.dumps(figures)}\n".encode())


def _jobs_digest(trace: Trace) -> str:
    """A digest of all that a simulation takes from the jobs."""
    columns = (
        trace.submit_s, trace.duration_s, trace.gpus, trace.user, trace.model, trace.ending,
    )  # fmt: skip
    texts = (trace.job_id, trace.users, trace.models, trace.account_names)
    whole = hashlib.sha256(repr(texts).encode())
    for column in columns:
        whole.update(column.tobytes())
    return whole.hexdigest()


def _costs_digest(word: str | None) -> str:
    if (path := cluster_presets.file_of(word)) is None:
        return f"costs {None if word is None else cluster_presets.plain_word(word)}"
    # Figures have its name.
    return f"{Path(path).name} {_files(path)}"


def _policy_digest(name: str) -> str:
    path = policy_file.path_of(name)
    return name if path is None else f"{policy_file.parts(name)[1]} {_files(path)}"


def _files(path: str | None, pattern: str | None = None) -> str:
    """A digest of the file *path*, or of the files in it that match *pattern*."""
    if path is None:
        return "none"
    files = [Path(path)] if pattern is None else sorted(Path(path).glob(pattern))
    try:
        return _hash(b"".join(_hash(file.read_bytes()).encode() for file in files))
    except OSError as err:
        msg = f"{err.filename}: {err.strerror}"
        raise ConfigError(msg) from err


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _told(versions: object) -> str:
    pairs = versions.items() if isinstance(versions, dict) else [("", versions)]
    return ", ".join(f"{name} {safe(str(version), 40)}" for name, version in pairs)
