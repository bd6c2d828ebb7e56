"""Whether Slurm is there, is one we know, and lets the account do its work."""

from __future__ import annotations

import math

from slurm_dl.doctor.check_result import CannotTellError, CheckResult, error, ok, warning
from slurm_dl.doctor.findings import Account, Findings, Missing, need
from slurm_dl.slurm.releases import NEWEST, Release, faults, no_preemption, series_of, unsupported

_CLOCK_WARN_S = 2.0
_CLOCK_ERROR_S = 30.0
_ROOT = 0
_BUCKET = 30
_READS = 10
_LOOKED_AT = frozenset({"all", "jobs", "nodes", "partitions", "reservations"})
"""What dlschedd looks at, in PrivateData's words."""
_ENOUGH = frozenset({"operator", "administrator"})


def reachable(found: Findings) -> CheckResult:
    """Nothing can be said of a Slurm that does not answer."""
    if isinstance(found.slurm, Missing):
        return error(
            found.slurm.why,
            "see that slurmctld runs (scontrol ping) and that cluster.slurm_conf and "
            "cluster.bin_dir are right",
        )
    asked = found.slurm
    if not asked.controller.values:
        return error("scontrol show config printed nothing that can be read", "run it by hand")
    name = asked.controller.values.get("clustername", "of unknown name")
    return ok(f"cluster {name} answered in {asked.after_s - asked.before_s:.2f} s")


def release(found: Findings) -> CheckResult:
    """Supported, tried, and without a fault that forbids preemption."""
    now = found.controller.release
    if why := unsupported(now):
        advice = (
            "watch it in shadow mode first, or use a later slurm_dl"
            if (now.major, now.minor) > NEWEST
            else "upgrade Slurm"
        )
        return warning(why, advice)
    if why := no_preemption(now):
        return error(why, "dlschedd orders the queue and preempts nobody until then")
    told = f"{now}, {_tried(now)}"
    notes = [fault.text for fault in faults(now)]
    return ok("; ".join([told, *notes]))


def _tried(now: Release) -> str:
    tried = series_of(now).tried
    if tried is None:
        return "supported by Slurm's documentation, not tried"
    return "tested" if tried == now else f"supported; tested with {tried}"


def reader(found: Findings) -> CheckResult:
    """What reads the queue: of the running daemon, else what one would begin with."""
    if not isinstance(found.status, Missing):
        now = found.status.get("reader")
        if isinstance(now, dict):
            return ok(f"dlschedd uses {now.get('name')}: {now.get('reason')}")
    config = found.known_config
    wanted = "auto" if config is None else config.cluster.reader
    if isinstance(found.reader, Missing) and wanted == "pyslurm" and found.controller.values:
        fitting = found.controller.series.pyslurm
        advice = f"pip install pyslurm=={fitting}, or " if fitting else ""
        return error(found.reader.why, f"{advice}cluster.reader: auto")
    choice = need(found.reader)
    return ok(f"{choice.reader}: {choice.reason}")


def clock(found: Findings) -> CheckResult:
    """Attained service is counted by our clock from Slurm's times."""
    theirs_s = found.controller.as_of_s
    asked = need(found.slurm)
    if theirs_s is None:
        msg = "slurmctld did not tell its time"
        raise CannotTellError(msg)
    # Slurm tells whole seconds, rounded down.
    off_s = max(asked.before_s - (theirs_s + 1), theirs_s - asked.after_s, 0.0)
    if off_s <= _CLOCK_WARN_S:
        return ok(f"this host and slurmctld agree to {max(off_s, 1.0):.0f} s")
    told = f"this host and slurmctld are {off_s:.0f} s apart: service is counted wrong"
    advice = "keep both hosts' clocks by NTP (chronyc tracking)"
    return error(told, advice) if off_s > _CLOCK_ERROR_S else warning(told, advice)


def rights(found: Findings) -> CheckResult:
    """SiteFactor, requeue and reservations take an Operator, SlurmUser or root."""
    account, controller = need(found.account), found.controller
    slurm_user, slurm_uid = controller.slurm_user
    who = f"{account.name} ({account.why})"
    if account.uid == slurm_uid:
        return ok(f"{who} is SlurmUser")
    if not controller.has_accounting:
        return error(
            f"{who} may not set SiteFactor: without slurmdbd only SlurmUser ({slurm_user}) and "
            "root may",
            f"run dlschedd as {slurm_user} (systemctl edit dlschedd), or set up slurmdbd",
        )
    if account.uid == _ROOT:
        return warning(
            f"{who} may do all, and dlschedd refuses to run as root where SlurmUser is not",
            "run it as an account of its own with AdminLevel=Operator",
        )
    level = need(found.admin_level)
    if level.lower() in _ENOUGH:
        return ok(f"{who} has AdminLevel {level}")
    what = f"has AdminLevel {level}" if level else "is no user of slurmdbd"
    return error(
        f"{who} {what}: it may not touch other users' jobs", _make_operator(account, level)
    )


def _make_operator(account: Account, level: str) -> str:
    verb = f"modify user {account.name} set" if level else f"add user {account.name} account=root"
    return f"sacctmgr {verb} adminlevel=Operator"


