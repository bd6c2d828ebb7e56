"""Whether the templates and the running daemon are in order."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from slurm_dl import __version__
from slurm_dl.doctor.check_result import CheckResult, check, error, ok, warning
from slurm_dl.doctor.controller_config import CannotTellError
from slurm_dl.doctor.site import Site
from slurm_dl.files import why_not_trusted
from slurm_dl.json_types import JsonObject, number
from slurm_dl.model.errors import ConfigError, SlurmDlError
from slurm_dl.submit import script_templates
from slurm_dl.text import ago

_DISK_FULL = ("database or disk is full", os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""What SQLite and the system say where there is no room left."""

_LATE_POLLS = 3
_LATE_LEAST_S = 60.0
_LONGEST_POLL_S = 3600.0
"""The most that daemon.poll_s can be."""


@check("templates")
def templates(site: Site) -> CheckResult:
    """There is something for dlsubmit to fill in."""
    # A user's own are nobody else's business.
    places = [p for p in script_templates.places(site.environ) if p.owner != "user"]
    names = [*script_templates.names(places), "_header"]
    seen = [script_templates.find(name, places) for name in names]
    broken = [f"{t.name}: {why}" for t in seen if (why := _trouble_with(t, site))]
    if broken:
        return error("; ".join(broken)[:400], "correct or remove the file")
    usable = [t for t in seen if not t.name.startswith("_")]
    if not usable:
        return error("dlsubmit finds no template", "install slurm_dl again")
    told = ", ".join(f"{t.name} ({t.owner})" for t in usable)
    used = Path(site.environ.get("SLURM_DL_TEMPLATES") or script_templates.SITE)
    config = site.known_config
    if config is not None and (configured := config.paths.template_dir) != used:
        return warning(
            f"{told}; dlsubmit looks in {used}, paths.template_dir is {configured}",
            f"set SLURM_DL_TEMPLATES={configured} for users (/etc/profile.d)",
        )
    return ok(told)


def _trouble_with(template: script_templates.FoundTemplate, site: Site) -> str:
    try:
        template.text()
    except ConfigError as err:
        return str(err)
    # Users' jobs run what stands there.
    if template.owner != "site":
        return ""
    return why_not_trusted(Path(template.path), {site.account.uid})


@check("daemon")
def daemon(site: Site) -> CheckResult:
    """It runs, and it is the one that is installed."""
    try:
        status = site.status
    except SlurmDlError as err:
        return warning(str(err), "systemctl start dlschedd, or dlschedd --shadow to try it")
    doing = str(status.get("doing") or "does not say what it does")
    runs = str(status.get("version") or "unknown")
    if runs != __version__:
        return warning(
            f"version {runs} runs, {__version__} is installed", "systemctl restart dlschedd"
        )
    if isinstance(paused := status.get("paused"), dict):
        reason = f": {paused.get('reason')}" if paused.get("reason") else ""
        return warning(f"paused by {paused.get('by')}{reason}", "dlctl resume, in time")
    return ok(doing)


@check("cycles")
def cycles(site: Site) -> CheckResult:
    """Its looks succeed, come in time, and what it does is written down."""
    try:
        status = site.status
    except SlurmDlError:
        msg = "dlschedd did not answer"
        raise CannotTellError(msg) from None
    if failing := _failing(status):
        return failing
    age = status.get("age_s")
    if not isinstance(age, int | float):
        return warning("it has not looked at the queue yet", "wait, then see dlctl status")
    config = site.known_config
    poll_s = _LONGEST_POLL_S if config is None else config.daemon.poll_s
    if age > max(_LATE_LEAST_S, _LATE_POLLS * poll_s):
        return warning(
            f"the last look was {ago(age)} ago, looks are to come every {poll_s:g} s",
            "see its log: Slurm may be slow",
        )
    told = f"number {number(status.get('cycles')):.0f}, {ago(age)} ago"
    actions = status.get("actions")
    refused = number(actions.get("failed")) if isinstance(actions, dict) else 0
    if refused:
        return warning(
            f"{told}; {refused:.0f} actions were refused since its start",
            "see 'action failed' in its log",
        )
    return ok(told)


def _failing(status: JsonObject) -> CheckResult | None:
    """What keeps it from its work; None: nothing."""
    if isinstance(audit := status.get("audit"), dict) and audit.get("error"):
        return error(
            f"the audit log cannot be written: {audit.get('error')}",
            "if its disk is full, make room there, or correct paths.audit_log; until then it only "
            "looks",
        )
    last = status.get("trouble")
    why = str(last.get("message")) if isinstance(last, dict) else "it does not say why"
    if failures := number(status.get("failures")):
        return error(
            f"{failures:.0f} looks in a row failed: {why}",
            "the disk of paths.state_dir is full: make room there, and it goes on by itself"
            if any(words in why for words in _DISK_FULL)
            else "it goes on by itself when Slurm answers",
        )
    if bugs := number(status.get("bugs")):
        return error(
            f"{bugs:.0f} cycles ended in a fault of dlschedd: {why}",
            "see its log, and report it with dlctl snapshot FILE",
        )
    return None
