"""What a site installs beside what comes with the project: entry points, by group and name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from typing import TypeVar

from slurm_dl.model.errors import ConfigError

T = TypeVar("T")


def all_names(ours: Collection[str], group: str) -> tuple[str, ...]:
    """The names of *ours* and of the plugins in *group*, sorted."""
    return tuple(sorted({*ours, *(entry.name for entry in entry_points(group=group))}))


def find(name: str, ours: Mapping[str, type[T]], group: str, what: str) -> type[T]:
    """The class called *name*: one of *ours*, or what a plugin in *group* provides.

    Args:
        what: What such a class is called.

    Raises:
        ConfigError: There is none, or the plugin cannot be loaded.
    """
    if name in ours:
        return ours[name]
    for entry in entry_points(group=group):
        if entry.name == name:
            try:
                plugin: type[T] = entry.load()
            except Exception as err:
                msg = f"{what} {name!r} from {entry.value} cannot be loaded: {err}"
                raise ConfigError(msg) from err
            return plugin
    msg = f"no {what} {name!r}; there are {', '.join(all_names(ours, group)) or 'none'}"
    raise ConfigError(msg)
