"""A dump of Slurm's accounting, with the names of jobs, as the jobs that are over.

::

    fields=JobID,User,Account,Submit,Start,End,State,ElapsedRaw,ReqTRES,AllocTRES,JobName
    sacct -aPX --duplicates --starttime=2026-01-01 --format=$fields > history.txt

With JobName as the last field bars in names do no harm; lines that are none, as after a name with
a line break, are left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.errors import ConfigError
from slurm_dl.slurm.accounting.past_jobs import FIELDS, AccountedRun, past_of, run_of
from slurm_dl.traces.file_lines import numbered_lines, opened, words

_NEEDED: Final = ("JobID", "User", "Submit", "Start", "End", "State", "ElapsedRaw", "AllocTRES")
_MOST_RUNS: Final = 2_000_000
_ALSO: Final = {"jobidraw": "JobID"}


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """What a dump tells."""

    past: Past  # Jobs with GPUs that are over
    left_out: int  # Lines that could not be read
    has_names: bool  # Whether it tells the names of jobs


def read_dump(path: Path) -> Dump:
    """The jobs in a dump, packed with gzip or not.

    Raises:
        ConfigError: It cannot be read, lacks a column, or tells of no job.
    """
    runs: dict[AccountedRun, None] = {}
    left_out = 0
    with opened(path) as stream:
        lines = numbered_lines(stream, str(path))
        _, first = next(lines, (0, ""))
        header = _header(first or "", path)
        for _, line in lines:
            record = None if line is None else line.split("|", len(header) - 1)
            if record is None or len(record) != len(header):
                left_out += 1
                continue
            told = {"JobName": "", "Account": "", **dict(zip(header, record, strict=True))}
            try:
                run = run_of(told)
            except (ValueError, OverflowError):
                left_out += 1
                continue
            if run is not None:
                runs[run] = None
            if len(runs) > _MOST_RUNS:
                msg = f"{path}: more than {_MOST_RUNS:,} runs; cut the dump into parts"
                raise ConfigError(msg)
    if not runs:
        msg = f"{path}: no finished run with GPUs in it"
        raise ConfigError(msg)
    return Dump(past_of(runs), left_out, "JobName" in header)


def _header(line: str, path: Path) -> list[str]:
    """The columns of the dump by the names that sacct has for them."""
    known = {name.lower(): name for name in FIELDS} | _ALSO
    header = [known.get(word, word) for word in words(line, "|")]
    lacks = [name for name in _NEEDED if name not in header]
    if lacks:
        msg = (
            f"{path}: no column {', '.join(lacks)}; make it with sacct -aPX --duplicates "
            f"--format={','.join([*FIELDS[1:], FIELDS[0]])}"
        )
        raise ConfigError(msg)
    return header
