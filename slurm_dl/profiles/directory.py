"""The directory of profiles: reading it whole, and writing one file of it whole or not at all.

A file is read with the bounds of `slurm_dl.model.profile`.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from pydantic import ConfigDict, TypeAdapter, ValidationError

from slurm_dl.error_text import sentence
from slurm_dl.files import replace_file
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import Profile, skew_of
from slurm_dl.text import escaped
from slurm_dl.yaml_places import (
    Document,
    Loc,
    Problem,
    Reader,
    SourcePlace,
    check_trust,
    dotted,
    dump,
    parse,
    read_text,
)

_MOST_MISTAKES = 50
_SKEW_TOLERANCE = 0.01

# pydantic takes no settings for a dataclass itself.
_FILE = TypeAdapter(
    tuple[Profile], config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
)


def profile_of(document: Document, name: str) -> Profile:
    """The profile in *document*, which stands in the file *name*.

    Raises:
        ConfigError: One line for each mistake, with its place.
    """
    mistakes = [str(problem) for problem in document.problems]
    if not mistakes and not isinstance(document.value, dict):
        text = "must be a mapping with a name, such as 'name: resnet50'"
        mistakes = [str(Problem(SourcePlace(1, name), "", text))]
    if not mistakes:
        try:
            # Of Python's own values a strict dataclass would have to be one already.
            (profile,) = _FILE.validate_json(json.dumps([_present_form(document.value)]))
        except ValidationError as err:
            found = err.errors(include_url=False)
            places = [_place_of(one["loc"][1:], document.value) for one in found]
            mistakes = [
                _mistake(at, sentence(one), document, name)
                for at, one in zip(places, found, strict=True)
            ]
        else:
            mistakes = [_mistake(*one, document, name) for one in _contradictions(profile)]
        if not mistakes:
            if profile.skew is None and profile.tensors_mb:
                return replace(profile, skew=skew_of(profile.tensors_mb))
            return profile
    more = len(mistakes) - _MOST_MISTAKES
    shown_mistakes = mistakes[:_MOST_MISTAKES]
    if more > 0:
        shown_mistakes.append(f"{escaped(name)}: and {more} more mistakes")
    raise ConfigError("\n".join(shown_mistakes))


def plain(profile: Profile) -> dict[str, object]:
    """What is known of *profile*, in the order people read it, as YAML and JSON can say it."""
    known: dict[str, object]
    (known,) = _FILE.dump_python((profile,), mode="json", exclude_defaults=True)
    return known


def _present_form(value: object) -> object:
    """*value*, of the form that had in ``beside`` speeds by model, in the present form.

    Those speeds are of slices of time, on any GPU.
    """
    speeds = value.get("beside") if isinstance(value, dict) else None
    if not (isinstance(value, dict) and isinstance(speeds, dict)):
        return value
    return {**value, "beside": [{"other": name, "rate": rate} for name, rate in speeds.items()]}


def _place_of(loc: Loc, value: object) -> Loc:
    """Place in the file *value* of what is at *loc* in its present form."""
    speeds = value.get("beside") if isinstance(value, dict) else None
    if loc[:1] != ("beside",) or len(loc) == 1 or not isinstance(speeds, dict):
        return loc
    return ("beside", [*speeds][int(loc[1])])


def _contradictions(profile: Profile) -> Iterator[tuple[Loc, str]]:
    most, kept = profile.load.gpu_mem_mb, profile.load.gpu_mem_kept_mb
    if most is not None and kept is not None and kept > most:
        yield ("load",), "gpu_mem_kept_mb cannot be more than gpu_mem_mb"
    if profile.batch is not None and profile.batch[0] > profile.batch[1]:
        yield (), "batch must be [least, most]"
    if profile.skew is not None and profile.tensors_mb:
        computed = skew_of(profile.tensors_mb)
        if not math.isclose(profile.skew, computed, rel_tol=_SKEW_TOLERANCE):
            yield (), f"skew is {profile.skew:.4g}, but that of tensors_mb is {computed:.4g}"
    if len({(s.shape, s.gpu_type) for s in profile.speeds}) < len(profile.speeds):
        yield (), "speeds has one shape twice for the same gpu_type"
    if not all(s.hints for s in profile.hinted) or any(s.hints for s in profile.speeds):
        yield ("hinted",), "must have speeds with hints; those without in speeds"
    if len({(s.shape, s.gpu_type, s.hints) for s in profile.hinted}) < len(profile.hinted):
        yield ("hinted",), "hinted has one shape twice for the same gpu_type and hints"
    if len({one.pair for one in profile.beside}) < len(profile.beside):
        yield (), "beside has one model twice for the same mode and gpu_type"
    if len({r.shape for r in profile.shape_rates}) < len(profile.shape_rates):
        yield (), "shape_rates has one shape twice"


def _mistake(loc: Loc, text: str, document: Document, name: str) -> str:
    path = tuple(part for part in loc if part != "[key]")
    above = (path[:end] for end in range(len(path), -1, -1))
    place = next((document.places[at] for at in above if at in document.places), None)
    return str(Problem(place or SourcePlace(1, name), dotted(path), text))


SUFFIX = ".yaml"
MODE = 0o644
_MOST_FILES = 2000


def load_profiles(directory: Path, *, reader: Reader = "daemon") -> Mapping[str, Profile]:
    """The profiles in *directory*, by name and by each alias.

    Args:
        reader: ``daemon``: files and directory must be root's or this process's user's. In any case
            nobody else may be able to write them.

    Raises:
        ConfigError: One line for each mistake in any file.
    """
    return _by_name([profile for _, profile in _read_all(directory, reader)])


def add_profile(directory: Path, profile: Profile, *, comment: str = "") -> tuple[Path, bool]:
    """Put *profile* into *directory*, in place of the one of its name if there is one.

    Args:
        comment: Stands above it, one line.

    Returns:
        Its file, and whether there was one.

    Raises:
        ConfigError: The directory is not in order, another profile has one of its names, or the
            file cannot be written; nothing has changed.
    """
    others = _read_all(directory, "user")
    own = [file for file, other in others if other.name == profile.name]
    path = own[0] if own else path_of(directory, profile.name)
    rest = [(file, other) for file, other in others if file not in own]
    if path in {file for file, _ in rest}:
        msg = f"{escaped(str(path))}: has another profile; rename that file, then add this one"
        raise ConfigError(msg)
    if mistakes := _clashes([*rest, (path, profile)]):
        raise ConfigError("\n".join(mistakes))
    write_profile(path, profile, comment=comment)
    return path, bool(own)


@functools.cache
def shipped_profiles() -> Mapping[str, Profile]:
    """The profiles that come with slurm_dl, by name and by each alias.

    Raises:
        ConfigError: The installation is broken.
    """
    directory = shipped_directory()
    files = sorted(p for p in directory.iterdir() if _is_profile(p)) if directory.is_dir() else []
    if not files:
        msg = f"{directory}: no profiles there; slurm_dl is not installed whole"
        raise ConfigError(msg)
    return _by_name([read_profile(file, reader=None) for file in files])


def shipped_directory() -> Path:
    """Where the profiles that come with slurm_dl lie: in the package, or in its checkout."""
    package = Path(str(importlib.resources.files("slurm_dl")))
    installed = package / "_data" / "profiles"
    return installed if installed.is_dir() else package.parent / "profiles" / "models"


def site_over(shipped: Mapping[str, Profile], site: Mapping[str, Profile]) -> Mapping[str, Profile]:
    """Both, by name and alias; where they share a name the site's stands for all of its names."""
    taken = {profile.name: profile for profile in site.values()}
    merged: dict[str, Profile] = {}
    for name, profile in shipped.items():
        merged[name] = taken.get(profile.name, profile)
    merged.update(site)
    return MappingProxyType(merged)


