"""Jobs that a daemon takes GPUs from, for tests on a sandbox."""

from __future__ import annotations

from schedd import TOY, Schedd

from slurm_dl.daemon.control.client import Client, DaemonError

STEPS = 240
"""Steps of `victim`."""

SLOW_FIRST = 'exec "$@" --step-s "$([ "${SLURM_RESTART_COUNT:-0}" = 0 ] && echo 1 || echo 0.02)"'
"""A first run of minutes, which no slow machine outlasts, and later ones of seconds."""


def sank(daemon: Schedd, job: str) -> bool:
    """By the daemon's last look the job is in a tier below the first; False while none answers."""
    try:
        rows = Client(daemon.socket).ask("queue")["jobs"]
    except DaemonError:
        return False
    assert isinstance(rows, list)
    return any(row["job"] == job and row["tier"] > 0 for row in rows)


def victim(daemon: Schedd) -> str:
    """Submit a toy training on all GPUs that saves when asked and only then; the job id."""
    toy = [*TOY, "--steps", str(STEPS), "--checkpoint-every", "1000"]
    return daemon.submit(16, "sh", "-c", SLOW_FIRST, "sh", *toy, options=["--grace", "30"])
