"""Settings that are read from slurm.conf itself, because Slurm's tools do not print them.

Slurm 22.05.8 loads a PrioritySiteFactorPlugin and yet shows ``(null)`` for it in ``scontrol show
config`` (measured), so the file has the word where it can be read: dlschedd is meant to run beside
slurmctld. It may have been changed since slurmctld read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

PLUGIN = "PrioritySiteFactorPlugin"

NO_PLUGIN = frozenset({"", "(null)", "none", "site_factor/none"})
"""How Slurm writes, in lower case, that nobody else sets SiteFactors."""

_SETTING = re.compile(r"^\s*([A-Za-z]\w*)\s*=\s*([^\s#]+)", re.ASCII)
_INCLUDE = re.compile(r"^\s*include\s+([^\s#]+)", re.ASCII | re.IGNORECASE)
_LONGEST_BYTES = 16 << 20


def settings_in(path: Path, *, depth: int = 2) -> dict[str, str]:
    """The first setting of each line, by key in lower case; the last of two equal keys counts.

    A file that cannot be read has none.

    Args:
        depth: How deep included files are followed.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        # ValueError: a name with a NUL in it.
        return {}
    settings: dict[str, str] = {}
    for line in text.split("\n"):
        if depth and (include := _INCLUDE.match(line)):
            settings |= settings_in(path.parent / include[1], depth=depth - 1)
        elif setting := _SETTING.match(line):
            settings[setting[1].lower()] = setting[2]
    return settings


def site_factor_plugin(values: Mapping[str, str], slurm_conf: str) -> str:
    """The plug-in that sets SiteFactors, by what scontrol shows, else by the file.

    Args:
        values: Of ``scontrol show config``, with keys as it spells them.
        slurm_conf: Path of slurm.conf; empty: the one that *values* name.

    Returns:
        Its name; empty if there is none.
    """
    shown = values.get(PLUGIN, "")
    if shown.lower() not in NO_PLUGIN:
        return shown
    path = slurm_conf or values.get("SLURM_CONF", "")
    told = settings_in(Path(path)).get(PLUGIN.lower(), "") if path else ""
    return "" if told.lower() in NO_PLUGIN else told
