"""Whether this Slurm preempts by itself in the way that the native mode counts on.

Slurm says nothing of a setting that keeps it from preempting, or that makes it preempt within a
tier: so what it needs is looked up before anything is written. Each finding names the line to add.

Rights of our account are looked up beforehand too. Slurm refuses an ordinary account each change,
which is seen; but under PrivateData squeue answers it with an empty queue and no error, as if every
job had ended.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slurm_dl.engine.settings import Settings
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.controller import (
    SiteConfig,
    config_values,
    options,
    requeue_hold,
    site_factor_plugin,
)
from slurm_dl.slurm.read.grammar import span_s
from slurm_dl.slurm.releases import parse_release, series_of
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import duration, escaped, user_name

_BY_QOS = "preempt/qos"
_NEAR_POLLS = 2  # A run is seen, and its SiteFactor written, within so many polls

_RAW_FACTORS = ("Assoc", "Partition", "TRES")
"""What NO_NORMAL_* leaves as it is and differs inside a QOS. Slurm may show one of these flags as
NO_NORMAL_ALL, so it is not known which is set."""

_QOS_FIELDS = "name,preemptmode,gracetime,preemptexempttime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """One QOS, as far as preemption goes."""

    name: str
    modes: frozenset[str]  # Words of its PreemptMode, in lower case
    grace_s: float  # GraceTime, seconds
    exempt_s: float | None  # PreemptExemptTime, seconds; None: that of slurm.conf


def check_native(slurm: Slurm, *, qos: str, settings: Settings, poll_s: float) -> str:
    """Refuse a Slurm that is not set up for native preemption inside *qos*.

    Returns:
        The remark of `native_gaps`.

    Raises:
        ConfigError: Something is missing; one line for each thing.
        ClusterError: slurmctld is silent.
    """
    values = config_values(slurm.run("scontrol", "show", "config"))
    found, remark = native_gaps(slurm, values, qos=qos, settings=settings, poll_s=poll_s)
    if found:
        raise ConfigError("\n".join(f"preemption.mode: native: {line}" for line in found))
    return remark


def native_gaps(
    slurm: Slurm, values: Mapping[str, str], *, qos: str, settings: Settings, poll_s: float
) -> tuple[list[str], str]:
    """Settings that Slurm lacks for native preemption inside *qos*, a line each, and a remark.

    The remark says what could not be looked up, or keeps Slurm from preempting for now, in one
    line; empty if there is nothing to say.

    Args:
        values: Of ``scontrol show config``.

    Raises:
        ClusterError: The version is not in *values*.
    """
    found = [
        *_missing_in_slurm_conf(values, site_factor_plugin(values, slurm.slurm_conf)),
        *_missing_for_bands(values, settings.band_width),
        *_missing_for_requeue(values, poll_s),
    ]
    try:
        seen = _read_qos(slurm, qos)
    except ClusterError as err:
        return found, f"QOS {qos} is not checked: {err}"
    default_s = span_s(values.get("PreemptExemptTime", "")) or 0.0
    found += _missing_in_qos(seen, qos, settings, default_s=default_s, poll_s=poll_s)
    if seen is None or "within" in seen.modes:
        return found, ""
    # The order in which to switch it on: first the SiteFactors, then this.
    return found, (
        f"Slurm preempts nobody yet: once all SiteFactors are written, {_setting(qos)} "
        "PreemptMode=REQUEUE,WITHIN"
    )


def to_end_within(slurm: Slurm, qos: str) -> str:
    """The change that ends Slurm's preemption inside *qos*; empty if it does not preempt there.

    Raises:
        ClusterError: It cannot be found out.
    """
    return _to_end_within(slurm, qos, config_values(slurm.run("scontrol", "show", "config")))


def _to_end_within(slurm: Slurm, qos: str, values: Mapping[str, str]) -> str:
    if values.get("PreemptType", "").lower() != _BY_QOS:
        return ""
    # Slurm's own rule: the word in either place is enough (preempt_p_preemptable).
    if "within" in options(values.get("PreemptMode", "")):
        return "take WITHIN out of PreemptMode in slurm.conf"
    seen = _read_qos(slurm, qos)
    within = seen is not None and "within" in seen.modes
    return f"{_setting(qos)} PreemptMode=REQUEUE" if within else ""


def check_external(slurm: Slurm, qos: str) -> str:
    """Refuse a Slurm that would preempt inside *qos* while the daemon does so too.

    Running jobs lose the half band or the shield that kept others from displacing them.

    Returns:
        What could not be looked up, in one line; empty if there is nothing to say.

    Raises:
        ConfigError: Slurm preempts inside it.
        ClusterError: slurmctld is silent.
    """
    values = config_values(slurm.run("scontrol", "show", "config"))
    try:
        end = _to_end_within(slurm, qos, values)
    except ClusterError as err:
        return f"whether Slurm preempts inside QOS {qos} is not known: {err}"
    if end:
        msg = f"preemption.mode: external: Slurm itself still preempts inside QOS {qos}: {end}"
        raise ConfigError(msg)
    return ""


def _missing_in_slurm_conf(values: Mapping[str, str], plugin: str) -> Iterator[str]:
    for key, wanted in (
        ("AccountingStorageType", "accounting_storage/slurmdbd"),
        ("PriorityType", "priority/multifactor"),
        ("PreemptType", _BY_QOS),
    ):
        is_now = values.get(key, "")
        if is_now.lower() != wanted:
            yield f"slurm.conf has {key}={_shown(is_now)}; it needs the line {key}={wanted}"
    if "requeue" not in options(values.get("PreemptMode", "")):
        mode = _shown(values.get("PreemptMode", ""))
        yield f"slurm.conf has PreemptMode={mode}; it needs the line PreemptMode=REQUEUE"
    if "within" in options(values.get("PreemptMode", "")):
        yield (
            "slurm.conf has WITHIN in PreemptMode, so Slurm preempts inside every QOS, jobs that "
            "have not opted in too; it needs the line PreemptMode=REQUEUE"
        )
    release = parse_release(values.get("SLURM_VERSION", ""))
    signal = series_of(release).warn_signal
    if signal.word not in options(values.get(signal.key, "")):
        yield (
            f"jobs would get SIGTERM in place of their own signal; Slurm {release} needs "
            f"{signal.word} in slurm.conf's line {signal.key}="
        )
    if "incr_only" in options(values.get("PriorityFlags", "")):
        yield "slurm.conf has PriorityFlags=INCR_ONLY; priorities must be able to fall"
    if plugin:
        yield f"PrioritySiteFactorPlugin={_shown(plugin)} would overwrite our SiteFactors"


def _missing_for_bands(values: Mapping[str, str], band_width: int) -> Iterator[str]:
    weights = [v for k, v in values.items() if k.startswith("PriorityWeight")]
    total = sum(_weights(text) for text in weights)
    if 2 * total >= band_width:
        yield (
            f"ranking.band_width is {band_width} and must be more than twice what the site's "
            f"PriorityWeight settings add up to ({total}), or jobs of one tier would displace "
            "each other"
        )
    raw = any(word.startswith("no_normal") for word in options(values.get("PriorityFlags", "")))
    if raw and any(_weights(values.get(f"PriorityWeight{name}", "")) for name in _RAW_FACTORS):
        yield (
            f"slurm.conf has PriorityFlags={_shown(values['PriorityFlags'])}: factors that are not "
            "normalised have no upper bound, and jobs of one tier could displace each other; take "
            "NO_NORMAL_* out"
        )


def _weights(text: str) -> int:
    """The sum of a PriorityWeight setting, one number or one for each TRES."""
    return sum(int(n) for n in re.findall(r"(?:^|=)(\d+)", text))


def _missing_for_requeue(values: Mapping[str, str], poll_s: float) -> Iterator[str]:
    hold_s, setting = requeue_hold(values)
    if hold_s <= poll_s:
        yield (
            f"a requeued job may start after {hold_s} s ({setting} in slurm.conf), still "
            f"with the SiteFactor of a running one; daemon.poll_s ({poll_s:g}) must be less"
        )


def _missing_in_qos(
    seen: Qos | None, qos: str, settings: Settings, *, default_s: float, poll_s: float
) -> Iterator[str]:
    limits = settings.preemption
    needed_s = max(limits.min_quantum_s, _NEAR_POLLS * poll_s)
    needed = duration(math.ceil(needed_s))
    if seen is None:
        yield (
            f"there is no QOS {qos}: sacctmgr add qos {qos} PreemptMode=REQUEUE "
            f"GraceTime={limits.max_grace_s:.0f} PreemptExemptTime={needed}, and give "
            "it to the accounts"
        )
        return
    if seen.modes and "requeue" not in seen.modes:
        has = ",".join(sorted(seen.modes))
        yield f"QOS {qos} has PreemptMode {has}: {_setting(qos)} PreemptMode=REQUEUE"
    if seen.grace_s < limits.max_grace_s:
        yield (
            f"QOS {qos} has GraceTime {seen.grace_s:.0f} s, less than preemption.max_grace_s: "
            f"{_setting(qos)} GraceTime={limits.max_grace_s:.0f}, or lower preemption.max_grace_s"
        )
    exempt_s = default_s if seen.exempt_s is None else seen.exempt_s
    if exempt_s < needed_s:
        yield (
            f"QOS {qos} has PreemptExemptTime {exempt_s:.0f} s; it must be at least "
            f"preemption.min_quantum_s and {_NEAR_POLLS} x daemon.poll_s: "
            f"{_setting(qos)} PreemptExemptTime={needed}"
        )


def _setting(qos: str) -> str:
    return f"sacctmgr modify qos {qos} set"


def _read_qos(slurm: Slurm, qos: str) -> Qos | None:
    """The QOS of that name; None if there is none."""
    text = slurm.run("sacctmgr", "-nP", "show", "qos", f"format={_QOS_FIELDS}")
    for line in text.splitlines():
        name, _, rest = line.partition("|")
        if name.lower() != qos.lower():
            continue
        fields = rest.split("|")
        if len(fields) != _QOS_FIELDS.count(","):
            msg = f"sacctmgr says {escaped(line)[:80]!r}, which is no QOS"
            raise ClusterError(msg)
        modes, grace, exempt = fields
        return Qos(
            name=name,
            modes=frozenset(options(modes)) - {"cluster"},
            grace_s=span_s(grace) or 0.0,
            exempt_s=span_s(exempt),
        )
    return None


def _shown(value: str) -> str:
    return "nothing" if value in {"", "(null)"} else escaped(value)[:60]


ENOUGH = frozenset({"operator", "administrator"})
"""AdminLevels that may change everybody's jobs, in lower case."""

