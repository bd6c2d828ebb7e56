"""Fuzz parsers with atheris: ``python -m tools.fuzz NAME --seconds 60``; without names all of them.

What breaks a parser is put into the corpus as ``broke-HASH`` and the command fails. What the fuzzer
learnt is thrown away unless ``--keep`` is given: then some of it is added to the corpus.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.fuzz import corpus
from tools.fuzz.target import Target

_SLOWEST_S: Final = 5
"""One input must not take longer."""
_MOST_MB: Final = 2048
_LONGEST: Final = 4096
"""Bytes of an input; sizes beyond are for the unit test, which the search would only slow down."""
_LONGEST_KEPT: Final = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if something broke."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="targets; none: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", action="store_true", help="add what was learnt to the corpus")
    parser.add_argument("--table", action="store_true", help="print the table of the document")
    given = parser.parse_args(arguments)
    if given.table:
        from tools.fuzz.targets import table  # noqa: PLC0415 - must not come before atheris

        print("\n".join(table()))
        return 0
    shared = Path("/dev/shm")  # noqa: S108 - only where to make a private directory
    with tempfile.TemporaryDirectory(
        prefix="slurm_dl-fuzz-", dir=shared if shared.is_dir() else None
    ) as scratch:
        # The targets' files, of processes that end without tidying up.
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        from tools.fuzz.instrumented import instrumented_targets  # noqa: PLC0415 - needs atheris

        targets = instrumented_targets()
        if unknown := [name for name in given.names if name not in targets]:
            parser.error(f"no target {unknown[0]!r}; there are {', '.join(targets)}")
        broken = [
            name
            for name in given.names or targets
            if not _fuzz(targets[name], Path(scratch), seconds=given.seconds, keep=given.keep)
        ]
    if broken:
        print(f"broken: {', '.join(broken)}")
    return 1 if broken else 0


def _fuzz(target: Target, scratch: Path, *, seconds: int, keep: bool) -> bool:
    from tools.fuzz.instrumented import fuzz  # noqa: PLC0415 - needs atheris

    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        here = Path(directory)
        known, learnt, broke = here / "known", here / "learnt", here / "broke"
        for inside in (known, learnt, broke):
            inside.mkdir()
        for number, (_, data) in enumerate(corpus.inputs(target)):
            (known / str(number)).write_bytes(data)
        options = (
            f"-max_total_time={seconds}",
            f"-timeout={_SLOWEST_S}",
            f"-rss_limit_mb={_MOST_MB}",
            f"-max_len={_LONGEST}",
            f"-artifact_prefix={broke}/",
            "-print_final_stats=1",
        )
        said = fuzz(target, [*options, str(learnt), str(known)], log=here / "log", broke=broke)
        runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", said)
        features = re.findall(r" ft: (\d+)", said)
        print(
            f"{target.name}: {runs[1] if runs else '?'} runs in {seconds} s, "
            f"{features[-1] if features else '?'} features",
            flush=True,
        )
        artifacts = sorted(broke.iterdir())
        for artifact in artifacts:
            path = corpus.keep(target, artifact.read_bytes(), "broke-")
            print(f"{target.name}: broken by {path}\n{_about(said)}", flush=True)
        if not artifacts and runs is None:
            print(f"{target.name}: the fuzzer did not run:\n{said[-3000:]}", flush=True)
            return False
        if keep:
            _keep(target, learnt)
        return not artifacts


def _about(said: str) -> str:
    """The exception in what the fuzzer said, or the end of it."""
    at = said.find("Uncaught Python exception")
    return said[at : at + 3000] if at >= 0 else said[-2000:]


def _keep(target: Target, learnt: Path) -> None:
    """Put some of what was learnt into the corpus: each of it reaches what nothing else does."""
    found = sorted(
        (path for path in learnt.iterdir() if path.stat().st_size <= _LONGEST_KEPT),
        key=lambda path: (path.stat().st_size, path.name),
    )
    # Of all sizes: the smallest alone would be what the parser refuses at once.
    step = max(1, -(-len(found) // corpus.MOST_FILES))
    for path in found[step - 1 :: step]:
        corpus.keep(target, path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
