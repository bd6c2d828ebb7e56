"""Clocks that are wrong or jump while a real hand-over is under way: nobody loses promised time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time

import pytest
from patience import eventually
from schedd import ROOT, Schedd

from slurm_dl.daemon.rate_limits import SLOW_DUMP_S

pytestmark = [pytest.mark.slurm, pytest.mark.full("waits out real quanta, graces and clock jumps")]

QUANTUM_S = 12
GRACE_S = 8
MAX_GRACE_S = 25
"""The longest thing that counts time here."""

# Writes down when it is signalled by the cluster's clock, and goes on: only a requeue ends it.
_STUBBORN = """\
#!/bin/bash
trap 'date +%s >> {directory}/signalled' USR1
while :; do sleep 0.2; done
"""

# slurmctld's own time is what sdiag prints: this one adds the seconds in a file to it.
_SDIAG = """\
#!{python}
import re, subprocess, sys
from pathlib import Path

text = subprocess.run(["{sdiag}"], capture_output=True, text=True, check=True).stdout
offset = int(Path("{offset}").read_text())
print(re.sub(r"\\((\\d+)\\)", lambda m: f"({{int(m[1]) + offset}})", text, count=1))
"""


def _configure(place: Schedd, **cluster: str) -> None:
    place.configure(
        cluster={"slurm_conf": place.box.env["SLURM_CONF"], **cluster},
        policy={"parameters": {"thresholds_gpu_s": [30, 5000]}},
        preemption={"min_quantum_s": QUANTUM_S, "max_grace_s": MAX_GRACE_S, "start_margin_s": 5},
    )


def _victim(place: Schedd) -> str:
    """A job that holds all GPUs, opted in, and gives none back by itself."""
    script = _STUBBORN.format(directory=place.home)
    job = _submit(place, script, "--nodes=4", "--time=60")
    place.until_state(job, "RUNNING")
    return job


def _beneficiary(place: Schedd) -> str:
    return _submit(place, "#!/bin/sh\nsleep 1\n", "--time=5")


def _submit(place: Schedd, script: str, *options: str) -> str:
    claim = {"slurm_dl": {"v": 1, "sig": "USR1", "to": "batch", "grace_s": GRACE_S}}
    argv = ["sbatch", "--parsable", "--gpus-per-node=4", "--requeue", "--output=/dev/null"]
    argv += [f"--comment={json.dumps(claim)}", *options]
    return str(place.box.run(argv, stdin=script).stdout).strip()


def _time(place: Schedd, job: str, field: str) -> float:
    """A time of a job by slurmctld's clock, epoch seconds."""
    argv = ["squeue", "-h", "-j", job, "-O", f"{field}:40"]
    text = place.box.run(["env", "SLURM_TIME_FORMAT=%s", *argv]).stdout
    return float(text)


def _is_put_back(place: Schedd, job: str) -> bool:
    """Once requeued; while it is completing Slurm shows the time of its old submission."""
    restarts, state = place.job(job, "Restarts", "JobState")
    return restarts == "1" and state != "COMPLETING"


def _signalled_s(place: Schedd) -> list[float]:
    path = place.home / "signalled"
    return [float(line) for line in path.read_text().split()] if path.exists() else []


def _slurmctld(place: Schedd) -> dict[str, object]:
    status = json.loads(place.ask("dlctl", "status", "--json").stdout)
    found: dict[str, object] = {**status["slurmctld"], "doing": status["doing"]}
    return found


@pytest.mark.parametrize(("first_s", "then_s"), [(3600, 7200), (-3600, 3600)])
def test_a_daemon_whose_clock_is_wrong_and_jumps_keeps_its_promises(
    place: Schedd, first_s: int, then_s: int
) -> None:
    """An hour off from the start, and another one in the middle of a grace."""
    skew = place.home / "skew"
    skew.write_text(str(first_s), encoding="ascii")
    place.command = [sys.executable, str(ROOT / "tools" / "chaos" / "skewed.py"), str(skew)]
    _configure(place)
    place.start()
    ahead_s = _slurmctld(place)["ahead_s"]
    assert isinstance(ahead_s, float)
    assert abs(ahead_s + first_s) < 3
    victim = _victim(place)
    started_s = _time(place, victim, "StartTime")
    _beneficiary(place)

    place.until("the signal", lambda: _signalled_s(place))
    skew.write_text(str(then_s), encoding="ascii")
    place.until("the requeue", lambda: _is_put_back(place, victim))

    (signalled_s,) = _signalled_s(place)
    # A requeue sets the submit time. Slurm's times are whole seconds.
    assert signalled_s - started_s >= QUANTUM_S - 1
    assert _time(place, victim, "SubmitTime") - signalled_s >= GRACE_S - 1
    place.stop()


def test_a_slurmctld_whose_clock_jumps_gets_nobody_stopped(place: Schedd) -> None:
    """The grace seems over: no requeue for a minimum quantum, and the status says why."""
    tools = place.home / "bin"
    tools.mkdir()
    for tool in ("squeue", "sinfo", "scontrol", "scancel", "sprio"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    offset = place.home / "offset"
    offset.write_text("0", encoding="ascii")
    text = _SDIAG.format(python=sys.executable, sdiag=shutil.which("sdiag"), offset=offset)
    (tools / "sdiag").write_text(text, encoding="utf-8")
    (tools / "sdiag").chmod(0o755)
    _configure(place, bin_dir=str(tools))
    place.start()
    victim = _victim(place)
    _beneficiary(place)
    place.until("the signal", lambda: _signalled_s(place))

    # Moved in one step, as a clock is: no look may find the file empty.
    other = place.home / "offset.new"
    other.write_text("3600", encoding="ascii")
    jumped_s = time.time()
    other.replace(offset)
    told = "no GPUs are taken back for"
    place.until("it to say so", lambda: told in str(_slurmctld(place)["doing"]))
    assert place.job(victim, "Restarts") == ["0"]
    place.until("the requeue", lambda: _is_put_back(place, victim))
    assert _time(place, victim, "SubmitTime") - jumped_s >= QUANTUM_S - 2
    (said,) = _said(place, "the clock jumped")
    assert "jumped forward by 60 min" in said
    place.stop()


def _said(place: Schedd, event: str) -> list[str]:
    """The lines of the daemon's log about *event*."""
    log = (place.home / "schedd.log").read_text(encoding="utf-8")
    return [line for line in log.splitlines() if event in line]


def test_a_slurmctld_that_hangs_is_looked_at_less_often(place: Schedd) -> None:
    """Frozen for longer than a listing may take, it is given time; then all is as before."""
    place.configure(daemon={"poll_s": 1, "fast_poll_s": 0.5, "slow_poll_s": 4, "shadow": True})
    place.start(mode="--shadow")
    assert _slurmctld(place)["poll_s"] == 1
    pid = int((place.box.directory / "run" / "slurmctld.pid").read_text())

    def freeze() -> bool:
        os.kill(pid, signal.SIGSTOP)
        try:
            end_s = time.monotonic() + SLOW_DUMP_S + 1.0
            eventually(lambda: time.monotonic() > end_s, 30.0, what="a listing to take long")
        finally:
            os.kill(pid, signal.SIGCONT)
        return bool(_said(place, "slurmctld is slow: looking less often"))

    place.until("it to look less often", freeze)
    assert "to list its jobs" in _said(place, "slurmctld is slow: looking less often")[0]
    place.until("it to look as before", lambda: _said(place, "looking as before"))
    place.until("that to be shown", lambda: _slurmctld(place)["poll_s"] == 1)
    place.stop()