_ROOT = 0


def lacks_rights(slurm: Slurm, config: SiteConfig, *, uid: int | None = None) -> str | None:
    """The reason why our account may not change other users' jobs, with a remedy; empty if it may.

    Args:
        uid: Of the account; None: ours.

    Returns:
        None where slurmdbd does not tell: slurmctld knows, and goes on without it.
    """
    uid = os.geteuid() if uid is None else uid
    if uid in {_ROOT, config.slurm_uid}:
        return ""
    name = user_name(uid)
    if not config.accounting:
        return (
            f"account {name} may not change other users' jobs: without slurmdbd only SlurmUser and "
            "root may; run dlschedd as SlurmUser"
        )
    try:
        told = slurm.run("sacctmgr", "-nP", "show", "user", name, "format=AdminLevel")
    except ClusterError:
        return None
    if told.strip().lower() in ENOUGH:
        return ""
    has = f"has AdminLevel {escaped(told.strip())[:40]}" if told.strip() else "is not known to it"
    return (
        f"account {name} may not change other users' jobs: in slurmdbd it {has}; "
        f"{to_operator(name, told.strip())}"
    )


def to_operator(name: str, level: str) -> str:
    """The command that makes account *name* an Operator; *level* is empty if slurmdbd lacks it."""
    verb = f"modify user {name} set" if level else f"add user {name} account=root"
    return f"sacctmgr {verb} adminlevel=Operator"


def check_sight(config: SiteConfig, lacks: str | None) -> None:
    """Refuse a queue from which Slurm leaves other users' jobs out.

    Raises:
        ClusterError: It does.
    """
    if lacks and "jobs" in config.private:
        msg = f"PrivateData=jobs hides the queue from us: {lacks}"
        raise ClusterError(msg)
