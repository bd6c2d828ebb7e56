"""Who may import what: the contracts in pyproject.toml hold, and each of them can be broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PURE = ("model", "estimates", "policies", "placement", "ledger", "engine")
PURE_MAY_IMPORT = {
    *("__future__", "abc", "bisect", "collections", "dataclasses", "enum", "functools", "heapq"),
    *("itertools", "math", "numpy", "types", "typing"),
}
"""Everything the pure layers import from outside, but for `ALSO`."""

ALSO = {
    "slurm_dl.model.ids": {"re"},
    "slurm_dl.model.booking": {"json"},
    "slurm_dl.model.plugins": {"importlib"},
    "slurm_dl.model.bounds": {"re"},
    "slurm_dl.model.shape": {"re"},
    "slurm_dl.policies.arithmetic.assignment": {"scipy"},
    "slurm_dl.policies.arithmetic.lease_packing": {"scipy"},
    "slurm_dl.policies.arithmetic.lp_solver": {"clarabel", "contextlib", "ctypes", "scipy"},
    "slurm_dl.policies.arithmetic.matching": {"scipy"},
    "slurm_dl.policies.grouper": {"re"},
    "slurm_dl.policies.policy_file": {"difflib", "importlib", "re", "sys"},
    "slurm_dl.estimates.node_demand": {"sklearn"},
    "slurm_dl.estimates.similar_jobs": {"difflib"},
    "slurm_dl.estimates.boosted_trees": {"sklearn", "threadpoolctl", "warnings"},
    "slurm_dl.estimates.goodput": {"scipy"},
}
"""Entry points of a site's own policies, schemes and rules are looked up there; names are compared,
run times and speeds learned, and linear programs solved."""


CALLBACKS = {
    "slurm_dl.job.huggingface": {"torch", "transformers"},
    "slurm_dl.job.lightning": {"lightning"},
}
"""What is for users of one framework, and needs it."""


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the package in *directory*."""
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports("
    return subprocess.run(
        [sys.executable, "-c", f"{command}config_filename={str(PROJECT)!r}, no_cache=True))"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


PROJECT = ROOT / "pyproject.toml"


@pytest.fixture(scope="session")
def graph() -> grimp.ImportGraph:
    """Who imports whom, the modules outside the package included."""
    return grimp.build_graph("slurm_dl", include_external_packages=True, cache_dir=None)


def imported_by(graph: grimp.ImportGraph, module: str) -> set[str]:
    """What *module* imports from outside the package."""
    found = graph.find_modules_directly_imported_by(module)
    return {name for name in found if name.partition(".")[0] != "slurm_dl"}


def within(graph: grimp.ImportGraph, package: str) -> set[str]:
    """*package* with all its modules, but for the ledger on disk."""
    found = {package, *graph.find_descendants(package)}
    return {name for name in found if not name.startswith("slurm_dl.ledger.sqlite")}


def test_the_contracts_hold() -> None:
    """Imports go one way, the pure layers are pure, and the job's side stands alone."""
    checked = lint(ROOT)

    assert checked.returncode == 0, checked.stdout
    assert "5 kept, 0 broken" in checked.stdout


def test_no_modules_import_each_other(graph: grimp.ImportGraph) -> None:
    """Neither directly nor through others; imports inside functions count."""
    imported = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}

    TopologicalSorter(imported).prepare()


NO_IO = "The pure layers do no I/O and know no clock"
ONE_WAY = "Dependencies point one way"
ALONE = "What runs inside a user's job stands alone"


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("policies/fifo.py", "import time", NO_IO),
        ("estimates/remaining_time.py", "import time", NO_IO),
        ("engine/decide.py", "import sqlite3", NO_IO),
        ("model/jobs.py", "from slurm_dl import engine", ONE_WAY),
        ("estimates/remaining_time.py", "from slurm_dl import policies", ONE_WAY),
        ("engine/cycle.py", "from slurm_dl import testing", ONE_WAY),
        ("simulation/outcome.py", "from slurm_dl import recording", ONE_WAY),
        ("cli/dlctl/command.py", "from slurm_dl import testing", ONE_WAY),
        ("job/progress.py", "from slurm_dl.model import errors", ALONE),
        ("job/progress.py", "import numpy", ALONE),
        (
            "slurm/pyslurm/reader.py",
            "import pyslurm",
            "pyslurm is imported by the worker alone",
        ),
        (
            "slurm/pyslurm/worker_program.py",
            "from slurm_dl.slurm import tool_runner",
            "The pyslurm worker is a program of its own",
        ),
    ],
)
def test_a_wrong_import_breaks_its_contract(
    module: str, line: str, broken: str, tmp_path: Path
) -> None:
    """One line too many in any layer is found, and the broken rule is named."""
    package = tmp_path / "slurm_dl"
    shutil.copytree(ROOT / "slurm_dl", package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / module).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")

    checked = lint(tmp_path)

    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert f"{broken} BROKEN" in checked.stdout


@pytest.mark.parametrize("layer", PURE)
def test_the_pure_layers_import_only_what_is_listed(layer: str, graph: grimp.ImportGraph) -> None:
    """A forbidden list always has gaps; what the pure layers use is listed instead."""
    for module in within(graph, f"slurm_dl.{layer}"):
        allowed = PURE_MAY_IMPORT | ALSO.get(module, set())

        assert imported_by(graph, module) <= allowed, module


def test_the_job_side_needs_the_standard_library_alone(graph: grimp.ImportGraph) -> None:
    """A training's own Python has none of our dependencies; callbacks need their framework."""
    for module in within(graph, "slurm_dl.job"):
        allowed = sys.stdlib_module_names | CALLBACKS.get(module, set())
        assert imported_by(graph, module) <= allowed, module


@pytest.mark.parametrize("module", sorted(CALLBACKS))
def test_a_frameworks_callback_is_imported_by_nobody_here(
    module: str, graph: grimp.ImportGraph
) -> None:
    """Or `slurm_dl.job` would need the framework."""
    assert graph.find_modules_that_directly_import(module) == set()
