"""Where things lie in a sandbox's directory, and whether a directory can hold one at all.

Every way in which host, user or directory can be unfit is found here, before anything is started,
and said in one line.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_dl.files import replace_file, why_not_trusted
from slurm_dl.model.errors import ConfigError
from slurm_dl.sandbox.spec import SandboxSpec

RECORD_NAME: Final = "sandbox.json"
_PACKAGES: Final = "apt-get install slurmctld slurmd slurm-client munge"
_PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sinfo", "squeue", "scancel", "scontrol")
_ADMIN_DIRECTORIES: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")

# slurm.conf and gres.conf have no quoting: '%' is a pattern, '[' a range, '#' a comment.
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9/._+@-]+")
# sun_path holds 108 bytes, the last one a NUL.
_SOCKET_PATH_MAX: Final = 107


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below one sandbox's directory, which is absolute and without symbolic links."""

    directory: Path

    @property
    def record(self) -> Path:
        """Spec, id and ports: the file that makes a directory a sandbox."""
        return self.directory / RECORD_NAME

    @property
    def lock(self) -> Path:
        """Held by whoever starts or ends daemons."""
        return self.directory / ".lock"

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF names."""
        return self.directory / "slurm.conf"

    @property
    def slurmdbd_conf(self) -> Path:
        """What slurmdbd reads, root's alone."""
        return self.directory / "slurmdbd.conf"

    @property
    def database(self) -> Path:
        """The database server's data and socket, root's alone."""
        return self.directory / "database"

    @property
    def database_socket(self) -> Path:
        """Where the database server listens, and nowhere else."""
        return self.database / "mysqld.sock"

    @property
    def state(self) -> Path:
        """State of slurmctld, root's alone."""
        return self.directory / "state"

    @property
    def spool(self) -> Path:
        """The slurmds' spool directories."""
        return self.directory / "spool"

    @property
    def log(self) -> Path:
        """Logs, and what the daemons say before their log is open."""
        return self.directory / "log"

    @property
    def dev(self) -> Path:
        """Fake GPUs."""
        return self.directory / "dev"

    @property
    def run(self) -> Path:
        """One record for each process that was started, and Slurm's pid files."""
        return self.directory / "run"

    @property
    def munge(self) -> Path:
        """Munge's socket and seed."""
        return self.directory / "munge"

    @property
    def munge_socket(self) -> Path:
        """Munge's socket, open to every user."""
        return self.munge / "munge.sock"

    @property
    def munge_key(self) -> Path:
        """Munge's key, root's alone."""
        return self.directory / "munge.key"

    @property
    def jobs(self) -> Path:
        """Where commands run by default, so that any user's job can write its output."""
        return self.directory / "jobs"


def resolve(directory: str | os.PathLike[str]) -> Layout:
    """The layout of *directory*, whether it exists or not.

    Raises:
        ConfigError: An account other than root and the caller could write to it or replace it.
            Root, too, takes root's alone: sudo's word for who called is a variable, and whoever
            owns the directory could still write to it as root reads it.
    """
    _check_trusted(Path(directory))
    return Layout(Path(os.path.realpath(directory)))


def _check_trusted(directory: Path) -> None:
    try:
        why = why_not_trusted(directory, {os.geteuid()})
    except OSError as err:
        message = f"{directory}: {err.strerror}; run the same with sudo"
        raise ConfigError(message) from err
    if why:
        message = f"{why}; a sandbox's directory must be root's or your own, as must those above it"
        raise ConfigError(message)


def program(name: str) -> str:
    """Absolute path of a Slurm, munge or MariaDB program."""
    path = os.pathsep.join((os.environ.get("PATH", ""), *_ADMIN_DIRECTORIES))
    found = shutil.which(name, path=path)
    if found is None:
        message = f"{name} is not installed: {_PACKAGES}"
        raise ConfigError(message)
    return str(Path(found).absolute())


def is_installed(name: str) -> bool:
    """Whether this host has a program of this name."""
    try:
        program(name)
    except ConfigError:
        return False
    return True


def check_host() -> None:
    """Raise ConfigError unless this host and user can run Slurm's daemons."""
    if os.geteuid() != 0:
        message = "the sandbox starts Slurm's daemons and needs root: run the same with sudo"
        raise ConfigError(message)
    missing = [name for name in _PROGRAMS if not is_installed(name)]
    if missing:
        message = f"not installed: {', '.join(missing)}; {_PACKAGES}"
        raise ConfigError(message)


