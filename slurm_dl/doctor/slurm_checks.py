"""Whether Slurm is there, is one we know, and lets the account do its work."""

from __future__ import annotations

import contextlib

from slurm_dl.daemon.control.client import DaemonError
from slurm_dl.doctor.controller_config import CannotTellError
from slurm_dl.doctor.site import CheckResult, Site, check, error, ok, warning
from slurm_dl.model.errors import ClusterError, SlurmDlError
from slurm_dl.slurm.preflight import ENOUGH, to_operator
from slurm_dl.slurm.pyslurm.reader import PyslurmQueue
from slurm_dl.slurm.releases import (
    NEWEST,
    faults,
    no_preemption,
    parse_release,
    series_of,
    unsupported,
)

_CLOCK_WARN_S = 2.0
_CLOCK_ERROR_S = 30.0
_ROOT = 0
_LOOKED_AT = frozenset({"all", "jobs", "nodes", "partitions", "reservations"})
"""What dlschedd looks at, in PrivateData's words."""


@check("configuration")
def configuration(site: Site) -> CheckResult:
    """The file says what it is to say, and only root could have written it."""
    if not isinstance(site.file, tuple):
        return ok(str(site.config_path))
    first, *others = site.file
    if not others:
        return error(first, "correct it; dlschedd does not start like this")
    return error(f"{first} (and {len(others)} more)", "dlctl check-config names all mistakes")


@check("slurm")
def reachable(site: Site) -> CheckResult:
    """Nothing can be said of a Slurm that does not answer."""
    try:
        reply = site.reply
    except SlurmDlError as err:
        return error(
            str(err),
            "see that slurmctld runs (scontrol ping) and that cluster.slurm_conf and "
            "cluster.bin_dir are right",
        )
    if not reply.controller.values:
        return error("scontrol show config printed nothing that can be read", "run it by hand")
    name = reply.controller.values.get("ClusterName", "of unknown name")
    return ok(f"cluster {name} answered in {reply.after_s - reply.before_s:.2f} s")


@check("release")
def release(site: Site) -> CheckResult:
    """Supported, tried, and without a fault that forbids preemption."""
    now = site.controller.release
    if why := unsupported(now):
        advice = (
            "watch it in shadow mode first, or use a later slurm_dl"
            if (now.major, now.minor) > NEWEST
            else "upgrade Slurm"
        )
        return warning(why, advice)
    if why := no_preemption(now):
        return error(why, "dlschedd orders the queue and preempts nobody until then")
    told, tried = "supported by Slurm's documentation, not tried", series_of(now).tried
    if tried is not None:
        told = "tested" if tried == now else f"supported; tested with {tried}"
    notes = [fault.text for fault in faults(now)]
    return ok("; ".join([f"{now}, {told}", *notes]))


@check("reader")
def reader(site: Site) -> CheckResult:
    """What reads the queue: of the running daemon, else what one would begin with."""
    with contextlib.suppress(DaemonError):
        if isinstance(now := site.status.get("reader"), dict):
            return ok(f"dlschedd uses {now.get('name')}: {now.get('reason')}")
    config = site.known_config
    version = site.controller.values.get("SLURM_VERSION", "")
    if config is None or config.cluster.reader == "cli":
        return ok("cli: cluster.reader is cli")
    try:
        with contextlib.closing(PyslurmQueue(site.slurm)) as queue:
            return ok(f"pyslurm {queue.check(parse_release(version))}")
    except ClusterError as err:
        fitting = site.controller.series.pyslurm
        advice = f"pip install pyslurm=={fitting}, or " if fitting else ""
        return error(str(err), f"{advice}cluster.reader: cli")


@check("partitions")
def partitions(site: Site) -> CheckResult:
    """What is to be managed has to be there."""
    names = site.config.manage.partitions
    there = site.partitions
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


@check("rights")
def rights(site: Site) -> CheckResult:
    """SiteFactor, requeue and reservations take an Operator, SlurmUser or root."""
    account, controller = site.account, site.controller
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
    level = site.admin_level
    if level.lower() in ENOUGH:
        return ok(f"{who} has AdminLevel {level}")
    what = f"has AdminLevel {level}" if level else "is no user of slurmdbd"
    return error(
        f"{who} {what}: it may not touch other users' jobs", to_operator(account.name, level)
    )


@check("private data")
def private_data(site: Site) -> CheckResult:
    """An account that PrivateData keeps from jobs of others sees an empty queue, and no error."""
    account, controller = site.account, site.controller
    hidden = [word for word in controller.options("PrivateData") if word in _LOOKED_AT]
    if not hidden:
        return ok("PrivateData hides no jobs, nodes, partitions or reservations")
    told = f"PrivateData={','.join(hidden)}"
    if is_exempt(site):
        return ok(f"{told}: {account.name} sees all; users see their own jobs in dlqueue, too")
    if not controller.has_accounting:
        return error(
            f"{told}: without slurmdbd {account.name} ({account.why}) sees its own alone",
            f"run dlschedd as {controller.slurm_user[0]} (systemctl edit dlschedd), or "
            f"in slurm.conf: {controller.line_without('PrivateData', *hidden, none='none')}",
        )
    level = site.admin_level
    if level.lower() in ENOUGH:
        return ok(f"{told}: as {level} {account.name} sees all; users see their own in dlqueue")
    return error(
        f"{told}: {account.name} ({account.why}) sees its own alone: the queue looks empty",
        to_operator(account.name, level),
    )


def is_exempt(site: Site) -> bool:
    """Whether the account is root or SlurmUser, whom Slurm neither limits nor hides jobs from."""
    return site.account.uid in {_ROOT, site.controller.slurm_user[1]}


@check("clock")
def clock(site: Site) -> CheckResult:
    """Attained service is counted by our clock from Slurm's times."""
    _, reply = site.controller, site.reply
    theirs_s = reply.as_of_s
    if theirs_s is None:
        msg = "slurmctld did not tell its time"
        raise CannotTellError(msg)
    # Slurm tells whole seconds, rounded down.
    off_s = max(reply.before_s - (theirs_s + 1), theirs_s - reply.after_s, 0.0)
    if off_s <= _CLOCK_WARN_S:
        return ok(f"this host and slurmctld agree to {max(off_s, 1.0):.0f} s")
    told = f"this host and slurmctld are {off_s:.0f} s apart: service is counted wrong"
    advice = "keep both hosts' clocks by NTP (chronyc tracking)"
    return error(told, advice) if off_s > _CLOCK_ERROR_S else warning(told, advice)
