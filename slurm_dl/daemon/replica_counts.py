"""Replicas that services want, by rates that are read beside the loop.

The last lines of a file, or of a web server's answer, are ``epoch_s,requests_per_s``. Where they
cannot be read or are old, the last count stays.
"""

from __future__ import annotations

import os
import stat
import threading
import urllib.request
from http.client import HTTPException
from typing import Final

from structlog.typing import FilteringBoundLogger

from slurm_dl.config.replicas_section import WEB, ServiceEntry
from slurm_dl.engine.replicas import running_replicas
from slurm_dl.estimates.replicas import predicted_rate, rates_in, replicas_for
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.model.replicas import Replicas
from slurm_dl.model.snapshot import Snapshot

OLD_S: Final = 600.0  # A rate is believed for so long, and no further ahead, seconds
_TIMEOUT_S: Final = 5.0  # For each answer of a web server
_FIRST_WAIT_S: Final = 2.0  # The first look waits for its rate
_MOST_BYTES: Final = 65536  # Of a file from its end
_NO_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def read_rate(source: str) -> tuple[list[float], list[float]]:
    """Times (epoch seconds, ascending) and rates (requests per second) that *source* has now.

    Raises:
        ConfigError: It cannot be read, or has something else; one line.
    """
    try:
        data = _answer(source) if source.startswith(WEB) else _tail(source)
    except (OSError, HTTPException, ValueError) as err:
        msg = f"{source}: cannot be read: {getattr(err, 'strerror', None) or err}"
        raise ConfigError(msg) from None
    times_s, rates = rates_in(data.decode("utf-8", "replace"), source)
    if not times_s:
        msg = f"{source}: has no line epoch_s,requests_per_s"
        raise ConfigError(msg)
    return times_s, rates


def _answer(url: str) -> bytes:
    with _NO_PROXY.open(url, timeout=_TIMEOUT_S) as answer:
        data: bytes = answer.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        msg = f"more than {_MOST_BYTES} bytes"
        raise ValueError(msg)
    return data


def _tail(path: str) -> bytes:
    # A FIFO in its place must not keep the thread.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            msg = "is not a regular file"
            raise ValueError(msg)
        file.seek(max(0, status.st_size - _MOST_BYTES))
        data = file.read(_MOST_BYTES)
        cut = status.st_size > _MOST_BYTES
        return data.partition(b"\n")[2] if cut else data


class ReplicaCount:
    """Replicas that one service wants; its rate is read again beside each look.

    Args:
        log: Told once that the rate cannot be had, and once that it can again.
    """

    def __init__(self, name: str, service: ServiceEntry, log: FilteringBoundLogger) -> None:
        self.name = name
        self._service = service
        self._log = log
        self._thread: threading.Thread | None = None
        self._found: tuple[float, float, int] | str = "it was not read yet"
        self._failing = False
        self._count = 0
        self._rate_per_s: float | None = None

    def go_on(self, before: ReplicaCount) -> None:
        """Keep the count of *before* until a rate is read."""
        if before._count:
            self._count = self._bounded(before._count)
            self._rate_per_s = before._rate_per_s

    def look(self, snap: Snapshot) -> Replicas:
        """The service, as of the last read; begins another one."""
        before = self._thread
        if before is None or not before.is_alive():
            # It only reads: the process need not wait for it to end.
            self._thread = threading.Thread(target=self._read, name="replicas", daemon=True)
            self._thread.start()
            if before is None:
                self._thread.join(_FIRST_WAIT_S)
        found, jobs = self._found, self._jobs(snap)
        if not isinstance(found, str) and abs(snap.now_s - found[0]) > OLD_S:
            found = f"its last rate is of another time than now ({found[0] - snap.now_s:+.0f} s)"
        self._say(found if isinstance(found, str) else "")
        if not isinstance(found, str):
            _, self._rate_per_s, self._count = found
        elif not self._count:
            self._count = self._bounded(len(running_replicas(snap, jobs)))
        return Replicas(name=self.name, wanted=self._count, rate_per_s=self._rate_per_s, jobs=jobs)

    def _bounded(self, count: int) -> int:
        service = self._service
        return min(max(count, service.least_replicas), service.most_replicas)

    def _jobs(self, snap: Snapshot) -> tuple[JobId, ...]:
        service = self._service
        mine = (
            job_id
            for job_id, text in snap.seen.texts.items()
            if text.name == self.name
            and "_" in text.label
            and service.user in ("", text.user)
            and service.account.lower() in ("", text.account.lower())
        )
        return tuple(map(JobId, sorted(mine)))

    def _read(self) -> None:
        try:
            times_s, rates = read_rate(self._service.rate)
        except ConfigError as err:
            self._found = str(err)
            return
        level = self._service.level()
        # A period's rate is told at its end.
        period_s = (times_s[-1] - times_s[0]) / max(len(times_s) - 1, 1)
        rate = predicted_rate(times_s, rates, level.setup_s + 2 * period_s)
        self._found = (times_s[-1], rate, replicas_for(level, rate))

    def _say(self, trouble: str) -> None:
        failed, self._failing = self._failing, bool(trouble)
        if trouble and not failed:
            self._log.warning(
                "no rate of a service; its last count stays", service=self.name, because=trouble
            )
        elif failed and not trouble:
            self._log.info("the rate of a service is known again", service=self.name)
