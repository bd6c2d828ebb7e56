"""The small configuration of users' commands: where the daemon is, the site's choices for jobs.

Lines ``KEY: VALUE`` in /etc/slurm_dl/client.yaml, on each host on which users work; lists have
commas. `dlctl client-config` writes it from the daemon's configuration, which users' commands never
read. It is read at every prompt: no pydantic, no YAML.
"""

from __future__ import annotations

import dataclasses
import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PATH = Path("/etc/slurm_dl/client.yaml")
ENVIRONMENT = "SLURM_DL_CLIENT"
SERVER_ENV = "SLURM_DL_SERVER"
SOCKET_ENV = "SLURM_DL_SOCKET"
SOCKET_NAME = "dlschedd.sock"  # In ``paths.run_dir`` of the daemon
_LONGEST = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The keys of the file.

    Attributes:
        server: ``HOST:PORT`` of each daemon, asked in this order; empty: the one on this host;
            ``ssh:HOST``: commands that ask it run on that host, by ssh.
        daemon_user: Account of the daemon, whose answers over TCP are believed, as root's are.
        max_grace_s: A job that asks for a longer grace is not preempted, seconds; inf if not known.
        locality_wait_s: How long a job waits for few switches, seconds; 0 if the site's scheme of
            placement knows no such wait.
        skew_threshold: From which skew on a model's jobs wait for them.
        settle_s: How long new jobs are put off so that they are placed before Slurm starts them,
            seconds; 0 where nobody steers them.
    """

    server: tuple[str, ...] = ()
    socket: str = f"/run/slurm_dl/{SOCKET_NAME}"  # Unix socket of the daemon on this host
    munge_socket: str = ""  # Socket of munged; empty: the usual one
    daemon_user: str = "slurm_dl"
    qos: str = ""  # QOS of the jobs that may be preempted; empty if the site names none
    native: bool = False  # Slurm itself preempts inside it
    max_grace_s: float = math.inf
    partitions: tuple[str, ...] = ()  # Partitions whose jobs dlschedd looks after
    locality_wait_s: float = 0.0
    skew_threshold: float = 0.4  # As `slurm_dl.placement.consolidate` has it.
    settle_s: float = 0.0
    sizes_settle_s: float = 0.0  # As settle_s, for jobs of several sizes; 0: none chooses a size
    profile_dir: str = "/etc/slurm_dl/profiles"  # Directory of the site's own profiles
    trouble: str = ""  # Why the file, or a line of it, is not used; empty if all is

    def text(self) -> str:
        """The file, without what is as usual."""
        lines = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                said = ", ".join(value) if isinstance(value, tuple) else str(value)
                said = f'"{said}"' if _plain(said) != said else said
                lines.append(f"{field.name}: {said}\n")
        return "".join(lines)


def read_client_config(environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """The file that SLURM_DL_CLIENT names, or the usual one; all as usual if there is none.

    SLURM_DL_SERVER and SLURM_DL_SOCKET come before what it says of the daemon.
    """
    named = environ.get(ENVIRONMENT)
    try:
        # A FIFO would hold up every command.
        descriptor = os.open(named or DEFAULT_PATH, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8-sig") as file:  # noqa: PTH123 - a descriptor
            text = file.read(_LONGEST) if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""
        config = parse(text)
    except (OSError, UnicodeError, ValueError) as err:
        why = getattr(err, "strerror", None) or "it is no text in UTF-8"
        config = ClientConfig(trouble=f"{named}: {why}" if named else "")
    if socket := environ.get(SOCKET_ENV):
        config = dataclasses.replace(config, server=(), socket=socket)
    elif server := environ.get(SERVER_ENV):
        config = dataclasses.replace(config, server=_names(server))
    return config


def parse(text: str) -> ClientConfig:
    """The configuration in *text*; a line that is not understood has no effect, and is told."""
    values: dict[str, object] = {}
    bad = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        key, colon, said = line.partition(":")
        key, said = key.strip(), said.strip()
        if not key or key.startswith("#"):
            continue
        try:
            if not (colon and _plain(said)):
                raise ValueError  # noqa: TRY301 - told below, as a wrong value is
            values[key] = _READERS[key](said)
        except (KeyError, ValueError):
            bad.append(f"line {number} ({key[:40]!r})")
    trouble = f"client.yaml: not understood: {', '.join(bad[:5])}" if bad else ""
    return ClientConfig(**values, trouble=trouble)  # type: ignore[arg-type]


def _plain(said: str) -> str:
    """A value without blanks, a comment behind it, and quotes around it."""
    said = said.strip()
    if said[:1] in {'"', "'"} and said.find(said[0], 1) > 0:
        return said[1 : said.index(said[0], 1)]
    return said.partition(" #")[0].rstrip()


def _names(said: str) -> tuple[str, ...]:
    if said.startswith("[") and said.endswith("]"):
        said = said[1:-1]
    return tuple(filter(None, map(_plain, said.split(","))))


def _truth(said: str) -> bool:
    return {"true": True, "false": False}[_plain(said).lower()]


def _seconds(said: str) -> float:
    if not (number := float(_plain(said))) >= 0:
        raise ValueError
    return number


_READERS: Mapping[str, Callable[[str], object]] = {
    field.name: {tuple: _names, bool: _truth, float: _seconds}.get(type(field.default), _plain)
    for field in dataclasses.fields(ClientConfig)
    if field.name != "trouble"
}
