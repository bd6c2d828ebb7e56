"""Rights of our account to change and to see other users' jobs.

Slurm refuses an ordinary account each change by itself, which is seen. What is not seen is
PrivateData: without rights squeue answers with an empty queue and no error, as if every job had
ended. So rights are looked up beforehand.
"""

from __future__ import annotations

import os

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.running_config import SiteConfig
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped, user_name

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
