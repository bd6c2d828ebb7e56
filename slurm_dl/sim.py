"""The simulator for Python: a trace under policies, in a script or a notebook.

    from slurm_dl import sim

    result = sim.compare("jobs.csv", ["fifo", "./mine.py:Mine"], "8x8", resamples=4)

docs/evaluate/python.md says what is stable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from slurm_dl.experiments import call_arguments, comparison, grid, policy_words
from slurm_dl.experiments.call_arguments import WithObjects, check, checked_each
from slurm_dl.experiments.cell_store import Manifest, manifest_of
from slurm_dl.experiments.grid import Cell, Experiment, Figures, Workload
from slurm_dl.experiments.placement_choice import parse_named
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.trace import Trace
from slurm_dl.policies import policy_file
from slurm_dl.policies.base import Policy
from slurm_dl.report import export
from slurm_dl.traces.format_registry import read_trace

__all__ = [
    "Comparison", "Simulation", "SlurmDlError", "Trace", "compare", "read", "simulate",
    "to_dataframe",
]  # fmt: skip

AnyPolicy: TypeAlias = str | type[Policy] | Policy
"""``NAME``, ``NAME:PRESET``, ``FILE.py:CLASS``, a class, or an instance with its parameters."""

_SHOWN: Final = ("avg_jct_s", "p99_jct_s", "utilisation_frac", "preemptions")


def _told(figures: Mapping[str, Any]) -> str:
    values = {name: figures[name] for name in _SHOWN}
    return ", ".join(f"{k} {'-' if v is None else format(v, '.4g')}" for k, v in values.items())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Simulation:
    """One trace under one policy.

    Attributes:
        figures: Those of ``dlsim run --json``, by its keys; seconds, GPU-seconds and shares. None
            where a figure does not exist.
        jobs: Columns of ``dlsim run --jobs-csv``, a value for each job; NaN where there is none.
    """

    label: str  # The policy and its scheme
    figures: Figures
    jobs: Mapping[str, list[Any]]

    def __repr__(self) -> str:
        return f"<Simulation {self.label}: {_told(self.figures)}>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Comparison:
    """One trace under several policies."""

    data: Mapping[str, Any]  # All of ``dlsim compare --json``

    @property
    def figures(self) -> list[dict[str, Any]]:
        """A row for each cost model, load and policy; each figure's ``value`` is the trace's."""
        return list(self.data["rows"])

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The figures of each simulation."""
        return list(self.data["cells"])

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.data[k])} {k}" for k in ("cells", "refused", "failed"))
        lines = [f"<Comparison on {self.data['cluster']}: {counts}"]
        for row in self.figures:
            values = {name: figure["value"] for name, figure in row["figures"].items()}
            lines.append(
                f"  {row['policy']}, {row['costs']}, load {row['load']:g}: {_told(values)}"
            )
        return "\n".join(lines) + ">"


def read(path: str | Path, format: str | None = None) -> Trace:  # noqa: A002 - the option's name
    """The jobs of a trace file, in any format of ``dlsim traces --formats``."""
    check(path=path, format=format)
    return read_trace(Path(path), format)


def simulate(
    trace: str | Path | Trace,
    policy: AnyPolicy,
    cluster: str,
    *,
    costs: str | None = None,
    preset: str | None = None,
    parameters: Mapping[str, object] | None = None,
    place: str | None = None,
    seed: int = 0,
) -> Simulation:
    """Run *trace* under *policy*; arguments are as the options of ``dlsim run``.

    Raises:
        SlurmDlError: An argument is wrong, or the policy stops time.
        TypeError: An argument is of another type.
        ValueError: A number is out of range.
    """
    check(
        trace=trace, cluster=cluster, costs=costs, preset=preset, parameters=parameters,
        place=place, seed=seed,
    )  # fmt: skip
    checked_each("names of parameters", parameters or ())
    objects: dict[str, Policy] = {}
    if isinstance(policy, str):
        name, named = policy_file.split(policy)
        spec = PolicySpec(policy=name, preset=preset or named, parameters=dict(parameters or {}))
    else:
        spec, objects = call_arguments.asked(policy, parameters or {}, preset=preset)
    spec = dataclasses.replace(spec, place=None if place is None else parse_named("place", place))
    experiment, cell = _experiment(trace, cluster, objects, seed), Cell(policy=spec, costs=costs)
    simulated = experiment.simulate(cell)
    return Simulation(
        label=spec.label,
        figures={**_manifest(experiment, [cell], "simulate"), **grid.simulation_json(simulated)},
        jobs=export.jobs_columns(simulated.result.outcome.records),
    )


