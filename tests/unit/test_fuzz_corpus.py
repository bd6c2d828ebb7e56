"""Every parser, with all that ever broke one: it may raise its own errors and nothing else."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "develop" / "hostile-input.md"

sys.path.append(str(ROOT))  # tools/ lies beside the package

from tools.fuzz import corpus  # noqa: E402
from tools.fuzz.target import Target  # noqa: E402
from tools.fuzz.targets import TARGETS, table  # noqa: E402

EVERY_TARGET = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)

READS = re.compile(
    r"json\.loads?\(|yaml\.(?:safe_)?(?:load|parse)\b|_Loader\(|validate_json|csv\.reader|NodeSet\("
)
"""What a module of a parser is known by."""

NOT_IN_THE_TABLE = {
    "simulation/ideal/start_costs.py": "a table of our own; tables of users come as values",
    "traces/formats/gavel_shockwave.py": "a table of the package's own; its traces are a target",
    "slurm/pyslurm/worker_program.py": "requests of the daemon that started it",
    "experiments/oracle.py": "a table of the package's own; rates of users are read elsewhere",
    "experiments/gavel_pairs.py": "a table of the package's own",
    "model/booking.py": "bodies of entries that a policy wrote itself",
    "ledger/sqlite/rows.py": "columns that the ledger wrote itself",
    "experiments/cell_store.py": "figures that the experiment itself wrote",
    "forecast/worker.py": "questions and answers between the daemon and its process",
    "signal_test/trial.py": "what dlsubmit, our own, has printed",
    "submit/user_files.py": "what dlsubmit wrote itself, into files of the user alone",
    "testing/checks.py": "what the tests wrote themselves",
    "job/tool_process.py": "comments that we have just written as JSON",
    "sandbox/manifest.py": "a list of our own, read as the record of a sandbox is",
    "sandbox/process_control.py": "files of our own, read as the record of a sandbox is",
    "cli/dlqueue/command.py": "node names that the user's own command line has",
    # Parts of parsers that have a target by another name.
    "traces/table_format.py": "trace-itp and others",
    "traces/file_lines.py": "the same",
    "config/parameters.py": "config",
    "profiles/directory.py": "profile",
    "profiles/untrusted.py": "run-reports",
    "job/run_files.py": "job-progress and job-checkpoints",
}


@pytest.fixture(autouse=True)
def _scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The targets' files lie in pytest's directory and go with it."""
    from tools.fuzz import target  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "_FOLDERS", [tmp_path_factory.getbasetemp()])
        yield


@EVERY_TARGET
def test_the_corpus_raises_no_foreign_error(target: Target) -> None:
    """Seeds, what the fuzzer learnt, and what once broke it."""
    for name, data in corpus.inputs(target):
        try:
            target.run(data)
        except BaseException as err:
            err.add_note(f"{target.name}: {name}")
            raise


@pytest.mark.long
@EVERY_TARGET
def test_sizes_and_depths_out_of_bounds_are_no_trouble(target: Target) -> None:
    """Each is refused, or read as what it is."""
    for name, data in corpus.huge():
        try:
            target.run(data)
        except BaseException as err:
            err.add_note(f"{target.name}: {name}")
            raise


def test_every_target_has_a_corpus_and_nothing_else_has() -> None:
    """Directories are named after targets; together they are small."""
    there = {path.name: list(path.iterdir()) for path in corpus.DIRECTORY.iterdir()}

    assert set(there) == set(TARGETS)
    assert all(there.values())
    assert sum(file.stat().st_size for files in there.values() for file in files) < 1_000_000


def test_files_of_the_corpus_are_named_by_what_they_hold() -> None:
    """So none can be changed by accident."""
    for target in TARGETS.values():
        for path in (corpus.DIRECTORY / target.name).iterdir():
            prefix = "broke-" if path.name.startswith("broke-") else ""
            assert path == corpus.keep(target, path.read_bytes(), prefix)


@EVERY_TARGET
def test_a_seed_is_of_the_right_form(target: Target) -> None:
    """A fuzzer that begins with what is refused at once learns little."""

    def is_refused(seed: bytes) -> bool:
        try:
            target.parse(seed)
        except target.own:
            return True
        return False

    if target.name not in {"ledger-file", "answer", "pyslurm-answer", "preflight", "sweep"}:
        assert not is_refused(target.seeds[0])


def test_the_document_has_the_table_of_all_targets() -> None:
    """``python -m tools.fuzz --table`` prints it."""
    assert "\n".join(table()) in DOCUMENT.read_text()


def test_every_module_that_parses_is_in_the_table() -> None:
    """A new reader of JSON or YAML needs a target."""
    named = DOCUMENT.read_text()
    package = ROOT / "slurm_dl"
    parsing = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if READS.search(path.read_text())
    }
    unnamed = {
        path
        for path in parsing - NOT_IN_THE_TABLE.keys()
        if path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") not in named
    }

    assert parsing >= NOT_IN_THE_TABLE.keys()
    assert not unnamed


def test_a_foreign_error_is_not_swallowed() -> None:
    """The replay would be worth nothing."""
    plain = TARGETS["comment"]

    def broken(data: bytes) -> None:
        raise KeyError(data)

    target = Target(
        name="x", parse=broken, own=(ValueError,), source="", parser="", seeds=plain.seeds
    )
    with pytest.raises(KeyError):
        target.run(b"")
