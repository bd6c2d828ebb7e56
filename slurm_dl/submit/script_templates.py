"""Where the script templates are: the user's, the site's, the wheel's, the checkout's.

An editable install does not see the files that a wheel carries, so the checkout's own directory
comes last. The first place that has a file wins, file by file: a site may replace the header
alone.
"""

from __future__ import annotations

import importlib.resources
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.option_values import plain_name

SUFFIX = ".sbatch.j2"
SITE = Path("/etc/slurm_dl/templates")

Owner = Literal["user", "site", "wheel", "checkout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateDirectory:
    """A directory that may hold templates; one that we may not see holds none."""

    owner: Owner
    directory: Traversable

    def has(self, name: str) -> bool:
        """There is a file for the template *name*."""
        try:
            return (self.directory / f"{name}{SUFFIX}").is_file()
        except OSError:  # Sites close /etc/slurm_dl to users.
            return False

    def files(self) -> list[Traversable]:
        """All that lies there."""
        try:
            return list(self.directory.iterdir()) if self.directory.is_dir() else []
        except OSError:
            return []


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTemplate:
    """A template that was found.

    Attributes:
        hides: Paths of files of the same name in later places, with their owners.
    """

    name: str  # Its name, without suffix
    owner: Owner  # Whose it is
    path: str  # Where it is
    file: Traversable  # The file itself
    hides: tuple[tuple[Owner, str], ...]

    def text(self) -> str:
        """The template's text.

        Raises:
            ConfigError: It cannot be read, is not UTF-8, or anyone may write to it.
        """
        try:
            if isinstance(self.file, Path) and self.file.stat().st_mode & stat.S_IWOTH:
                msg = f"template {self.path} can be written by everyone; chmod o-w {self.path}"
                raise ConfigError(msg)
            return self.file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as err:
            msg = f"template {self.path} cannot be read: {err}"
            raise ConfigError(msg) from None


def places(environ: Mapping[str, str]) -> tuple[TemplateDirectory, ...]:
    """The places to look in, first the one that wins.

    Raises:
        ConfigError: ``SLURM_DL_TEMPLATES`` is relative: it would depend on where the user stands.
    """
    package = importlib.resources.files("slurm_dl")
    config = Path(environ.get("XDG_CONFIG_HOME") or "")
    if not config.is_absolute():
        config = Path(environ.get("HOME") or Path.home(), ".config")
    site = Path(environ.get("SLURM_DL_TEMPLATES") or SITE)
    if not site.is_absolute():
        msg = f"SLURM_DL_TEMPLATES={site}: it must be an absolute path"
        raise ConfigError(msg)
    found = [
        TemplateDirectory(owner="user", directory=config / "slurm_dl" / "templates"),
        TemplateDirectory(owner="site", directory=site),
        TemplateDirectory(owner="wheel", directory=package / "_data" / "templates"),
    ]
    if isinstance(package, Path):
        found.append(TemplateDirectory(owner="checkout", directory=package.parent / "templates"))
    return tuple(found)


def find(name: str, where: Sequence[TemplateDirectory]) -> FoundTemplate:
    """The template *name* from the first place that has it.

    Raises:
        ConfigError: *name* is not a name, or no place has it.
    """
    plain_name(name, "--template")
    hits = [
        (place.owner, place.directory / f"{name}{SUFFIX}") for place in where if place.has(name)
    ]
    if not hits:
        looked = ", ".join(str(place.directory) for place in where)
        known = ", ".join(names(where)) or "none"
        msg = f"no template {name}{SUFFIX} in {looked}; there are: {known}"
        raise ConfigError(msg)
    (owner, file), *rest = hits
    return FoundTemplate(
        name=name,
        owner=owner,
        path=os.fspath(file) if isinstance(file, Path) else str(file),
        file=file,
        hides=tuple((o, str(f)) for o, f in rest),
    )


def names(where: Sequence[TemplateDirectory]) -> list[str]:
    """Names of all templates that a job can use; parts (``_header``) are left out."""
    return sorted(
        {
            file.name.removesuffix(SUFFIX)
            for place in where
            for file in place.files()
            if file.name.endswith(SUFFIX) and not file.name.startswith(("_", "."))
        }
    )