def private_data(found: Findings) -> CheckResult:
    """An account that PrivateData keeps from jobs of others sees an empty queue, and no error."""
    account, controller = need(found.account), found.controller
    hidden = [word for word in controller.options("PrivateData") if word in _LOOKED_AT]
    if not hidden:
        return ok("PrivateData hides no jobs, nodes, partitions or reservations")
    told = f"PrivateData={','.join(hidden)}"
    if _is_exempt(account, controller.slurm_user[1]):
        return ok(f"{told}: {account.name} sees all; users see their own jobs in dlqueue, too")
    if not controller.has_accounting:
        return error(
            f"{told}: without slurmdbd {account.name} ({account.why}) sees its own alone",
            f"run dlschedd as {controller.slurm_user[0]} (systemctl edit dlschedd), or "
            f"in slurm.conf: {controller.line_without('PrivateData', *hidden, none='none')}",
        )
    level = need(found.admin_level)
    if level.lower() in _ENOUGH:
        return ok(f"{told}: as {level} {account.name} sees all; users see their own in dlqueue")
    return error(
        f"{told}: {account.name} ({account.why}) sees its own alone: the queue looks empty",
        _make_operator(account, level),
    )


def partitions(found: Findings) -> CheckResult:
    """What is to be managed has to be there."""
    names = found.config.manage.partitions
    there = {p.name: p for p in need(found.partitions)}
    missing = [name for name in names if name not in there]
    if missing:
        known = ", ".join(sorted(there)) or "none"
        return error(
            f"no partition {', '.join(missing)} in Slurm; there are: {known}"[:300],
            "correct manage.partitions",
        )
    closed = [f"{n} is {there[n].text('State')}" for n in names if there[n].text("State") != "UP"]
    if closed:
        return warning(", ".join(closed), "scontrol update PartitionName=... State=UP, in time")
    return ok(f"{', '.join(names)} UP")


def accounting(found: Findings) -> CheckResult:
    """Slurm's accounting must know GPUs, or the past cannot be counted from it."""
    if not found.controller.has_accounting:
        return ok("no slurmdbd: no fair-share, and no history to count from")
    tracked = found.controller.text("AccountingStorageTRES").lower().split(",")
    if "gres/gpu" in tracked:
        return ok("slurmdbd, which knows GPUs (gres/gpu)")
    return warning(
        "AccountingStorageTRES has no gres/gpu: sacct does not know who held how many GPUs",
        f"in slurm.conf: {found.controller.line_with('AccountingStorageTRES', 'gres/gpu')}; then "
        "restart slurmctld",
    )


def enforcement(found: Findings) -> CheckResult:
    """In native mode everything hangs on who may use the QOS."""
    if not found.controller.has_accounting:
        return ok("no slurmdbd: nothing to enforce")
    enforced = found.controller.text("AccountingStorageEnforce")
    told = f"AccountingStorageEnforce={enforced or 'none'}"
    if not {"qos", "all"}.isdisjoint(enforced.lower().split(",")):
        return ok(told)
    if found.config.preemption.mode == "native":
        return warning(
            f"{told}: whoever likes may submit to QOS {found.config.preemption.qos}",
            "in slurm.conf: AccountingStorageEnforce=associations,limits,qos; then restart "
            "slurmctld",
        )
    return ok(told)


def job_records(found: Findings) -> CheckResult:
    """A job that ends between two looks must still be listed at the second."""
    age_s, poll_s = found.controller.whole("MinJobAge"), found.config.daemon.poll_s
    told = f"ended jobs are listed for {age_s} s (MinJobAge), a look comes every {poll_s:g} s"
    advice = f"in slurm.conf: MinJobAge={max(300, round(4 * poll_s))}; or lower daemon.poll_s"
    if age_s <= poll_s:
        return error(f"{told}: ends of jobs are missed", advice)
    if age_s < 2 * poll_s:
        return warning(f"{told}: one failed look misses ends of jobs", advice)
    return ok(told)


def call_limit(found: Findings) -> CheckResult:
    """Slurm's limit of calls makes an Operator's commands wait."""
    controller = found.controller
    if not controller.series.limits_calls:
        return ok("this release does not limit users' calls")
    if "rl_enable" not in controller.options("SlurmctldParameters"):
        return ok("users' calls are not limited (no rl_enable)")
    if _is_exempt(need(found.account), controller.slurm_user[1]):
        return ok("users' calls are limited, dlschedd's are not")
    config = found.config
    bucket = controller.option("SlurmctldParameters", "rl_bucket_size", _BUCKET)
    together = max(config.writes.rate_per_s * config.daemon.poll_s, config.writes.burst)
    most = max(1, bucket - _READS)
    told = f"up to {together:g} writes at once, {bucket} calls are allowed (rl_enable)"
    if together <= most:
        return ok(told)
    rate = math.floor(most / config.daemon.poll_s * 100) / 100
    wider = math.ceil(together) + _READS
    line = controller.line_with("SlurmctldParameters", "rl_bucket_size", wider)
    return warning(
        f"{told}: dlschedd's commands are made to wait",
        f"in slurm_dl.yaml: writes: {{rate_per_s: {max(rate, 0.01):g}, burst: {most}}}; or in "
        f"slurm.conf: {line}",
    )


def _is_exempt(account: Account, slurm_uid: int) -> bool:
    return account.uid in {_ROOT, slurm_uid}
