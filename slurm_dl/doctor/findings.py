"""Everything the checks look at, read once; a check is a function of this value and nothing else.

What could not be read stands there as `Missing`, with the reason. A check that needs it ends with a
`CannotTellError`, so that it is told apart from one that found nothing wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from slurm_dl.config import Config
from slurm_dl.doctor.check_result import CannotTellError
from slurm_dl.doctor.controller_config import ControllerConfig, PartitionRecord
from slurm_dl.json_types import JsonObject
from slurm_dl.slurm.read.queue_reader import ReaderChoice

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that could not be read.

    Attributes:
        why: In one line.
    """

    why: str


def need(found: T | Missing) -> T:
    """*found* if it could be read.

    Raises:
        CannotTellError: It could not.
    """
    if isinstance(found, Missing):
        raise CannotTellError(found.why)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account of this host.

    Attributes:
        gids: All its groups.
        why: How we came to think that dlschedd runs, or will run, as this one.
    """

    name: str
    uid: int
    gids: frozenset[int]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory that dlschedd writes to.

    Attributes:
        key: Its key in the configuration.
        mode: Permission bits; None: it does not exist.
        filesystem: Type of the file system it is or would be on, such as ``ext4``; empty: unknown.
        writable: What the system says, if it is we who are to write; None: we are somebody else.
        open_to: What lets others than root and the account write to it; empty: nothing, or it is
            not asked.
        closed: Names of files in it that the account has to write to and cannot.
    """

    key: str
    path: Path
    mode: int | None
    uid: int = -1
    gid: int = -1
    filesystem: str = ""
    writable: bool | None = None
    open_to: str = ""
    closed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A template of dlsubmit.

    Attributes:
        owner: Whose place it was found in: ``site``, ``wheel``, ``checkout``.
        trouble: Why it cannot be used; empty if it can.
    """

    name: str
    owner: str
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPreemption:
    """Whether Slurm can preempt by itself as the native mode wants it.

    Attributes:
        lacks: What it lacks, a line each.
        remark: What else is to be known; empty: nothing.
    """

    lacks: tuple[str, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """The profiles of models.

    Attributes:
        mistakes: What is wrong with them, a line each; empty if nothing is.
        models: How many there are.
        of_site: How many of them are the site's own.
        unknown: Models that unfinished jobs name and that have none, with the number of jobs, most
            jobs first.
    """

    mistakes: tuple[str, ...] = ()
    models: int = 0
    of_site: int = 0
    unknown: Mapping[str, int] | Missing = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """The configuration file.

    Attributes:
        mistakes: What is wrong with it, a line each; empty if nothing is.
        config: What it says; None if there are mistakes.
    """

    path: Path
    mistakes: tuple[str, ...] = ()
    config: Config | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerReply:
    """What slurmctld answered, and our clock then.

    Attributes:
        before_s: Epoch seconds before the question.
        after_s: After the answer.
    """

    controller: ControllerConfig
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What there is to judge.

    Attributes:
        file: The configuration.
        account: Who dlschedd runs as.
        slurm: The controller's answer.
        partitions: Its partitions.
        admin_level: AdminLevel of the account in slurmdbd; empty: it is no user of it.
        native: Whether Slurm can preempt by itself.
        reader: What would read the queue, and why.
        weights: The different Weights of nodes in managed partitions, ascending.
        profiles: The profiles of models.
        directories: Those dlschedd writes to.
        templates: Those of dlsubmit.
        template_dir: Where dlsubmit looks for the site's own.
        status: The running daemon's answer.
        version: Our version.
    """

    file: ConfigFile | Missing
    account: Account | Missing
    slurm: ControllerReply | Missing
    partitions: tuple[PartitionRecord, ...] | Missing
    admin_level: str | Missing
    native: OwnPreemption | Missing
    reader: ReaderChoice | Missing
    weights: tuple[int, ...] | Missing
    profiles: Profiles | Missing
    directories: tuple[Directory, ...] | Missing
    templates: tuple[Template, ...] | Missing
    template_dir: Path
    status: JsonObject | Missing
    version: str

    @property
    def config(self) -> Config:
        """The configuration.

        Raises:
            CannotTellError: There is none that is valid.
        """
        config = need(self.file).config
        if config is None:
            msg = "the configuration has mistakes"
            raise CannotTellError(msg)
        return config

    @property
    def known_config(self) -> Config | None:
        """The configuration; None if it is not known, for checks that can do without."""
        return None if isinstance(self.file, Missing) else self.file.config

    @property
    def controller(self) -> ControllerConfig:
        """The controller's configuration.

        Raises:
            CannotTellError: Slurm was not reached.
        """
        if isinstance(self.slurm, Missing):
            # Why is told once, where that is asked.
            msg = "Slurm was not reached"
            raise CannotTellError(msg)
        return self.slurm.controller

    def managed(self) -> tuple[PartitionRecord, ...]:
        """The managed partitions that there are.

        Raises:
            CannotTellError: The configuration or the partitions are not known.
        """
        there: Mapping[str, PartitionRecord] = {p.name: p for p in need(self.partitions)}
        found = tuple(there[n] for n in self.config.manage.partitions if n in there)
        if not found:
            msg = "none of the managed partitions exists"
            raise CannotTellError(msg)
        return found
