"""The profile of the model that a job names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import Profile
from slurm_dl.text import shown

_NEAR_NAMES = 5


def find_profile(model: str, profile_dir: Path) -> tuple[Profile | None, str]:
    """The profile that a job's ``--model`` names, and what its owner should know about it.

    Raises:
        ConfigError: The site has profiles, and this name is none of them.
    """
    from slurm_dl.profiles import (  # noqa: PLC0415 - YAML: only where a model is named
        load_profiles,
        shipped_profiles,
        site_over,
    )

    own: Mapping[str, Profile] = {}
    try:
        if _is_open(profile_dir):
            own = load_profiles(profile_dir, reader="user")
        known = site_over(shipped_profiles(), own)
    except ConfigError as err:
        first = str(err).partition("\n")[0]
        return None, f"profiles of models are not used: {first}"
    profile = known.get(model)
    if profile is not None:
        return profile, ""
    near = difflib.get_close_matches(model, sorted(known), n=_NEAR_NAMES)
    hint = f"near it: {', '.join(near)}" if near else "dlctl profile list shows them"
    if own:
        msg = f"--model: there is no profile {shown(model)}; {hint}"
        raise ConfigError(msg)
    return None, f"there is no profile {shown(model)}, so it only names the model; {hint}"


def _is_open(directory: Path) -> bool:
    try:
        return directory.is_dir()
    except OSError:  # A directory above it is closed.
        return False