def read_profile(path: Path, *, reader: Reader | None) -> Profile:
    """The profile in the file *path*.

    Args:
        reader: Who must be able to trust the file; None: nobody relies on it yet.

    Raises:
        ConfigError: One line for each mistake.
    """
    return profile_of(parse(read_text(path, reader), str(path)), str(path))


def text_of(profile: Profile) -> str:
    """*profile* as its file says it; reading that gives an equal profile."""
    return dump(plain(profile))


def path_of(directory: Path, name: str) -> Path:
    """The file in *directory* that has, or is to have, the profile *name*."""
    return directory / (name.replace("/", "_") + SUFFIX)


def write_profile(path: Path, profile: Profile, *, comment: str = "") -> None:
    """Put *profile* at *path*, mode 0644, whole or not at all.

    Args:
        comment: Stands above it, one line.

    Raises:
        ConfigError: It cannot be written, or would not be read back; the old file is as it was.
    """
    text = (f"# {escaped(comment)}\n" if comment else "") + text_of(profile)
    profile_of(parse(text, str(path)), str(path))
    try:
        with replace_file(path, mode=MODE) as file:
            file.write(text.encode())
            # The umask may have taken the others' right to read.
            os.fchmod(file.fileno(), MODE)
    except OSError as err:
        msg = f"{escaped(str(path))}: cannot be written: {err.strerror}"
        raise ConfigError(msg) from None


def _read_all(directory: Path, reader: Reader) -> list[tuple[Path, Profile]]:
    if os.geteuid() == 0:
        reader = "daemon"  # Root must not be led to other files by what a user has put there.
    try:
        check_trust(directory, directory.stat(), reader)
        files = sorted(p for p in directory.iterdir() if _is_profile(p))
    except OSError as err:
        msg = f"{escaped(str(directory))}: cannot be read: {err.strerror}"
        raise ConfigError(msg) from None
    if len(files) > _MOST_FILES:
        msg = f"{escaped(str(directory))}: has more than {_MOST_FILES} profiles"
        raise ConfigError(msg)
    found, mistakes = [], []
    for file in files:
        try:
            found.append((file, read_profile(file, reader=reader)))
        except ConfigError as err:
            mistakes.append(str(err))
    mistakes += _clashes(found)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return found


def _is_profile(path: Path) -> bool:
    return path.suffix == SUFFIX and not path.name.startswith(".")


def _by_name(profiles: list[Profile]) -> Mapping[str, Profile]:
    found = {alias: profile for profile in profiles for alias in profile.aliases}
    found.update((profile.name, profile) for profile in profiles)
    return MappingProxyType(found)


def _clashes(found: list[tuple[Path, Profile]]) -> list[str]:
    first: dict[str, Path] = {}
    mistakes = []
    for file, profile in found:
        for name in dict.fromkeys((profile.name, *profile.aliases)):
            if name in first:
                text = (
                    f"the name {name} stands in {escaped(str(first[name]))} too; keep one of them"
                )
                mistakes.append(f"{escaped(str(file))}: {text}")
            first.setdefault(name, file)
    return mistakes
