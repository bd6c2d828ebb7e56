"""Which formats there are, and reading a trace in whichever it is.

A format is any object with the members of `Format`. To add one, write a module beside this and
add a line to `_ALL`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.traces.builder import Gathering
from slurm_dl.traces.file_lines import Head, read_head
from slurm_dl.traces.formats.artifact_workloads import POLLUX, SYNERGY, with_models
from slurm_dl.traces.formats.gavel_shockwave import GAVEL
from slurm_dl.traces.formats.pai import PAI
from slurm_dl.traces.formats.philly_json import PHILLY_JSON
from slurm_dl.traces.formats.slurm_dl_csv import SLURM_DL, with_columns
from slurm_dl.traces.formats.tabular import CHRONUS, HELIOS, ITP, MURI, PHILLY, TIRESIAS
from slurm_dl.traces.slurm.sacct import SACCT
from slurm_dl.traces.table_format import Columns


class Format(Protocol):
    """How one kind of trace file is told from others, and read."""

    @property
    def name(self) -> str:
        """What ``--format`` calls it."""

    @property
    def about(self) -> str:
        """One line for people."""

    def recognizes(self, head: Head, /) -> bool:
        """Whether a file that begins with *head* is of this format."""

    def read(self, path: Path, jobs: Gathering, /) -> None:
        """Every job of *path* into *jobs*; lines that are none are left out there."""


_ALL: Final[tuple[Format, ...]] = (
    SLURM_DL,
    SACCT,
    PHILLY,
    PHILLY_JSON,
    ITP,
    HELIOS,
    CHRONUS,
    PAI,
    TIRESIAS,
    MURI,
    GAVEL,
    SYNERGY,
    POLLUX,
)

FORMATS: Final[Mapping[str, Format]] = MappingProxyType({f.name: f for f in _ALL})
"""By name, in the order in which they are listed for people."""

BY_COLUMNS: Final = "columns:"  # Before the value of ``--columns`` it makes the name of a format
BY_MODELS: Final = "pollux:"  # Before the value of ``--models`` it makes the name of a format
_DELIMITERS: Final = ",;\t|"


def detect_format(path: Path) -> str:
    """The format of *path*, told from its content.

    Raises:
        ConfigError: It cannot be read, or begins like none or like several.
    """
    head = read_head(path)
    found = [f.name for f in _ALL if f.recognizes(head)]
    if len(found) == 1:
        return found[0]
    like = (
        f"like {' and '.join(found)}" if found else f"like no format that is known{_nearest(head)}"
    )
    msg = (
        f"{path}: begins {like}\nname one with --format ({', '.join(FORMATS)}), or the columns of "
        f"any table with --columns"
    )
    raise ConfigError(msg)


def _nearest(head: Head) -> str:
    """The table that has most of the columns it needs, and what is wrong with it; may be empty."""
    found: list[tuple[int, int, str]] = []
    for table in _ALL:
        if not isinstance(table, Columns):
            continue
        delimiter, names = replace(table, delimiters=_DELIMITERS).header(head.first_line)
        lacking, many = table.faults(frozenset(names))
        if len(lacking) < len(table.columns):
            words = [f"lacks {', '.join(lacking)}"] if lacking else []
            words += [f"has {', '.join(many)} too many"] if many else []
            if delimiter not in table.delimiters:
                words.append(f"has {delimiter!r} between its columns")
            faults = len(lacking) + len(many)
            found.append((faults, len(lacking), f"{table.name}, {', '.join(words)}"))
    return f"; nearest: {min(found)[-1]}" if found else ""


def read_trace(path: Path, format: str | None = None) -> Trace:  # noqa: A002 - the option's name
    """The jobs of a trace file, packed with gzip or not.

    Lines that are no jobs are left out and told in `Trace.bad` as `LeftOutLine`.

    Args:
        path: The file; for ``pai`` the directory of its tables.
        format: A name in `FORMATS`, `BY_COLUMNS` and what `with_columns` reads, or `BY_MODELS`
            and a folder of measured models; None tells it from the content.

    Raises:
        ConfigError: The format is unknown, the file cannot be read, or no job is in it.
    """
    chosen = detect_format(path) if format is None else format
    if chosen.startswith(BY_COLUMNS):
        reader: Format = with_columns(chosen.removeprefix(BY_COLUMNS))
    elif chosen.startswith(BY_MODELS):
        reader = with_models(Path(chosen.removeprefix(BY_MODELS)))
        chosen = reader.name
    elif chosen in FORMATS:
        reader = FORMATS[chosen]
    else:
        msg = f"trace format {chosen!r} is unknown; there are {', '.join(FORMATS)}"
        raise ConfigError(msg)
    jobs = Gathering(str(path))
    reader.read(path, jobs)
    return jobs.trace(name=_name(path), format_name=chosen)


def _name(path: Path) -> str:
    bare = path.name.removesuffix(".gz")
    return (
        Path(bare).stem
        if Path(bare).suffix in {".csv", ".json", ".log", ".trace", ".txt"}
        else bare
    )
