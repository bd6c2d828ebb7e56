"""What dlschedd starts with: who observes its cycles, and waiting for a Slurm that is silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from slurm_dl.config.tree import Config
from slurm_dl.daemon.forecast_service import forecasts_of_daemon
from slurm_dl.daemon.observers import Observer
from slurm_dl.daemon.rate_limits import back_off_s
from slurm_dl.daemon.systemd_notify import notify
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.errors import ClusterError
from slurm_dl.shadow.recorder import ShadowRecorder


def observers_of(ledger: Callable[[], Ledger]) -> tuple[Observer, ...]:
    """Who is told of each cycle of one turn, beside the log; made anew for each turn.

    Whoever asks for this turn's forecasts gets those that are made here.

    Args:
        ledger: The ledger in use; a reload opens another one.
    """
    # Those of an earlier turn have a score that another host has gone on with since.
    forecasts_of_daemon.cache_clear()
    forecasts = forecasts_of_daemon()
    forecasts.ledger = ledger
    return (ShadowRecorder(ledger), forecasts)


# A start while Slurm is silent: the daemon waits for it rather than end.
#
# Where Slurm itself preempts, or may still do so, its settings are looked up before anything is
# written. After a power cut slurmctld may take longer than a service manager goes on restarting us.
_P = TypeVar("_P")

LONGEST_WAIT_S = 60.0
_COMMANDS = 4  # More Slurm commands than one try needs, each of which cluster.timeout_s cuts short


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