def slurmd_release() -> tuple[int, int]:
    """Year and month of the installed slurmd's release, such as (22, 5).

    Raises:
        ConfigError: It does not tell.
    """
    argv = [program("slurmd"), "-V"]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stdout
    found = re.search(r" (\d\d)\.(\d\d)", said)
    if found is None:
        message = f"'{' '.join(argv)}' names no release of Slurm: {said[:200]!r}"
        raise ConfigError(message)
    return int(found[1]), int(found[2])


def has_only_loopback() -> bool:
    """True on a host with no address but 127.0.0.1, where AI_ADDRCONFIG, as Slurm asks, fails."""
    try:
        socket.getaddrinfo("127.0.0.1", None, socket.AF_INET, flags=socket.AI_ADDRCONFIG)
    except socket.gaierror:
        return True
    return False


def check_directory(layout: Layout, spec: SandboxSpec) -> None:
    """Raise ConfigError unless a new sandbox can be made in the directory."""
    directory = layout.directory
    if not _PLAIN_PATH.fullmatch(str(directory)):
        message = (
            f"directory {str(directory)!r}: Slurm's files cannot hold this name;"
            " use letters, digits and any of / . _ + @ -"
        )
        raise ConfigError(message)
    _check_socket_paths(layout, spec)
    if directory.exists() and not directory.is_dir():
        message = f"{directory} is not a directory; name one that is new or empty"
        raise ConfigError(message)
    # What a broken-off start can have left before its record is not foreign.
    own = {layout.lock.name, f"{RECORD_NAME}.new"}
    if directory.exists() and any(entry.name not in own for entry in directory.iterdir()):
        message = f"{directory} is not empty and not a sandbox; name one that is new or empty"
        raise ConfigError(message)
    check_path(directory)


def check_path(directory: Path) -> None:
    """Raise ConfigError unless every user can get to *directory* and only root can replace it.

    Root starts and ends processes by what lies there; munged asks for the same.
    """
    _check_trusted(directory)
    for path in directory.parents:
        if path.exists() and not path.stat().st_mode & stat.S_IXOTH:
            message = (
                f"other users cannot enter {path}, so their jobs could not run in {directory}:"
                f" choose a directory such as /srv/sandbox, or chmod o+x {path}"
            )
            raise ConfigError(message)


def make_directory(path: Path, mode: int) -> None:
    """Make *path* with exactly *mode*, whatever the umask; missing parents are open to all."""
    if not path.parent.exists():
        make_directory(path.parent, 0o755)
    path.mkdir(exist_ok=True)
    path.chmod(mode)


def make_tree(layout: Layout, spec: SandboxSpec) -> None:
    """Make the directories, munge's key and the fake GPUs that are missing."""
    make_directory(layout.state, 0o700)
    for path in (layout.spool, layout.log, layout.dev, layout.run, layout.munge):
        make_directory(path, 0o755)
    make_directory(layout.jobs, 0o1777)
    if spec.start_slurmd:
        for name in spec.node_names:
            make_directory(layout.spool / name, 0o755)
        _make_gpus(layout, max(group.all_gpus() for group in spec.groups))
    _make_key(layout.munge_key)


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write *text* so that *path* holds the whole of it or what it held before."""
    with replace_file(path, mode=mode, durable=False) as file:
        file.write(text.encode())
        # Others read some of them, whatever the umask.
        os.fchmod(file.fileno(), mode)


def _check_socket_paths(layout: Layout, spec: SandboxSpec) -> None:
    # slurmstepd's socket: spool/NODE/NODE_JOBID.STEPID, with at most 8 and 10 digits.
    node = spec.node_names[-1]
    longest = max(
        f"{layout.spool}/{node}/{node}_67043328.4294967291",
        f"{layout.munge_socket}.lock",
        key=len,
    )
    excess = len(longest) - _SOCKET_PATH_MAX
    if excess > 0:
        message = (
            f"directory {layout.directory}: its name is {excess} characters too long"
            " for the unix sockets in it; choose a shorter one such as /srv/sandbox"
        )
        raise ConfigError(message)


def _make_gpus(layout: Layout, count: int) -> None:
    for index in range(count):
        path = layout.dev / f"gpu{index}"
        if path.exists():
            continue
        try:
            # The null device under another name: Slurm only asks whether it is a device.
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError as err:
            message = (
                f"cannot make the device file {path} for a fake GPU (mknod is not permitted here):"
                " in a container add the capability MKNOD, or use groups without GPUs"
            )
            raise ConfigError(message) from err
        path.chmod(0o666)


def _make_key(path: Path) -> None:
    if not path.exists():
        with replace_file(path, mode=0o400, durable=False) as file:
            file.write(os.urandom(1024))
