"""Jobs that anybody may submit, without GPUs, to stop the daemon for everybody else.

In each case two users attack while a third waits for GPUs that only the daemon gets back for it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest
from patience import eventually
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

ATTACKERS = ("games", "nobody")
GPUS = 4
POLLS = 2
"""Looks within which GPUs are taken back for the job that waits, beside the one under way."""

CLAIM = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 1, "by": "daemon"}})
ODD = (
    ("--array=0-98:2",),
    ("--array=1-9,11-98:3%2", "--comment=" + '{"slurm_dl":' * 9),
    ("--array=" + ",".join(map(str, range(0, 98, 2))), "--job-name=a\nJobId=1 \x1b[2J"),
    ("--array=0-49", "--begin=now+1hour", "--time=365-0"),
    ("--array=3,1,2", "--dependency=afterok:1", "--nice=2147483"),
    ("--array=0-48:3", "--exclude=n1\nn2", "--time-min=1"),
    ("--array=0-48:4", "--nodelist=n[1-2]", "--nodes=2", "--constraint=no|such"),
    ("--nodes=1-2", "--cpu-freq=low", "--deadline=now+2hours", "--licenses=x:1"),
    ("--array=0-98:7", "--reservation=slurm_dl_1", "--signal=B:USR1@60"),
    ("--array=0-98:8", "--wckey=*submitit", "--account=a b"),
    ("--gres=gpu:1", ":", "--gres=gpu:1"),
)
"""Options of sbatch; what Slurm refuses here it need not tell us of."""


@pytest.fixture
def place(make_sandbox: Callable[..., Sandbox], short_directory: Path) -> Iterator[Schedd]:
    """A daemon that acts, and a job that has sunk on all GPUs of the cluster."""
    more = ("MaxArraySize=2001", "MaxJobCount=20000")
    groups = (SandboxNodes(nodes=2, gpus=GPUS // 2),)
    box = make_sandbox(SandboxSpec(groups=groups, slurm_conf_extra=more))
    with schedd_in(box, short_directory) as daemon:
        daemon.configure(policy={"parameters": {"thresholds_gpu_s": [20, 100_000]}})
        daemon.start()
        yield daemon


def submit(place: Schedd, user: str, *options: str, script: str = "sleep 600") -> str:
    """A job of *user*; its id, empty if Slurm refuses it."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *options, f"--wrap={script}"]
    done = place.box.run(argv, check=False, user=None if user == "root" else user)
    return str(done.stdout).strip()


def cancelled(place: Schedd) -> None:
    """An array whose tasks go in steps, cancelled while it waits; Slurm lists it for minutes."""
    array = submit(place, "nobody", "--hold", "--array=0-98:2", "-n1", script="true")
    place.box.run(["scancel", array])


def racing(place: Schedd) -> None:
    """An array with a gap, of tasks that start and end as fast as Slurm can."""
    submit(place, "nobody", "--array=1-9,11-999:2", "--mem=1", "-n1", script="true")


def flood(place: Schedd) -> None:
    """Two thousand odd jobs of two users, a third of them cancelled."""
    users = cycle(ATTACKERS)
    with ThreadPoolExecutor(4) as pool:
        wanted = [(next(users), *ODD[n % len(ODD)]) for n in range(110)]
        jobs = [j for j in pool.map(lambda w: submit(place, w[0], "--mem=1", *w[1:]), wanted) if j]
    listed = place.box.run(["squeue", "-ahr", "-o", "%A"]).stdout.split()
    assert len(jobs) > len(wanted) / 2
    assert len(listed) >= 2000, len(listed)
    place.box.run(["scancel", *jobs[::3]])


@contextmanager
def repeated(act: Callable[[Schedd], object], place: Schedd, every_s: float) -> Iterator[None]:
    """*act* again and again, until the end of the block."""
    over = threading.Event()

    def again() -> None:
        while not over.wait(every_s):
            act(place)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("attack", "every_s"),
    [
        pytest.param(cancelled, 0.3, id="cancelled"),
        pytest.param(racing, 2.0, id="racing"),
        pytest.param(
            flood, 1e3, id="flood", marks=pytest.mark.full("submits a hundred jobs and arrays")
        ),
    ],
)
def test_no_attacker_keeps_gpus_from_others(
    place: Schedd, attack: Callable[[Schedd], None], every_s: float
) -> None:
    """No look fails, the job gets its GPUs, and everything can be given back to Slurm."""
    victim = submit(place, "root", f"--gres=gpu:{GPUS // 2}", "--nodes=2", f"--comment={CLAIM}")
    place.until_state(victim, "RUNNING")
    place.until("the victim to sink", lambda: '"tier": 1' in place.ask("dlqueue", "--json").stdout)
    attack(place)
    with repeated(attack, place, every_s):
        time.sleep(3)
        cycles = place.cycles()
        job = submit(place, "root", f"--gres=gpu:{GPUS // 2}", "--nodes=2", f"--comment={CLAIM}")
        place.until("GPUs to be taken back", lambda: place.audit(action="open_handover"))
        took = place.cycles() - cycles
        place.until_state(job, "RUNNING", within_s=30)
        status = json.loads(place.ask("dlctl", "status", "--json").stdout)
        place.ask("dlctl", "pause", "--reason", "test")
        released = place.ask("dlctl", "release-all", "--yes", check=False)
    log = (place.home / "schedd.log").read_text(encoding="utf-8")
    rss_kb = eventually(lambda: _rss_kb(place), 5)
    figures = {**status["durations_ms"], "looks": took, "rss_mib": rss_kb >> 10}
    print(attack.__name__, figures)  # noqa: T201 - pytest -s shows what an attack costs
    assert "poll failed" not in log
    assert "bug in" not in log
    assert took <= POLLS + 1
    # What changes all the time is left for the next try, and told; all else is released.
    told = released.stdout.splitlines()
    kept = [line for line in told if "skipped" in line or "refused" in line]
    assert released.returncode == (1 if kept else 0), released.stderr
    assert f"job {job}: SiteFactor=0" in told


def _rss_kb(place: Schedd) -> int:
    status = Path(f"/proc/{place.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])
