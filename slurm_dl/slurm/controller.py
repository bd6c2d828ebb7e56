"""Settings, state and time of a running slurmctld, and whether it can order the queue.

Slurm 22.05.8 loads a PrioritySiteFactorPlugin and yet shows ``(null)`` for it in ``scontrol show
config`` (measured), so it is read from slurm.conf where that can be read: dlschedd is meant to run
beside slurmctld. The file may have been changed since slurmctld read it.

Of what ``sdiag`` prints everything is optional but the time: releases print more or less (22.05 to
26.05), and a number that is missing is unknown, not zero. Nothing in it comes from users but the
names in the table of RPCs by user, which is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.releases import Release, parse_release, series_of
from slurm_dl.slurm.tool_runner import Slurm
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
_CRED_EXPIRE_S = 120  # Slurm's own cred_expire, if AuthInfo names none


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


DUMP = "REQUEST_JOB_INFO"  # The RPC by which squeue reads the whole queue

_AT = re.compile(r"^sdiag output at .{0,60}\((\d{1,12})\)\s*$", re.MULTILINE | re.ASCII)
# Between and behind the figures newer releases have more of them (with enable_rpc_queue).
_RPC = re.compile(
    r"^[ \t]+(?P<name>[A-Z_]{1,60})[ \t]*\([ \t]*\d{1,6}\)[^\n]{0,80}?"
    r"\bcount:(?P<count>\d{1,18})\b[^\n]{0,80}?\btotal_time:(?P<total_us>\d{1,18})\b",
    re.MULTILINE | re.ASCII,
)
# The same words from 22.05 to 26.05.
_BACKFILLING = "obtained in the middle of backfilling"
_BY_TYPE = "statistics by message type"
_BY_USER = "statistics by user"
_LONGEST_CHARS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStatus:
    """One answer of slurmctld about itself; None where it does not say.

    Attributes:
        mean_cycle_s: How long they take in the mean since the last reset, seconds.
    """

    now_s: float  # Its clock when it answered, whole epoch seconds
    threads: int | None = None  # Threads that serve RPCs now; Slurm has 256 at most
    agent_queue: int | None = None  # Messages to nodes that wait to be sent
    dbd_queue: int | None = None  # Messages to slurmdbd that wait to be sent
    last_cycle_s: float | None = None  # How long the last cycle of its main scheduler took, seconds
    mean_cycle_s: float | None = None
    dumps: int = 0  # Times it has listed all jobs for anybody since the last reset
    dump_total_s: float = 0.0  # How long that took it in all, seconds
    backfilling: bool = False  # A pass of its backfill scheduler was under way

    def dump_s_since(self, before: ControllerStatus | None) -> float | None:
        """Mean seconds of one listing of all jobs since *before*; None if there was none.

        Slurm's own mean is over a day: an hour that was slow would make it slow until midnight.
        """
        dumps, total_s = self.dumps, self.dump_total_s
        if before is not None and before.dumps <= dumps and before.dump_total_s <= total_s:
            dumps, total_s = dumps - before.dumps, total_s - before.dump_total_s
        return total_s / dumps if dumps else None


def read_health(text: str) -> ControllerStatus:
    """Parse the output of ``sdiag``.

    Raises:
        ClusterError: It does not say what time it is.
    """
    text = text[:_LONGEST_CHARS]
    at = _AT.search(text)
    if at is None:
        msg = "sdiag: its answer does not begin with the time at slurmctld"
        raise ClusterError(msg)
    head, _, rest = text.partition(_BY_TYPE)
    dump = next(
        (m for m in _RPC.finditer(rest.partition(_BY_USER)[0]) if m["name"] == DUMP),
        None,
    )
    main = head.partition("Main schedule statistics")[2].partition("Backfilling stats")[0]
    return ControllerStatus(
        now_s=float(at[1]),
        threads=_number(head, "Server thread count"),
        agent_queue=_number(head, "Agent queue size"),
        dbd_queue=_number(head, "DBD Agent queue size"),
        last_cycle_s=_micros(main, "Last cycle"),
        mean_cycle_s=_micros(main, "Mean cycle"),
        dumps=int(dump["count"]) if dump else 0,
        dump_total_s=int(dump["total_us"]) / 1e6 if dump else 0.0,
        backfilling=_BACKFILLING in head,
    )


def rpcs_of(text: str) -> dict[str, tuple[int, float]]:
    """Each RPC by its name: how often it was served since the last reset, and for how long in all.

    Seconds. The part of ``sdiag``'s table that is by message type.
    """
    table = text[:_LONGEST_CHARS].partition(_BY_TYPE)[2].partition(_BY_USER)[0]
    return {m["name"]: (int(m["count"]), int(m["total_us"]) / 1e6) for m in _RPC.finditer(table)}


def _number(text: str, label: str) -> int | None:
    found = re.search(rf"^\s*{re.escape(label)}:\s*(\d{{1,12}})\s*$", text, re.MULTILINE | re.ASCII)
    return int(found[1]) if found else None


def _micros(text: str, label: str) -> float | None:
    found = _number(text, label)
    return None if found is None else found / 1e6


# Which of Slurm's controllers acts, as ``scontrol ping`` tells it.
#
# It lists them in the order of slurm.conf. A backup that stands by answers, too: of those that are
# UP the first one acts (seen on a pair of 22.05.8). While the backup waits for SlurmctldTimeout
# nobody does, and what is said here is who will.
_LINE = re.compile(r"^Slurmctld\([^)]*\) at (?P<host>\S+) is (?P<state>UP|DOWN)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ControllerHost:
    """One slurmctld: its host as slurm.conf names it, and whether it answers."""

    host: str
    is_up: bool


def read_ping(text: str) -> tuple[ControllerHost, ...]:
    """The controllers, in their order; lines that are none of them are passed over."""
    return tuple(ControllerHost(m["host"], m["state"] == "UP") for m in _LINE.finditer(text))


def controllers(slurm: Slurm) -> tuple[ControllerHost, ...]:
    """All controllers of the cluster.

    Raises:
        ClusterError: None of them answers, or the answer cannot be read.
    """
    found = read_ping(slurm.run("scontrol", "ping"))
    if not found:
        msg = "scontrol ping: the answer names no controller"
        raise ClusterError(msg)
    return found


def acting(found: tuple[ControllerHost, ...]) -> str:
    """The host of the one that acts; empty if none answers."""
    return next((c.host for c in found if c.is_up), "")


def same_host(one: str, other: str) -> bool:
    """Whether two names are one host's; one may have its domain and the other not."""
    one, other = one.casefold(), other.casefold()
    if "." in one and "." in other:
        return one == other
    return one.partition(".")[0] == other.partition(".")[0]