def compare(
    trace: str | Path | Trace,
    policies: str | Sequence[AnyPolicy],
    cluster: str,
    *,
    costs: str | Sequence[str] | None = None,
    loads: Sequence[float] = (1.0,),
    resamples: int = 0,
    seed: int = 0,
    processes: int = 1,
) -> Comparison:
    """Run *trace* under each of *policies*; arguments are as the options of ``dlsim compare``.

    Args:
        policies: The first is what the others are held against.
        processes: Simulations at a time; 1: all in this process. Other processes run nothing of the
            script, so it needs no ``if __name__ == "__main__"``, and a class of its own must be in
            a file and be named ``FILE.py:CLASS``, or in a module that can be imported.

    Raises:
        SlurmDlError: An argument is wrong, or all policies failed; see also ``data["failed"]``.
        TypeError: An argument is of another type.
        ValueError: A number is out of range.
    """
    check(trace=trace, cluster=cluster, resamples=resamples, seed=seed, processes=processes)
    words = checked_each("costs", [costs] if costs is None or isinstance(costs, str) else costs)
    paces = checked_each("loads", loads)
    specs: list[PolicySpec] = []
    objects: dict[str, Policy] = {}
    for one in checked_each("policies", [policies] if isinstance(policies, str) else policies):
        if isinstance(one, str):
            specs += policy_words.parse_policies(one, {})
        else:
            spec, made = call_arguments.asked(one, {}, elsewhere=processes > 1)
            specs.append(spec)
            objects |= made
    experiment = _experiment(trace, cluster, objects, seed)
    lenient = isinstance(policies, str) and policy_words.names_all(policies)
    cells = grid.product(specs, costs=words, loads=tuple(paces), resamples=resamples)
    cells, refused = comparison.planned(experiment, cells, lenient=lenient)
    ran = dict(grid.run(experiment, cells, grid.figures_of, processes=processes))
    whole = comparison.compared(experiment, {cell: ran[cell] for cell in cells}, refused)
    told = comparison.as_json(experiment.workloads[""].jobs, whole)
    return Comparison(data={**_manifest(experiment, cells, "compare"), **told})


def _experiment(
    trace: str | Path | Trace, cluster: str, objects: Mapping[str, Policy], seed: int
) -> WithObjects:
    jobs = trace if isinstance(trace, Trace) else read(trace)
    work = {"": Workload(cluster=cluster, trace=jobs)}
    return WithObjects(workloads=work, objects=objects, seed=seed)


def _manifest(experiment: Experiment, cells: Sequence[Cell], call: str) -> dict[str, Manifest]:
    return {"manifest": manifest_of(experiment, cells, f"slurm_dl.sim.{call}")}


def to_dataframe(
    result: Simulation | Comparison, library: Literal["pandas", "polars"] | None = None
) -> Any:  # noqa: ANN401 - neither library is a dependency
    """The jobs of a simulation, or the simulations of a comparison, one a row.

    Args:
        library: None: pandas if it is installed, else polars.

    Raises:
        ImportError: It is not installed; says what to install.
        TypeError: An argument is of another type.
    """
    check(library=library)
    if not issubclass(type(result), Simulation | Comparison):
        msg = f"result: must be Simulation or Comparison (got {result!r})"
        raise TypeError(msg)
    for name in (library,) if library else ("pandas", "polars"):
        if find_spec(name) is not None:
            return import_module(name).DataFrame(_columns(result))
    msg = f"to_dataframe needs {library or 'pandas or polars'}: pip install {library or 'pandas'}"
    raise ImportError(msg)


def _columns(result: Simulation | Comparison) -> dict[str, list[Any]]:
    if isinstance(result, Simulation):
        return dict(result.jobs)
    cells = result.cells
    nested = {name for cell in cells for name, value in cell.items() if isinstance(value, dict)}
    return {name: [cell[name] for cell in cells] for name in cells[0] if name not in nested}
