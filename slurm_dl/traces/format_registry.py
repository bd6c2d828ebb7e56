"""Which formats there are, and reading a trace in whichever it is.

A format is any object with the members of `Format`. To add one, write a module beside this and
add a line to `_ALL`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.traces.builder import Gathering
from slurm_dl.traces.file_lines import Head, read_head
from slurm_dl.traces.formats.gavel_shockwave import GAVEL
from slurm_dl.traces.formats.pai import PAI
from slurm_dl.traces.formats.philly_json import PHILLY_JSON
from slurm_dl.traces.formats.slurm_dl_csv import SLURM_DL
from slurm_dl.traces.formats.synergy_deploy import SYNERGY
from slurm_dl.traces.formats.tabular import HELIOS, ITP, MURI, PHILLY, TIRESIAS
from slurm_dl.traces.slurm.sacct import SACCT


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
    PAI,
    TIRESIAS,
    MURI,
    GAVEL,
    SYNERGY,
)

FORMATS: Final[Mapping[str, Format]] = MappingProxyType({f.name: f for f in _ALL})
"""By name, in the order in which they are listed for people."""


def detect_format(path: Path) -> str:
    """The format of *path*, told from its content.

    Raises:
        ConfigError: It cannot be read, or begins like none or like several.
    """
    head = read_head(path)
    found = [f.name for f in _ALL if f.recognizes(head)]
    if len(found) == 1:
        return found[0]
    like = f"like {' and '.join(found)}" if found else "like no format that is known"
    listed = "\n".join(f"  {f.name:12} {f.about}" for f in _ALL)
    msg = f"{path}: begins {like}; name one with --format:\n{listed}"
    raise ConfigError(msg)


def read_trace(path: Path, format: str | None = None) -> Trace:  # noqa: A002 - the option's name
    """The jobs of a trace file, packed with gzip or not.

    Lines that are no jobs are left out and told in `Trace.bad` as `LeftOutLine`.

    Args:
        path: The file; for ``pai`` the directory of its tables.
        format: A name in `FORMATS`; None tells it from the content.

    Raises:
        ConfigError: The format is unknown, the file cannot be read, or no job is in it.
    """
    chosen = detect_format(path) if format is None else format
    if chosen not in FORMATS:
        msg = f"trace format {chosen!r} is unknown; there are {', '.join(FORMATS)}"
        raise ConfigError(msg)
    jobs = Gathering(str(path))
    FORMATS[chosen].read(path, jobs)
    return jobs.trace(name=_name(path), format_name=chosen)


def _name(path: Path) -> str:
    """The file's name without its endings."""
    bare = path.name.removesuffix(".gz")
    return (
        Path(bare).stem
        if Path(bare).suffix in {".csv", ".json", ".log", ".trace", ".txt"}
        else bare
    )
