"""A start while Slurm is silent: the daemon waits for it rather than end.

Where Slurm itself preempts, or may still do so, its settings are looked up before anything is
written. After a power cut slurmctld may take longer than a service manager goes on restarting us.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from structlog.typing import FilteringBoundLogger

from slurm_dl.apps.notify import notify
from slurm_dl.apps.pace import back_off_s
from slurm_dl.model.errors import ClusterError

if TYPE_CHECKING:
    from slurm_dl.config import Config

_P = TypeVar("_P")

LONGEST_WAIT_S = 60.0

_COMMANDS = 4
"""More Slurm commands than one try needs, each of which cluster.timeout_s cuts short."""


def when_slurm_answers(
    assemble: Callable[[Config], _P],
    config: Config,
    log: FilteringBoundLogger,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> _P:
    """What *assemble* gives, once Slurm answers it.

    Args:
        log: For people.
        sleep: Lets so many seconds pass.

    Raises:
        SlurmDlError: What *assemble* raises, but for a `ClusterError`.
    """
    failures = 0
    while True:
        try:
            return assemble(config)
        except ClusterError as err:
            failures += 1
            pause_s = min(LONGEST_WAIT_S, back_off_s(failures, config.daemon.poll_s))
            log.warning("waiting for Slurm", error=str(err), next_in_s=round(pause_s, 1))
            # Or systemd would end us for not being ready yet.
            more_s = pause_s + _COMMANDS * config.cluster.timeout_s
            notify(f"EXTEND_TIMEOUT_USEC={more_s * 1e6:.0f}", "STATUS=waiting for Slurm")
            sleep(pause_s)
