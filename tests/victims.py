"""Jobs that a daemon takes GPUs from, for tests on a sandbox."""

from __future__ import annotations

from schedd import TOY, Schedd

STEPS = 240
"""Steps of `victim`."""

SLOW_FIRST = 'exec "$@" --step-s "$([ "${SLURM_RESTART_COUNT:-0}" = 0 ] && echo 1 || echo 0.02)"'
"""A first run of minutes, which no slow machine outlasts, and later ones of seconds."""


def sank(daemon: Schedd, job: str) -> bool:
    """The job has been ordered a second time, in the tier below the first."""
    return len(daemon.audit(action="set_site_factor", job=int(job), result="ok")) > 1


def victim(daemon: Schedd) -> str:
    """Submit a toy training on all GPUs that saves when asked and only then; the job id."""
    toy = [*TOY, "--steps", str(STEPS), "--checkpoint-every", "1000"]
    return daemon.submit(16, "sh", "-c", SLOW_FIRST, "sh", *toy, options=["--grace", "30"])
