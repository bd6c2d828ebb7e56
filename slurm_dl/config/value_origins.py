"""Where each value of a configuration comes from: what ``dlctl show-config`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from slurm_dl.config.tree import Config
from slurm_dl.error_text import written
from slurm_dl.yaml_places import Loc, SourcePlace, dotted

Plain: TypeAlias = "str | float | bool | list[Plain] | dict[str, Plain] | None"

DEFAULT = "default"
FLAG = "flag"

FILE_KEY = "config_file"
"""Not a key of the tree: the row that says which file was read, and who named it."""


@dataclass(frozen=True, slots=True)
class Origins:
    """What a configuration was put together from."""

    path: Path  # The file that was read
    path_from: str  # Who named it: ``flag``, ``environment`` or ``default``
    places: Mapping[Loc, SourcePlace]  # Where each value that is not a default was given

    def of(self, *loc: str | int) -> str:
        """Origin of one value: ``FILE:LINE``, ``flag`` or ``default``."""
        place = self.places.get(loc)
        if place is None:
            return DEFAULT
        return FLAG if place.flag else str(place)


class ConfigValue(NamedTuple):
    """One value of a configuration; *value* can go into JSON as it is."""

    key: str
    value: Plain
    origin: str

    @property
    def text(self) -> str:
        """The value as it would stand in the file."""
        return written(self.value)


def show(config: Config, origins: Origins) -> Iterator[ConfigValue]:
    """Every value with its key and its origin; first of all, the file itself."""
    yield ConfigValue(FILE_KEY, str(origins.path), origins.path_from)
    for section, values in config.model_dump(mode="json").items():
        for key, value in values.items():
            loc = (section, key)
            rows: dict[Loc, Plain] = {loc: value}
            if isinstance(value, dict) and value:
                rows = {(*loc, name): item for name, item in value.items()}
            for at, item in rows.items():
                yield ConfigValue(dotted(at), item, origins.of(*at))
