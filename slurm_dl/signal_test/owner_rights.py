"""The files of a job with the rights of its owner, where an admin tries another user's job.

Paths in these files and links on the way are the owner's: as root they would lead anywhere. On a
file system that squashes root they could not be read either.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_dl.model.errors import ConfigError
from slurm_dl.signal_test.interrupts import unstopped


@contextmanager
def rights_of(uid: int | None) -> Iterator[None]:
    """Open, walk and change files as *uid*; if we are not root, or it is None or 0, as we are.

    Only the effective ids change, in all threads: nothing of the owner's may be run inside.

    Raises:
        ConfigError: *uid* has no account here.
    """
    if not uid or os.geteuid() != 0:
        yield
        return
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        msg = (
            f"the job's owner has no account here (uid {uid}), and root does not touch his "
            "files: let him run it, on a host that knows him"
        )
        raise ConfigError(msg) from None
    groups, group = os.getgroups(), os.getegid()
    theirs = os.getgrouplist(account.pw_name, account.pw_gid)
    with unstopped():
        try:
            os.setgroups(theirs)
            os.setegid(account.pw_gid)
            os.seteuid(uid)
            yield
        finally:
            os.seteuid(0)
            os.setegid(group)
            os.setgroups(groups)
