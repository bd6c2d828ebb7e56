"""From a file and flags to a `Config`, or to the list of everything that is wrong with them.

Each error is one line that begins with its place: ``slurm_dl.yaml:3: daemon.poll_s: ...`` for the
file, ``--set daemon.poll_s=x: ...`` for a flag.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pydantic import ValidationError

from slurm_dl.config.replicas_section import ServiceEntry
from slurm_dl.config.tree import SECTIONS, Config
from slurm_dl.error_text import sentence, unknown_key, written
from slurm_dl.model.errors import ConfigError
from slurm_dl.text import shown
from slurm_dl.yaml_places import Loc, Problem, SourcePlace, dotted, parse, read_text

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


if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

DEFAULT_PATH = Path("/etc/slurm_dl/slurm_dl.yaml")
ENVIRONMENT = "SLURM_DL_CONFIG"
_MOST_ERRORS = 50
_LONGEST_FLAG = 80


def load(
    path: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    require_private: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """Read and check the configuration.

    Args:
        path: The file; None: the one that `ENVIRONMENT` names, or `DEFAULT_PATH`.
        overrides: ``daemon.poll_s=5`` and the like; the value is YAML. They win over the file.
        require_private: Refuse a file that somebody else than root and we could have written.

    Raises:
        ConfigError: Something is wrong; one line for each mistake.
    """
    config, _ = load_with_origins(
        path, overrides=overrides, require_private=require_private, environ=environ
    )
    return config


def load_with_origins(
    path: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    require_private: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Config, Origins]:
    """As `load`, and say where each value comes from."""
    chosen, chosen_by = _choose(path, environ)
    whole_file = SourcePlace(0, str(chosen))
    document = parse(read_text(chosen, "daemon" if require_private else None), whole_file.name)
    values, places = _sections(document.value, whole_file), document.places
    problems = list(document.problems)
    for flag, override in enumerate(overrides, start=1):
        problems += _override(values, places, override, flag)
    try:
        config = Config.model_validate(values)
    except ValidationError as err:
        details = err.errors(include_url=False)
        problems += [_problem(detail, places, whole_file) for detail in details]
        raise _error(problems, whole_file) from None
    if problems:
        raise _error(problems, whole_file)
    return config, Origins(chosen, chosen_by, places)


def _choose(path: str | Path | None, environ: Mapping[str, str]) -> tuple[Path, str]:
    if path is not None:
        return Path(path), FLAG
    if environ.get(ENVIRONMENT):
        return Path(environ[ENVIRONMENT]), "environment"
    return DEFAULT_PATH, DEFAULT


def _sections(value: object, whole_file: SourcePlace) -> dict[str, object]:
    """The top level with every section there: one that is empty or missing is all defaults."""
    given = {} if value is None else value
    if not isinstance(given, dict):
        text = f"must be a mapping of sections, such as 'manage:' (got {shown(given)})"
        raise ConfigError(str(Problem(SourcePlace(1, whole_file.name), "", text)))
    empty: dict[str, object] = {name: {} for name in SECTIONS if given.get(name) is None}
    return {**given, **empty}


def _override(
    values: dict[str, object], places: dict[Loc, SourcePlace], override: str, flag: int
) -> list[Problem]:
    """Put the value of a ``KEY=VALUE`` flag where it belongs; what is wrong with the flag."""
    key, equals, text = override.partition("=")
    cut = override if len(override) <= _LONGEST_FLAG else f"{override[:_LONGEST_FLAG]}…"
    place = SourcePlace(0, f"--set {cut}", flag)
    loc = tuple(key.split("."))
    if not equals or not all(loc):
        return [Problem(place, "", "must be KEY=VALUE, such as daemon.poll_s=5")]
    if key in SECTIONS:
        return [Problem(place, "", f"is a section; set one of its keys, {key}.KEY=VALUE")]
    try:
        document = parse(text, place.name, flag=flag)
    except ConfigError as err:
        # It names the flag already.
        return [Problem(SourcePlace(0, "", flag), "", str(err))]
    parent = values
    for depth, part in enumerate(loc[:-1], start=1):
        child = parent.setdefault(part, {})
        if not isinstance(child, dict):
            return [Problem(place, "", f"{dotted(loc[:depth])} has no keys of its own")]
        places.setdefault(loc[:depth], place)
        parent = child
    # "cluster.name=" means empty text, not nothing.
    parent[loc[-1]] = document.value if text.strip() else ""
    for old in [old for old in places if old[: len(loc)] == loc]:
        del places[old]
    places[loc] = place
    places.update({(*loc, *below): place for below in document.places})
    return [replace(problem, key=f"{key}.{problem.key}") for problem in document.problems]


def _problem(
    error: ErrorDetails, places: Mapping[Loc, SourcePlace], whole_file: SourcePlace
) -> Problem:
    loc: Loc = error["loc"]
    # Where two keys disagree and one of them is a default, the line is that of the other.
    others: Sequence[Loc] = error.get("ctx", {}).get("others", ())
    above = (loc[:end] for end in range(len(loc) - 1, 0, -1))
    place = next((places[at] for at in (loc, *others, *above) if at in places), whole_file)
    text = _unknown_key(loc) if error["type"] == "extra_forbidden" else sentence(error)
    key = dotted(loc)
    if place.flag and place.name.startswith(f"--set {key}="):
        key = ""
    return Problem(place, key, text)


def _unknown_key(loc: Loc) -> str:
    key = str(loc[-1])
    keys = {name: tuple(section.model_fields) for name, section in SECTIONS.items()}
    elsewhere = [f"{section}.{key}" for section in keys if key in keys[section]]
    if loc[:2] == ("replicas", "services"):
        return unknown_key(key, tuple(ServiceEntry.model_fields), ())
    return unknown_key(key, keys[str(loc[0])] if loc[1:] else keys, elsewhere)


def _error(problems: Sequence[Problem], whole_file: SourcePlace) -> ConfigError:
    ordered = sorted(set(problems), key=lambda p: (p.place.flag, p.place.line, p.key, p.text))
    lines = [str(problem) for problem in ordered[:_MOST_ERRORS]]
    if len(ordered) > _MOST_ERRORS:
        more = f"and {len(ordered) - _MOST_ERRORS} more mistakes"
        lines.append(str(Problem(whole_file, "", more)))
    return ConfigError("\n".join(lines))
