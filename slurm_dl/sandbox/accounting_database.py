"""A sandbox's accounting: a MariaDB of its own, slurmdbd before it, the cluster known to both.

The server listens on a socket alone, in a directory that is root's, and knows root by that socket:
there is no password, no port, and the host's own database is never touched.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Final

from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.sandbox import layout as layouts
from slurm_dl.sandbox import process_control
from slurm_dl.sandbox.layout import Layout

SERVER: Final = "mariadbd"
INSTALLER: Final = "mariadb-install-db"
_PACKAGES: Final = "apt-get install slurmdbd mariadb-server-core mariadb-client-core"
_PROGRAMS: Final = ("slurmdbd", "sacctmgr", "sacct", SERVER, INSTALLER, "my_print_defaults")
_INSTALL_S: Final = 120.0
# Small, and as slurmdbd wants it: it complains of a shorter wait for a row.
_SERVER_OPTIONS: Final = (
    "--skip-networking",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--performance-schema=OFF",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=64M",
    "--innodb-lock-wait-timeout=900",
    "--innodb-flush-log-at-trx-commit=2",
)


def check_host() -> None:
    """Raise ConfigError unless this host has the programs that accounting needs."""
    missing = [name for name in _PROGRAMS if not layouts.is_installed(name)]
    if missing:
        message = f"not installed: {', '.join(missing)}; {_PACKAGES}"
        raise ConfigError(message)


def slurmdbd_conf(layout: Layout, *, port: int, only_loopback: bool = False) -> str:
    """The text of slurmdbd.conf; *port* is where slurmdbd listens."""
    settings = {
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(port),
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "LogFile": f"{layout.log}/slurmdbd.log",
        "PidFile": f"{layout.run}/slurmdbd.pid",
        # "localhost" is the socket, for the library below slurmdbd; MYSQL_UNIX_PORT names it.
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": "slurm_acct_db",
        **({"CommunicationParameters": "EnableIPv6"} if only_loopback else {}),
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def slurm_conf_settings(layout: Layout, *, port: int) -> dict[str, str]:
    """What slurm.conf says where there is accounting; *port* is slurmdbd's."""
    return {
        "JobAcctGatherType": "jobacct_gather/linux",
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(port),
        # Not a password: the way to slurmdbd knows munge's socket from here, not from AuthInfo.
        "AccountingStoragePass": str(layout.munge_socket),
        "AccountingStorageTRES": "gres/gpu",
    }


def server_argv(layout: Layout) -> list[str]:
    """The server's program and arguments; no file of the host's configures it."""
    return [
        layouts.program(SERVER),
        "--no-defaults",
        "--user=root",
        f"--datadir={layout.database}/data",
        f"--socket={layout.database_socket}",
        f"--pid-file={layout.run}/mysqld.pid",
        *_SERVER_OPTIONS,
    ]


def prepare(layout: Layout) -> None:
    """Make the server's data directory, unless it is there.

    Raises:
        ClusterError: The server's own program for that failed.
    """
    layouts.make_directory(layout.database, 0o700)
    data = layout.database / "data"
    if data.exists():
        return
    new = layout.database / "data.new"
    shutil.rmtree(new, ignore_errors=True)
    process_control.run(
        [
            INSTALLER,
            "--no-defaults",
            "--user=root",
            f"--datadir={new}",
            "--auth-root-authentication-method=socket",
            "--auth-root-socket-user=root",
            "--skip-name-resolve",
            "--skip-test-db",
        ],
        _INSTALL_S,
        check=True,
        user=None,
        stdin="",
        cwd=layout.database,
        env={},
    )
    new.replace(data)


def server_answers(layout: Layout) -> bool:
    """Whether somebody accepts connections on the server's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(layout.database_socket))
        except OSError:
            return False
        return True


def slurmdbd_answers(run: Callable[[list[str]], CompletedProcess[str]]) -> bool:
    """Whether slurmdbd answers a question; *run* runs a command and raises where it fails."""
    try:
        run(["sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster"])
    except ClusterError:
        return False
    return True


def register(cluster: str, run: Callable[[list[str]], CompletedProcess[str]]) -> None:
    """Make the cluster known to slurmdbd, if it is not: slurmctld does not start without."""
    listed = run(["sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster"])
    if cluster not in listed.stdout.split():
        run(["sacctmgr", "--immediate", "add", "cluster", cluster])
