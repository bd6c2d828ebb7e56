"""What of a running Slurm's settings the daemon must know, and whether it can order the queue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_dl.slurm.releases import Release, parse_release
from slurm_dl.slurm.slurm_conf import site_factor_plugin
from slurm_dl.text import escaped

_SLURM_USER = re.compile(r"\(([0-9]{1,10})\)\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """What of slurm.conf the daemon must know; see `read_config`.

    Attributes:
        private: Words of PrivateData, in lower case: what ordinary users may not see of others.
        slurm_uid: SlurmUser's uid; None if Slurm does not say.
        accounting: There is a slurmdbd.
        unfit: Why Slurm would not order its queue by SiteFactor, and what to do; empty if it would.
    """

    release: Release
    tracks_memory: bool
    spreads_shares: bool = False
    private: frozenset[str] = frozenset()
    slurm_uid: int | None = None
    accounting: bool = False
    unfit: str = ""


def config_values(text: str) -> dict[str, str]:
    """The settings in ``scontrol show config``, as it spells them."""
    pairs = (line.partition("=") for line in text.split("\n"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_config(text: str, slurm_conf: str = "") -> SiteConfig:
    """What the daemon needs of ``scontrol show config``.

    Args:
        slurm_conf: Path of slurm.conf; empty: the one that *text* names.

    Raises:
        ClusterError: The version is not in it.
    """
    values = config_values(text)
    private = (word.strip().lower() for word in values.get("PrivateData", "").split(","))
    slurm_user = _SLURM_USER.search(values.get("SlurmUser", ""))
    return SiteConfig(
        release=parse_release(values.get("SLURM_VERSION", "")),
        tracks_memory="MEMORY" in values.get("SelectTypeParameters", "").upper(),
        spreads_shares="LL_SHARED_GRES" in values.get("SelectTypeParameters", "").upper(),
        private=frozenset(private) - {"", "none", "(null)"},
        slurm_uid=int(slurm_user[1]) if slurm_user else None,
        accounting=values.get("AccountingStorageType", "").lower().endswith("slurmdbd"),
        unfit=why_unordered(values, site_factor_plugin(values, slurm_conf)),
    )


def why_unordered(values: Mapping[str, str], plugin: str) -> str:
    """Why Slurm would not order its queue by our SiteFactors, and what to do; empty if it would.

    Slurm itself says nothing: priority/basic takes a SiteFactor and ignores it, and a plug-in of
    the site's writes its own over ours. A setting that is not told is taken to be well.
    """
    kind = values.get("PriorityType", "")
    if kind and kind.lower() != "priority/multifactor":
        return (
            f"slurm.conf has PriorityType={escaped(kind)[:60]}, with which Slurm ignores "
            "SiteFactor; set PriorityType=priority/multifactor and restart slurmctld"
        )
    if plugin:
        return (
            f"slurm.conf has PrioritySiteFactorPlugin={escaped(plugin)[:60]}, which overwrites "
            "the SiteFactors that dlschedd sets; take it out and restart slurmctld"
        )
    return ""
