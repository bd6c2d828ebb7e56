"""Settings of a running Slurm that the daemon needs, and whether it can order the queue.

Slurm 22.05.8 loads a PrioritySiteFactorPlugin and yet shows ``(null)`` for it in ``scontrol show
config`` (measured), so it is read from slurm.conf where that can be read: dlschedd is meant to run
beside slurmctld. The file may have been changed since slurmctld read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_dl.slurm.releases import Release, parse_release, series_of
from slurm_dl.text import escaped

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


_SLURM_USER = re.compile(r"\(([0-9]{1,10})\)\Z", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_CRED_EXPIRE_S = 120
"""Slurm's own cred_expire, if AuthInfo names none."""


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """Settings of slurm.conf that the daemon needs; see `read_config`.

    Attributes:
        private: Words of PrivateData, in lower case: what ordinary users may not see of others.
        licences: Of each licence of the cluster's own how many jobs may hold, and how many are
            held; see `read_licences`.
        requeue_hold_s: How long a requeued job waits before it may start, seconds.
        unfit: Why Slurm would not order its queue by SiteFactor, and what to do; empty if it would.
    """

    release: Release
    tracks_memory: bool
    spreads_shares: bool = False
    private: frozenset[str] = frozenset()
    slurm_uid: int | None = None  # SlurmUser's uid; None if Slurm does not say
    accounting: bool = False  # There is a slurmdbd
    counts_gpus: bool = False  # Slurm accounts for GPUs, and tells of each job how many it holds
    enforced: frozenset[str] = frozenset()  # Words of AccountingStorageEnforce, in lower case
    licences: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    requeue_hold_s: float = _CRED_EXPIRE_S + 1
    unfit: str = ""


def config_values(text: str) -> dict[str, str]:
    """The settings in ``scontrol show config``, as it spells them.

    The first of two equal keys counts: what newer releases append has keys of its own.
    """
    values: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            values.setdefault(key.strip(), value.strip())
    return values


def options(text: str) -> dict[str, str]:
    """The words of a list such as ``defer,bf_window=60``, in lower case, and the value of each."""
    pairs = (word.strip().partition("=") for word in text.split(","))
    return {word.lower(): value for word, _, value in pairs if word}


def number_of(text: str, word: str) -> int | None:
    """The number that belongs to *word* in such a list; None if there is none."""
    value = options(text).get(word, "")
    return int(value) if _NUMBER.fullmatch(value) else None


def requeue_hold(values: Mapping[str, str]) -> tuple[int, str]:
    """Seconds that a requeued job waits before it may start, and the setting that says so.

    Raises:
        ClusterError: The version is not in *values*.
    """
    if series_of(parse_release(values.get("SLURM_VERSION", ""))).requeue_delay:
        delay_s = number_of(values.get("SchedulerParameters", ""), "requeue_delay")
        if delay_s is not None:
            return delay_s + 1, "SchedulerParameters=requeue_delay"
    expire_s = number_of(values.get("AuthInfo", ""), "cred_expire")
    return (_CRED_EXPIRE_S if expire_s is None else expire_s) + 1, "AuthInfo=cred_expire"


def partition_values(text: str) -> dict[str, dict[str, str]]:
    """The words of each partition in ``scontrol --oneliner show partition``, by its name."""
    records = [
        {key: value for key, equals, value in (w.partition("=") for w in line.split()) if equals}
        for line in text.split("\n")
    ]
    return {record["PartitionName"]: record for record in records if "PartitionName" in record}


def read_config(text: str, slurm_conf: str = "") -> SiteConfig:
    """The settings that the daemon needs, from ``scontrol show config``.

    Args:
        slurm_conf: Path of slurm.conf; empty: the one that *text* names.

    Raises:
        ClusterError: The version is not in it.
    """
    values = config_values(text)
    private = options(values.get("PrivateData", ""))
    slurm_user = _SLURM_USER.search(values.get("SlurmUser", ""))
    return SiteConfig(
        release=parse_release(values.get("SLURM_VERSION", "")),
        tracks_memory="MEMORY" in values.get("SelectTypeParameters", "").upper(),
        spreads_shares="LL_SHARED_GRES" in values.get("SelectTypeParameters", "").upper(),
        private=frozenset(private) - {"none", "(null)"},
        slurm_uid=int(slurm_user[1]) if slurm_user else None,
        accounting=values.get("AccountingStorageType", "").lower().endswith("slurmdbd"),
        counts_gpus="gres/gpu" in options(values.get("AccountingStorageTRES", "")),
        enforced=frozenset(options(values.get("AccountingStorageEnforce", ""))) - {"none"},
        licences=dict.fromkeys({values.get("Licenses", "(null)")} - {"(null)", ""}, (0.0, 0.0)),
        requeue_hold_s=requeue_hold(values)[0],
        unfit=why_unordered(values, site_factor_plugin(values, slurm_conf)),
    )


def why_unordered(values: Mapping[str, str], plugin: str) -> str:
    """The reason why Slurm ignores our SiteFactors, and the remedy; empty if it does not.

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
