"""What the site says about users' jobs: of its configuration, the few keys that dlsubmit uses.

A site without the file on its login nodes, or with one that users may not read, has nothing to say.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import Profile
from slurm_dl.text import shown

# As slurm_dl.config has them; to import it takes as long as all the rest of dlsubmit.
DEFAULT_PATH = "/etc/slurm_dl/slurm_dl.yaml"
DEFAULT_PROFILE_DIR = "/etc/slurm_dl/profiles"
ENVIRONMENT = "SLURM_DL_CONFIG"

DEFAULT_SKEW_THRESHOLD = 0.4
"""Where the scheme has none of its own. As `slurm_dl.placement.consolidate` has it."""

_NEAR_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """The site's choices.

    Attributes:
        qos: QOS of the jobs that may be preempted; None if the site names none.
        native: Slurm itself preempts inside it.
        max_grace_s: A job that asks for a longer grace is not preempted, seconds; inf if not known.
        partitions: Partitions whose jobs dlschedd looks after.
        locality_wait_s: How long a job waits for few switches, seconds; 0 if the site's scheme of
            placement knows no such wait.
        skew_threshold: From which skew on a model's jobs wait for them.
        settle_s: How long new jobs are put off so that they are placed before Slurm starts them,
            seconds; 0 where nobody steers them.
        profile_dir: Directory of the site's own profiles.
        trouble: Why the configuration could not be used; empty if it could.
    """

    qos: str | None = None
    native: bool = False
    max_grace_s: float = math.inf
    partitions: frozenset[str] = frozenset()
    locality_wait_s: float = 0.0
    skew_threshold: float = DEFAULT_SKEW_THRESHOLD
    settle_s: float = 0.0
    profile_dir: Path = Path(DEFAULT_PROFILE_DIR)
    trouble: str = ""


def read_site(environ: Mapping[str, str]) -> SiteSettings:
    """The site's choices, from the file that `slurm_dl.config` finds."""
    path = Path(environ.get(ENVIRONMENT) or DEFAULT_PATH)
    if not _is_readable(path):
        return SiteSettings()
    from slurm_dl.config import load  # noqa: PLC0415 - pydantic, YAML and NumPy: 0.2 s

    try:
        config = load(path)
    except ConfigError as err:
        first = str(err).partition("\n")[0]
        return SiteSettings(trouble=f"the site's configuration is not used: {first}")
    placement = config.placement
    return SiteSettings(
        qos=config.preemption.qos or None,
        native=config.preemption.mode == "native",
        max_grace_s=config.preemption.max_grace_s,
        partitions=frozenset(config.manage.partitions),
        locality_wait_s=_number(placement.parameters, "locality_wait_s", 0.0),
        skew_threshold=_number(placement.parameters, "skew_threshold", DEFAULT_SKEW_THRESHOLD),
        settle_s=placement.settle_s if placement.steer or config.holds else 0.0,
        profile_dir=config.paths.profile_dir,
    )


def find_profile(model: str, at_site: SiteSettings) -> tuple[Profile | None, str]:
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
        if _is_open(at_site.profile_dir):
            own = load_profiles(at_site.profile_dir, reader="user")
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


def _number(parameters: Mapping[str, object], name: str, default: float) -> float:
    value = parameters.get(name, default)
    return float(value) if isinstance(value, int | float) else default


def _is_open(directory: Path) -> bool:
    try:
        return directory.is_dir()
    except OSError:  # A directory above it is closed.
        return False


def _is_readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return True
    except OSError:
        return False
